"""From what became of a case to the lines of a records file."""

from dataclasses import dataclass

import msgspec

from kernels import Case, Cost, Implementation
from suites import ceilings
from suites._measure import Measured, Outcome, Timed
from suites.ceilings import Ceilings
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

    def without_time(
        self, implementation: Implementation, case: Case, *, status: Status, reason: str
    ) -> Line:
        """Return the line of a point that has no time."""
        return Line(
            record=Measurement(
                source="measured",
                part=implementation.op.part,
                op=implementation.op.name,
                implementation=implementation.name,
                case=case.name,
                kind=implementation.kind,
                dims=dict(case.dims),
                mode=case.mode,
                status=status,
                reason=reason,
                environment=self.environment.id,
                command=self.environment.command,
                commit=self.environment.commit,
            )
        )

    def lines(self, measured: Measured, outcome: Outcome) -> list[Line]:
        """Return the line of the point first, then those of its warm times and of its plan."""
        if outcome.status != "ok" or measured.cost is None:
            reason = outcome.reason or "no reason is known"
            return [
                self.without_time(
                    outcome.implementation, outcome.case, status=outcome.status, reason=reason
                )
            ]
        found = [self._timed(measured, measured.cost, outcome, timed) for timed in outcome.timed]
        if outcome.plan_s:
            found.append(self._plan(measured, outcome))
        return found

    def _timed(self, measured: Measured, cost: Cost, outcome: Outcome, timed: Timed) -> Line:
        """Say what was timed; a time beyond the ceiling is void and leaves no time."""
        part = outcome.implementation.op.part
        median_s = summarise(timed.samples).median
        held = part not in ceilings.PARTS
        from_memory = timed.cache != "warm"
        why_void = self.ceilings.why_void(cost, median_s) if held and from_memory else None
        method = _method(measured, timed)
        floor_s = None
        # The bytes of a warm call need not come from memory: they are no floor for it.
        if held and (from_memory or ceilings.comes_from_memory(cost, self.cache_bytes)):
            floor_s = self.ceilings.floor_s(cost, dtype_name(outcome.case))
            if (ceiling := self.ceilings.memory_for(cost)) is not None:
                method["ceiling"], method["ceiling_bytes_per_s"] = ceiling
        flags = ["throttled"] if measured.throttled else []
        flags += ["in-doubt"] if measured.in_doubt else []
        if part == "memory_ceiling" and not ceilings.is_ceiling_of_memory(
            cost, self.cache_bytes, device=self.device
        ):
            flags.append("fits-cache")
        if measured.in_doubt:
            method["in_doubt"] = measured.in_doubt
        line = self._told(
            outcome,
            timed.samples if why_void is None else (),
            reason=why_void,
            flags=flags,
            method=method,
            conditions=dict(measured.conditions),
            touched_bytes=cost.touched_bytes,
            flops=cost.flops,
            floor_s=floor_s,
        )
        launched = {
            "launch": timed.launch,
            "cache": timed.cache,
            "depth": timed.calls if timed.launch == "graph" else None,
        }
        return Line(record=msgspec.structs.replace(line.record, **launched), samples=line.samples)

    def _plan(self, measured: Measured, outcome: Outcome) -> Line:
        """Say what planning costs: a row of its own, never part of the call's time."""
        line = self._told(
            outcome,
            outcome.plan_s,
            method={"clock": "perf-counter", "calls_per_sample": 1, "rounds": len(outcome.plan_s)},
            conditions=dict(measured.conditions),
        )
        own = {"part": "metadata", "op": f"{outcome.implementation.op.name}_plan"}
        record = msgspec.structs.replace(line.record, **own, launch="eager", cache="warm")
        return Line(record=record, samples=line.samples)

    def _told(
        self,
        outcome: Outcome,
        samples: tuple[float, ...],
        *,
        method: dict[str, Value],
        conditions: dict[str, Value],
        reason: str | None = None,
        flags: list[str] | None = None,
        touched_bytes: float | None = None,
        flops: float | None = None,
        floor_s: float | None = None,
    ) -> Line:
        """Return the line of `samples`; of a void point, with its reason, if there are none."""
        base = self.without_time(
            outcome.implementation, outcome.case, status="void", reason=reason or "no samples"
        ).record
        told = msgspec.structs.replace(
            base,
            flags=tuple(flags or ()),
            effective=dict(outcome.facts),
            method=method,
            conditions=conditions,
            touched_bytes=touched_bytes,
            flops=flops,
            floor_s=floor_s,
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
    if measured.alternation is not None and measured.rule is not None:
        method |= {
            "rounds": measured.alternation.rounds,
            "alternated": ", ".join(measured.outcomes),
            "target_width": measured.rule.target_width,
            "min_rounds": measured.rule.min_rounds,
            "time_cap_s": measured.rule.time_cap_s,
            "stopped_by": measured.alternation.stopped_by,
        }
    return method
