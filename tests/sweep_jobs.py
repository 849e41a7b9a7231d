"""Specs, jobs, rows and groups of sweeps for tests."""

from dataclasses import replace
from typing import Any

from collectives._sweep import backend, points
from collectives._sweep.combination import Combination
from collectives._sweep.job import Job, Purpose, Task, Timing
from collectives._sweep.journal import Device, Opened, ProbeDone, RowTimed, Verdict
from collectives._sweep.points import Point
from collectives._sweep.spec import Spec
from collectives._sweep.state import State, from_events
from collectives.operations.all_reduce import ALL_REDUCE

EAGER = Timing(launch="eager", depth=1)
IN_A_ROW = Timing(launch="eager", depth=4)


def some_points(
    *, dtype: str = "bfloat16", sizes: tuple[int, int] = (1024, 2048), model: str | None = None
) -> tuple[Point, ...]:
    """Return the points of the powers of two between `sizes`, and of 4 tokens of a model."""
    return points.points(
        on_device=False,
        dtype=dtype,
        model=model,
        tokens=None if model is None else [4],
        min_bytes=sizes[0],
        max_bytes=sizes[1],
    )


def a_job(
    *,
    ranks: int = 2,
    dtype: str = "bfloat16",
    sizes: tuple[int, int] = (1024, 2048),
    purpose: Purpose = "time",
    timings: tuple[Timing, ...] = (EAGER,),
    **others: Any,
) -> Job:
    """Return a job of all-reduces over gloo."""
    made = Job(
        purpose=purpose,
        collective=ALL_REDUCE,
        backend=backend.GLOO,
        combination=Combination(backend="gloo"),
        ranks=ranks,
        local_ranks=ranks,
        dtype=dtype,
        tasks=tuple(Task(point=p, timings=timings) for p in some_points(dtype=dtype, sizes=sizes)),
        iterations=3,
        batches=2,
        warmup=1,
        timeout_s=60,
    )
    return replace(made, **others)


def a_spec(**others: Any) -> Spec:
    """Return a spec of 3 starts over gloo, with isolated and four calls in a row."""
    made = Spec(
        op="all_reduce",
        backend="gloo",
        ranks=4,
        local_ranks=4,
        dtype="bfloat16",
        points=some_points(sizes=(32768, 65536), model="kimi-k2.5"),
        combinations=(Combination(backend="gloo"),),
        depth=4,
        iterations=20,
        batches=10,
        warmup=5,
        starts=3,
        timeout_s=60,
        stress_calls=10,
    )
    return replace(made, **others)


def a_state(spec: Spec) -> State:
    """Return the state of a sweep that has only been opened."""
    return from_events([Opened(run="0123456789ab", spec=spec)])


def probed(spec: Spec, at: int = 0, *, library: str = "2.13.0", **verdict: Any) -> ProbeDone:
    """Return the probe of a combination, with one verdict for all points."""
    given = {"status": "ok"} | verdict
    return ProbeDone(
        combination=at,
        verdicts=tuple(Verdict(point=p, **given) for p in range(len(spec.points))),
        loaded_version=library,
        devices=tuple(
            Device(
                rank=r, node=r // spec.local_ranks, pid=100 + r, device=r, bus="cpu", name="x86_64"
            )
            for r in range(spec.ranks)
        ),
        join_s=0.5,
        wall_s=1.0,
        no_graph=("unsupported", "gloo has no CUDA graph"),
    )


def timed(
    point: int,
    seconds: tuple[float, ...],
    *,
    at: int = 0,
    start: int = 0,
    timing: Timing = EAGER,
    wrong: int = 0,
    exposed: int = 0,
) -> RowTimed:
    """Return the samples of one time of a point in one start."""
    return RowTimed(
        combination=at,
        start=start,
        point=point,
        launch=timing.launch,
        depth=timing.depth,
        seconds=seconds,
        wrong=wrong,
        exposed=exposed,
        spent_s=sum(seconds),
    )
