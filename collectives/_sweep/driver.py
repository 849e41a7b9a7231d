"""The order of a sweep: each combination is probed, then all are started afresh again and again.

    probe A B C    start 0: A B C    start 1: C B A    start 2: A B C    ...

Forwards and backwards in turn, so that what drifts meanwhile meets all alike. A combination that is
lost (a rank died, raised or hung) is not started again; the others go on. Points that took less
time than a smaller size are measured in one more start, with the size before them.

Every step becomes an event: written to the journal, added to the state, told to the outcome.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from collectives._others.entries import moves
from collectives._sweep import kept_logs, launch, probe
from collectives._sweep.backend import Backend
from collectives._sweep.collective import Collective
from collectives._sweep.combination import Combination
from collectives._sweep.job import Job, Launch, Purpose, Task
from collectives._sweep.journal import (
    Device,
    Event,
    Journal,
    Lost,
    ProbeDone,
    RowTimed,
    StartDone,
    StressDone,
)
from collectives._sweep.launch import Group, Integrity, Probed, RankFailed, Result, Team
from collectives._sweep.messages import Joined, Logs, Progress
from collectives._sweep.outcome import Outcome
from collectives._sweep.points import Point
from collectives._sweep.records import case
from collectives._sweep.state import State
from ingest.nccl_facts import NcclLog
from verifyscope.records import Status

PROBES = "probe"
STRESS = -1


@dataclass(slots=True)
class _Seen:
    """What a probe has shown so far."""

    group: Group | None = None
    logs: Logs = field(default_factory=lambda: Logs(()))
    wrong: dict[tuple[Point, Launch], int] = field(default_factory=dict)
    refused: dict[Point, str] = field(default_factory=dict)
    lost: RankFailed | None = None


class Driver:
    """Runs what of a sweep is missing. `folder` is that of the run."""

    def __init__(
        self,
        state: State,
        *,
        team: Team,
        backend: Backend,
        collective: Collective,
        folder: Path,
        journal: Journal,
        outcome: Outcome,
    ) -> None:
        self.state, self.team, self.folder = state, team, folder
        self.backend, self.collective = backend, collective
        self.journal, self.outcome = journal, outcome
        self.joins_s = self.samples_s = 0.0

    def run(self) -> None:
        """Probe, stress and time until nothing is missing."""
        spec = self.state.spec
        launched = list(spec.launched())
        for at in launched:
            if self.state.to_probe(at):
                self._probe(at)
            if self.state.to_stress(at):
                self._stress(at)
        for start in range(spec.starts):
            for at in launched if start % 2 == 0 else reversed(launched):
                if tasks := self.state.to_time(at, start):
                    self._time(at, start, tasks)
                if start == spec.starts - 1:
                    self._finish(at)

    def _finish(self, at: int) -> None:
        if tasks := self.state.to_time_again(at):
            self._time(at, self.state.spec.starts, tasks)
        self.outcome.finished(at)

    def emit(self, event: Event) -> None:
        """Write, keep and tell a step."""
        self.journal.append(event)
        self.state.take(event)
        self.outcome.take(event)

    def _results(self, job: Job, what: str) -> Iterator[launch.Found]:
        """Yield what a job finds, and show how far it is."""
        self.outcome.begin(f"{what} {job.combination.label}", job.calls)
        for found in launch.results(self.team, job):
            if isinstance(found, Progress):
                self.outcome.show(found.calls)
            else:
                yield found

    def _probe(self, at: int) -> None:
        """Find out whether a combination does what it asks for, and does it right."""
        tasks = tuple(Task(point=point, timings=()) for point in self.state.spec.points)
        began, job = time.monotonic(), self._job("probe", at, tasks)
        seen = self._seen(job)
        log = self._read(at, seen.logs)
        eager = sum(launch == "eager" for _, launch in seen.wrong)
        if seen.group is None or eager < len(tasks):
            self._lose_probe(at, seen.lost, log, eager, time.monotonic() - began)
            return
        self.joins_s += seen.group.seconds
        known = probe.Probe(
            op=self.collective.name,
            combination=job.combination,
            ranks=seen.group.ranks,
            wrong=seen.wrong,
            refused=seen.refused,
            log=log,
            nccl=job.nccl,
        )
        self.emit(
            ProbeDone(
                combination=at,
                verdicts=probe.verdicts(known, self.state.spec.points),
                loaded_version=seen.group.ranks[0].loaded_version,
                devices=tuple(map(self._device, seen.group.ranks)),
                join_s=seen.group.seconds,
                wall_s=time.monotonic() - began,
                no_graph=self._no_graph(job.backend, seen.lost),
                logs=None if log is None else self._log_folder(at).name,
            )
        )

    def _seen(self, job: Job) -> "_Seen":
        """Run a probe and gather what it shows, whether it comes to its end or not."""
        seen = _Seen()
        try:
            for found in self._results(job, "probe"):
                if isinstance(found, Group):
                    seen.group = found
                elif isinstance(found, Probed):
                    seen.wrong[found.point, found.launch] = found.wrong
                    if found.refused is not None:
                        seen.refused[found.point] = found.refused
                elif isinstance(found, Logs):  # each machine sends its own
                    seen.logs = Logs((*seen.logs.files, *found.files))
        except RankFailed as failed:
            seen.lost = failed
        return seen

    def _no_graph(self, moved_by: Backend, lost: RankFailed | None) -> tuple[Status, str] | None:
        """Return why graphs are not timed: eager calls were right all the same."""
        if not moved_by.on_device:
            return "unsupported", f"{moved_by.name} has no CUDA graph"
        return None if lost is None else (lost.kind, f"{lost.reason}; in a CUDA graph")

    def _read(self, at: int, logs: Logs) -> NcclLog | None:
        """Keep what NCCL left, and return what its logs say; None where the backend has none."""
        if not self._moved_by(at).chooses:
            return None
        kept_logs.keep(logs, self._log_folder(at))
        return kept_logs.read(logs)

    def _log_folder(self, at: int) -> Path:
        return self.folder / PROBES / self.state.spec.combinations[at].slug

    def _lose_probe(
        self, at: int, lost: RankFailed | None, log: NcclLog | None, done: int, wall_s: float
    ) -> None:
        """Note that a probe came to no end; NCCL's own refusal is no fault of this machine."""
        refused = probe.refusal(log)
        if lost is None:
            raise ValueError("a probe ended without its points and without a reason")
        points = self.state.spec.points
        where = f"; at {case(self.state.spec, points[done])}" if done < len(points) else ""
        reason = lost.reason if lost.kind == "unsupported" else f"{lost.reason}{where} in the probe"
        self.emit(
            Lost(
                combination=at,
                start=None,
                status="unsupported" if refused else lost.kind,
                reason=f"NCCL: {refused}" if refused else reason,
                point=done if done < len(points) else None,
                wall_s=wall_s,
            )
        )
        self.outcome.lost(lost)

    def _stress(self, at: int) -> None:
        """Compare the bits of all ranks over many sizes and calls."""
        tasks = tuple(Task(point=point, timings=()) for point in self.state.spec.points)
        began, found_all = time.monotonic(), list[Integrity]()
        try:
            for found in self._results(self._job("stress", at, tasks), "stress"):
                if isinstance(found, Integrity):
                    found_all.append(found)
                elif isinstance(found, Group):
                    self.joins_s += found.seconds
        except RankFailed as failed:
            self._lose(at, STRESS, failed, None, time.monotonic() - began)
            return
        self.emit(
            StressDone(
                combination=at,
                calls=sum(known.calls for known in found_all),
                sizes=len(found_all),
                problem=_damage(found_all, self.state.spec.ranks),
                wall_s=time.monotonic() - began,
            )
        )

    def _time(self, at: int, start: int, tasks: Sequence[Task]) -> None:
        """Time what is missing of one start."""
        began, join_s = time.monotonic(), 0.0
        left = [(task.point, timing) for task in tasks for timing in task.timings]
        what = "again" if start == self.state.spec.starts else f"start {start + 1}"
        job, ignored = self._job("time", at, tasks), None
        try:
            for found in self._results(job, what):
                if isinstance(found, Group):
                    join_s = found.seconds
                    asked = job.combination
                    ignored = next(probe.not_in_effect(asked, found.ranks, nccl=job.nccl), None)
                elif isinstance(found, Result):
                    left.remove((found.point, found.timing))
                    self.samples_s += found.spent_s
                    self.emit(self._row(at, start, found))
        except RankFailed as failed:
            self.joins_s += join_s
            self._lose(at, start, failed, left[0] if left else None, time.monotonic() - began)
            return
        self.joins_s += join_s
        wall_s = time.monotonic() - began
        self.emit(StartDone(combination=at, start=start, join_s=join_s, wall_s=wall_s))
        if ignored is not None:  # it was in effect in the probe: no start counts
            reason = f"{ignored} in {self._when(start)}"
            lost = Lost(combination=at, start=None, status="ignored", reason=reason, wall_s=wall_s)
            self.emit(lost)

    def _row(self, at: int, start: int, found: Result) -> RowTimed:
        return RowTimed(
            combination=at,
            start=start,
            point=self.state.spec.points.index(found.point),
            launch=found.timing.launch,
            depth=found.timing.depth,
            seconds=found.samples,
            wrong=found.wrong,
            exposed=found.exposed,
            spent_s=found.spent_s,
        )

    def _lose(
        self,
        at: int,
        start: int,
        failed: RankFailed,
        where: tuple[Point, object] | None,
        wall_s: float,
    ) -> None:
        spec = self.state.spec
        place = "" if where is None else f"; at {case(spec, where[0])}"
        self.emit(
            Lost(
                combination=at,
                start=start,
                status=failed.kind,
                reason=f"{failed.reason}{place} in {self._when(start)}",
                point=None if where is None else spec.points.index(where[0]),
                wall_s=wall_s,
            )
        )
        self.outcome.lost(failed)

    def _when(self, start: int) -> str:
        if start == STRESS:
            return "the integrity stress"
        starts = self.state.spec.starts
        return f"start {start + 1} of {starts}" if start < starts else "the start after those"

    def _job(self, purpose: Purpose, at: int, tasks: Sequence[Task]) -> Job:
        spec, moved_by = self.state.spec, self._moved_by(at)
        return Job(
            purpose=purpose,
            collective=self.collective,
            backend=moved_by,
            combination=self._placed(spec.combinations[at]),
            ranks=spec.ranks,
            local_ranks=spec.local_ranks,
            dtype=spec.dtype,
            tasks=tuple(tasks),
            iterations=spec.iterations,
            batches=spec.batches,
            warmup=spec.warmup,
            timeout_s=spec.timeout_s,
            stress_calls=spec.stress_calls,
            nccl=spec.nccl if moved_by.chooses else None,
        )

    def _moved_by(self, at: int) -> Backend:
        return moves(self.state.spec.combinations[at], self.backend)

    def _placed(self, combination: Combination) -> Combination:
        """Return the combination with the path of its graph file as the workers find it."""
        if combination.graph_file is None:
            return combination
        path = (self.folder / combination.graph_file).resolve()
        return replace(combination, graph_file=str(path))

    def _device(self, joined: Joined) -> Device:
        return Device(
            rank=joined.rank,
            node=joined.rank // self.state.spec.local_ranks,
            pid=joined.pid,
            device=joined.device,
            bus=joined.bus,
            name=joined.name,
        )


def _damage(found: Sequence[Integrity], ranks: int) -> str | None:
    """Return what the stress found, None where all bits were equal and all values right."""
    bad = [known for known in found if known.differing or known.off]
    if not bad:
        return None
    calls = sum(known.calls for known in found)
    differing, off = sum(known.differing for known in bad), sum(known.off for known in bad)
    sizes = ", ".join(f"{known.size_bytes} B" for known in bad[:5])
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    return (
        f"integrity stress: of {calls} calls {differing} left other bits on another rank, {off} "
        f"values on {ranks} ranks are off by more than rounding, at {sizes}{more}"
    )
