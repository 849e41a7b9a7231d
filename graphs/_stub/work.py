"""A case while it is measured on a GPU: what was built and captured, and how all of it is timed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from graphs._stub.asked import Job, PassMode
from graphs._stub.device import Device
from graphs._stub.messages import Graphed
from graphs._stub.ranks import Ranks
from graphs._stub.timing import DevicePass, Runnable
from graphs.capture import Recorder
from graphs.class_times import Seen
from graphs.stub import Stub
from verifyscope.alternate import Alternation, StopRule
from verifyscope.parts import PARTS, class_of
from verifyscope.records import Value

# An idle GPU takes about a tenth of a second to raise its clocks.
WARM_UP_S = 0.2
_FEWEST_ROUNDS = 10
_COLLECTIVES = frozenset(
    part for part in PARTS if class_of(part) in ("all_reduce", "other_collective")
)
OUTSIDE: Mapping[PassMode, frozenset[str]] = {
    "graph": frozenset(),
    "piecewise": frozenset({"attention"}),
    "collectives-outside": _COLLECTIVES,
}


@dataclass(slots=True)
class Work:
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


def timer_of(work: Work, passed: Runnable) -> DevicePass:
    return DevicePass(passed, work.device.stopwatch(), work.ranks, work.beat)


def rule_of(work: Work) -> StopRule:
    return StopRule(time_cap_s=work.job.time_cap_s, min_rounds=_FEWEST_ROUNDS)


def facts_of(rounds: Alternation, rule: StopRule) -> dict[str, Value]:
    return {
        "clock": "cuda-events",
        "rounds": rounds.rounds,
        "stopped_by": rounds.stopped_by,
        "target_width": rule.target_width,
        "time_cap_s": rule.time_cap_s,
        "behind": "another pass",
    }
