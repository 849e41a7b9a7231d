"""What is measured of a case on a GPU: its modes, replays held to eager, each part out and alone.

Captures come first: after one that breaks, these processes are to be ended, and then nothing that
was measured is lost. The parts are taken out of the pass in the mode that serving wants, one graph,
where that was captured; else of eager passes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from graphs import capture, class_times, nodes, stub
from graphs._stub import equality, taking_apart, timing
from graphs._stub.asked import Job, PassMode
from graphs._stub.device import Device
from graphs._stub.memory import CACHES_TO_PASS
from graphs._stub.messages import Broke, Built, Graphed, Passed, Planned, Profiled
from graphs._stub.ranks import Ranks
from graphs._stub.timing import DevicePass, Runnable
from graphs._stub.work import OUTSIDE, WARM_UP_S, Work, facts_of, rule_of, timer_of
from graphs.capture import CaptureBroke, RecordedNothing
from graphs.stub import Stub
from verifyscope.alternate import alternate, warm_up
from verifyscope.records import Cache
from verifyscope.stats import summarise

_LAUNCHES = 10
_PLANS = 20
_PROFILED = 3


class ModeBroke(Exception):
    """A mode could not be captured: these processes are over."""

    def __init__(self, broke: Broke) -> None:
        super().__init__(broke.reason)
        self.broke = broke


def measure(
    job: Job,
    ranks: Ranks,
    *,
    device: Device,
    send: Callable[[object], None],
    beat: Callable[[], None],
) -> None:
    """Build the stub of a job and measure it; `send` takes each result at once."""
    built = stub.build(
        job.case,
        device.device,
        rank=ranks.rank,
        ranks=ranks.count,
        free_bytes=device.free_bytes(),
        cache_bytes=device.l2_bytes,
    )
    beat()
    built.full().run()
    device.synchronize()
    send(Built(facts=built.facts, parts=built.parts))
    work = Work(job, ranks, device, send, beat, built, device.recorder())
    _capture_modes(work)
    for one in equality.check(built, _captured(work), synchronize=device.synchronize):
        send(one)
    _profile_modes(work)
    _time_modes(work)
    _time_planning(work)
    if job.ablate:
        taking_apart.take_apart(work)


def _capture_modes(work: Work) -> None:
    work.modes["eager"] = work.stub.full()
    for mode in work.job.modes:
        if mode == "eager" or mode in work.job.without:
            continue
        if not OUTSIDE[mode] or OUTSIDE[mode] & set(work.stub.parts):
            work.modes[mode] = _captured_mode(work, mode)
        work.beat()


def _captured_mode(work: Work, mode: PassMode) -> capture.Graphed:
    found: capture.Graphed | None = None
    broke: CaptureBroke | None = None
    try:
        found = capture.capture(work.stub.full(), outside=OUTSIDE[mode], recorder=work.recorder)
        found.require_nodes()
    except CaptureBroke as error:
        broke = error
    except RecordedNothing as error:
        found, broke = None, CaptureBroke("the whole pass", str(error))
    if not work.ranks.agree(found is not None) or found is None:
        op, reason = (broke.op, broke.reason) if broke else ("another rank", "it broke there")
        raise ModeBroke(Broke(mode=mode, op=op, reason=reason))
    work.device.synchronize()
    first_s = timing.launched(
        found, rounds=1, ranks=work.ranks, synchronize=work.device.synchronize
    ).alone_s.median
    work.nodes[mode] = _graphed(mode, found, first_s)
    work.send(work.nodes[mode])
    return found


def _graphed(mode: PassMode, found: capture.Graphed, first_s: float) -> Graphed:
    held, why = nodes.NONE, None
    try:
        held = found.opened()
    except nodes.NotOpened as error:
        why = str(error)
    uploads = [graph.upload_s for graph in found.graphs]
    known = [seconds for seconds in uploads if seconds is not None]
    return Graphed(
        mode=mode,
        graphs=len(found.graphs),
        kinds=held.kinds,
        kernels=held.kernels,
        copies=found.copies,
        instantiate_s=sum(graph.instantiate_s for graph in found.graphs),
        upload_s=sum(known) if len(known) == len(uploads) else None,
        first_launch_s=first_s,
        not_opened=why,
    )


def _captured(work: Work) -> dict[PassMode, Runnable]:
    return {mode: one for mode, one in work.modes.items() if mode != "eager"}


def _profile_modes(work: Work) -> None:
    """See each mode through the profiler; eager first, which tells the kernels of each step."""
    steps = work.stub.steps
    for mode, one in work.modes.items():
        run = class_times.spanned(steps, work.stub.flow) if mode == "eager" else one.run
        counts = work.seen["eager"].step_kernels if mode == "graph" else None
        trace = work.device.profile(run, passes=_PROFILED)
        found = class_times.seen(trace, steps, step_kernels=counts)
        work.seen[mode] = found
        work.send(
            Profiled(
                mode=mode,
                by=found.by,
                by_class_s=found.by_class_s,
                passes=found.passes,
                kernels=found.kernels,
                busy_s=found.busy_s,
                idle_s=found.idle_s,
                unknown=found.unknown,
            )
        )
        work.beat()


def _time_modes(work: Work) -> None:
    timers: dict[str, DevicePass] = {m: timer_of(work, one) for m, one in work.modes.items()}
    warm_up(timers, seconds=WARM_UP_S, now=work.ranks.now)
    before = {mode: len(timer.own) for mode, timer in timers.items()}
    rule = rule_of(work)
    with work.device.conditions() as conditions:
        rounds = alternate(timers, rule=rule, now=work.ranks.now)
    for mode in work.modes:
        if mode not in rounds.samples:
            continue
        took = timing.launched(
            work.modes[mode],
            rounds=_LAUNCHES,
            ranks=work.ranks,
            synchronize=work.device.synchronize,
        )
        own = summarise(timers[mode].own[before[mode] :]).median
        work.send(
            Passed(
                mode=mode,
                samples=rounds.samples[mode],
                cache=_cache(work),
                clock="cuda-events",
                host_s=took.host_s,
                alone_s=took.alone_s,
                launches=work.seen[mode].launches,
                by_rank_s=tuple(row[0] for row in work.ranks.gathered([own])),
                proof=_proof(work, mode),
                facts=facts_of(rounds, rule),
                conditions=conditions.summary(),
                throttled=conditions.throttled(),
            )
        )


def _time_planning(work: Work) -> None:
    """Time what attention plans for a step, by the host's clock until the device is done."""
    if not work.stub.plans:
        return
    plan = _Plan(work.stub)
    took = timing.launched(
        plan, rounds=_PLANS, ranks=work.ranks, synchronize=work.device.synchronize
    )
    work.send(Planned(summary=took.alone_s))


@dataclass(frozen=True, slots=True)
class _Plan:
    stub: Stub

    def run(self) -> None:
        self.stub.plan_once()

    def restore(self) -> None:
        return


def _cache(work: Work) -> Cache:
    """Say whether a layer's weights are out of the L2 when the pass comes back to them."""
    touched = sum(one.sets * one.touched_bytes for one in work.stub.sets)
    return "cold" if touched >= CACHES_TO_PASS * work.device.l2_bytes else "warm"


def _proof(work: Work, mode: PassMode) -> str | None:
    """Say what the graphs of a mode hold, beside what the steps launch eagerly."""
    held = work.nodes.get(mode)
    if held is None:
        return None
    if held.not_opened is not None:
        return f"not opened: {held.not_opened}"
    kinds = ", ".join(f"{count} {kind}" for kind, count in held.kinds.items())
    eager = work.seen["eager"].kernels or {}
    return (
        f"{held.graphs} graphs hold {kinds} nodes; an eager pass runs {sum(eager.values())} "
        f"kernels and copies"
    )
