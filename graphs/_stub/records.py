"""What ranks have measured, as records; the docstring of `graphs` says what they hold."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphs._stub.asked import Job, PassMode
from graphs._stub.growth import Growth
from graphs._stub.messages import Ablated, Broke, Graphed, Passed, Planned, Profiled, Replayed
from graphs.ablation import Closure
from graphs.layers import Forward
from ingest.kernel_classes import short_name
from verifyscope import hardware, passes
from verifyscope.parts import class_of
from verifyscope.records import (
    Environment,
    Evidence,
    Finding,
    Launch,
    Measurement,
    Status,
    Value,
    new_id,
)
from verifyscope.roofline import Cost, floor_s
from verifyscope.stats import Summary, summarise

LAUNCHES: Mapping[PassMode, Launch] = {
    "eager": "eager",
    "graph": "graph",
    "piecewise": "piecewise",
    "collectives-outside": "piecewise",
}
_OUTSIDE: Mapping[PassMode, str] = {
    "piecewise": passes.ATTENTION_OUTSIDE,
    "collectives-outside": passes.COLLECTIVES_OUTSIDE,
}
_MOST_KERNELS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A record and its raw samples, in seconds a pass."""

    record: Measurement
    samples: tuple[float, ...] = ()


class Writer:
    """Makes the records of one job; all of them share method["pass"]."""

    def __init__(self, job: Job, environment: Environment) -> None:
        self._job, self._environment = job, environment
        self._pass = new_id()
        self._facts: dict[str, Value] = {}
        self.cost = cost_of(job.case.forward())

    def know(self, facts: Mapping[str, Value]) -> None:
        """Take what the stub was built of; records from now on hold it."""
        self._facts |= facts

    def passed(self, found: Passed) -> Line:
        """Return the record of a whole pass."""
        method: dict[str, Value] = {"clock": found.clock, **found.facts}
        if found.host_s is not None:
            method |= _interval("host_launch", found.host_s)
        if found.alone_s is not None:
            method |= _interval("from_idle", found.alone_s)
        if found.launches is not None:
            method["launches"] = found.launches
        for rank, seconds in enumerate(found.by_rank_s if len(found.by_rank_s) > 1 else ()):
            method[f"rank_{rank}_median_s"] = seconds
        record = self._record(
            passes.FORWARD,
            "forward",
            mode=found.mode,
            summary=summarise(found.samples),
            method=method,
            cache=found.cache,
            proof=found.proof,
            conditions=dict(found.conditions),
            flags=("throttled",) if found.throttled else (),
            touched_bytes=self.cost.touched_bytes,
            flops=self.cost.flops,
            floor_s=self._floor_s(),
        )
        return Line(record=record, samples=found.samples)

    def taken_apart(self, found: Ablated) -> Iterator[Line]:
        """Yield the records of an ablation: the whole, nothing, and three of each part."""
        account, facts = found.account, dict(found.facts)
        reduces = found.reduce_by_rank_s
        whole: dict[str, Value] = {
            **facts,
            **_closed("marginal", account.marginal),
            **_closed("isolated", account.isolated),
            **_closed("in_context", account.in_context),
        }
        if len(reduces) > 1:
            whole["all_reduce_skew_s"] = max(reduces) - min(reduces)
            whole |= {f"rank_{n}_all_reduce_s": seconds for n, seconds in enumerate(reduces)}
        for name, part, op, summary, more in (
            ("whole", "forward", passes.ACCOUNT, account.whole, whole),
            ("nothing", "host", passes.NOTHING, account.nothing, facts),
        ):
            if summary is not None:
                record = self._record(
                    op,
                    part,
                    mode=found.mode,
                    summary=summary,
                    method=more,
                    conditions=dict(found.conditions),
                    flags=("throttled",) if found.throttled else (),
                )
                yield Line(record=record, samples=found.samples.get(name, ()))
        for cost in account.parts:
            marginal = {} if cost.marginal is None else _interval("cost", cost.marginal)
            for op, summary, name, more in (
                (passes.WITHOUT, cost.without, f"without {cost.part}", marginal),
                (passes.ONLY, cost.only, f"only {cost.part}", {}),
                (passes.IN_CONTEXT, cost.in_context, "", {}),
            ):
                if summary is None:
                    reason = cost.why_not or "not measured in this mode"
                    yield self.without_time(op, cost.part, mode=found.mode, reason=reason)
                    continue
                record = self._record(
                    op, cost.part, mode=found.mode, summary=summary, method={**facts, **more}
                )
                yield Line(record=record, samples=found.samples.get(name, ()))

    def profiled(self, found: Profiled) -> Iterator[Line]:
        """Yield the time of each class, as a profiler saw it, and the time without a kernel."""
        method: dict[str, Value] = {"by": found.by, "passes": found.passes}
        if found.unknown:
            method["unclassified"] = ", ".join(found.unknown)
        for name, seconds in found.by_class_s.items():
            more: dict[str, Value] = {}
            if found.kernels is not None:
                more["kernels"] = found.kernels.get(name, 0)
            yield self._once(passes.CLASS, name, found.mode, seconds, {**method, **more})
        if found.busy_s is not None:
            yield self._once(passes.BUSY, "forward", found.mode, found.busy_s, method)
        if found.idle_s is not None:
            yield self._once(passes.IDLE, "host", found.mode, found.idle_s, method)

    def graphed(self, found: Graphed) -> Iterator[Line]:
        """Yield what capturing costs once: instantiate, upload, first launch."""
        method: dict[str, Value] = {
            "graphs": found.graphs,
            "copies": found.copies,
            **{f"nodes_{kind}": count for kind, count in found.kinds.items()},
        }
        if found.not_opened is not None:
            method["not_opened"] = found.not_opened
        for op, seconds in (
            (passes.INSTANTIATE, found.instantiate_s),
            (passes.UPLOAD, found.upload_s),
            (passes.FIRST_LAUNCH, found.first_launch_s),
        ):
            if seconds is not None:
                yield self._once(op, "host", found.mode, seconds, method)

    def captured(self, found: Graphed) -> Finding | None:
        """Return what proves that a pass is captured: the nodes of its one graph, by kernel."""
        if found.mode != "graph" or found.not_opened is not None:
            return None
        kinds = ", ".join(f"{count} {kind}" for kind, count in found.kinds.items())
        return Finding(
            name="captured",
            sentence=f"The pass {self._job.case.name} is one CUDA graph of {kinds} nodes.",
            evidence=tuple(
                Evidence("the captured graph", short_name(kernel), f"{count} nodes")
                for kernel, count in list(found.kernels.items())[:_MOST_KERNELS]
            ),
            confidence="sure",
            environment=self._environment.id,
            command=self._environment.command,
        )

    def planned(self, found: Planned) -> Line:
        """Return what attention plans on the host for a step."""
        summary = found.summary
        method: dict[str, Value] = {"clock": "perf-counter"}
        return Line(
            record=self._record(
                passes.PLAN, "metadata", mode="eager", summary=summary, method=method
            )
        )

    def fitted(self, found: Growth) -> Line:
        """Return the record of a line through passes of several sizes, of which this is one."""
        line, ratio = found.line, found.ratio
        method: dict[str, Value] = {
            "axis": line.axis,
            "other": line.other,
            "base_s": line.base_s,
            "slope_s": line.slope_s,
            "worst_s": line.worst_s,
            "sizes": " ".join(map(str, line.sizes)),
            "ratio": ratio.ratio,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "grows": found.grows,
        }
        longest = found.largest.summary
        return Line(
            record=self._record(
                passes.FIT, "forward", mode=found.mode, summary=longest, method=method
            )
        )

    def broke(self, found: Broke) -> Line:
        """Return the record of a mode that could not be captured."""
        reason = f"capture failed at {found.op}: {found.reason}"
        return self.without_time(passes.FORWARD, "forward", mode=found.mode, reason=reason)

    def replayed(self, found: Replayed) -> Line | None:
        """Return a record of a replay that was wrong; None of one that was right."""
        if found.problem is None:
            return None
        where = f" with another {found.changed}" if found.changed else ""
        reason = f"replayed{where}: {found.problem}"
        return self.without_time(
            passes.FORWARD, "forward", mode=found.mode, reason=reason, status="failed"
        )

    def without_time(
        self, op: str, part: str, *, mode: PassMode, reason: str, status: Status = "error"
    ) -> Line:
        """Return a record that holds why there is no time."""
        return Line(record=self._record(op, part, mode=mode, status=status, reason=reason))

    def _once(
        self, op: str, part: str, mode: PassMode, seconds: float, method: Mapping[str, Value]
    ) -> Line:
        one = summarise([seconds])
        return Line(record=self._record(op, part, mode=mode, summary=one, method=method))

    def _record(
        self,
        op: str,
        part: str,
        *,
        mode: PassMode,
        summary: Summary | None = None,
        method: Mapping[str, Value] | None = None,
        **fields: object,
    ) -> Measurement:
        class_of(part)  # raises for a part that is none
        dims = self._job.case.dims() | {
            name: value for name, value in self._facts.items() if name == "weight_sets"
        }
        if mode in _OUTSIDE:
            dims["outside"] = _OUTSIDE[mode]
        facts = {name: value for name, value in self._facts.items() if name != "weight_sets"}
        times = {"status": "ok", **_times(summary)} if summary is not None else {}
        return Measurement(
            source="measured",
            part=part,
            op=op,
            implementation=passes.STUB,
            case=self._job.case.name,
            dims=dims,
            mode=self._job.case.attention,
            launch=LAUNCHES[mode],
            ranks=self._job.ranks,
            method={"pass": self._pass, **facts, **(method or {})},
            environment=self._environment.id,
            command=self._environment.command,
            commit=self._environment.commit,
            **times,  # type: ignore[arg-type]  # fields of one record
            **fields,  # type: ignore[arg-type]  # fields of one record
        )

    def _floor_s(self) -> float | None:
        gpus = self._environment.gpus
        known = hardware.match(gpus[0].name) if gpus and self._job.device == "cuda" else None
        if known is None or known.dram_bytes_per_s is None:
            return None
        return floor_s(
            self.cost,
            bytes_per_s=known.dram_bytes_per_s,
            flops_per_s=known.peak_flops_per_s.get("bf16"),
        )


def cost_of(asked: Forward) -> Cost:
    """Return the bytes and flops of a pass on one rank, without its collectives."""
    total = Cost(flops=0, read_bytes=0, written_bytes=0)
    for op, count in asked.calls():
        if op.message_bytes is None:
            total += op.cost.times(count)
    return total


def _times(summary: Summary) -> dict[str, float | int]:
    return {
        "median_s": summary.median,
        "low_s": summary.low,
        "high_s": summary.high,
        "p90_s": summary.p90,
        "p99_s": summary.p99,
        "count": summary.count,
    }


def _interval(name: str, summary: Summary) -> dict[str, Value]:
    return {
        f"{name}_s": summary.median,
        f"{name}_low_s": summary.low,
        f"{name}_high_s": summary.high,
    }


def _closed(name: str, closure: Closure | None) -> dict[str, Value]:
    if closure is None:
        return {}
    return {
        f"{name}_sum_s": closure.sum.median,
        **_interval(f"{name}_unexplained", closure.unexplained),
        f"{name}_unexplained_share": closure.share,
    }
