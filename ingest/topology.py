"""`nvidia-smi topo -m`: how each pair of GPUs is joined, and the NUMA node of each.

NV# is NVLink; PIX, PXB, PHB, NODE and SYS are PCIe paths, the farther the later. A class is not a
speed: without peer access pairs under one switch may be slower than pairs across sockets.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ingest.conclusions import Conclusion, Seen, listed
from ingest.facts import Read
from ingest.log import Log

MOST_GPUS = 256
SIGN = re.compile(
    rb"^(?:\x1b\[\d*m)?\s*(?:\x1b\[\d*m)?GPU0(?:\x1b\[\d*m)?\s+(?:\x1b\[\d*m)?(?:GPU1\b|X\s)",
    re.MULTILINE,
)
_ROW = re.compile(r"\s*GPU(\d{1,3})((?:\s+(?:X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|NVL))+)\b(.*)")
_NODE = re.compile(r"\d{1,4}")
NEAREST = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The row of one GPU; `node` is its NUMA node, None where the row has none."""

    gpu: int
    line: int
    paths: tuple[str, ...]
    node: int | None


@dataclass(frozen=True, slots=True)
class Matrix:
    """The rows of the GPUs, network cards left out."""

    rows: tuple[Row, ...]

    def pairs(self) -> Iterator[tuple[Row, int, str]]:
        """Yield each pair once: the row, the other GPU, and their path, such as "NV18" or "SYS"."""
        for row in self.rows:
            for other, name in enumerate(row.paths[: len(self.rows)]):
                if other > row.gpu and name != "X":
                    yield row, other, name


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` holds such a matrix."""
    return SIGN.search(head) is not None


def read_matrix(lines: Iterable[tuple[int, str]]) -> Matrix:
    """Return the matrix of numbered lines; without rows where there is none."""
    rows: dict[int, Row] = {}
    for line, text in lines:
        found = _ROW.fullmatch(text)
        if found and len(rows) < MOST_GPUS:
            gpu = int(found[1])
            paths = tuple(found[2].split())
            rows[gpu] = Row(gpu=gpu, line=line, paths=paths, node=_node(found[3]))
    return Matrix(tuple(rows.values()))


def read(log: Log) -> Iterator[Read]:
    """Yield what the matrix says."""
    found = conclusion(read_matrix(log.lines), log.file)
    if found is not None:
        yield found.finding(environment=log.environment, command=log.command)


def conclusion(matrix: Matrix, file: str) -> Conclusion | None:
    """Return what the matrix says as a whole; None where it has no pair."""
    pairs = Counter(kind(name) for _, _, name in matrix.pairs())
    if not pairs:
        return None
    linked = pairs["NV"] > 0
    rest = "" if linked else ": no NVLink, every all-reduce crosses PCIe"
    far = not linked and pairs["SYS"] > 0
    return Conclusion(
        name="topology",
        sentence=f"{len(matrix.rows)} GPUs, pairs by path: {_words(pairs)}{rest}"
        + (", some of it between sockets" if far else ""),
        seen=(Seen(file, matrix.rows[0].line, _words(pairs)),),
        next_action="a path's class is not its speed: sweep the all-reduces with python -m "
        "collectives.sweep, and see what NCCL's graph search found",
        verdict=False,
    )


def kind(path: str) -> str:
    """Return the class of a path: "NV18" is "NV"."""
    return "NV" if path.startswith("NV") else path


def _node(rest: str) -> int | None:
    """Return the NUMA node of what follows the paths: CPUs, node, node of the GPU's own memory.

    The CPUs may be missing, so a first word that is no range and stands before "N/A" is the node.
    """
    words = rest.split()
    if words and (re.search(r"[-,]", words[0]) or len(words) > 2):
        words = words[1:]
    return int(words[0]) if words and _NODE.fullmatch(words[0]) else None


def _words(pairs: Counter[str]) -> str:
    order = [name for name in NEAREST if pairs[name]]
    return listed([f"{pairs[name]} {'NVLink' if name == 'NV' else name}" for name in order])
