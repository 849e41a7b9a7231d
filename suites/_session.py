"""One run of the suites: what is selected, what has been measured, and the file it goes to.

The first point of a case that is asked for measures all selected points of that case; each record
is appended as soon as the case is done. Before the first case that is held to a ceiling the
ceilings are measured, in the same run. On a machine without a GPU what only a GPU can run is
skipped, and beside it stands what is predicted for a GPU that is named.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from kernels import FOUNDING_GPU, Point, find_op
from suites import ceilings
from suites._bench import Bench, HostBench
from suites._measure import measure
from suites._points import Name, name_of, points, resolve
from suites._records import Line, Writer
from suites.ceilings import Ceilings
from verifyscope.alternate import StopRule
from verifyscope.errors import reason_of
from verifyscope.hardware import Gpu, find_gpu
from verifyscope.records import Measurement, Status
from verifyscope.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long and how well: `max_time_s` for a case, all its implementations together."""

    max_time_s: float = 1.0
    min_rounds: int = 5
    target_width: float = 0.01

    def rule(self, *, fewest_rounds: int) -> StopRule:
        """Return the stop rule of a case; a device may want more rounds than the person."""
        return StopRule(
            time_cap_s=self.max_time_s,
            min_rounds=max(self.min_rounds, fewest_rounds),
            target_width=self.target_width,
        )


@dataclass(slots=True, kw_only=True)
class Session:
    """The state of a run. `selected` are the points that may be measured; None means all.

    predict_for: the GPU that skipped rows are predicted for where there is none.
    """

    bench: Bench
    run: Run
    limits: Limits = field(default_factory=Limits)
    selected: frozenset[Name] | None = None
    predict_for: Gpu = field(default_factory=lambda: find_gpu(FOUNDING_GPU))
    _lines: dict[Name, Sequence[Line]] = field(default_factory=dict)
    _ceilings: Ceilings | None = None
    _lost: str | None = None

    def lines(self, point: Point) -> Sequence[Line]:
        """Return the lines of `point`, its own first; measure its case if that is not done yet."""
        if name_of(point) not in self._lines:
            self._measure_case(point)
        return self._lines[name_of(point)]

    def ceiling_records(self) -> list[Measurement]:
        """Return the records of all ceilings of this device; measure those that are missing.

        The warm time of an empty kernel is one of them: that of a node in a graph of many.
        """
        chosen = [point for point in points() if _is_ceiling(point, self.bench.device)]
        return [
            line.record
            for point in chosen
            for line in self.lines(point)[: 2 if point.part == "empty_kernel" else 1]
        ]

    def end_without_time(self, point: Point, *, skipped: bool, reason: str) -> None:
        """Record a point that ended before it could be measured, unless it has a record."""
        if name_of(point) not in self._lines:
            self._keep_without_time(point, status="skipped" if skipped else "error", reason=reason)

    def counts(self) -> Mapping[str, int]:
        """Return how many points ended with which status."""
        return Counter(lines[0].record.status for lines in self._lines.values())

    def _measure_case(self, point: Point) -> None:
        is_ceiling = point.part in ceilings.PARTS
        if not is_ceiling and self._ceilings is None:
            self._ceilings = ceilings.from_records(self.ceiling_records())
        runnable = []
        for one in points():
            # A ceiling is the best of all that this machine can run, whatever is selected.
            chosen = is_ceiling or self.selected is None or name_of(one) in self.selected
            if (one.op, one.case) != (point.op, point.case) or not chosen:
                continue
            if one.reason is not None:
                self._keep_without_time(one, status="skipped", reason=one.reason)
            elif self._lost is not None:
                self._keep_without_time(one, status="error", reason=self._lost)
            else:
                runnable.append(one)
        if runnable:
            self._measure(runnable)

    def _measure(self, runnable: Sequence[Point]) -> None:
        """Measure points of one case round robin, and append their records."""
        implementations = [resolve(one)[0] for one in runnable]
        case = resolve(runnable[0])[1]
        measured = measure(
            implementations[0].op,
            case,
            implementations,
            bench=self.bench,
            rule=self.limits.rule(fewest_rounds=self.bench.fewest_rounds),
        )
        for one in runnable:
            self._keep(one, self._writer().lines(one, measured))
        self._look_after_device(f"{implementations[0].op.name} on {case.name}")
        if measured.interrupted:
            raise KeyboardInterrupt

    def _keep_without_time(self, point: Point, *, status: Status, reason: str) -> None:
        lines = [self._writer().without_time(point, status=status, reason=reason)]
        if status == "skipped" and self.bench.device.type == "cpu":
            predicted = self._writer().predicted(point, gpu=self.predict_for)
            lines += [predicted] if predicted else []
        self._keep(point, lines)

    def _keep(self, point: Point, lines: Sequence[Line]) -> None:
        self._lines[name_of(point)] = lines
        for line in lines:
            self.run.append(line.record, line.samples)

    def _writer(self) -> Writer:
        return Writer(
            environment=self.run.environment,
            device=self.bench.device.type,
            cache_bytes=self.bench.cache_bytes,
            ceilings=self._ceilings or Ceilings(),
        )

    def _look_after_device(self, what: str) -> None:
        try:
            self.bench.synchronize()
            self.bench.release()
        except RuntimeError as error:
            # An illegal access ends the context: nothing after it can be measured in this process.
            self._lost = f"the device was lost while {what} was measured ({reason_of(error)})"


def bench_of_this_machine() -> Bench:
    """Return the current GPU, or this CPU where there is none."""
    if not torch.cuda.is_available():
        return HostBench()
    from kernels import CudaGpu
    from suites._gpu_bench import GpuBench

    return GpuBench(CudaGpu())


def _is_ceiling(point: Point, device: torch.device) -> bool:
    """Say whether `point` is a ceiling on a case that is meant for `device`."""
    if point.part not in ceilings.PARTS:
        return False
    cases = find_op(point.op).cases
    meant = [case for case in cases if not case.tiny and case.cpu == (device.type == "cpu")]
    return point.case in {case.name for case in meant or cases}
