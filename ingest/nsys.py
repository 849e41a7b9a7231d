"""Nsight Systems exports to sqlite: GPU events and calls, read-only, with most tables missing.

Times are nanoseconds. Only the tables and columns named here are read, never the environment
(TARGET_INFO_SYSTEM_ENV, META_DATA_CAPTURE) that a full export carries. A table counts only where
it is a plain one: a view or a virtual table of an untrusted file would run its author's SQL.
GRAPH_TRACE rows are graph launches of which only the whole was recorded: `nsys profile` hides the
kernels of graphs unless it is told --cuda-graph-trace=node.
"""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ingest import trace_facts
from ingest.facts import Read
from ingest.log import Log
from ingest.opening import Unreadable
from ingest.trace import (
    COPY,
    KERNEL,
    LONGEST_S,
    MEMSET,
    MOST_NAMES,
    MOST_STEPS,
    STEP,
    Names,
    Rows,
    Span,
    Trace,
    calls_of,
    is_wanted,
    no_events,
)
from ingest.trace import overlapping as overlaps
from ingest.trace_faults import Faults

EXAMPLE = "SQLite format 3 (nsys export --type sqlite)"
_MAGIC = b"SQLite format 3\0"
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_MOST_STEPS_OF_SQL = 2_000_000_000
_ROWS = 100_000


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` is an sqlite database with GPU kernels."""
    return head.startswith(_MAGIC) and any(
        name in head for name in (b"CUPTI_ACTIVITY_KIND", b"StringIds", b"TARGET_INFO_GPU")
    )


def read(log: Log) -> Iterator[Read]:
    """Yield the times of each GPU, what was not read, and the facts to conclude from."""
    found, faults = traces(log)
    yield from trace_facts.records(found, faults, log)


def traces(log: Log) -> tuple[list[Trace], Faults]:
    """Return what each GPU of a file did; `Unreadable` in a line where it is no such export."""
    with _path(log) as path, contextlib.ExitStack() as stack:
        try:
            database = stack.enter_context(contextlib.closing(_connect(path)))
            reader = _Reader(log.file, database)
            reader.read()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise Unreadable(f"{log.file}: {error}; export it again, whole") from None
        return reader.traces(), Faults(events=reader.events, untimed=reader.dropped)


@contextlib.contextmanager
def _path(log: Log) -> Iterator[Path]:
    """Yield where sqlite can open the file: in place, else (gzip, a pipe) as a copy."""
    if log.path is not None:
        yield log.path
        return
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as copy:
        log.stream.seek(0)
        shutil.copyfileobj(log.stream, copy)
        copy.flush()
        yield Path(copy.name)


def _connect(path: Path) -> sqlite3.Connection:
    """Open a database that nothing can be written to and that runs none of its own code."""
    address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    database = sqlite3.connect(address, uri=True)
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    database.execute("PRAGMA trusted_schema=OFF")
    steps = iter(range(_MOST_STEPS_OF_SQL // 100_000))
    database.set_progress_handler(lambda: next(steps, None) is None, 100_000)
    return database


@dataclass(slots=True)
class _Reader:
    """Reads tables that are there; `origin_ns` is the time of the first event."""

    file: str
    database: sqlite3.Connection
    names: Names = field(default_factory=Names)
    gpu: Rows = field(default_factory=Rows)
    calls: Rows = field(default_factory=Rows)
    spans: list[Span] = field(default_factory=list)
    titles: dict[int, str] = field(default_factory=dict)
    hidden: dict[int, int] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)
    origin_ns: int | None = None
    events: int = 0
    dropped: int = 0

    def read(self) -> None:
        """Read all tables."""
        tables = {
            name
            for name, sql in self.database.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
            )
            if isinstance(name, str) and str(sql).lstrip().upper().startswith("CREATE TABLE")
        }
        if not tables & {_KERNELS, _GRAPHS, _CALLS}:
            raise Unreadable(
                f"{self.file} is a database without {_KERNELS}; give nsys export --type sqlite "
                f"of a capture with --trace=cuda"
            )
        self._gpu(tables, _KERNELS, KERNEL, named=("demangledName", "shortName"))
        self._gpu(tables, _COPIES, COPY)
        self._gpu(tables, _MEMSETS, MEMSET)
        for row in self._rows(tables, _GRAPHS, ("start", "end", "deviceId")):
            device = _whole(row[2])
            self.hidden[device] = self.hidden.get(device, 0) + 1
        self._calls(tables)
        self._spans(tables)
        for number, title in self._rows(tables, "TARGET_INFO_GPU", ("id", "name")):
            if isinstance(title, str):
                self.titles[_whole(number)] = title[:100]

    def _rows(
        self, tables: set[str], table: str, wanted: Sequence[str]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the wanted columns of a table, None for one that is missing."""
        if table not in tables:
            return
        there = {row[1] for row in self.database.execute(f'PRAGMA table_info("{table}")')}
        columns = ", ".join(f'"{name}"' if name in there else "NULL" for name in wanted)
        yield from self.database.execute(f'SELECT {columns} FROM "{table}"')

    def _gpu(
        self, tables: set[str], table: str, what: int, named: tuple[str, str] = ("copyKind", "")
    ) -> None:
        wanted = ("start", "end", "deviceId", "streamId", "correlationId", "bytes", *named)
        for start, end, device, stream, correlation, size, *labels in self._rows(
            tables, table, wanted
        ):
            times = self._times(start, end)
            if times is None:
                continue
            text = self._kernel(labels, tables) if what == KERNEL else _copy(what, labels[0])
            known = self.names.id(text)
            self.gpu.rows.append(
                (*times, known, _whole(correlation), _whole(stream), what, size, _whole(device))
            )
            if len(self.gpu.rows) >= _ROWS:
                self.gpu.pack(0.0)

    def _calls(self, tables: set[str]) -> None:
        wanted = ("start", "end", "correlationId", "globalTid", "nameId")
        for start, end, correlation, thread, name in self._rows(tables, _CALLS, wanted):
            text = self._string(name, tables)
            times = self._times(start, end) if text and is_wanted(text) else None
            if text and times is not None:
                name = self.names.id(text)
                self.calls.rows.append(
                    (*times, name, _whole(correlation), _whole(thread), KERNEL, None, None)
                )
            if len(self.calls.rows) >= _ROWS:
                self.calls.pack(0.0)

    def _spans(self, tables: set[str]) -> None:
        wanted = ("start", "end", "text", "textId")
        for start, end, text, number in self._rows(tables, "NVTX_EVENTS", wanted):
            name = text if isinstance(text, str) else self._string(number, tables)
            if not name or not STEP.match(name) or len(self.spans) >= MOST_STEPS:
                continue
            times = self._times(start, end) if end is not None else None
            if times is not None:
                begun = times[0] * 1e-6
                self.spans.append(Span(name=name, start_s=begun, end_s=begun + times[1] * 1e-6))

    def _times(self, start: Any, end: Any) -> tuple[float, float] | None:
        """Return start from the origin and length, microseconds; None, counted, for none."""
        self.events += 1
        fine = isinstance(start, int) and isinstance(end, int) and abs(start) < 2**62
        if not fine or not 0 <= end - start <= LONGEST_S * 1e9:
            self.dropped += 1
            return None
        if self.origin_ns is None:
            self.origin_ns = start
        return (start - self.origin_ns) * 1e-3, (end - start) * 1e-3

    def _kernel(self, numbers: Sequence[Any], tables: set[str]) -> str:
        return next(filter(None, (self._string(one, tables) for one in numbers)), "(no name)")

    def _string(self, number: Any, tables: set[str]) -> str:
        """Return the text of a number of StringIds, or "" where there is none."""
        if not isinstance(number, int) or "StringIds" not in tables:
            return ""
        known = self.strings.get(number)
        if known is None:
            row = self.database.execute(
                "SELECT substr(value, 1, 4096) FROM StringIds WHERE id = ?", (number,)
            ).fetchone()
            known = str(row[0]) if row and row[0] is not None else ""
            if len(self.strings) < 4 * MOST_NAMES:
                self.strings[number] = known
        return known

    def traces(self) -> list[Trace]:
        """Return a trace for each GPU."""
        self.gpu.pack(0.0)
        self.calls.pack(0.0)
        gpus, twice = self.gpu.events()
        calls = self.calls.events()[0].get(-1) or no_events()
        return [
            Trace(
                file=self.file,
                tool="nsys",
                gpu=gpus.get(device) or no_events(),
                calls=calls_of(device, gpus, calls),
                names=tuple(self.names.texts),
                spans=tuple(self.spans),
                device=device if device >= 0 else None,
                device_name=self.titles.get(device),
                hidden_graphs=self.hidden.get(device, 0),
                duplicates=twice,
                overlapping=overlaps(gpus.get(device) or no_events()),
            )
            for device in dict.fromkeys((*gpus, *self.hidden)) or (-1,)
        ]


def _copy(what: int, kind: Any) -> str:
    if what == MEMSET:
        return "Memset (Device)"
    return f"Memcpy {_COPY_KINDS.get(kind, 'unknown') if isinstance(kind, int) else 'unknown'}"


def _whole(value: Any) -> int:
    """Return a whole number from 0; -1 for anything else."""
    return value if isinstance(value, int) and 0 <= value < 2**62 else -1
