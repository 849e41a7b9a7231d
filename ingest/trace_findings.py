"""What a trace means: where the GPU's time went, and why it was idle.

- graph-nodes-hidden: graphs were launched and their kernels are not in the trace, or a step shows
  fewer kernels than the model has layers: busy, idle and shares would be wrong and are not told.
- launch-bound: for LAUNCH_SHARE of the span or more the GPU waited for the next launch.
- host-sync: for SYNC_SHARE or more it waited after a call that waits for it.
- graph-off: a step of layers is launched kernel by kernel, and the launches show.
- graph-piecewise-fallback: a step takes at least a graph launch a layer.
- collective-spin: collectives take SPIN_SHARE of busy time, and nvidia-smi, given beside the trace,
  shows every multiprocessor busy at a fraction of the power.
- long-pause: one gap is PAUSE_SHARE of the span or more.
- collective-wait: the median call of a collective is far above its shortest: it waits for a peer.
- warm-benchmark: copies within the GPU are faster than DRAM: they run in its cache.
"""

from collections.abc import Iterator, Sequence

from ingest.conclusions import Conclusion, Seen, listed, ms, percent
from ingest.facts import Facts
from ingest.gpu_findings import spins
from ingest.kernel_classes import COLLECTIVES, readable
from ingest.trace_facts import TraceFacts
from ingest.trace_idle import AWAY_S
from verifyscope import hardware, models, units

LAUNCH_SHARE = 0.4
SYNC_SHARE = 0.1
GRAPH_SHARE = 0.1
IDLE_TOLD = 0.1
WAIT_TIMES = 3.0
PAUSE_SHARE = 0.5
SPIN_SHARE = 0.3
WAIT_SHARE = 0.1
VOID_ABOVE = 1.02
_FEWEST_KERNELS = 20
_FEWEST_CALLS = 8
_NODE_FLAG = "nsys profile --cuda-graph-trace=node"


def conclusions(all_facts: Sequence[Facts]) -> Iterator[Conclusion]:
    """Yield what each trace of the files means."""
    layers = [facts.model.layers for facts in all_facts if facts.model is not None]
    spinning = [
        Seen(
            facts.file, gpu.line, f"GPU {gpu.index}: {percent(gpu.power_share or 0.0)} of its power"
        )
        for facts in all_facts
        for gpu in facts.gpus
        if spins(gpu)
    ]
    for facts in all_facts:
        for trace in facts.traces:
            yield from _of_trace(trace, facts.file, min(layers, default=None))
            yield from _spin(trace, facts.file, spinning)


def _of_trace(trace: TraceFacts, file: str, layers: int | None) -> Iterator[Conclusion]:
    if not (trace.breakdown.kernel_count or trace.graph_launches or trace.hidden_graphs):
        yield _no_kernels(trace, file)
        return
    hidden = _hidden(trace, file, layers)
    if hidden is not None:
        yield hidden
    else:
        yield from _launches(trace, file)
        yield from _sync(trace, file)
        yield from _graphs(trace, file)
        yield from _pause(trace, file)
    yield from _waits(trace, file)
    yield from _warm(trace, file)
    yield from _unknown(trace, file)
    yield _described(trace, file, hidden=hidden is not None)


def _no_kernels(trace: TraceFacts, file: str) -> Conclusion:
    where = "in the trace"
    action = "profile with ProfilerActivity.CUDA beside CPU, on a rank that has a GPU"
    if trace.cut:
        where, action = "in what is left of the trace, which is cut", "give the trace whole"
    return Conclusion(
        name="no-gpu-events",
        sentence=f"{_of(trace)}no GPU kernel is {where}: nothing is known of the GPU's time",
        seen=(Seen(file, None, "0 kernels"),),
        next_action=action,
    )


def _hidden(trace: TraceFacts, file: str, layers: int | None) -> Conclusion | None:
    """Find graphs of which only the launch is in the trace."""
    steps, why = trace.steps, ""
    if trace.hides_nodes:
        count = trace.hidden_graphs or trace.empty_graphs
        why = f"{count} of {max(count, trace.graph_launches)} graph launches show no kernel of "
        why += "theirs"
    elif layers and steps and trace.graph_launches and steps.kernels < layers:
        why = f"a step shows {steps.kernels} kernels and the model has {layers} layers"
    if not why:
        return None
    return Conclusion(
        name="graph-nodes-hidden",
        sentence=f"{_of(trace)}{why}: the capture hides the nodes of graphs, so busy time, idle "
        f"time and gaps cannot be told from it",
        seen=(Seen(file, "GraphLaunch", why),),
        next_action=f"record again with {_NODE_FLAG}, or torch.profiler with ProfilerActivity.CUDA",
    )


def _launches(trace: TraceFacts, file: str) -> Iterator[Conclusion]:
    whole, idle = trace.breakdown, trace.idle
    waited = idle.launch_s
    told = "before a kernel that was launched only then"
    if not trace.launches and not trace.graph_launches:
        waited, told = idle.unknown_s, "in short gaps between kernels; no launch is in the trace"
    if whole.kernel_count < _FEWEST_KERNELS or waited < LAUNCH_SHARE * whole.span_s:
        return
    steps = len(trace.steps.steps) if trace.steps else 1
    yield Conclusion(
        name="launch-bound",
        sentence=f"{_of(trace)}launch bound: the GPU is busy for {ms(whole.busy_s)} of "
        f"{ms(whole.span_s)} ({percent(whole.busy_s / whole.span_s)}) and waits for "
        f"{ms(waited)} {told}",
        seen=(
            Seen(file, "kernel", f"{whole.kernel_count} kernels, {ms(whole.idle_s)} idle"),
            Seen(file, "launch", f"{trace.launches} launches, {trace.graph_launches} of graphs"),
        ),
        next_action="replay the step as one CUDA graph; until then a faster kernel gains nothing",
        worth_s=waited / steps,
        confidence="sure" if trace.launches or trace.graph_launches else "likely",
    )


def _sync(trace: TraceFacts, file: str) -> Iterator[Conclusion]:
    whole, idle = trace.breakdown, trace.idle
    if idle.syncs < 2 or idle.sync_s < SYNC_SHARE * whole.span_s:
        return
    steps = len(trace.steps.steps) if trace.steps else 1
    yield Conclusion(
        name="host-sync",
        sentence=f"{_of(trace)}the host waits for the GPU ({idle.waiter}) and launches more only "
        f"then: {idle.syncs} gaps, {ms(idle.sync_s)} of {ms(whole.span_s)} "
        f"({percent(idle.sync_s / whole.span_s)})",
        seen=(Seen(file, idle.waiter, f"{idle.syncs} gaps, {ms(idle.sync_s)}"),),
        next_action="find the .item(), .cpu() or pageable copy behind the call, and take it out "
        "of the step",
        worth_s=idle.sync_s / steps,
        confidence="likely",
    )


def _graphs(trace: TraceFacts, file: str) -> Iterator[Conclusion]:
    steps, whole = trace.steps, trace.breakdown
    if steps is None or steps.layers is None:
        return
    if steps.graph_launches >= steps.layers:
        yield Conclusion(
            name="graph-piecewise-fallback",
            sentence=f"{_of(trace)}a step takes {steps.graph_launches} graph launches for "
            f"{steps.layers} layers: the graph is in pieces, with host work between them",
            seen=(Seen(file, "GraphLaunch", f"{steps.graph_launches} a step"),),
            next_action="capture the full step (cudagraph_mode FULL, or an attention backend that "
            "allows it)",
        )
    idle = trace.idle.launch_s + trace.idle.unknown_s
    if not trace.graph_launches and idle >= GRAPH_SHARE * whole.span_s:
        yield Conclusion(
            name="graph-off",
            sentence=f"{_of(trace)}no CUDA graph: each of the {steps.kernels} kernels of a step is "
            f"launched on its own",
            seen=(Seen(file, "launch", f"{trace.launches} launches, none of a graph"),),
            next_action="switch graphs on for this batch and mode, and look in the log for why "
            "they were off",
            worth_s=idle / len(steps.steps),
        )


def _pause(trace: TraceFacts, file: str) -> Iterator[Conclusion]:
    """Tell of one gap that makes up most of the trace: shares of the span mean little then."""
    longest, span = trace.idle.longest_s, trace.breakdown.span_s
    if longest < AWAY_S or longest < PAUSE_SHARE * span:
        return
    yield Conclusion(
        name="long-pause",
        sentence=f"{_of(trace)}one gap of {ms(longest)} is {percent(longest / span)} of the trace: "
        f"a pause, or an event with a wrong time",
        seen=(Seen(file, None, f"gap of {ms(longest)}"),),
        next_action="look at times of steps, not at what is busy of the span",
        confidence="likely",
        verdict=False,
    )


def _waits(trace: TraceFacts, file: str) -> Iterator[Conclusion]:
    busy = trace.breakdown.busy_s
    for name, one in trace.collectives.items():
        waited = one.sum_s - one.calls * one.least_s
        if (
            one.calls < _FEWEST_CALLS
            or one.median_s < WAIT_TIMES * one.least_s
            or waited < WAIT_SHARE * busy
        ):
            continue
        yield Conclusion(
            name="collective-wait",
            sentence=f"{_of(trace)}{name} takes {units.seconds(one.median_s)} a call, its shortest "
            f"{units.seconds(one.least_s)}: sizes that differ, or up to {ms(waited)} of "
            f"waiting for a peer",
            seen=(Seen(file, name, f"{one.calls} calls, {ms(one.sum_s)}"),),
            next_action="give the traces of all ranks together: the one with the least time in it "
            "comes last",
            confidence="hint",
            verdict=False,
        )


def _spin(trace: TraceFacts, file: str, spinning: Sequence[Seen]) -> Iterator[Conclusion]:
    """Join the time in collectives with what other files say of the power meanwhile."""
    whole = trace.breakdown
    share = sum(whole.share(name) for name in COLLECTIVES)
    if not spinning or share < SPIN_SHARE:
        return
    yield Conclusion(
        name="collective-spin",
        sentence=f"{_of(trace)}collectives are {percent(share)} of busy time, and the GPUs run "
        f"kernels all the time at a fraction of their power: they spin for a peer",
        seen=(Seen(file, "kernel", f"collectives {percent(share)} of busy"), *spinning),
        next_action="give the traces of all ranks together: the one with the least time in "
        "collectives comes last",
        confidence="likely",
    )


def _warm(trace: TraceFacts, file: str) -> Iterator[Conclusion]:
    copy = trace.fast_copy
    gpu = hardware.match(trace.device_name) if trace.device_name else None
    most = gpu.dram_bytes_per_s if gpu else None
    if copy is None or gpu is None or most is None or copy.bytes_per_s <= VOID_ABOVE * most:
        return
    yield Conclusion(
        name="warm-benchmark",
        sentence=f"{_of(trace)}copies of {units.bytes_(copy.bytes)} within the GPU read and write "
        f"{units.rate(copy.bytes_per_s)}, more than the {units.rate(most)} of {gpu.title}: they "
        f"run in its cache",
        seen=(Seen(file, "DtoD", f"{copy.calls} copies"),),
        next_action="do not compare kernels that read such data with those that read DRAM",
        confidence="likely",
        verdict=False,
    )


def _unknown(trace: TraceFacts, file: str) -> Iterator[Conclusion]:
    """Name what is in no class of a verify pass, and what no pattern knows."""
    whole = trace.breakdown
    known = whole.kinds("other_known")
    if known:
        yield Conclusion(
            name="other-known",
            sentence=f"{_of(trace)}{percent(whole.share('other_known'))} of busy time is no part "
            f"of a verify pass: {listed([f'{kind} {ms(s)}' for kind, s in known.items()])}",
            seen=(Seen(file, "kernel", listed(list(known))),),
            verdict=False,
        )
    unknown = [one for one in whole.kernels if one.kind.name == "unclassified"]
    if unknown:
        yield Conclusion(
            name="unclassified",
            sentence=f"{_of(trace)}{percent(whole.share('unclassified'))} of busy time is in "
            f"{len(unknown)} kernels that no pattern knows",
            seen=tuple(Seen(file, None, _named(one.name, one.sum_s)) for one in unknown),
            next_action="name them in a file for --classes",
            verdict=False,
        )


def _described(trace: TraceFacts, file: str, *, hidden: bool) -> Conclusion:
    whole, steps = trace.breakdown, trace.steps
    if hidden:
        words = f"{whole.kernel_count:,} kernels outside graphs"
    else:
        shares = [f"{name} {percent(share)}" for name, share in trace.top if share >= 0.001]
        words = (
            f"busy {percent(whole.busy_s / (whole.span_s or 1.0))} of {ms(whole.span_s)}: "
            f"{', '.join(shares)}, unclassified {percent(whole.share('unclassified'))}; "
            f"{whole.kernel_count:,} kernels, their sum is "
            f"{whole.sum_s / (whole.busy_s or 1.0):.3g} x busy{_idle(trace)}"
        )
    return Conclusion(
        name="trace-breakdown",
        sentence=f"{_of(trace)}{words}{_model(trace)}",
        seen=(Seen(file, None, steps.how if steps else "no steps found"),),
    )


def _idle(trace: TraceFacts) -> str:
    """Return what the GPU was idle for, where that matters."""
    whole, idle = trace.breakdown, trace.idle
    if whole.idle_s < IDLE_TOLD * whole.span_s:
        return ""
    causes = {
        "late launches": idle.launch_s,
        "host waits": idle.sync_s,
        "other streams or events": idle.device_s,
        "long pauses": idle.away_s,
        "no cause known": idle.unknown_s,
    }
    said = [f"{name} {ms(s)}" for name, s in causes.items() if s >= 0.01 * whole.idle_s]
    return f"; idle by cause: {listed(said)}"


def _model(trace: TraceFacts) -> str:
    """Return what the counts of a step say of the model, or nothing."""
    steps = trace.steps
    if steps is None:
        return ""
    count = len(steps.steps)
    said = f"; {count} {'step' if count == 1 else 'steps'} by {steps.how}"
    if steps.layers is None:
        return said
    said += f" of {steps.layers} layers"
    extra = steps.all_reduces - 2 * steps.layers
    if steps.all_reduces and 0 <= extra <= 2:
        said += f" ({steps.all_reduces} all-reduces = 2 x {steps.layers}"
        said += f" + {extra})" if extra else ")"
    names = [name for name, model in models.TABLE.items() if model.layers == steps.layers]
    return said + (f", as {listed(names)} has" if names else "")


def _of(trace: TraceFacts) -> str:
    return f"{trace.case}: " if trace.rank is not None or trace.device is not None else ""


def _named(name: str, seconds: float) -> str:
    return f"{readable(name)}: {ms(seconds)}"
