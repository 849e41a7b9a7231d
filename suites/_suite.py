"""Between pytest and a run: each test point plays its own samples, and each leaves a record.

Where pytest-benchmark is disabled (`--benchmark-disable`, xdist) nothing is timed and nothing is
recorded: each point runs once and is held to its reference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kernels import Point
from suites._bench import Bench
from suites._measure import Wrong, check_once
from suites._points import by_name, resolve
from suites._session import Session
from verifyscope import units
from verifyscope.clock import DeviceClock
from verifyscope.errors import reason_of
from verifyscope.records import Measurement


class Suite(Protocol):
    """What a test point asks of the run that it belongs to."""

    def take(self, point: Point, benchmark: BenchmarkFixture, clock: DeviceClock) -> None:
        """Give `point` its result; what has none fails or is skipped."""

    def end(self, point: Point, outcome: str, error: BaseException) -> None:
        """Hear that `point` ended with `error`."""

    def closing_line(self) -> str:
        """Say what is there now, and what to do with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSuite:
    """Measures, records, and plays."""

    session: Session

    def take(self, point: Point, benchmark: BenchmarkFixture, clock: DeviceClock) -> None:
        """Measure the case of `point` if that is not done yet, and hand its samples over."""
        own, *beside = self.session.lines(point)
        record = own.record
        if record.status == "skipped":
            pytest.skip("; ".join([record.reason or "", *(predicted(b.record) for b in beside)]))
        benchmark.extra_info.update(extra_info(record, [line.record for line in beside]))
        if not own.samples:
            pytest.fail(f"{record.status}: {record.reason}", pytrace=False)
        target = clock.play(own.samples, by=str(record.method["clock"]))
        benchmark.pedantic(target, rounds=len(own.samples), iterations=1, warmup_rounds=0)

    def end(self, point: Point, outcome: str, error: BaseException) -> None:
        """Record what ended before it could be measured: a marker, a broken fixture."""
        self.session.end_without_time(point, skipped=outcome == "skipped", reason=reason_of(error))

    def closing_line(self) -> str:
        """Say where the records are, and how a report is made of them."""
        path = self.session.run.path
        counts = ", ".join(f"{count} {status}" for status, count in self.session.counts().items())
        source = path.parent if path.name == "records.jsonl" else path
        return f"{path}: {counts}; python -m reports.build {source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSuite:
    """Runs each point once, for its values alone."""

    bench: Bench

    def take(self, point: Point, benchmark: BenchmarkFixture, clock: DeviceClock) -> None:
        """Hold `point` to its reference."""
        if point.reason is not None:
            pytest.skip(point.reason)
        try:
            benchmark.pedantic(check_once, args=(*resolve(point), self.bench))
        except Wrong as error:
            pytest.fail(f"failed: {error}", pytrace=False)

    def end(self, point: Point, outcome: str, error: BaseException) -> None:
        """Leave it to pytest."""

    def closing_line(self) -> str:
        """Say that there is nothing to report on."""
        return "benchmarks are disabled: nothing was timed, no records were written"


def predicted(record: Measurement) -> str:
    """Return what is predicted beside a point that was skipped."""
    gpu, nodes = record.method.get("gpu"), record.method.get("nodes")
    floor, time = (
        "not known" if s is None else units.seconds(s) for s in (record.floor_s, record.median_s)
    )
    launches = f"{nodes} launch{'' if nodes == 1 else 'es'}"
    return f"predicted on {gpu}: {time} and {launches}, floor {floor}"


def extra_info(own: Measurement, beside: Sequence[Measurement]) -> dict[str, object]:
    """Return what pytest-benchmark's JSON shows beside its statistics; absent is left out."""
    found: dict[str, object] = {"status": own.status, "record": own.id, "cache": own.cache}
    found["reason"] = own.reason
    if own.median_s and own.touched_bytes is not None:
        found["bytes_per_s"] = own.touched_bytes / own.median_s
    if own.median_s and own.floor_s is not None:
        found["floor_share"] = own.floor_s / own.median_s
    if own.flags:
        found["flags"] = list(own.flags)
    for record in beside:
        planned = record.part == "metadata"
        name = record.op.removeprefix(f"{own.op}_") if planned else record.cache
        found[f"{name}_median_s"] = record.median_s
    return {name: value for name, value in found.items() if value is not None}


def point_of(item: pytest.Item) -> Point | None:
    """Return the point that a test stands for; None for any other test."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if set(parameters) != {"op", "implementation", "case"}:
        return None
    name = (parameters["op"], parameters["implementation"], parameters["case"])
    return by_name().get(name)
