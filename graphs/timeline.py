"""When each kernel of a pass runs: the host's launches, the device's stream, and ranks that meet.

    launched(i)  = launched(i - 1) + host seconds of launch i            one thread a rank
    start(first) = max(launched, end of the kernel before + gap)         kernel of a launch
    start(next)  = end of the kernel before + gap                        of the same launch: a graph
    a collective begins when the last rank has come to it, and ends on all ranks at once
    pass         = the last end of any rank

Eager, each kernel is a launch of its own; a full graph is one launch of all; piecewise, the graphs
between attention are launches. What bounds a pass shows by itself: launches that are slower than
kernels, kernels, or a rank that the others wait for. Exact where closed forms exist
(tests/test_timeline.py): n launches of l seconds with shorter kernels of d take n l + d; kernels
that are longer, l + n d + (n - 1) gap.

Ranks may differ: `Rank.speed` stretches a rank's kernels, `Rank.late_s` lets its host begin late,
and `jitter` adds an exponential delay of that mean to each kernel, drawn from `seed`. Collectives
are not stretched: their time is that of the ranks together. Seconds throughout; the host runs
ahead of the device without limit, as CUDA's queue of about a thousand launches nearly allows.

Inputs are measured, imported or predicted by who calls; here nothing is known of where from.
"""

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

GRAPH = "graph"
_LEAST_S = 0.0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel of a pass, or a collective of all ranks; `layer` is None outside of layers."""

    name: str
    part: str
    device_s: float
    layer: int | None = None
    collective: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.device_s < float("inf"):
            raise ValueError(f"{self.name}: {self.device_s} s is no duration; give 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the host launches in one go, in `host_s`: a kernel, or a graph of several."""

    name: str
    host_s: float
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.host_s < float("inf"):
            raise ValueError(f"{self.name}: {self.host_s} s is no duration; give 0 or more")
        if not self.steps:
            raise ValueError(f"{self.name} launches nothing; leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """How a rank differs: its kernels take `speed` times as long, its host begins `late_s` late."""

    speed: float = 1.0
    late_s: float = 0.0


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What ran when: a launch on a rank's host, or a step on its device.

    launch: the number of the launch, from 0, which its steps share.
    waited_s: of a collective, how long this rank was there before the last one came.
    """

    rank: int
    on: str
    name: str
    part: str
    layer: int | None
    launch: int
    start_s: float
    end_s: float
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A pass as it ran. Sums are of one rank, the last to end, unless they say otherwise."""

    events: tuple[Event, ...] = field(repr=False)
    pass_s: float
    host_s: float
    busy_s: float
    waited_s: float
    skew_s: float

    @property
    def idle_s(self) -> float:
        """Return for how long the device ran nothing; waiting in a collective does not count."""
        return max(_LEAST_S, self.pass_s - self.busy_s - self.waited_s)

    @property
    def idle_share(self) -> float:
        """Return the idle time as a share of the pass."""
        return self.idle_s / self.pass_s if self.pass_s else 0.0


def run(
    launches: Sequence[Launch],
    *,
    ranks: Sequence[Rank] = (Rank(),),
    gap_s: float = 0.0,
    jitter_s: float = 0.0,
    seed: int = 0,
) -> Timeline:
    """Return the timeline of a pass that every rank launches alike.

    gap_s: between two kernels of a stream, of a graph or not; an empty node takes about that.
    jitter_s: the mean of what is added to each kernel of each rank, exponentially distributed.
    """
    if not launches or not ranks:
        raise ValueError("a timeline needs a launch and a rank; give at least one of each")
    streams = [
        _Stream(
            number=number, rank=rank, launches=launches, gap_s=gap_s, jitter_s=jitter_s, seed=seed
        )
        for number, rank in enumerate(ranks)
    ]
    events: list[Event] = []
    while any(not stream.is_done for stream in streams):
        for stream in streams:
            events += stream.up_to_collective()
        arrived = [stream for stream in streams if not stream.is_done]
        if arrived:
            begins_s = max(stream.arrival_s() for stream in arrived)
            events += [stream.meet(begins_s) for stream in arrived]
    last = max(streams, key=lambda stream: stream.free_s)
    return Timeline(
        events=tuple(heapq.merge(*_by_rank(events), key=lambda event: (event.start_s, event.rank))),
        pass_s=last.free_s,
        host_s=last.host_s,
        busy_s=last.busy_s,
        waited_s=last.waited_s,
        skew_s=max(stream.waited_s for stream in streams),
    )


def eager(steps: Sequence[Step], *, launch_s: float) -> list[Launch]:
    """Return a launch a step."""
    return [Launch(name=step.name, host_s=launch_s, steps=(step,)) for step in steps]


def one_graph(steps: Sequence[Step], *, launch_s: float) -> list[Launch]:
    """Return one launch of all steps; launch_s is that of the whole graph."""
    return [Launch(name=GRAPH, host_s=launch_s, steps=tuple(steps))]


def piecewise(
    steps: Sequence[Step], *, graph_launch_s: float, launch_s: float, outside: Sequence[str]
) -> list[Launch]:
    """Return graphs of the steps between those of the parts `outside`, which are eager."""
    found: list[Launch] = []
    inside: list[Step] = []
    for step in steps:
        if step.part not in outside:
            inside.append(step)
            continue
        if inside:
            found += one_graph(inside, launch_s=graph_launch_s)
            inside = []
        found += eager([step], launch_s=launch_s)
    return found + (one_graph(inside, launch_s=graph_launch_s) if inside else [])


def by_part(timeline: Timeline, *, rank: int = 0) -> dict[str, float]:
    """Return the device's seconds of each part on one rank, waiting included."""
    found: dict[str, float] = {}
    for event in timeline.events:
        if event.rank == rank and event.on == "device":
            found[event.part] = found.get(event.part, 0.0) + event.end_s - event.start_s
    return found


class _Stream:
    """One rank while its pass is played: when its host and its device are free."""

    def __init__(
        self,
        *,
        number: int,
        rank: Rank,
        launches: Sequence[Launch],
        gap_s: float,
        jitter_s: float,
        seed: int,
    ) -> None:
        self._number, self._rank, self._gap_s, self._jitter_s = number, rank, gap_s, jitter_s
        self._random = random.Random(f"{seed} {number}")
        self._left = self._steps(launches)
        self._next: tuple[Step, float, int] | None = None
        self._pending: list[Event] = []
        self._began = False
        self.host_s = self.free_s = rank.late_s
        self.busy_s = self.waited_s = 0.0
        self._advance()

    @property
    def is_done(self) -> bool:
        """Say whether nothing is left to run."""
        return self._next is None

    def up_to_collective(self) -> list[Event]:
        """Run what waits for no other rank; return it, and the launches that were made."""
        events: list[Event] = []
        while self._next is not None and not self._next[0].collective:
            (step, _, launch), start_s = self._next, self.arrival_s()
            seconds = step.device_s * self._rank.speed + self._drawn()
            end_s = start_s + seconds
            events.append(self._ran(step, launch, start_s, end_s, waited_s=0.0))
            self._advance()
        return [*self._taken(), *events]

    def arrival_s(self) -> float:
        """Return when the next step could start on this rank."""
        if self._next is None:
            return self.free_s
        return max(self._next[1], self.free_s + (self._gap_s if self._began else 0.0))

    def meet(self, begins_s: float) -> Event:
        """Run the collective that is next, from `begins_s` on; it is there since `arrival_s`."""
        if self._next is None:
            raise ValueError("ranks launch different numbers of collectives; launch them alike")
        (step, _, launch), here_s = self._next, self.arrival_s()
        end_s = begins_s + step.device_s
        event = self._ran(step, launch, here_s, end_s, waited_s=begins_s - here_s)
        self._advance()
        return event

    def _ran(
        self, step: Step, launch: int, start_s: float, end_s: float, *, waited_s: float
    ) -> Event:
        self.free_s, self._began = end_s, True
        self.busy_s += end_s - start_s - waited_s
        self.waited_s += waited_s
        return Event(
            rank=self._number,
            on="device",
            name=step.name,
            part=step.part,
            layer=step.layer,
            launch=launch,
            start_s=start_s,
            end_s=end_s,
            waited_s=waited_s,
        )

    def _drawn(self) -> float:
        return self._random.expovariate(1 / self._jitter_s) if self._jitter_s else 0.0

    def _advance(self) -> None:
        self._next = next(self._left, None)

    def _taken(self) -> list[Event]:
        taken, self._pending = self._pending, []
        return taken

    def _steps(self, launches: Sequence[Launch]) -> Iterator[tuple[Step, float, int]]:
        """Yield each step with when it was launched, and by which launch; the host never waits."""
        for number, launch in enumerate(launches):
            start_s = self.host_s
            self.host_s += launch.host_s
            first = launch.steps[0]
            self._pending.append(
                Event(
                    rank=self._number,
                    on="host",
                    name=launch.name,
                    part=first.part if len(launch.steps) == 1 else "host",
                    layer=first.layer if len(launch.steps) == 1 else None,
                    launch=number,
                    start_s=start_s,
                    end_s=self.host_s,
                )
            )
            launched_s = self.host_s
            for step in launch.steps:
                yield step, launched_s, number


def _by_rank(events: Sequence[Event]) -> list[list[Event]]:
    tracks: dict[tuple[int, str], list[Event]] = {}
    for event in events:
        tracks.setdefault((event.rank, event.on), []).append(event)
    return list(tracks.values())
