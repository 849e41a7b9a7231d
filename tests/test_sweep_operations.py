"""Each collective by real ranks over gloo, in place and out of place, and what counts as right."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives._sweep import calls, data, launch, points
from collectives._sweep.collective import Collective
from collectives._sweep.job import Job, Task
from collectives._sweep.launch import ForkServer, Integrity, Probed, Result
from collectives._sweep.operations import OPERATIONS
from collectives._sweep.points import PART_BYTES, Point
from tests.sweep_jobs import EAGER, IN_A_ROW, a_job
from verifyscope.errors import UsageError

NAMES = list(OPERATIONS)
# Longer than one period of the data: it begins again inside a buffer, and inside a part.
LONG_BYTES = 4 * 3 * 2**17


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with launch.fork_server() as started:
        yield started


def points_of(op: Collective, *, ranks: int, dtype: str, sizes: tuple[int, ...]) -> list[Point]:
    made = [
        points.points(
            on_device=False,
            dtype=dtype,
            model=None,
            tokens=None,
            min_bytes=size,
            max_bytes=2 * size - 1,
            parts=ranks if op.split else 1,
            in_place=op.in_place is not None,
        )
        for size in sizes
    ]
    return [point for several in made for point in several]


def job_of(name: str, *, ranks: int = 3, dtype: str = "bfloat16", **others: object) -> Job:
    op = OPERATIONS[name]
    found = points_of(op, ranks=ranks, dtype=dtype, sizes=(1000, LONG_BYTES))
    tasks = tuple(Task(point=point, timings=(EAGER, IN_A_ROW)) for point in found)
    job = a_job(ranks=ranks, dtype=dtype, collective=op)
    return replace(job, tasks=tasks, **others)  # type: ignore[arg-type]  # fields of a job


@pytest.mark.parametrize("name", NAMES)
def test_every_value_is_right_in_both_directions(server: ForkServer, name: str) -> None:
    job = job_of(name)
    found = [known for known in launch.results(server, job) if isinstance(known, Result)]
    assert {known.point for known in found} == {task.point for task in job.tasks}
    in_place = {known.point.in_place for known in found}
    assert in_place == ({False} if OPERATIONS[name].in_place is None else {False, True})
    checked = [known for known in found if known.wrong is not None]
    assert {known.wrong for known in checked} == {0}
    assert {known.timing for known in checked} == {EAGER, IN_A_ROW}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "all_reduce"])
def test_a_probe_of_other_dtypes_is_right(server: ForkServer, name: str, dtype: str) -> None:
    job = job_of(name, ranks=2, dtype=dtype, purpose="probe")
    found = [known for known in launch.results(server, job) if isinstance(known, Probed)]
    assert len(found) == len(job.tasks)
    assert sum(known.wrong for known in found) == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_stress_of_each_collective_finds_right_bits_only(server: ForkServer, name: str) -> None:
    job = replace(job_of(name, ranks=2), purpose="stress", stress_calls=2)
    job = replace(job, tasks=job.tasks[:1])
    found = [known for known in launch.results(server, job) if isinstance(known, Integrity)]
    assert len(found) > 5
    assert [(known.differing, known.off) for known in found] == [(0, 0)] * len(found)


def naive(name: str, inputs: torch.Tensor, rank: int) -> torch.Tensor:
    """Return what a rank gets of `inputs`, shape (ranks, elements), by the definition."""
    ranks = len(inputs)
    if name == "all_gather":
        return inputs.flatten()
    if name == "all_to_all":
        return inputs.view(ranks, ranks, -1)[:, rank].flatten()
    if name == "all_reduce":
        return inputs.sum(0)
    if name == "reduce_scatter":
        return inputs.sum(0).view(ranks, -1)[rank]
    raise NotImplementedError(f"say here, by the definition, what a rank gets of {name}")


@given(
    name=st.sampled_from(NAMES),
    ranks=st.integers(1, 5),
    part=st.integers(1, 60),
    call=st.integers(0, 40),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=80, deadline=None)
def test_what_is_expected_is_the_definition_and_one_wrong_value_is_counted(
    name: str, ranks: int, part: int, call: int, seed: int
) -> None:
    # A period of 8 elements stands for the long one, so that parts begin anywhere in it.
    op, elements, period = OPERATIONS[name], ranks * part, 8
    held = op.input_elements(elements, ranks)
    numbers = torch.randint(-9, 9, (ranks, period), generator=torch.Generator().manual_seed(seed))
    windows = numbers.roll(call, -1)[:, : min(held, period)].to(torch.float32)
    inputs = torch.stack([row.repeat(held)[:held] for row in windows])
    rank = seed % ranks
    output = naive(name, inputs, rank)
    assert len(output) == op.output_elements(elements, ranks)
    right = op.expected(windows, rank, elements)
    assert wrong(output, right) == 0
    output = output.clone()
    output[seed % len(output)] += 1
    assert wrong(output, right) == 1


def wrong(output: torch.Tensor, right: torch.Tensor) -> int:
    parts = output.view(len(right), -1)
    return sum(int(data.mismatches(*pair)) for pair in zip(parts, right, strict=True))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_what_only_moves_keeps_every_whole_number_of_a_dtype(dtype: str) -> None:
    job = replace(job_of("all_gather", ranks=64), dtype=dtype)
    drawn = data.draw(job, torch.device("cpu")).numbers.float()
    assert drawn.abs().max() == points.MOST_EXACT[dtype]
    right = OPERATIONS["all_to_all"].expected(
        data.draw(job, torch.device("cpu")).windows(1, 640), 3, 640
    )
    assert torch.equal(right.float(), drawn[:, 7919 : 7919 + 640].roll(-30, -1))


def test_in_place_is_where_nccl_has_it() -> None:
    buffer = torch.arange(12.0)
    gathered = OPERATIONS["all_gather"].in_place
    scattered = OPERATIONS["reduce_scatter"].in_place
    assert gathered is not None
    assert scattered is not None
    output, source = gathered(buffer, 1, 3)
    assert (output.tolist(), source.tolist()) == (buffer.tolist(), [4, 5, 6, 7])
    output, source = scattered(buffer, 2, 3)
    assert (output.tolist(), source.tolist()) == ([8, 9, 10, 11], buffer.tolist())
    assert OPERATIONS["all_to_all"].in_place is None


def test_sums_over_sums_in_place_are_not_called_right_and_gathered_parts_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(calls.POOL_BYTES, "cpu", 1)
    checkable = {}
    for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
        op, job = OPERATIONS[name], job_of(name, ranks=2)
        drawn = data.draw(job, torch.device("cpu"))
        seat = calls.Seat(job=job, rank=0, device=torch.device("cpu"), data=drawn, run=op.run)
        for task in job.tasks[:2]:
            checkable[name, task.point.in_place] = calls.Slots(seat, task.point, 4).checkable
    assert checkable == {
        ("all_reduce", False): True,
        ("all_reduce", True): False,
        ("reduce_scatter", False): True,
        ("reduce_scatter", True): False,
        ("all_gather", False): True,
        ("all_gather", True): True,
        ("all_to_all", False): True,
    }


def test_a_size_is_a_part_for_each_rank_and_a_rounded_one_is_no_model_s() -> None:
    def sizes(parts: int, **given: object) -> list[tuple[int, int | None]]:
        options = {"on_device": False, "dtype": "bfloat16", "model": "kimi-k2.5", "tokens": [1, 2]}
        asked = {**options, "min_bytes": None, "max_bytes": None, **given}
        found = points.points(**asked, parts=parts, in_place=False)  # type: ignore[arg-type]  # as named
        return [(point.size_bytes, point.tokens) for point in found]

    assert sizes(8) == [(14336, 1), (28672, 2)]
    assert sizes(3) == [(14304, None), (28656, None)]
    assert all(size % (3 * PART_BYTES) == 0 for size, _ in sizes(3))
    assert sizes(8, model=None, tokens=None, min_bytes=64, max_bytes=256) == [
        (128, None),
        (256, None),
    ]
    with pytest.raises(UsageError, match="no size holds a part for each rank, 128 B for all; give"):
        sizes(8, model=None, tokens=None, min_bytes=64, max_bytes=64)
