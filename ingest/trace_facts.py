"""What a trace says, as records and as facts to conclude from.

Records, source "imported", one case a GPU of a file: op "trace" (the whole: its median_s is the
span), "trace step" (median_s of a step), "trace class" (median_s is the union of the class over
the whole trace; dims hold the shares) and "trace kernel" (median_s of a call). Shares are of busy
time; the share of the kernel sum, which counts what runs side by side twice, stands beside it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ingest import trace_faults
from ingest.facts import Facts, Read
from ingest.kernel_classes import COLLECTIVES, Pattern, ours, readable, short_name
from ingest.log import Log
from ingest.timeline import Breakdown, KernelTime, breakdown, kinds_of
from ingest.trace import COPY, KERNEL, Trace
from ingest.trace_faults import Faults
from ingest.trace_idle import Idle, idle_of
from ingest.trace_steps import Steps, steps_of
from verifyscope.parts import Class
from verifyscope.records import TRACE_OPS, Measurement, Origin, Value

MOST_KERNELS = 60
MOST_COLLECTIVES = 100
TRACE, STEP, CLASS, KERNEL_OP = TRACE_OPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The calls of one collective kernel: how many, their sum, the shortest and the median."""

    calls: int
    sum_s: float
    least_s: float
    median_s: float
    most_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FastCopy:
    """Copies within the GPU that tell their bytes: the best rate of reading and writing."""

    calls: int
    bytes_per_s: float
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """What one GPU did. graph_kernels ran under a graph launch; empty_graphs launched none.

    case: rank and GPU in words. cut: the file ends before its events do.
    """

    case: str
    rank: int | None
    world: int | None
    device: int | None
    device_name: str | None
    tool: str
    breakdown: Breakdown
    steps: Steps | None
    idle: Idle
    launches: int
    graph_launches: int
    graph_kernels: int
    empty_graphs: int
    hidden_graphs: int
    collectives: dict[str, Collective]
    fast_copy: FastCopy | None
    cut: bool = False

    @property
    def hides_nodes(self) -> bool:
        """Say whether graphs were launched whose kernels are not in the trace."""
        return self.hidden_graphs > 0 or self.empty_graphs * 2 > self.graph_launches

    @property
    def top(self) -> list[tuple[Class, float]]:
        """Return each class and its share of busy time, the largest first."""
        shares = [(one.name, self.breakdown.share(one.name)) for one in self.breakdown.classes]
        return sorted(shares, key=lambda item: -item[1])


def records(
    traces: Sequence[Trace], faults: Faults, log: Log, patterns: tuple[Pattern, ...] = ()
) -> Iterator[Read]:
    """Yield the findings on what was not read, the times of each GPU, and the facts."""
    for one in trace_faults.conclusions(faults, traces):
        yield one.finding(environment=log.environment, command=log.command)
    found = []
    for trace in traces:
        facts = replace(facts_of(trace, patterns or log.patterns or ours()), cut=faults.cut)
        found.append(facts)
        if len(trace.gpu):
            yield from _measurements(facts, log)
    yield Facts(file=log.file, traces=tuple(found))


def facts_of(trace: Trace, patterns: tuple[Pattern, ...]) -> TraceFacts:
    """Return what a trace says."""
    kinds = kinds_of(trace, patterns)
    whole = breakdown(trace, kinds)
    graphs = trace.calls.correlation[trace.calls_named("GraphLaunch")]
    counts = trace.counts("Launch")
    graph_launches = sum(n for name, n in counts.items() if "GraphLaunch" in name)
    known = graphs[graphs >= 0]
    return TraceFacts(
        case=_case(trace),
        rank=trace.rank,
        world=trace.world,
        device=trace.device,
        device_name=trace.device_name,
        tool=trace.tool,
        breakdown=whole,
        steps=steps_of(trace, kinds) if whole.kernel_count else None,
        idle=idle_of(trace),
        launches=counts.total() - graph_launches,
        graph_launches=graph_launches,
        graph_kernels=int(np.isin(trace.kernels.correlation, known).sum()),
        empty_graphs=int((~np.isin(known, trace.gpu.correlation)).sum()) if len(trace.gpu) else 0,
        hidden_graphs=trace.hidden_graphs,
        collectives=_collectives(trace, whole),
        fast_copy=_fast_copy(trace),
    )


def _case(trace: Trace) -> str:
    words = []
    if trace.rank is not None:
        words.append(f"rank {trace.rank}" + (f" of {trace.world}" if trace.world else ""))
    if trace.device is not None:
        words.append(f"GPU {trace.device}")
    return ", ".join(words) or "one GPU"


def _collectives(trace: Trace, whole: Breakdown) -> dict[str, Collective]:
    """Return the calls of each collective, by its kernel's last name."""
    found: dict[str, list[int]] = {}
    every = [one for one in whole.kernels if one.kind.name in COLLECTIVES and one.what == KERNEL]
    for one in every[:MOST_COLLECTIVES]:
        found.setdefault(readable(short_name(one.name)), []).append(trace.names.index(one.name))
    made = {}
    for name, ids in found.items():
        mine = trace.gpu.where(np.isin(trace.gpu.name, ids))
        length = mine.end_s - mine.start_s
        made[name] = Collective(
            calls=len(mine),
            sum_s=float(length.sum()),
            least_s=float(length.min()),
            median_s=float(np.median(length)),
            most_s=float(length.max()),
        )
    return made


def _fast_copy(trace: Trace) -> FastCopy | None:
    """Return the copies within the GPU that take long enough to have a rate."""
    inside = np.array(["DtoD" in name or "Device -> Device" in name for name in trace.names])
    if not inside.any():
        return None
    mine = trace.gpu.where((trace.gpu.what == COPY) & inside[trace.gpu.name])
    length = mine.end_s - mine.start_s
    long_enough = (length >= 1e-5) & (mine.bytes > 0)
    if not long_enough.any():
        return None
    rates = 2 * mine.bytes[long_enough] / length[long_enough]
    return FastCopy(
        calls=int(long_enough.sum()),
        bytes_per_s=float(np.median(rates)),
        bytes=float(np.median(mine.bytes[long_enough])),
    )


def _measurements(facts: TraceFacts, log: Log) -> Iterator[Measurement]:
    whole, steps = facts.breakdown, facts.steps
    gaps_told = not facts.hides_nodes
    dims: dict[str, Value] = {"kernels": whole.kernel_count, "kernel_sum_s": whole.sum_s}
    dims |= {"launches": facts.launches, "graph_launches": facts.graph_launches}
    if gaps_told:
        dims |= {"busy_s": whole.busy_s, "idle_s": whole.idle_s}
    if whole.span_s > 0:
        yield _row(
            facts, log, op=TRACE, by=facts.tool, part="other_known", s=whole.span_s, n=1, dims=dims
        )
    if steps is not None:
        yield _step_row(facts, steps, log, gaps_told=gaps_told)
    for one in whole.classes:
        shares: dict[str, Value] = {"calls": one.calls, "sum_s": one.sum_s}
        if gaps_told:
            shares["share_of_busy"] = one.busy_s / (whole.busy_s or 1.0)
        if one.kernels_s:
            shares["share_of_kernel_sum"] = one.kernels_s / (whole.sum_s or 1.0)
        shares["alone_s"] = one.alone_s
        yield _row(
            facts, log, op=CLASS, by=one.name, part=one.name, s=one.busy_s, n=one.calls, dims=shares
        )
    yield from _kernel_rows(facts, log)


def _step_row(facts: TraceFacts, steps: Steps, log: Log, *, gaps_told: bool) -> Measurement:
    lengths = steps.lengths_s
    median, p90, p99 = np.percentile(lengths, (50, 90, 99)).tolist()
    dims: dict[str, Value] = {"kernels": steps.kernels, "all_reduces": steps.all_reduces}
    dims["graph_launches"] = steps.graph_launches
    if steps.layers is not None:
        dims["layers"] = steps.layers
    if gaps_told:
        dims["busy_s"] = float(np.median([one.busy_s for one in steps.steps]))
    tail = (p90, p99) if len(lengths) > 1 else None
    return _row(
        facts,
        log,
        op=STEP,
        by=steps.how,
        part="forward",
        s=median,
        n=len(lengths),
        dims=dims,
        tail=tail,
    )


def _kernel_rows(facts: TraceFacts, log: Log) -> Iterator[Measurement]:
    """Yield a row for each kernel that took most, under names that differ."""
    whole, used = facts.breakdown, set[str]()
    for one in whole.kernels[:MOST_KERNELS]:
        name = base = readable(one.name)
        number = 2
        while name in used:
            name, number = f"{base} #{number}", number + 1
        used.add(name)
        yield _row(
            facts,
            log,
            op=KERNEL_OP,
            by=name,
            part=one.kind.name,
            s=one.median_s,
            n=one.calls,
            dims=_kernel_dims(one, whole),
            tail=(one.p90_s, one.p99_s),
        )


def _kernel_dims(one: KernelTime, whole: Breakdown) -> dict[str, Value]:
    dims: dict[str, Value] = {"kind": one.kind.kind, "sum_s": one.sum_s}
    dims["share_of_busy"] = one.sum_s / (whole.busy_s or 1.0)
    if one.what == KERNEL:
        dims["share_of_kernel_sum"] = one.sum_s / (whole.sum_s or 1.0)
    return dims


def _row(
    facts: TraceFacts,
    log: Log,
    *,
    op: str,
    by: str,
    part: str,
    s: float,
    n: int,
    dims: dict[str, Value],
    tail: tuple[float, float] | None = None,
) -> Measurement:
    graphs, kernels = facts.graph_kernels, facts.breakdown.kernel_count
    return Measurement(
        source="imported",
        part=part,
        op=op,
        implementation=by,
        kind="baseline-different-work",
        case=facts.case,
        status="ok",
        dims=dims,
        launch="graph" if graphs * 2 > kernels else "eager" if not facts.graph_launches else None,
        median_s=s,
        p90_s=tail[0] if tail else None,
        p99_s=tail[1] if tail else None,
        count=n,
        ranks=facts.world,
        method={"clock": f"GPU timestamps of {facts.tool}"},
        environment=log.environment,
        command=log.command,
        origin=Origin(log.file),
    )
