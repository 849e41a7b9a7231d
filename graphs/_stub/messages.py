"""What ranks, the process that holds them and the command say to each other, over pipes.

Rank 0 speaks for all: times are those of the slowest rank, sample by sample.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from graphs._stub.asked import PassMode
from graphs.ablation import Account
from verifyscope.records import Cache, Value
from verifyscope.stats import Summary


@dataclass(frozen=True, slots=True)
class Ready:
    """torch is imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The stub stands. facts: implementations, weight sets, bytes; parts: of its steps."""

    facts: Mapping[str, Value]
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A mode was timed: seconds a pass, of the slowest rank; `host_s` for the host to launch it.

    alone_s: from an idle device to its end, by the host's clock. by_rank_s: the median of each
    rank's own times. facts: how it was timed, for the record's method.
    """

    mode: PassMode
    samples: tuple[float, ...]
    cache: Cache
    clock: str
    host_s: Summary | None = None
    alone_s: Summary | None = None
    launches: int | None = None
    by_rank_s: tuple[float, ...] = ()
    proof: str | None = None
    facts: Mapping[str, Value] = field(default_factory=dict)
    conditions: Mapping[str, Value] = field(default_factory=dict)
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablated:
    """A pass was taken apart, in this mode.

    samples: of the passes, by their names. reduce_by_rank_s: the median time of the all-reduces of
    each rank, waiting included.
    """

    mode: PassMode
    account: Account
    samples: Mapping[str, tuple[float, ...]]
    facts: Mapping[str, Value]
    reduce_by_rank_s: tuple[float, ...] = ()
    conditions: Mapping[str, Value] = field(default_factory=dict)
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What a profiler saw of a mode: seconds a pass by class, and those without a kernel.

    by: what the times are of, kernels or spans of steps (of a CPU, which has no kernels).
    kernels: how many a pass has, by class. unknown: kernels of no known class.
    """

    mode: PassMode
    by: str
    by_class_s: Mapping[str, float]
    passes: int
    kernels: Mapping[str, int] | None = None
    busy_s: float | None = None
    idle_s: float | None = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphed:
    """A mode was captured: its nodes by kind and kernel, and what that cost once, in seconds.

    copies: of results of steps between graphs, a pass. not_opened: why the nodes are not known.
    """

    mode: PassMode
    graphs: int
    kinds: Mapping[str, int]
    kernels: Mapping[str, int]
    copies: int
    instantiate_s: float
    upload_s: float | None
    first_launch_s: float
    not_opened: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What attention plans on the host for each step, once for all layers: seconds."""

    summary: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A replay held to an eager pass, after the step had changed in this ("": the same step)."""

    mode: PassMode
    changed: str
    bitwise: bool
    error: float
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """A capture failed at this op: nothing more is measured in these processes."""

    mode: PassMode
    op: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What was asked for cannot be done here; `reason` says why and what to give instead."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Memory ran out meanwhile."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """A rank met an error at `at_s` (the machine's monotonic clock)."""

    rank: int
    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """A rank has measured everything."""

    rank: int


@dataclass(frozen=True, slots=True)
class Forked:
    """The ranks of a job were started; `group` is their process group."""

    group: int


@dataclass(frozen=True, slots=True)
class Alive:
    """The ranks make progress and have nothing to say."""


@dataclass(frozen=True, slots=True)
class Finished:
    """All ranks are done and gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The attempt is over early and all ranks are gone; `reason` names the rank."""

    kind: Literal["error", "hang"]
    reason: str


Result = Built | Passed | Ablated | Profiled | Graphed | Planned | Replayed
Ending = Broke | Refused | OutOfMemory
