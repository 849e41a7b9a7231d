"""One case: check each implementation, time all of them round robin, check each again.

No time without a passed check on the same inputs, before and after, each on poisoned outputs; and
once more on other inputs, which nothing can have kept. What is wrong is `failed`, what raises is
`error`, what does not fit in memory is `skipped`; each with its reason, and the others go on.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from kernels import (
    Case,
    Implementation,
    Inputs,
    Op,
    Outputs,
    Prepared,
    Stage,
    compare,
    poison,
    poisoned,
)
from suites._bench import Bench, Timing
from verifyscope.alternate import Alternation, StopRule, alternate, warm_up
from verifyscope.clock import ClockName
from verifyscope.errors import reason_of
from verifyscope.records import Cache, Launch, Status, Value
from verifyscope.roofline import Cost

_MOST_COMPARED_SETS = 8
_PLAN_ROUNDS = 20
_PLAN_CAP_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The samples of one timing, in seconds per call, and how they were taken.

    It holds no graph and no tensor: those end with the case.
    """

    samples: tuple[float, ...]
    clock: ClockName
    cache: Cache
    launch: Launch
    calls: int
    sets: int
    facts: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Times of what an engine repeats for each step: all of it, or a stage by its name.

    within: the stage that does this one's work as well.
    """

    stage: str | None
    samples: tuple[float, ...]
    within: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one implementation on a case; `timed` is empty unless the status is ok.

    facts: what the implementation resolved in its plan. planned: times of planning, if it plans:
    of all of it, and of its stages if there are several. form_cost, launches: what its form of the
    computation costs, where that is not the op's, and the kernels of a call, where it says so.
    """

    implementation: Implementation
    case: Case
    status: Status
    reason: str | None = None
    timed: tuple[Timed, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    planned: tuple[Planned, ...] = ()
    form_cost: Cost | None = None
    launches: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What became of a case: its cost, one outcome for each implementation, and how it went.

    counts: what was counted from the inputs; records show it among the dims.
    """

    cost: Cost | None
    outcomes: Mapping[str, Outcome]
    counts: Mapping[str, Value] = field(default_factory=dict)
    alternation: Alternation | None = None
    rule: StopRule | None = None
    warm_up_s: float = 0.0
    conditions: Mapping[str, Value] = field(default_factory=dict)
    throttled: tuple[str, ...] = ()
    in_doubt: str | None = None
    interrupted: bool = False


class Wrong(Exception):
    """An implementation does not agree with its reference; the message is the reason."""


@dataclass(slots=True)
class _Work:
    """A case while it is measured: its input sets, what they must give, and what became of whom."""

    op: Op
    case: Case
    bench: Bench
    sets: list[Inputs]
    cost: Cost
    why_flushed: str | None
    want: Outputs
    timings: dict[str, tuple[Timing, ...]] = field(default_factory=dict)
    facts: dict[str, Mapping[str, str]] = field(default_factory=dict)
    planned: dict[str, tuple[Planned, ...]] = field(default_factory=dict)
    form_costs: dict[str, Cost | None] = field(default_factory=dict)
    launches: dict[str, int | None] = field(default_factory=dict)
    failed: dict[str, tuple[Status, str]] = field(default_factory=dict)


def measure(
    op: Op,
    case: Case,
    implementations: Sequence[Implementation],
    *,
    bench: Bench,
    rule: StopRule,
) -> Measured:
    """Measure `implementations` on `case`; one that cannot be measured has a reason instead."""
    try:
        work = _begin(op, case, bench)
    except Exception as error:
        status, reason = _status_of(error)
        why = f"the case could not be set up: {reason}"
        outcomes = {
            one.name: Outcome(implementation=one, case=case, status=status, reason=why)
            for one in implementations
        }
        return Measured(cost=None, outcomes=outcomes)
    for one in implementations:
        _guarded(work, one, _make_ready)
    timers = {
        f"{name} {number}": timing.timer
        for name, timings in work.timings.items()
        for number, timing in enumerate(timings)
    }
    warm_up(timers, seconds=bench.warm_up_s)
    with bench.conditions() as conditions:
        alternation = alternate(timers, rule=rule)
    for one in implementations:
        if one.name in work.timings:
            _guarded(work, one, partial(_check_again, alternation=alternation))
    return Measured(
        cost=work.cost,
        outcomes={one.name: _outcome(work, one, alternation) for one in implementations},
        counts=op.counts(work.sets[0]),
        alternation=alternation,
        rule=rule,
        warm_up_s=bench.warm_up_s,
        conditions=conditions.summary(),
        throttled=conditions.throttled(),
        in_doubt=bench.in_doubt,
        interrupted=alternation.stopped_by == "interrupted",
    )


def check_once(one: Implementation, case: Case, bench: Bench) -> None:
    """Run `one` once on poisoned memory and hold it to its reference; raise `Wrong` if it errs."""
    inputs = one.op.inputs(case, bench.device)
    with poisoned():
        got = one.run(inputs)
    bench.synchronize()
    _hold(one, got, one.op.reference(**inputs))


def _begin(op: Op, case: Case, bench: Bench) -> _Work:
    first = op.inputs(case, bench.device)
    cost = op.cost(first)
    chosen = bench.input_sets(touched_bytes=cost.touched_bytes, set_bytes=_bytes_of(first))
    # The same values in every set, so that one reference and one cost hold for all of them.
    others = [op.inputs(case, bench.device) for _ in range(chosen.count - 1)]
    return _Work(
        op=op,
        case=case,
        bench=bench,
        sets=[first, *others],
        cost=cost,
        why_flushed=chosen.why_flushed,
        want=op.reference(**first),
    )


def _make_ready(work: _Work, one: Implementation) -> None:
    with poisoned():
        prepared = one.prepare(work.sets[0])
        got = prepared.outputs()
    work.bench.synchronize()
    _hold(one, got, work.want)
    work.facts[one.name] = dict(prepared.facts)
    work.launches[one.name] = prepared.launches
    work.form_costs[one.name] = one.form_cost(work.sets[0]) if one.form_cost else None
    # Not one of those that are timed: planning again would move what a captured graph reads.
    work.planned[one.name] = _time_planning(work, prepared)
    del prepared, got
    timings = work.bench.timings(
        one, work.sets, touched_bytes=work.cost.touched_bytes, why_flushed=work.why_flushed
    )
    for timing in timings:
        _check_timed(work, one, timing)
    work.timings[one.name] = timings


def _check_again(work: _Work, one: Implementation, *, alternation: Alternation) -> None:
    for number, timing in enumerate(work.timings[one.name]):
        if f"{one.name} {number}" not in alternation.failures:
            _check_timed(work, one, timing)
    check_once(one, replace(work.case, seed=work.case.seed + 1), work.bench)


def _check_timed(work: _Work, one: Implementation, timing: Timing) -> None:
    """Poison what the timed calls have written, run them once more, and compare."""
    given = (value for inputs in work.sets for value in inputs.values())
    own = {_storage(value) for value in given if isinstance(value, torch.Tensor)}
    for outputs in timing.run():
        poison({name: value for name, value in outputs.items() if _storage(value) not in own})
    results = timing.run()
    step = -(-len(results) // _MOST_COMPARED_SETS)
    for at in dict.fromkeys((*range(0, len(results), step), len(results) - 1)):
        _hold(one, timing.convert(results[at]), work.want)


def _hold(one: Implementation, got: Outputs, reference: Outputs) -> None:
    want = {name: value for name, value in reference.items() if name not in one.omits}
    if got.keys() == want.keys() and all(_equal(got[name], want[name]) for name in want):
        return
    errors = compare(got, want, tolerance=one.op.tolerance)
    problems = [f"{error.output}: {error.problem}" for error in errors if not error.passed]
    if problems:
        raise Wrong("disagrees with the reference: " + "; ".join(problems))


def _equal(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Say whether nothing differs at all: a gigabyte that was copied needs no float64."""
    return got.shape == want.shape and got.dtype == want.dtype and torch.equal(got, want)


def _time_planning(work: _Work, prepared: Prepared) -> tuple[Planned, ...]:
    """Time what an engine repeats for each step: all of it, then each stage, round after round.

    Times are of the host until the device is done, after a first time that is not counted.
    """
    if not prepared.stages:
        return ()
    whole = Stage(name="", run=prepared.replan)
    timed = (whole, *(prepared.stages if len(prepared.stages) > 1 else ()))
    taken: dict[str, list[float]] = {stage.name: [] for stage in timed}
    prepared.replan()
    start_s = time.perf_counter()
    while len(taken[""]) < _PLAN_ROUNDS and time.perf_counter() - start_s < _PLAN_CAP_S:
        for stage in timed:
            work.bench.synchronize()
            before_s = time.perf_counter()
            stage.run()
            work.bench.synchronize()
            taken[stage.name].append(time.perf_counter() - before_s)
    return tuple(
        Planned(stage=stage.name or None, samples=tuple(taken[stage.name]), within=stage.within)
        for stage in timed
    )


def _guarded(
    work: _Work, one: Implementation, step: Callable[[_Work, Implementation], None]
) -> None:
    try:
        step(work, one)
    except Exception as error:
        work.failed[one.name] = _status_of(error)
        work.timings.pop(one.name, None)


def _status_of(error: Exception) -> tuple[Status, str]:
    if isinstance(error, Wrong):
        return "failed", str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "skipped", f"needs more memory than is free: {reason_of(error)}"
    return "error", reason_of(error)


def _outcome(work: _Work, one: Implementation, alternation: Alternation) -> Outcome:
    def ended(status: Status, reason: str) -> Outcome:
        return Outcome(implementation=one, case=work.case, status=status, reason=reason)

    if one.name in work.failed:
        return ended(*work.failed[one.name])
    timed = []
    for number, timing in enumerate(work.timings[one.name]):
        name = f"{one.name} {number}"
        if name in alternation.samples:
            timed.append(
                Timed(
                    samples=alternation.samples[name],
                    clock=timing.clock,
                    cache=timing.cache,
                    launch=timing.launch,
                    calls=timing.calls,
                    sets=timing.sets,
                    facts=timing.facts,
                )
            )
        elif number == 0:
            reason = alternation.failures.get(name, "interrupted before the first round ended")
            return ended("error" if name in alternation.failures else "skipped", reason)
    return Outcome(
        implementation=one,
        case=work.case,
        status="ok",
        timed=tuple(timed),
        facts=work.facts[one.name],
        planned=work.planned[one.name],
        form_cost=work.form_costs[one.name],
        launches=work.launches[one.name],
    )


def _bytes_of(inputs: Inputs) -> int:
    """Return the memory that the tensors of `inputs` lie in; what two share counts once."""
    storages = {
        _storage(value): value.untyped_storage().nbytes()
        for value in inputs.values()
        if isinstance(value, torch.Tensor)
    }
    return sum(storages.values())


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
