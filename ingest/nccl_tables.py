"""Tables in an NCCL log that take several lines: the cost table, and the matrix of what is allowed.

      Algorithm   |            Tree            |   Ring ...       three algorithms a block
      Protocol    |   LL | LL128 | Simple | ...
      AllReduce   | 15.2/ 43.6 | 31.5/128.8 | ...                 latency in us / bandwidth in GB/s

    Enabled NCCL Func/Proto/Algo Matrix:
     Function |  LL  LL128  Simple  |  Tree  Ring ...
    AllReduce |   0      0       1  |     1     1 ...           what the settings leave over

Rows of several processes may be interleaved. A row whose cells are not three for each algorithm was
cut: none of it counts, and its line number is kept in `torn`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ingest import nccl_names as names
from ingest.nccl_facts import Entry, Fact, Request

_HEAD = re.compile(r"^\s*Algorithm\s*\|(.*)$")
_ROW = re.compile(r"^\s*(Broadcast|Reduce|AllGather|ReduceScatter|AllReduce)\s*\|(.*)$")
_CELL = re.compile(r"\s*(\d{1,9}(?:\.\d+)?)/\s*(\d{1,9}(?:\.\d+)?)\s*")
_MATRIX_HEAD = re.compile(r"^\s*Function\s*\|(.*)\|(.*)$")
_FLAGS = re.compile(r"\s*[012](?:\s+[012])*\s*")
_MOST_TORN = 100
_MOST_PROCESSES = 4096


@dataclass(slots=True)
class Tables:
    """The heads of the tables that are open: by process for costs, one matrix at a time."""

    algorithms: dict[int | None, tuple[str, ...]] = field(default_factory=dict)
    columns: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    torn: tuple[int, ...] = ()

    def take(self, line: int, process: int | None, text: str) -> Iterator[Fact]:
        """Yield what a row says; a head opens a table."""
        if found := _HEAD.match(text):
            words = tuple(word.strip() for word in found[1].split("|") if word.strip())
            if process in self.algorithms or len(self.algorithms) < _MOST_PROCESSES:
                self.algorithms[process] = tuple(names.algorithm(word) for word in words)
        elif found := _MATRIX_HEAD.match(text):
            protocols, algorithms = (tuple(part.split()) for part in found.groups())
            self.columns = (
                tuple(names.protocol(word) for word in protocols),
                tuple(names.algorithm(word) for word in algorithms),
            )
        elif found := _ROW.match(text):
            function = names.function(found[1])
            if "/" in found[2]:
                yield from self._costs(line, process, function, found[2])
            else:
                yield from self._request(line, function, found[2])

    def _costs(self, line: int, process: int | None, function: str, row: str) -> Iterator[Entry]:
        algorithms = self.algorithms.get(process, ())
        cells = [_CELL.fullmatch(cell) for cell in row.split("|") if cell.strip()]
        if not algorithms or len(cells) != len(algorithms) * len(names.PROTOCOLS) or None in cells:
            self._tear(line)
            return
        places = [(a, p) for a in algorithms for p in names.PROTOCOLS]
        for (algorithm, protocol), cell in zip(places, cells, strict=True):
            if cell is not None:
                yield Entry(
                    function=function,
                    algorithm=algorithm,
                    protocol=protocol,
                    latency_us=float(cell[1]),
                    bandwidth_gb_s=float(cell[2]),
                    line=line,
                )

    def _request(self, line: int, function: str, row: str) -> Iterator[Request]:
        left, bar, right = row.partition("|")
        if (
            self.columns is None
            or not bar
            or not (_FLAGS.fullmatch(left) and _FLAGS.fullmatch(right))
        ):
            return
        protocols, algorithms = self.columns
        if len(left.split()) != len(protocols) or len(right.split()) != len(algorithms):
            self._tear(line)
            return
        yield Request(
            function=function,
            protocols=_set(protocols, left),
            algorithms=_set(algorithms, right),
            line=line,
        )

    def _tear(self, line: int) -> None:
        if len(self.torn) < _MOST_TORN:
            self.torn = (*self.torn, line)


def _set(words: tuple[str, ...], flags: str) -> frozenset[str]:
    return frozenset(word for word, flag in zip(words, flags.split(), strict=True) if flag != "0")
