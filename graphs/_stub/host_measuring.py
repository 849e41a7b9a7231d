"""What is measured of a case on a CPU: eager passes, each part out and alone, and by a profiler."""

from collections.abc import Callable, Mapping

import torch

from graphs import ablation, class_times, stub
from graphs._stub import memory
from graphs._stub.asked import Job
from graphs._stub.messages import Ablated, Built, Passed, Profiled
from graphs._stub.ranks import Ranks
from graphs._stub.timing import HostPass, InContext
from graphs.stub import Stub
from verifyscope.alternate import Alternation, StopRule, alternate
from verifyscope.records import Value
from verifyscope.stats import summarise

_CONTEXT = "in context"
_FEWEST_ROUNDS = 5
_PROFILED = 5


def measure(
    job: Job,
    ranks: Ranks,
    *,
    device: torch.device,
    send: Callable[[object], None],
    beat: Callable[[], None],
) -> None:
    """Build the stub of a job and measure it; `send` takes each result at once."""
    built = stub.build(
        job.case,
        device,
        rank=ranks.rank,
        ranks=ranks.count,
        free_bytes=memory.free_host_bytes() // ranks.count,
        cache_bytes=None,
    )
    send(Built(facts=built.facts, parts=built.parts))
    whole = HostPass(built.full(), ranks, beat)
    whole.passed.run()
    _passes(job, whole, ranks, send)
    if job.ablate:
        _take_apart(job, built, ranks, send, beat)
        send(_profiled(built))


def _passes(job: Job, whole: HostPass, ranks: Ranks, send: Callable[[object], None]) -> None:
    rule = StopRule(time_cap_s=job.time_cap_s, min_rounds=_FEWEST_ROUNDS)
    rounds = alternate({ablation.WHOLE: whole}, rule=rule, now=ranks.now)
    medians = ranks.gathered([summarise(whole.own).median])
    send(
        Passed(
            mode="eager",
            samples=rounds.samples[ablation.WHOLE],
            cache="warm",
            clock="perf-counter",
            by_rank_s=tuple(row[0] for row in medians),
            facts=_facts(rounds, rule),
        )
    )


def _take_apart(
    job: Job,
    built: Stub,
    ranks: Ranks,
    send: Callable[[object], None],
    beat: Callable[[], None],
) -> None:
    passes = {
        ablation.WHOLE: built.full(),
        ablation.NOTHING: built.without(built.parts),
        **{ablation.name_without(part): built.without({part}) for part in built.parts},
        **{ablation.name_only(part): built.only({part}) for part in built.parts},
    }
    context = InContext(built.steps, built.flow, ranks, beat)
    timers = {name: HostPass(one, ranks, beat) for name, one in passes.items()}
    rule = StopRule(time_cap_s=job.time_cap_s, min_rounds=_FEWEST_ROUNDS)
    rounds = alternate({**timers, _CONTEXT: context}, rule=rule, now=ranks.now)
    by_part = {part: times[: rounds.rounds] for part, times in context.by_part.items()}
    account = ablation.account(rounds, built.parts, in_context=by_part)
    send(
        Ablated(
            mode="eager",
            account=account,
            samples=rounds.samples,
            facts=_facts(rounds, rule),
            reduce_by_rank_s=_reduces(by_part, ranks),
        )
    )


def _profiled(built: Stub) -> Profiled:
    """Let torch's profiler time the steps of some passes; every rank runs them."""
    run = class_times.spanned(built.steps, built.flow)
    trace = class_times.record(run, passes=_PROFILED, synchronize=lambda: None)
    found = class_times.seen(trace, built.steps)
    return Profiled(mode="eager", by=found.by, by_class_s=found.by_class_s, passes=found.passes)


def _reduces(by_part: Mapping[str, list[float]], ranks: Ranks) -> tuple[float, ...]:
    """Return what each rank spent in the all-reduces of the layers, waiting included."""
    if "all_reduce" not in by_part:
        return ()
    median = summarise(by_part["all_reduce"]).median
    return tuple(row[0] for row in ranks.gathered([median]))


def _facts(rounds: Alternation, rule: StopRule) -> dict[str, Value]:
    return {
        "clock": "perf-counter",
        "rounds": rounds.rounds,
        "stopped_by": rounds.stopped_by,
        "target_width": rule.target_width,
        "time_cap_s": rule.time_cap_s,
        "threads": torch.get_num_threads(),
    }
