"""The order of probes and starts, against a team that answers at once."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from collectives._sweep import backend
from collectives._sweep.combination import Combination
from collectives._sweep.driver import Driver
from collectives._sweep.job import Job, Timing
from collectives._sweep.journal import Journal
from collectives._sweep.messages import (
    Checked,
    Failed,
    Finished,
    Gpus,
    Joined,
    Logs,
    ReadBack,
    Stressed,
    Timed,
)
from collectives._sweep.outcome import Outcome
from collectives._sweep.records import Recorder
from collectives._sweep.screen import Screen
from collectives._sweep.spec import Spec
from collectives._sweep.state import State
from collectives._sweep.table import Table
from collectives.operations.all_reduce import ALL_REDUCE
from tests.sweep_jobs import a_spec, a_state, some_points
from verifyscope import runs

QUICK = backend.Backend(
    name="quick", torch_name="none", on_device=True, chooses=False, iterations=1, batches=1
)
A, B, C = (Combination(backend="quick", bind="none", gpu_order=(n,)) for n in range(3))


class Team:
    """Does what is asked at once; `seconds` of a point by start, `lost` is what never ends."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.seconds: dict[int, float] = {}
        self.lost: dict[tuple[int, str], str] = {}
        self.damage = 0

    def run(self, job: Job) -> Iterator[object]:
        self.jobs.append(job)
        (device,) = job.combination.gpu_order
        back = ReadBack(settings={}, files=(), bound="none")
        yield Joined(
            rank=0,
            pid=1,
            device=device,
            bus="0",
            name="G",
            loaded_version="2.29.7",
            read_back=back,
        )
        if reason := self.lost.get((device, job.purpose)):
            yield Logs(())
            yield Failed(kind="error", reason=reason)
            return
        yield from self._found(job)
        yield Logs(())
        yield Finished()

    def _found(self, job: Job) -> Iterator[object]:
        if job.purpose == "stress":
            yield Stressed(rank=0, size_bytes=8, calls=5, differing=self.damage, off=0)
        for launch in ("eager", "graph") if job.purpose == "probe" else ():
            for at in range(len(job.tasks)):
                yield Checked(rank=0, task=at, launch=launch, wrong=0)
        for at, task in enumerate(job.tasks):
            for timing in task.timings:
                took = self.seconds.get(task.point.size_bytes, 1e-6 * task.point.size_bytes)
                yield Timed(
                    rank=0,
                    task=at,
                    timing=timing,
                    seconds=(took,),
                    wrong=0,
                    exposed=0,
                    spent_s=0.25,
                )

    def count_gpus(self) -> Gpus:
        return Gpus(1)


def driven(tmp_path: Path, team: Team, spec: Spec) -> tuple[State, Outcome, Driver]:
    state, journal = a_state(spec), Journal(tmp_path / "r.journal")
    run = runs.start(tmp_path / "r.jsonl", "sweep")
    outcome = Outcome(
        state,
        run=run,
        screen=Screen(None, None),
        table=Table(spec, backend=QUICK, collective=ALL_REDUCE),
        recorder=Recorder(state, backend=QUICK, collective=ALL_REDUCE, environment=run.environment),
        known={},
    )
    driver = Driver(
        state,
        team=team,
        backend=QUICK,
        collective=ALL_REDUCE,
        folder=tmp_path,
        journal=journal,
        outcome=outcome,
    )
    driver.run()
    journal.close()
    run.close()
    return state, outcome, driver


def a_quick_spec(*combinations: Combination, sizes: tuple[int, int] = (1024, 2048)) -> Spec:
    return a_spec(
        backend="quick",
        ranks=1,
        local_ranks=1,
        points=some_points(sizes=sizes),
        combinations=combinations,
    )


def order(team: Team) -> list[tuple[str, int]]:
    return [(job.purpose, job.combination.gpu_order[0]) for job in team.jobs]


def test_all_are_probed_first_and_then_started_forwards_and_backwards(tmp_path: Path) -> None:
    team = Team()
    state, outcome, driver = driven(tmp_path, team, a_quick_spec(A, B, C))
    assert order(team) == [
        *(("probe", n) for n in (0, 1, 2)),
        *(("time", n) for n in (0, 1, 2)),
        *(("time", n) for n in (2, 1, 0)),
        *(("time", n) for n in (0, 1, 2)),
    ]
    assert {row.status for at in range(3) for row in state.rows(at)} == {"ok"}
    assert [len(row.starts) for row in state.rows(0)] == [3] * 16  # points and four times
    assert outcome.problem() is None
    assert driver.samples_s == 0.25 * 16 * 9


def test_a_combination_that_is_lost_is_not_started_again_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    team = Team()
    team.lost = {(0, "probe"): "rank 0 raised X", (1, "time"): "rank 0 raised Y"}
    state, outcome, _ = driven(tmp_path, team, a_quick_spec(A, B, C))
    assert order(team) == [
        *(("probe", n) for n in (0, 1, 2)),
        ("time", 1),
        *(("time", 2) for _ in range(3)),
    ]
    case = "1024B-bfloat16-out-of-place"
    assert {row.reason for row in state.rows(0)} == {f"rank 0 raised X; at {case} in the probe"}
    assert {row.reason for row in state.rows(1)} == {f"rank 0 raised Y; at {case} in start 1 of 3"}
    assert "2 of 3 combinations did not come through" in (outcome.problem() or "")


def test_points_that_look_odd_are_started_once_more_before_they_are_recorded(
    tmp_path: Path,
) -> None:
    team = Team()
    team.seconds = {2048: 9e-3}  # 4096 takes less than that
    state, _, _ = driven(tmp_path, team, a_quick_spec(A, sizes=(1024, 8192)))
    assert order(team) == [("probe", 0), *[("time", 0)] * 4]
    again = team.jobs[-1]
    assert sorted({task.point.size_bytes for task in again.tasks}) == [2048, 4096]
    flags = {row.point.size_bytes: row.flags for row in state.rows(0)}
    assert flags[2048] == ("measured-again", "single-rank")
    assert flags[4096] == ("non-monotone", "measured-again", "single-rank")
    assert flags[8192] == ("single-rank",)


def test_a_capture_that_fails_in_the_probe_leaves_the_eager_times(tmp_path: Path) -> None:
    class NoGraphs(Team):
        """Loses a rank in each capture."""

        def _found(self, job: Job) -> Iterator[object]:
            if job.purpose == "probe":
                for at in range(len(job.tasks)):
                    yield Checked(rank=0, task=at, launch="eager", wrong=0)
                yield Failed(kind="error", reason="rank 0 raised RuntimeError: capture failed: X")
                return
            yield from super()._found(job)

    team = NoGraphs()
    state, outcome, _ = driven(tmp_path, team, a_quick_spec(A))
    rows = list(state.rows(0))
    assert {row.status for row in rows if row.timing.launch == "eager"} == {"ok"}
    graphs = {(row.status, row.reason) for row in rows if row.timing.launch == "graph"}
    reason = "rank 0 raised RuntimeError: capture failed: X; in a CUDA graph"
    assert graphs == {("error", reason)}
    assert (
        outcome.problem() == f"quick gpus=0 bind=none: error: {reason}; what was measured is kept"
    )
    asked = {timing for job in team.jobs[1:] for task in job.tasks for timing in task.timings}
    assert asked == {Timing(launch="eager", depth=1), Timing(launch="eager", depth=4)}


@pytest.mark.parametrize(("damage", "starts"), [(0, 3), (2, 0)])
def test_what_is_unsafe_is_stressed_between_its_probe_and_its_starts(
    tmp_path: Path, damage: int, starts: int
) -> None:
    class Two(Team):
        """Speaks for two ranks."""

        def run(self, job: Job) -> Iterator[object]:
            for message in super().run(job):
                yield message
                if isinstance(message, Joined | Checked | Stressed | Timed):
                    yield replace(message, rank=1)

    team = Two()
    team.damage = damage
    unsafe = Combination(backend="quick", gpu_order=(0,), verdict="unsafe", reason="LL128")
    spec = replace(a_quick_spec(unsafe), ranks=2, local_ranks=1)
    state, _, _ = driven(tmp_path, team, spec)
    assert order(team) == [("probe", 0), ("stress", 0), *[("time", 0)] * starts]
    statuses = {row.status for row in state.rows(0)}
    assert statuses == ({"corrupt"} if damage else {"ok"})
