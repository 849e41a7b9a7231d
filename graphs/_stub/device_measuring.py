"""What is measured of a case on a GPU: its modes, replays held to eager, each part out and alone.

Captures come first: after one that breaks, these processes are to be ended, and then nothing that
was measured is lost. The parts are taken out of the pass in the mode that serving wants, one graph,
where that was captured; else of eager passes.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from graphs import ablation, capture, class_times, nodes, stub
from graphs._stub import equality, timing
from graphs._stub.asked import Job, PassMode
from graphs._stub.memory import CACHES_TO_PASS
from graphs._stub.messages import (
    Ablated,
    Broke,
    Built,
    Graphed,
    Passed,
    Planned,
    Profiled,
)
from graphs._stub.ranks import Ranks
from graphs._stub.timing import DevicePass, Runnable
from graphs.capture import CaptureBroke, Recorder
from graphs.class_times import Seen
from graphs.stub import Pass, Stub
from ingest.trace import Trace
from kernels._timing import CudaGpu, Stopwatch
from verifyscope.alternate import Alternation, StopRule, alternate, warm_up
from verifyscope.conditions import Sampler
from verifyscope.parts import PARTS, class_of
from verifyscope.records import Cache, Value
from verifyscope.stats import summarise

_FEWEST_ROUNDS = 10
_LAUNCHES = 10
_PLANS = 20
_PROFILED = 3
_WARM_UP_S = 0.2
_COLLECTIVES = frozenset(
    part for part in PARTS if class_of(part) in ("all_reduce", "other_collective")
)
OUTSIDE: Mapping[PassMode, frozenset[str]] = {
    "graph": frozenset(),
    "piecewise": frozenset({"attention"}),
    "collectives-outside": _COLLECTIVES,
}


class Conditions(Protocol):
    """What is sampled while passes are timed."""

    def summary(self) -> dict[str, Value]:
        """Return it for a record's conditions."""

    def throttled(self) -> tuple[str, ...]:
        """Return the reasons for which a clock was held down."""


class Device(Protocol):
    """What measuring asks of a GPU: the one seam between this file and torch.cuda."""

    device: torch.device
    l2_bytes: int

    def free_bytes(self) -> int:
        """Return what can still be allocated."""

    def synchronize(self) -> None:
        """Wait for all that is enqueued."""

    def stopwatch(self) -> Stopwatch:
        """Return what takes device time."""

    def recorder(self) -> Recorder:
        """Return what captures."""

    def conditions(self) -> AbstractContextManager[Conditions]:
        """Sample clocks, power and temperature within the block."""

    def profile(self, run: Callable[[], object], *, passes: int) -> Trace:
        """Profile some passes."""


class CudaDevice(CudaGpu):
    """The current CUDA device through torch."""

    def recorder(self) -> Recorder:
        """Capture through torch."""
        return capture.CudaRecorder()

    def conditions(self) -> AbstractContextManager[Conditions]:
        """Sample through NVML."""
        return Sampler(str(torch.cuda.get_device_properties(self.device).uuid))

    def profile(self, run: Callable[[], object], *, passes: int) -> Trace:
        """Let torch's profiler see them."""
        return class_times.record(run, passes=passes, synchronize=self.synchronize)


class ModeBroke(Exception):
    """A mode could not be captured: these processes are over."""

    def __init__(self, broke: Broke) -> None:
        super().__init__(broke.reason)
        self.broke = broke


@dataclass(slots=True)
class _Work:
    """A case while it is measured."""

    job: Job
    ranks: Ranks
    device: Device
    send: Callable[[object], None]
    beat: Callable[[], None]
    stub: Stub
    recorder: Recorder
    modes: dict[PassMode, Runnable] = field(default_factory=dict)
    seen: dict[PassMode, Seen] = field(default_factory=dict)
    nodes: dict[PassMode, Graphed] = field(default_factory=dict)


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
    work = _Work(job, ranks, device, send, beat, built, device.recorder())
    _capture_modes(work)
    for one in equality.check(built, _captured(work), synchronize=device.synchronize):
        send(one)
    _profile_modes(work)
    _time_modes(work)
    _time_planning(work)
    if job.ablate:
        _take_apart(work)


def _capture_modes(work: _Work) -> None:
    work.modes["eager"] = work.stub.full()
    for mode in work.job.modes:
        if mode == "eager" or mode in work.job.without:
            continue
        if not OUTSIDE[mode] or OUTSIDE[mode] & set(work.stub.parts):
            work.modes[mode] = _captured_mode(work, mode)
        work.beat()


def _captured_mode(work: _Work, mode: PassMode) -> capture.Graphed:
    found: capture.Graphed | None = None
    broke: CaptureBroke | None = None
    try:
        found = _record(work, work.stub.full(), OUTSIDE[mode])
    except CaptureBroke as error:
        broke = error
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


def _record(work: _Work, passed: Pass, outside: frozenset[str]) -> capture.Graphed:
    found = capture.capture(passed, outside=outside, recorder=work.recorder)
    for graph in found.graphs:
        try:
            if not graph.opened().count:
                raise CaptureBroke(found.of.calls[0].step.name, "it recorded nothing")
        except nodes.NotOpened:
            break
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


def _captured(work: _Work) -> dict[PassMode, Runnable]:
    return {mode: one for mode, one in work.modes.items() if mode != "eager"}


def _profile_modes(work: _Work) -> None:
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


def _time_modes(work: _Work) -> None:
    timers: dict[str, DevicePass] = {m: _timer(work, one) for m, one in work.modes.items()}
    warm_up(timers, seconds=_WARM_UP_S, now=work.ranks.now)
    before = {mode: len(timer.own) for mode, timer in timers.items()}
    rule = _rule(work)
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
                facts=_facts(rounds, rule),
                conditions=conditions.summary(),
                throttled=conditions.throttled(),
            )
        )


def _time_planning(work: _Work) -> None:
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


def _take_apart(work: _Work) -> None:
    """Time the pass without each part and with each part alone, in turn."""
    mode: PassMode = "graph" if "graph" in work.modes else "eager"
    parts = work.stub.parts
    passes = {
        ablation.WHOLE: work.stub.full(),
        **{ablation.name_without(part): work.stub.without({part}) for part in parts},
        **{ablation.name_only(part): work.stub.only({part}) for part in parts},
    }
    if mode == "eager":
        passes[ablation.NOTHING] = work.stub.without(parts)
    timers: dict[str, DevicePass] = {}
    for name, one in passes.items():
        timers[name] = _timer(work, _as(work, mode, one))
        work.beat()
    rule = _rule(work)
    warm_up(timers, seconds=_WARM_UP_S, now=work.ranks.now)
    with work.device.conditions() as conditions:
        rounds = alternate(timers, rule=rule, now=work.ranks.now)
    by_part = work.seen[mode].by_part
    account = ablation.account(rounds, parts, in_context=by_part)
    work.send(
        Ablated(
            mode=mode,
            account=account,
            samples=rounds.samples,
            facts=_facts(rounds, rule),
            reduce_by_rank_s=_reduces(work, by_part),
            conditions=conditions.summary(),
            throttled=conditions.throttled(),
        )
    )


def _as(work: _Work, mode: PassMode, passed: Pass) -> Runnable:
    if mode == "eager":
        return passed
    try:
        return _record(work, passed, OUTSIDE[mode])
    except CaptureBroke as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise error.__cause__ from None
        raise RuntimeError(f"a pass without some parts could not be captured: {error}") from error


def _reduces(work: _Work, by_part: Mapping[str, tuple[float, ...]] | None) -> tuple[float, ...]:
    """Return what each rank spent in the all-reduces of the layers, waiting included."""
    own = (by_part or {}).get("all_reduce", ())
    if not work.ranks.agree(bool(own)):
        return ()
    return tuple(row[0] for row in work.ranks.gathered([summarise(own).median]))


def _timer(work: _Work, passed: Runnable) -> DevicePass:
    return DevicePass(passed, work.device.stopwatch(), work.ranks, work.beat)


def _rule(work: _Work) -> StopRule:
    return StopRule(time_cap_s=work.job.time_cap_s, min_rounds=_FEWEST_ROUNDS)


def _cache(work: _Work) -> Cache:
    """Say whether a layer's weights are out of the L2 when the pass comes back to them."""
    touched = sum(one.sets * one.touched_bytes for one in work.stub.sets)
    return "cold" if touched >= CACHES_TO_PASS * work.device.l2_bytes else "warm"


def _proof(work: _Work, mode: PassMode) -> str | None:
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


def _facts(rounds: Alternation, rule: StopRule) -> dict[str, Value]:
    return {
        "clock": "cuda-events",
        "rounds": rounds.rounds,
        "stopped_by": rounds.stopped_by,
        "target_width": rule.target_width,
        "time_cap_s": rule.time_cap_s,
        "behind": "another pass",
    }
