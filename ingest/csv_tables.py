"""CSV of one's own: a column of loads or sizes, columns of times, and words that tell rows apart.

    system,n_gpus,config,bytes,nccl_us,other_us        times end in _us, _ms or _s
    dual socket,8,default,65536,48.69,7.5

The load is `bytes`, `requests`, `context` and the like (`ingest.load_tables`); a column of GPUs is
the ranks. Rows of equal words are a series. A time is that of an all-reduce where header or row say
so, else of something unnamed. Cells that hold no time are passed over; rows of another length, and
those beyond a hundred thousand, are counted and named.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ingest import nccl_findings
from ingest.cells import cells
from ingest.facts import Read
from ingest.load_tables import AXES
from ingest.log import Log
from ingest.nccl_findings import Suspicion
from ingest.reading_faults import Fault, findings_on
from verifyscope import units
from verifyscope.privacy import redacted
from verifyscope.records import Measurement, Origin, Value

EXAMPLE = ("system,n_gpus,config,bytes,nccl_us,other_us",)
NOTHING = "a CSV of times by size without a row that holds a time; give it whole"
FALLS_BY = 0.9
_SCALE = {"_us": 1e-6, "_ms": 1e-3, "_s": 1.0}
_RANKS = ("n_gpus", "num_gpus", "gpus", "ranks")
_TIMED = re.compile(r"[a-z][\w.-]{0,60}(?:_us|_ms|_s)")
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?")
_LONGEST_WORD = 60
_MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """Where what stands in a row: places of the load, the ranks, the times and the words."""

    axis: str
    load: int
    ranks: int | None
    times: tuple[tuple[int, str, float], ...]
    words: tuple[tuple[int, str], ...]
    columns: int
    reduces: bool


def recognises(head: bytes) -> bool:
    """Say whether a file begins with the header of such a table."""
    first = head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")[0][:4096]
    return _header(first.decode("utf-8", "replace")) is not None


def read(log: Log) -> Iterator[Read]:
    """Yield a time a cell, then where more bytes took less time, and what was not read."""
    header: _Header | None = None
    unread: list[int] = []
    series: dict[tuple[object, ...], list[Measurement]] = {}
    count = unread_count = left_out = 0
    for line, text in log.lines:
        if header is None:
            header = _header(text)
        elif text.strip() and count == _MOST_ROWS:
            left_out += 1
        elif text.strip():
            row = cells(text)
            if len(row) != header.columns or not _load(row[header.load]):
                unread_count += 1
                unread = [*unread, line][:10]
                continue
            count += 1
            for one in _times(header, row, log, line):
                named = (one.implementation, one.ranks, *one.requested.items())
                series.setdefault(named, []).append(one)
                yield one
    for found in _falling(series) if header is not None and header.axis == "bytes" else ():
        yield nccl_findings.finding(
            found, file=log.file, environment=log.environment, command=log.command
        )
    what, faults = "rows of a table of times", []
    if unread_count:
        faults.append(Fault.unread(what, unread, count=unread_count))
    if left_out:
        faults.append(Fault.left_out(what, left_out))
    yield from findings_on(faults, log)


def _header(text: str) -> _Header | None:
    names = [name.lower() for name in cells(text)]
    load = next((at for at, name in enumerate(names) if name in AXES), None)
    times = [at for at, name in enumerate(names) if _TIMED.fullmatch(name)]
    if load is None or not times or len(names) > 64:
        return None
    ranks = next((at for at, name in enumerate(names) if name in _RANKS), None)
    known = {load, ranks, *times}
    return _Header(
        axis=AXES[names[load]],
        load=load,
        ranks=ranks,
        times=tuple((at, *_unit(names[at])) for at in times),
        words=tuple((at, name) for at, name in enumerate(names) if at not in known),
        columns=len(names),
        reduces=_reduces(text),
    )


def _unit(name: str) -> tuple[str, float]:
    base, _, unit = name.rpartition("_")
    return base, _SCALE[f"_{unit}"]


def _times(header: _Header, row: Sequence[str], log: Log, line: int) -> Iterator[Measurement]:
    load = _load(row[header.load])
    ranks = 0 if header.ranks is None else _load(row[header.ranks])
    words = {name: redacted(row[at])[:_LONGEST_WORD] for at, name in header.words if row[at]}
    source = words.pop("source", "")
    method: dict[str, Value] = {"sample": "one figure of somebody's table"}
    reduces = header.reduces or _reduces(" ".join(row))
    for at, name, scale in header.times:
        if not _NUMBER.fullmatch(row[at]) or not float(row[at]):
            continue
        yield Measurement(
            source="imported",
            part="all_reduce" if reduces else "unclassified",
            op="all_reduce" if reduces else "time",
            implementation=name,
            kind="baseline-different-work",
            case=f"{load} {header.axis}",
            status="ok",
            dims={header.axis: load},
            requested=words,
            median_s=float(row[at]) * scale,
            ranks=ranks or None,
            method=method | ({"source": source} if source else {}),
            environment=log.environment,
            command=log.command,
            origin=Origin(log.file, line),
        )


def _falling(series: dict[tuple[object, ...], list[Measurement]]) -> Iterator[Suspicion]:
    """Find sizes that took over a tenth less time than smaller ones of their series."""
    odd = []
    for rows in series.values():
        by_size = sorted(rows, key=lambda one: _load(str(one.dims.get("bytes", ""))))
        for smaller, larger in pairwise(by_size):
            if (larger.median_s or 0.0) < FALLS_BY * (smaller.median_s or 0.0):
                odd += [smaller, larger]
    if odd:
        yield Suspicion(
            name="non-monotone",
            sentence="more bytes took over 10 % less time from "
            + ", ".join(
                f"{units.seconds(a.median_s or 0.0)} ({a.case}) to "
                f"{units.seconds(b.median_s or 0.0)} ({b.case})"
                for a, b in zip(odd[::2][:3], odd[1::2][:3], strict=True)
            ),
            evidence=tuple(
                (one.origin.line if one.origin else None, units.seconds(one.median_s or 0.0))
                for one in odd
            ),
            next_action="measure these sizes again; a protocol may change there",
        )


def _reduces(text: str) -> bool:
    return re.search(r"all[ _-]?reduce", text, re.IGNORECASE) is not None


def _load(cell: str) -> int:
    return int(cell) if re.fullmatch(r"\d{1,12}", cell) else 0
