"""From what became of a case to the lines of a records file."""

from dataclasses import dataclass

import msgspec

from kernels import (
    Case,
    Cost,
    Implementation,
    Point,
    all_ops,
    is_compiled,
    predicted,
    predicted_measurement,
)
from suites import _performance, ceilings
from suites._measure import Measured, Planned, Timed
from suites._points import resolve
from suites.ceilings import Ceilings
from verifyscope.hardware import Gpu
from verifyscope.privacy import redacted_words
from verifyscope.records import Environment, Measurement, Status, Value
from verifyscope.stats import summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A record and its raw samples, in seconds per call; none where there is no time."""

    record: Measurement
    samples: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Makes the lines of one run on one device ("cuda" or "cpu"), held to `ceilings`."""

    environment: Environment
    device: str
    cache_bytes: int | None
    ceilings: Ceilings

    def without_time(self, point: Point, *, status: Status, reason: str) -> Line:
        """Return the line of a point that has no time."""
        case = _case(point)
        implementation = _implementation(point)
        return Line(
            record=Measurement(
                source="measured",
                part=point.part,
                op=point.op,
                implementation=point.implementation,
                case=point.case,
                kind=point.kind or "own",
                dims=dict(case.dims) if case else {},
                mode=(implementation.mode if implementation else None)
                or (case.mode if case else None),
                status=status,
                reason=redacted_words(reason),
                environment=self.environment.id,
                command=self.environment.command,
                commit=self.environment.commit,
            )
        )

    def predicted(self, point: Point, *, gpu: Gpu) -> Line | None:
        """Return what a kernel of our own that cannot run here would take on `gpu`, if known."""
        case, implementation = _case(point), _implementation(point)
        if point.kind != "own" or case is None or implementation is None:
            return None
        if point.part in ceilings.PARTS or case.tiny or not is_compiled(implementation):
            return None
        row = predicted(implementation, case, gpu=gpu)
        if row.predicted_s is None:
            return None
        return Line(
            record=msgspec.structs.replace(
                predicted_measurement(row),
                environment=self.environment.id,
                command=self.environment.command,
                commit=self.environment.commit,
            )
        )

    def lines(self, point: Point, measured: Measured) -> list[Line]:
        """Return the line of the point first, then those of its warm times and of its planning."""
        outcome = measured.outcomes[point.implementation]
        if outcome.status != "ok" or measured.cost is None:
            reason = outcome.reason or "no reason is known"
            return [self.without_time(point, status=outcome.status, reason=reason)]
        found = [
            self._timed(point, measured, cost=measured.cost, timed=timed) for timed in outcome.timed
        ]
        found += [self._plan(point, measured, planned=planned) for planned in outcome.planned]
        return found

    def _timed(self, point: Point, measured: Measured, *, cost: Cost, timed: Timed) -> Line:
        """Say what was timed; a time beyond the ceiling is void and leaves no time."""
        method = _method(measured, timed)
        floor_s, why_void = None, None
        from_memory = timed.cache != "warm"
        if point.part not in ceilings.PARTS:
            # The bytes of a warm call need not come from memory: they are no floor for it.
            if from_memory or ceilings.comes_from_memory(cost, self.cache_bytes):
                floor_s = self.ceilings.floor_s(cost, dtype_name(resolve(point)[1]))
                method |= self.ceilings.method_for(cost)
                if point.kind == "own":
                    method |= _performance.held_to(
                        measured.outcomes[point.implementation],
                        timed,
                        cost=cost,
                        dtype=dtype_name(resolve(point)[1]),
                        ceilings=self.ceilings,
                        median_s=summarise(timed.samples).median,
                    )
            if from_memory:
                why_void = self.ceilings.why_void(cost, summarise(timed.samples).median)
        line = self._told(
            point,
            measured,
            samples=timed.samples if why_void is None else (),
            why_not=why_void,
            method=method,
        )
        record = msgspec.structs.replace(
            line.record,
            launch=timed.launch,
            cache=timed.cache,
            depth=timed.calls if timed.launch == "graph" else None,
            flags=self._flags(point, measured, cost),
            touched_bytes=cost.touched_bytes,
            flops=cost.flops,
            floor_s=floor_s,
        )
        return Line(record=record, samples=line.samples)

    def _plan(self, point: Point, measured: Measured, *, planned: Planned) -> Line:
        """Say what planning costs: rows of their own, never part of the call's time.

        The op is `<op>_plan` for all that an engine repeats for each step, and `<op>_plan_<stage>`
        for a stage of it, so that a stage is compared with the same stage of others.
        """
        method: dict[str, Value] = {"clock": "perf-counter", "calls_per_sample": 1}
        op = f"{point.op}_plan"
        if planned.stage is not None:
            op, method["stage"] = f"{op}_{planned.stage}", planned.stage
        if planned.within is not None:
            method["within"] = planned.within
        line = self._told(point, measured, samples=planned.samples, why_not=None, method=method)
        record = msgspec.structs.replace(
            line.record, part="metadata", op=op, launch="eager", cache="warm"
        )
        return Line(record=record, samples=line.samples)

    def _told(
        self,
        point: Point,
        measured: Measured,
        *,
        samples: tuple[float, ...],
        why_not: str | None,
        method: dict[str, Value],
    ) -> Line:
        """Return the line of `samples`, or of a void point if there are none."""
        void = self.without_time(point, status="void", reason=why_not or "it has no samples")
        told = msgspec.structs.replace(
            void.record,
            dims={**void.record.dims, **measured.counts},
            effective=dict(measured.outcomes[point.implementation].facts),
            method=method,
            conditions=dict(measured.conditions),
        )
        if not samples:
            return Line(record=told)
        summary = summarise(samples)
        timed = msgspec.structs.replace(
            told,
            status="ok",
            reason=None,
            median_s=summary.median,
            low_s=summary.low,
            high_s=summary.high,
            p90_s=summary.p90,
            p99_s=summary.p99,
            count=summary.count,
        )
        return Line(record=timed, samples=samples)

    def _flags(self, point: Point, measured: Measured, cost: Cost) -> tuple[str, ...]:
        from_memory = ceilings.is_ceiling_of_memory(cost, self.cache_bytes, device=self.device)
        flags = {
            "throttled": bool(measured.throttled),
            "in-doubt": measured.in_doubt is not None,
            "fits-cache": point.part == "memory_ceiling" and not from_memory,
            # A launch, not the matrix units, is what a tiny product takes.
            "too-small": point.part == "matrix_ceiling" and resolve(point)[1].tiny,
        }
        return tuple(name for name, holds in flags.items() if holds)


def _case(point: Point) -> Case | None:
    """Return the case behind the name; None where the op itself cannot be loaded."""
    op = all_ops().get(point.op)
    return next((case for case in op.cases if case.name == point.case), None) if op else None


def _implementation(point: Point) -> Implementation | None:
    op = all_ops().get(point.op)
    return op.implementations.get(point.implementation) if op else None


def dtype_name(case: Case) -> str:
    """Return the name that matrix ceilings go by: bfloat16, float32."""
    return str(case.dtype).removeprefix("torch.")


def _method(measured: Measured, timed: Timed) -> dict[str, Value]:
    method: dict[str, Value] = {
        "clock": timed.clock,
        "calls_per_sample": timed.calls,
        "input_sets": timed.sets,
        **timed.facts,
    }
    if measured.in_doubt is not None:
        method["in_doubt"] = measured.in_doubt
    if measured.alternation is not None and measured.rule is not None:
        method |= {
            "rounds": measured.alternation.rounds,
            "alternated": ", ".join(measured.outcomes),
            "target_width": measured.rule.target_width,
            "min_rounds": measured.rule.min_rounds,
            "warm_up_s": measured.warm_up_s,
            "time_cap_s": measured.rule.time_cap_s,
            "stopped_by": measured.alternation.stopped_by,
        }
    return method
