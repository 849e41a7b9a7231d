"""Where a sweep stands, from its events alone: what is known, what is missing, what a row came to.

A row is one time (launch, depth) of one point in one combination. Its samples are those of all
starts; its 95 % interval is widened to the lowest and the highest median of a start, so that what
differs from start to start is in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from collectives._sweep.combination import Combination
from collectives._sweep.job import Task, Timing
from collectives._sweep.journal import (
    Event,
    Imported,
    Lost,
    Opened,
    ProbeDone,
    RowTimed,
    StartDone,
    StressDone,
    Verdict,
)
from collectives._sweep.points import Point
from collectives._sweep.spec import FEWEST_STARTS, Spec
from verifyscope import bandwidth, stats
from verifyscope.records import Status

_EXPOSED_SHARE = 0.1
_Key = tuple[int, int, Timing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one time of a point came to. `starts` are the samples of each start, in seconds."""

    combination: Combination
    point: Point
    timing: Timing
    status: Status
    reason: str | None
    starts: tuple[tuple[float, ...], ...]
    flags: tuple[str, ...]
    verdict: Verdict | None
    wrong: int
    checked: bool
    exposed: int

    @property
    def samples(self) -> tuple[float, ...]:
        """Return all samples, start by start."""
        return tuple(sample for start in self.starts for sample in start)

    @property
    def medians(self) -> tuple[float, ...]:
        """Return the median of each start."""
        return tuple(median(start) for start in self.starts)

    @property
    def summary(self) -> stats.Summary | None:
        """Return the summary of a row that is right; None for any other."""
        if self.status != "ok":
            return None
        pooled = stats.summarise(self.samples)
        return replace(
            pooled,
            low=min(pooled.low, *self.medians),
            high=max(pooled.high, *self.medians),
        )


@dataclass(slots=True)
class State:
    """What the events up to now say."""

    run: str
    spec: Spec
    imports_s: list[float] = field(default_factory=list)
    probes: dict[int, ProbeDone] = field(default_factory=dict)
    stresses: dict[int, StressDone] = field(default_factory=dict)
    lost: dict[int, Lost] = field(default_factory=dict)
    starts: dict[tuple[int, int], list[StartDone]] = field(default_factory=dict)
    timed: dict[_Key, dict[int, RowTimed]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Add an event."""
        if isinstance(event, Imported):
            self.imports_s.append(event.seconds)
        elif isinstance(event, ProbeDone):
            self.probes[event.combination] = event
        elif isinstance(event, StressDone):
            self.stresses[event.combination] = event
        elif isinstance(event, Lost):
            self.lost[event.combination] = event
        elif isinstance(event, StartDone):
            self.starts.setdefault((event.combination, event.start), []).append(event)
        elif isinstance(event, RowTimed):
            key = (event.combination, event.point, Timing(launch=event.launch, depth=event.depth))
            self.timed.setdefault(key, {})[event.start] = event

    # What is still to be done.

    def to_probe(self, at: int) -> bool:
        """Say whether a combination has to be probed."""
        return at not in self.probes and at not in self.lost

    def to_stress(self, at: int) -> bool:
        """Say whether a combination has to be stressed: an unsafe one that was found right."""
        probe = self.probes.get(at)
        unsafe = self.spec.combinations[at].verdict == "unsafe" and self.spec.ranks > 1
        right = probe is not None and any(known.status == "ok" for known in probe.verdicts)
        return unsafe and right and at not in self.stresses and at not in self.lost

    def to_time(self, at: int, start: int) -> tuple[Task, ...]:
        """Return what a start of a combination has to time, without what it has timed."""
        stress = self.stresses.get(at)
        if at in self.lost or (stress is not None and stress.problem is not None):
            return ()
        return self._tasks(at, start, range(len(self.spec.points)), self.spec.timings)

    def to_time_again(self, at: int) -> tuple[Task, ...]:
        """Return the points that took less time than a smaller size, and those before them."""
        start = self.spec.starts
        if at in self.lost:
            return ()
        tasks: dict[int, tuple[Timing, ...]] = {}
        for timing in self.spec.timings:
            for point in sorted(self._suspicious(at, timing)):
                tasks[point] = (*tasks.get(point, ()), timing)
        found = (
            task
            for point, timings in sorted(tasks.items())
            for task in self._tasks(at, start, [point], timings)
        )
        return tuple(found)

    def _tasks(
        self, at: int, start: int, points: Sequence[int], timings: Sequence[Timing]
    ) -> tuple[Task, ...]:
        probe = self.probes.get(at)
        if probe is None:
            return ()
        right = {known.point for known in probe.verdicts if known.status == "ok"}
        wanted = [
            timing for timing in timings if timing.launch == "eager" or probe.no_graph is None
        ]
        tasks = []
        for point in points:
            missing = tuple(
                timing for timing in wanted if start not in self.timed.get((at, point, timing), {})
            )
            if point in right and missing:
                tasks.append(Task(point=self.spec.points[point], timings=missing))
        return tuple(tasks)

    # What came out.

    def rows(self, at: int) -> Iterator[Row]:
        """Yield the rows of a combination, by point; what was not measured yet is left out."""
        for point in range(len(self.spec.points)):
            for timing in self.spec.timings:
                row = self.row(at, point, timing)
                if row is not None:
                    yield row

    def row(self, at: int, point: int, timing: Timing) -> Row | None:
        """Return what one row came to; None where nothing is known of it yet."""
        known = self.timed.get((at, point, timing), {})
        starts = tuple(known[start].seconds for start in sorted(known))
        told = self._status(at, point, timing, len(known))
        if told is None and not starts:
            return None
        wrong = sum(event.wrong or 0 for event in known.values())
        if told is None and wrong:
            told = ("corrupt", f"{wrong} values are wrong; the time is withheld")
        status, reason = told or ("ok", None)
        exposed = sum(event.exposed for event in known.values())
        return Row(
            combination=self.spec.combinations[at],
            point=self.spec.points[point],
            timing=timing,
            status=status,
            reason=reason,
            starts=starts,
            flags=self._flags(at, point, timing, exposed),
            verdict=self._verdict(at, point),
            wrong=wrong,
            checked=all(event.wrong is not None for event in known.values()),
            exposed=exposed,
        )

    def complete(self, at: int) -> bool:
        """Say whether nothing more will be done for a combination but measuring again."""
        if at in self.lost or not self.spec.combinations[at].launched:
            return True
        if self.to_probe(at) or self.to_stress(at):
            return False
        return not any(self.to_time(at, start) for start in range(self.spec.starts))

    def _status(
        self, at: int, point: int, timing: Timing, starts: int
    ) -> tuple[Status, str] | None:
        """Return why a row has no time, None where it may have one."""
        lost, stress = self.lost.get(at), self.stresses.get(at)
        if lost is not None and lost.start is None:
            return lost.status, lost.reason
        verdict = self._verdict(at, point)
        if verdict is None:
            return None
        if verdict.status != "ok":
            return verdict.status, verdict.reason or ""
        if stress is not None and stress.problem is not None:
            return "corrupt", stress.problem
        probe = self.probes[at]
        if timing.launch == "graph" and probe.no_graph is not None:
            return probe.no_graph
        if lost is not None and starts < self.spec.starts:
            return lost.status, lost.reason
        return None

    def _verdict(self, at: int, point: int) -> Verdict | None:
        probe = self.probes.get(at)
        found = () if probe is None else probe.verdicts
        return next((known for known in found if known.point == point), None)

    def _median(self, at: int, point: int, timing: Timing) -> float | None:
        known = self.timed.get((at, point, timing), {})
        samples = [sample for event in known.values() for sample in event.seconds]
        if not samples or any(event.wrong for event in known.values()):
            return None
        return median(samples)

    def _drops(self, at: int, timing: Timing, *, in_place: bool) -> list[tuple[int, int]]:
        """Return the points that take clearly less than the size before, each with that one."""
        points = [p for p, point in enumerate(self.spec.points) if point.in_place == in_place]
        timed = [(p, m) for p in points if (m := self._median(at, p, timing)) is not None]
        dropped = bandwidth.drops([seconds for _, seconds in timed])
        return [(timed[place][0], timed[place - 1][0]) for place in dropped]

    def _suspicious(self, at: int, timing: Timing) -> set[int]:
        pairs = [pair for side in (False, True) for pair in self._drops(at, timing, in_place=side)]
        return {point for pair in pairs for point in pair}

    def _flags(self, at: int, point: int, timing: Timing, exposed: int) -> tuple[str, ...]:
        known = self.timed.get((at, point, timing), {})
        in_place = self.spec.points[point].in_place
        dropped = {place for place, _ in self._drops(at, timing, in_place=in_place)}
        samples = sum(len(event.seconds) for event in known.values())
        found = {
            "unsafe": self.spec.combinations[at].verdict == "unsafe",
            "non-monotone": point in dropped,
            "measured-again": self.spec.starts in known,
            "single-rank": self.spec.ranks == 1,
            "launch-exposed": bool(exposed) and exposed > _EXPOSED_SHARE * samples,
            "few-starts": 0 < len(known) < FEWEST_STARTS,
        }
        return tuple(name for name, is_so in found.items() if is_so)


def from_events(events: Sequence[Event]) -> State:
    """Return the state after `events`, of which the first opens the sweep."""
    first = events[0]
    if not isinstance(first, Opened):
        raise ValueError("a sweep begins with its opening")
    state = State(run=first.run, spec=first.spec)
    for event in events:
        state.take(event)
    return state
