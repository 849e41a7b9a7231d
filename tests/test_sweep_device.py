"""What only GPUs run, against stand-ins: the order of calls, and what is told to NCCL."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from collectives._sweep import plan, timing, worker
from collectives._sweep.plan import Job
from collectives.all_reduce import ALL_REDUCE


class FakeEvent:
    """An event that writes down when it is recorded; the hold is over once `over` is set."""

    made: list["FakeEvent"]
    log: list[str]
    over = False

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.name = ("held", "start", "end")[len(self.made)]
        self.made.append(self)

    def record(self) -> None:
        """Write it down."""
        self.log.append(f"record {self.name}")

    def query(self) -> bool:
        """Say whether the hold is over."""
        self.log.append(f"query {self.name}")
        return self.over

    def synchronize(self) -> None:
        """Write it down."""
        self.log.append(f"synchronize {self.name}")

    def elapsed_time(self, end: "FakeEvent") -> float:
        """Return milliseconds, as torch does."""
        assert (self.name, end.name) == ("start", "end")
        return 0.0425


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(FakeEvent, "made", [], raising=False)
    monkeypatch.setattr(FakeEvent, "log", said, raising=False)
    monkeypatch.setattr(FakeEvent, "over", False)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: said.append("hold"), raising=False)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: said.append(f"reduce {len(tensor)}"))
    return said


def test_the_device_clock_encloses_the_call_alone_behind_hold_and_start_line(
    log: list[str],
) -> None:
    taken = timing.DeviceClock(torch.device("cpu")).time(lambda: log.append("call"))
    assert taken == timing.Taken(42.5e-6, exposed=False)
    assert log == [
        "hold",
        "record held",
        "reduce 1",
        "record start",
        "call",
        "record end",
        "query held",
        "synchronize end",
    ]


def test_a_hold_that_was_over_early_marks_the_time_as_exposed(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEvent, "over", True)
    assert timing.DeviceClock(torch.device("cpu")).time(lambda: None).exposed


def test_a_rank_sets_its_gpu_before_it_joins_and_makes_the_communicator_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[str, object]] = []
    told: dict[str, object] = {}

    def join(backend: str, **options: object) -> None:
        calls.append(("join", backend))
        told.update(options)

    set_device: Callable[[torch.device], None] = lambda device: calls.append(("set", device))  # noqa: E731
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(dist, "init_process_group", join)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    points = plan.points(
        backend="nccl", dtype="bfloat16", model=None, tokens=None, min_bytes=8, max_bytes=8
    )
    job = Job(
        collective=ALL_REDUCE,
        backend="nccl",
        ranks=4,
        dtype="bfloat16",
        points=points,
        iterations=1,
        warmup=0,
        timeout_s=30,
    )
    device = worker._join(job, 3, tmp_path / "store")
    assert device == torch.device("cuda", 3)
    assert calls == [("set", device), ("join", "nccl")]
    assert told["device_id"] == device
    assert (told["rank"], told["world_size"]) == (3, 4)
    # Longer than the sweep's own time-out, which knows who is to blame.
    assert getattr(told["timeout"], "total_seconds", lambda: 0)() == 90


def test_the_data_of_a_rank_differ_from_call_to_call_and_sum_exactly_in_bfloat16() -> None:
    points = plan.points(
        backend="gloo", dtype="bfloat16", model=None, tokens=None, min_bytes=8, max_bytes=8
    )
    for ranks in (1, 8, 256):
        job = Job(
            collective=ALL_REDUCE,
            backend="gloo",
            ranks=ranks,
            dtype="bfloat16",
            points=points,
            iterations=1,
            warmup=0,
            timeout_s=30,
        )
        numbers = worker._numbers(job)
        assert numbers.shape == (ranks, 2 * worker.PERIOD)
        exact = numbers.double()
        assert exact.abs().sum(0).max() <= 256
        assert torch.equal(numbers.sum(0, dtype=torch.bfloat16).double(), exact.sum(0))
        assert len(set(exact[0].tolist())) == 2 * (256 // ranks) + 1
        if ranks > 1:
            assert not torch.equal(numbers[0], numbers[1])
