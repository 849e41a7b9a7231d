"""What nccl-tests prints, old form and new, becomes `Table` objects; pure text, no records yet.

A row is `size count type [redop] [root]` and then twice `time algbw busbw #wrong`, out of place
and in place: bytes, elements, microseconds, GB/s (10**9 bytes a second). In the old form, of the
time of NCCL 2.10, the last column is `error`, the largest relative error (0e+00), and there is no
root column; older ones lack redop too. `N/A` stands for what was not run or not checked.

A row is printed in pieces. With NCCL_DEBUG on, log lines fall between them: the pieces are joined
again, and a row that never ends keeps its line number in `Table.torn`. Launchers put a rank tag
before a line or a piece (`[0]`, `0:`, `[1,0]<stdout>:`); it is taken out. A table ends where the
next header, a failure, or a size below the one before begins another.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType

LONGEST_TABLE = 10_000
_MOST_RANKS = 2**16

TYPE_BYTES = MappingProxyType(
    {
        "int8": 1,
        "uint8": 1,
        "char": 1,
        "f8e4m3": 1,
        "f8e5m2": 1,
        "half": 2,
        "bfloat16": 2,
        "int32": 4,
        "uint32": 4,
        "int": 4,
        "float": 4,
        "int64": 8,
        "uint64": 8,
        "double": 8,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One direction of a row. `wrong` counts wrong values (new form), `error` is the old form's.

    Both are None where nothing was checked; the times are None where nothing was run.
    """

    time_us: float | None
    algorithm_gb_s: float | None
    bus_gb_s: float | None
    wrong: int | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size; `in_place` is None where the row breaks off before it."""

    line: int
    size_bytes: int
    elements: int
    dtype: str
    redop: str | None
    root: int | None
    out_of_place: Timing
    in_place: Timing | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One `# Rank` line: a rank, its node and its GPU."""

    rank: int
    host: str
    index: int
    bus: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One run of one test: what its header, rows and footer say; None where they do not say it.

    `torn` and `failure` hold line numbers; `average_gb_s` and `out_of_bounds` are as printed.
    """

    line: int
    tool: str | None = None
    backend: str | None = None
    nccl_version: str | None = None
    name: str | None = None
    options: tuple[tuple[str, int], ...] = ()
    devices: tuple[Device, ...] = ()
    ranks: int | None = None
    nodes: int | None = None
    rows: tuple[Row, ...] = ()
    torn: tuple[int, ...] = ()
    out_of_bounds: int | None = None
    average_gb_s: float | None = None
    concluded: bool = False
    failure: tuple[int, str] | None = None

    @property
    def started(self) -> bool:
        """Say whether the file holds the header of this table."""
        return bool(self.devices or self.options or self.name)


_NUMBER = r"-?\d+(?:\.\d+)?"
_TYPES = "|".join(TYPE_BYTES)
_TAG = re.compile(r"\[\d+(?:,\d+)?\](?:<std\w+>)?:?")
_STAMP = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*\s+")
_LABEL = re.compile(r"^\s*(?:\d+:\s|\[\d+(?:,\d+)?\](?:<std\w+>)?:?)")
_LOG = re.compile(r"[A-Za-z<][\w.<>-]{0,255}:\d+:\d+ \[\d+\] (?:\S+ )?NCCL (?:INFO|WARN|TRACE) ")
_HEAD = re.compile(rf"\s*(\d+)\s+(\d+)\s+({_TYPES})(?=\s|$)\s*([a-z]\w*)?(.*)")
_PIECE = re.compile(rf"(?:\s*(?:{_NUMBER}(?:e[+-]\d+)?|N/A)(?=\s|$))+\s*")
_GROUP = re.compile(  # a time is never below zero: -1 there is the root of a cut row
    r"(\d+(?:\.\d+)?|N/A) "
    rf"({_NUMBER}|N/A|-?nan|-?inf) ({_NUMBER}|N/A|-?nan|-?inf)"
    r" (?:(\d+)|(\d+(?:\.\d+)?e[+-]?\d+|-?nan|inf)|N/A)"
)

_TOOL = re.compile(r"((?:nccl|rccl)-tests|verifyscope) version (\S+)(.*)")
_START = re.compile(r"Collective test starting: (\S+)")
_OPTIONS = re.compile(r"nThread \d+ nGpus \d+ ")
_OPTION = re.compile(r"\b(\w+(?: iters)?): (\d+)")
_RANK = re.compile(
    r"Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+ on\s+(\S+) device\s+(\d+) \[([^\]]+)\] (.+)"
)
_COLUMNS = re.compile(r"size\s+count\s+type\b(.*)")
_BOUNDS = re.compile(r"Out of bounds values : (\d+) ")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*: (\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_END = re.compile(r"Collective test concluded: (\S+)")
_VERSION = re.compile(r"NCCL version (\d[^\s;]*)")
_FAILURE = re.compile(r"Test (?:\w+ )?failure\b.*")
_RANKS = re.compile(r"ncclCommInit\w* comm \S+ rank \d+ nranks (\d+) ")
_NODES = re.compile(r"nRanks (\d+) nNodes (\d+) ")

SIGNS = re.compile(
    rb"^[^\S\n]*(?:\[?\d+[\],:]\S{0,20}[^\S\n]*)?#*[^\S\n]*(?:nThread \d+ nGpus \d|Using devices"
    rb"|(?:(?:nccl|rccl)-tests|verifyscope) version|Collective test (?:starting|concluded): "
    rb"|size[^\S\n]+count[^\S\n]+type\b|Avg bus bandwidth[^\S\n]*:|Out of bounds values :"
    rb"|NCCL version \d|Algorithm[^\S\n]+\|)"
    rb"|NCCL (?:INFO|WARN) |\d Bytes -> Algo \w"
    rb"|^[^\S\n]*(?:\[?\d+[\],:]\S{0,20})?[^\S\n]*\d+[^\S\n]+\d+[^\S\n]+(?:"
    + _TYPES.encode()
    + rb")[^\S\n]+[-a-z\d]",
    re.MULTILINE,
)


def tables(lines: Iterable[tuple[int, str]]) -> Iterator[Table]:
    """Yield the tables of numbered lines, each when it is over; a failed run has no rows."""
    reader = _Reader()
    for number, line in lines:
        reader.take(number, line)
        yield from reader.finished()
    reader.end()
    yield from reader.finished()


def loaded_version(code: int) -> str:
    """Return the version that NCCL's number names: 2804 -> "2.8.4", 22907 -> "2.29.7"."""
    base = 1000 if code < 10000 else 10000
    return f"{code // base}.{code % base // 100}.{code % 100}"


@dataclass(slots=True)
class _Pending:
    """A row whose end has not been read; `values` holds its words after type and redop."""

    line: int
    head: tuple[int, int, str]
    redop: str | None
    values: list[str]


@dataclass(slots=True)
class _Reader:
    """Where in a file the reading stands; `take` moves it on by a line."""

    table: Table = field(default_factory=lambda: Table(line=1))
    devices: list[Device] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    torn: list[int] = field(default_factory=list)
    rooted: bool | None = None
    pending: _Pending | None = None
    done: list[Table] = field(default_factory=list)

    def take(self, number: int, line: str) -> None:
        """Read one line: a piece of a row, a line of header or footer, a log line, or neither."""
        line = _STAMP.sub("", line)
        log = _LOG.search(line) if " NCCL " in line else None
        piece = _LABEL.sub("", line[: log.start()] if log else line, count=1)
        if piece.lstrip().startswith("#") or not self._row(number, _TAG.sub(" ", piece)):
            self._comment(number, piece.lstrip("# \t"))
        if log:
            self._log(line[log.start() :])

    def finished(self) -> Iterator[Table]:
        """Yield, once, the tables that are over."""
        while self.done:
            yield self.done.pop(0)

    def end(self) -> None:
        """Close the table that is open."""
        self._tear()
        whole = replace(self.table, rows=tuple(self.rows), torn=tuple(self.torn))
        if self.devices:
            whole = replace(
                whole,
                devices=tuple(self.devices),
                ranks=len(self.devices),
                nodes=len({device.host for device in self.devices}),
            )
        if whole.rows or whole.torn or whole.failure or whole.started:
            self.done.append(whole)
        self.rows, self.torn = [], []

    def _begin(self, number: int) -> None:
        """Make sure that the open table is one that a header may still add to."""
        if self.rows or self.pending or self._over():
            self.end()
            self.table, self.devices, self.rooted = Table(line=number), [], None

    def _over(self) -> bool:
        table = self.table
        return table.average_gb_s is not None or table.failure is not None or table.concluded

    def _row(self, number: int, text: str) -> bool:
        head = _HEAD.fullmatch(text)
        if head is None:
            if self.pending and text.strip() and _PIECE.fullmatch(text):
                self.pending.values += text.split()
                self._complete()
                return True
            return False
        size = int(head[1])
        if self._over():
            self._begin(number)
        self._tear()
        smaller = bool(self.rows) and size < self.rows[-1].size_bytes
        if smaller or max(len(self.rows), len(self.torn)) >= LONGEST_TABLE:
            self.end()
            self.table = replace(self.table, line=number)
        self.pending = _Pending(number, (size, int(head[2]), head[3]), head[4], head[5].split())
        self._complete()
        return True

    def _complete(self) -> None:
        """Add the pending row to the table once both directions are there."""
        if self.pending and len(self._groups(self.pending)) == 2:
            self._add(self.pending)

    def _tear(self) -> None:
        """Give up on a row without its end; its out-of-place half is kept where it is whole."""
        if self.pending:
            self.torn.append(self.pending.line)
            if self._groups(self.pending):
                self._add(self.pending)
            self.pending = None

    def _add(self, row: _Pending) -> None:
        groups = self._groups(row)
        size, elements, dtype = row.head
        self.rows.append(
            Row(
                line=row.line,
                size_bytes=size,
                elements=elements,
                dtype=dtype,
                redop=row.redop,
                root=int(row.values[0]) if self._has_root(row) else None,
                out_of_place=groups[0],
                in_place=groups[1] if len(groups) > 1 else None,
            )
        )
        self.pending = None

    def _has_root(self, row: _Pending) -> bool:
        if self.rooted is not None:
            return self.rooted and bool(row.values)
        return len(row.values) % 4 == 1 and re.fullmatch(r"-?\d+", row.values[0]) is not None

    def _groups(self, row: _Pending) -> list[Timing]:
        values = row.values[1:] if self._has_root(row) else row.values
        found = []
        for at in range(0, min(len(values), 8) - 3, 4):
            match = _GROUP.fullmatch(" ".join(values[at : at + 4]))
            if match is None:
                break
            found.append(
                Timing(
                    time_us=_number(match[1]),
                    algorithm_gb_s=_number(match[2]),
                    bus_gb_s=_number(match[3]),
                    wrong=None if match[4] is None else int(match[4]),
                    error=None if match[5] is None else float(match[5]),
                )
            )
        return found

    def _comment(self, number: int, text: str) -> None:
        if self._header(number, text) or not text:
            return
        if bounds := _BOUNDS.match(text):
            self._tear()
            self.table = replace(self.table, out_of_bounds=int(bounds[1]))
        elif average := _AVERAGE.match(text):
            self._tear()
            self.table = replace(self.table, average_gb_s=float(average[1]))
        elif end := _END.match(text):
            self.table = replace(self.table, name=end[1], concluded=True)
        elif failure := _FAILURE.search(text):
            if self.table.failure is None:
                self._tear()
                self.table = replace(self.table, failure=(number, failure[0]))
        elif version := _VERSION.match(text):
            self.table = replace(self.table, nccl_version=version[1])

    def _header(self, number: int, text: str) -> bool:
        """Read a line of a header; the first one after a row or a footer begins a new table."""
        for pattern, read in (
            (_TOOL, self._tool),
            (_START, self._start),
            (_OPTIONS, self._options),
            (_RANK, self._device),
            (_COLUMNS, self._columns),
        ):
            if found := pattern.match(text):
                self._begin(number)
                if not (self.table.started or self.devices or self.table.tool):
                    self.table = replace(self.table, line=number)
                read(found)
                return True
        return False

    def _tool(self, found: re.Match[str]) -> None:
        code = re.search(r"nccl-library=(\d+)\b", found[3])
        backend = re.search(r"backend=(\w+)(?: combination=\"([^\"]{1,200})\")?", found[3])
        self.table = replace(
            self.table,
            tool=f"{found[1]} {found[2]}",
            nccl_version=loaded_version(int(code[1])) if code else None,
            backend=" ".join(filter(None, backend.groups())) if backend else None,
        )

    def _start(self, found: re.Match[str]) -> None:
        self.table = replace(self.table, name=found[1])

    def _options(self, found: re.Match[str]) -> None:
        options = tuple((name, int(value)) for name, value in _OPTION.findall(found.string))
        self.table = replace(self.table, options=options)

    def _device(self, found: re.Match[str]) -> None:
        rank, host, index, bus, name = found.groups()
        if len(self.devices) < _MOST_RANKS:
            self.devices.append(
                Device(rank=int(rank), host=host, index=int(index), bus=bus, name=name.strip())
            )

    def _columns(self, found: re.Match[str]) -> None:
        self.rooted = "root" in found[1]

    def _log(self, text: str) -> None:
        if version := _VERSION.search(text):
            self.table = replace(self.table, nccl_version=version[1])
        elif nodes := _NODES.search(text):
            self._communicator(int(nodes[1]), int(nodes[2]))
        elif ranks := _RANKS.search(text):
            self._communicator(int(ranks[1]), None)

    def _communicator(self, ranks: int, nodes: int | None) -> None:
        """Take the counts of ranks and nodes where no `# Rank` line has given them."""
        table = self.table
        if not self._over():
            self.table = replace(table, ranks=ranks, nodes=nodes or table.nodes)


def _number(text: str) -> float | None:
    return None if text == "N/A" or "nan" in text or "inf" in text else float(text)
