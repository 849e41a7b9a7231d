"""JSON of pytest-benchmark: a record a benchmark, from its raw data where the file keeps them.

Machine information, paths and options of the file are not read. Bandwidth is tested against what
DRAM can give, where a benchmark tells its bytes (`bytes_per_s` or `bytes` in extra_info): more is a
benchmark that runs in a cache. The GPU is the one named in extra_info or a parameter, else the
fastest known.
"""

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from ingest import json_documents
from ingest.conclusions import Conclusion, Seen
from ingest.facts import Read
from ingest.log import Log
from verifyscope import hardware, units
from verifyscope.privacy import redacted
from verifyscope.records import Measurement, Origin, Value
from verifyscope.stats import Summary, summarise

VOID_ABOVE = 1.02
_MOST_SAMPLES = 10_000
_MOST_DIMS = 16
_WARM = ("warm", "hot")


class _Stats(msgspec.Struct):
    median: float
    rounds: int
    mean: float | None = None
    min: float | None = None
    iterations: int | None = None
    data: list[float] | None = None


class _Benchmark(msgspec.Struct):
    name: str
    stats: _Stats
    group: str | None = None
    params: dict[str, Any] | None = None  # of any type: only scalars are looked at
    extra_info: dict[str, Any] | None = None


class _File(msgspec.Struct):
    benchmarks: list[_Benchmark]


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` is JSON of pytest-benchmark."""
    return head.lstrip()[:1] == b"{" and b'"machine_info"' in head and b'"benchmarks"' in head


def read(log: Log) -> Iterator[Read]:
    """Yield a record a benchmark, and a finding for each that is faster than DRAM."""
    found = json_documents.whole(log.stream, log.file, _File)
    for one in found.benchmarks:
        median = one.stats.median
        if not 0 < median < math.inf:
            continue
        yield _measurement(one, log)
        warm = _warm(one, log.file)
        if warm is not None:
            yield warm.finding(environment=log.environment, command=log.command)


def _measurement(one: _Benchmark, log: Log) -> Measurement:
    summary = _summary(one.stats)
    name = redacted(one.name)
    op = name.partition("[")[0].removeprefix("test_")
    return Measurement(
        source="imported",
        part="unclassified",
        op=op or "benchmark",
        implementation="pytest-benchmark",
        kind="baseline-different-work",
        case=name.partition("[")[2].rstrip("]") or "all",
        status="ok",
        dims=_scalars(one.params),
        median_s=one.stats.median,
        low_s=summary.low if summary else None,
        high_s=summary.high if summary else None,
        p90_s=summary.p90 if summary else None,
        p99_s=summary.p99 if summary else None,
        count=one.stats.rounds,
        method={"sample": "a round", "iterations": one.stats.iterations or 1},
        environment=log.environment,
        command=log.command,
        origin=Origin(log.file),
    )


def _summary(stats: _Stats) -> Summary | None:
    data = [value for value in (stats.data or [])[:_MOST_SAMPLES] if 0 <= value < math.inf]
    return summarise(data) if len(data) > 1 else None


def _scalars(params: dict[str, Any] | None) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in list((params or {}).items())[:_MOST_DIMS]:
        if isinstance(value, str):
            found[redacted(name)[:40]] = redacted(value)[:80]
        elif isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            found[redacted(name)[:40]] = value if abs(value) < 2**53 else str(value)[:40]
    return found


def _warm(one: _Benchmark, file: str) -> Conclusion | None:
    """Return the finding on a benchmark that moves more bytes a second than its DRAM can."""
    extra = one.extra_info or {}
    rate = _number(extra.get("bytes_per_s"))
    size = _number(extra.get("bytes")) or _number(extra.get("touched_bytes"))
    if rate is None and size is not None:
        rate = size / one.stats.median
    cache = extra.get("cache")
    if rate is None or (isinstance(cache, str) and cache in _WARM):
        return None
    values = (*extra.values(), *(one.params or {}).values())
    names = [value for value in values if isinstance(value, str)]
    gpu = next((known for known in map(hardware.match, names) if known is not None), None)
    peak, title = _peak(gpu)
    if rate <= VOID_ABOVE * peak:
        return None
    return Conclusion(
        name="warm-benchmark",
        sentence=f"{redacted(one.name)} moves {units.rate(rate)}, above the {units.rate(peak)} of "
        f"{title}: its data stay in a cache, and the model's will not",
        seen=(Seen(file, None, f"{units.rate(rate)} in {redacted(one.name)}"),),
        next_action="walk over inputs of three times the L2 between calls, or flush it",
    )


def _peak(gpu: hardware.Gpu | None) -> tuple[float, str]:
    if gpu is not None and gpu.dram_bytes_per_s is not None:
        return gpu.dram_bytes_per_s, gpu.title
    known = [one for one in hardware.TABLE.values() if one.dram_bytes_per_s is not None]
    fastest = max(known, key=lambda one: one.dram_bytes_per_s or 0.0)
    return fastest.dram_bytes_per_s or 0.0, f"the fastest known GPU ({fastest.title})"


def _number(value: object) -> float | None:
    found = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e18
    return float(value) if found and isinstance(value, int | float) else None
