"""What only GPUs run, against stand-ins: the order of calls, and what is told to NCCL.

A fake clock and a fake device show that a sample holds the calls and nothing else.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from collectives._sweep import calls, data, in_effect, stress, timing, worker
from collectives._sweep.backend import NCCL
from collectives._sweep.combination import Combination
from collectives._sweep.job import Job, Task, Timing
from collectives._sweep.messages import Checked, Timed
from collectives.operations.all_reduce import ALL_REDUCE
from tests.sweep_jobs import EAGER, IN_A_ROW, a_job, some_points


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
    monkeypatch.setattr(dist, "new_group", lambda: "a group of its own")

    def reduce(tensor: torch.Tensor, group: str) -> None:
        said.append(f"reduce {len(tensor)} in {group}")

    monkeypatch.setattr(dist, "all_reduce", reduce)
    return said


def test_the_device_clock_encloses_the_calls_alone_behind_hold_and_start_line(
    log: list[str],
) -> None:
    clock = timing.DeviceClock(torch.device("cpu"), apart=True)
    taken = clock.time([lambda: log.append("call")] * 2, hidden=True)
    assert taken == timing.Taken(42.5e-6, exposed=False)
    assert log == [
        "hold",
        "record held",
        "reduce 1 in a group of its own",
        "record start",
        "call",
        "call",
        "record end",
        "query held",
        "synchronize end",
    ]


def test_calls_whose_launch_is_not_hidden_have_no_hold(log: list[str]) -> None:
    clock = timing.DeviceClock(torch.device("cpu"), apart=False)
    assert not clock.time([lambda: log.append("call")], hidden=False).exposed
    assert log == [
        "reduce 1 in None",
        "record start",
        "call",
        "record end",
        "synchronize end",
    ]


def test_a_hold_that_was_over_early_marks_the_time_as_exposed(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEvent, "over", True)
    assert (
        timing.DeviceClock(torch.device("cpu"), apart=False)
        .time([lambda: None], hidden=True)
        .exposed
    )


class FakeTime:
    """A clock that only what is timed moves on: each call by the next of `seconds`."""

    def __init__(self, seconds: list[float]) -> None:
        self.now, self.seconds, self.barriers = 0.0, iter(seconds), 0

    def run(self, output: torch.Tensor, source: torch.Tensor) -> None:
        """Reduce over one rank, and let time pass."""
        if output is not source:
            output.copy_(source)
        self.now += next(self.seconds)

    def read(self) -> float:
        """Return the time; a read costs none."""
        return self.now

    def barrier(self) -> None:
        """Let time pass that is nobody's."""
        self.barriers += 1
        self.now += 1000.0


class Pipe:
    """Keeps what a rank sends."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        """Keep it."""
        self.sent.append(message)


def a_rank(job: Job, run: calls.Run) -> tuple[worker._Rank, Pipe]:
    device, pipe = torch.device("cpu"), Pipe()
    seat = calls.Seat(job=job, rank=0, device=device, data=data.draw(job, device), run=run)
    return worker._Rank(seat, pipe, [0]), pipe  # type: ignore[arg-type]  # a stand-in for a pipe


def test_a_fake_backend_with_a_fake_clock_gets_its_times_back_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Powers of two, so that sums and quotients are exact in floating point.
    isolated = [2.0**-at for at in range(4)]
    in_a_row = [2.0 ** -(at % 4) for at in range(3 * 4)]
    job = a_job(ranks=1, sizes=(1024, 1024), timings=(EAGER, IN_A_ROW))
    fake = FakeTime([*isolated, *in_a_row] * 2)
    monkeypatch.setattr(time, "perf_counter", fake.read)
    monkeypatch.setattr(dist, "barrier", fake.barrier)
    rank, pipe = a_rank(job, fake.run)
    rank.work(None)  # type: ignore[arg-type]  # only the stress needs a store
    timed = [message for message in pipe.sent if isinstance(message, Timed)]
    assert [(found.task, found.timing) for found in timed] == [
        (task, each) for task in (0, 1) for each in (EAGER, IN_A_ROW)
    ]
    for found in timed[::2]:
        assert found.seconds == (0.5, 0.25, 0.125)  # without that of the warm-up
        assert found.wrong == 0
    for found in timed[1::2]:
        assert found.seconds == ((1 + 0.5 + 0.25 + 0.125) / 4,) * 2
        assert found.wrong == 0
    assert fake.barriers == 2 * (4 + 3)
    # What the samples took, with the barriers that stand before them.
    assert timed[0].spent_s == 4 * 1000.0 + sum(isolated)


class FakeGraph:
    """A graph that records what is called while it captures, and replays it."""

    capturing: "FakeGraph | None" = None
    made: list["FakeGraph"]

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.replays = 0
        self.made.append(self)

    def replay(self) -> None:
        """Run what was captured."""
        self.replays += 1
        for call in self.calls:
            call()


class FakeStream:
    """A stream on which nothing has to wait."""

    def wait_stream(self, other: "FakeStream") -> None:
        """Return at once."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> list[str]:
    """Stand in for CUDA graphs; the log of events goes on."""
    monkeypatch.setattr(FakeGraph, "made", [], raising=False)

    @contextmanager
    def capture(graph: FakeGraph, **options: object) -> Iterator[None]:
        assert options["capture_error_mode"] == "thread_local"
        FakeGraph.capturing = graph
        try:
            yield
        finally:
            FakeGraph.capturing = None

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        yield

    for name, stand_in in {
        "CUDAGraph": FakeGraph,
        "graph": capture,
        "Stream": FakeStream,
        "stream": on,
        "current_stream": FakeStream,
        "set_stream": lambda stream: log.append("back to the stream of before"),
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return log


def reduce_one(log: list[str]) -> calls.Run:
    """Return an all-reduce of one rank that a fake graph captures."""

    def run(output: torch.Tensor, source: torch.Tensor) -> None:
        def call() -> None:
            if output is not source:
                output.copy_(source)
            log.append("call")

        if FakeGraph.capturing is not None:
            FakeGraph.capturing.calls.append(call)
        else:
            call()

    return run


def test_a_device_gives_four_times_a_row_and_replays_what_it_captured(device: list[str]) -> None:
    four = tuple(
        Timing(launch=launch, depth=depth) for launch in ("eager", "graph") for depth in (1, 122)
    )
    job = a_job(ranks=1, sizes=(64, 64), timings=four, backend=NCCL, batches=2)
    rank, pipe = a_rank(job, reduce_one(device))
    rank.work(None)  # type: ignore[arg-type]  # only the stress needs a store
    timed = [message for message in pipe.sent if isinstance(message, Timed)]
    assert [(found.task, found.timing) for found in timed] == [
        (task, each) for task in (0, 1) for each in four
    ]
    assert [found.wrong for found in timed] == [0] * 8
    for found in timed:
        each = 42.5e-6 / found.timing.depth
        assert found.seconds == (each,) * (3 if found.timing.depth == 1 else 2)
    assert [len(graph.calls) for graph in FakeGraph.made] == [1, 122] * 2
    assert [graph.replays for graph in FakeGraph.made] == [1 + 4, 1 + 3] * 2  # and the first


def test_a_probe_on_a_device_checks_eager_calls_and_then_captured_ones(device: list[str]) -> None:
    job = a_job(ranks=1, sizes=(64, 64), purpose="probe", backend=NCCL)
    rank, pipe = a_rank(job, reduce_one(device))
    rank.work(None)  # type: ignore[arg-type]  # only the stress needs a store
    found = [message for message in pipe.sent if isinstance(message, Checked)]
    assert [(known.launch, known.task, known.wrong) for known in found] == [
        ("eager", 0, 0),
        ("eager", 1, 0),
        ("graph", 0, 0),
        ("graph", 1, 0),
    ]


def test_a_capture_that_fails_names_what_broke_it_and_leaves_the_stream(
    device: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run(output: torch.Tensor, source: torch.Tensor) -> None:
        ran.append("call")
        if FakeGraph.capturing is not None:
            raise ValueError("operation not permitted when stream is capturing")

    slots = calls.Slots(a_rank(a_job(ranks=1), run)[0].seat, some_points()[0], 1)
    with pytest.raises(RuntimeError, match="capture failed: operation not permitted when"):
        calls.captured(slots.calls[0])
    assert ran == ["call", "call"]
    assert device == ["back to the stream of before"]


@pytest.mark.parametrize(("order", "number"), [((), 3), ((1, 0, 3, 2), 2)])
def test_a_rank_sets_its_gpu_before_it_joins_and_makes_the_communicator_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, order: tuple[int, ...], number: int
) -> None:
    done: list[tuple[str, object]] = []
    told: dict[str, object] = {}

    def join(backend: str, **options: object) -> None:
        done.append(("join", backend))
        told.update(options)

    set_device: Callable[[torch.device], None] = lambda device: done.append(("set", device))  # noqa: E731
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(dist, "init_process_group", join)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    combination = Combination(backend="nccl", gpu_order=order)
    job = a_job(ranks=8, backend=NCCL, combination=combination, timeout_s=30)
    job = replace(job, first_rank=4, local_ranks=4)
    device = worker._join(job, 7, worker._meet(job, tmp_path))
    assert device == torch.device("cuda", number)
    assert done == [("set", device), ("join", "nccl")]
    assert told["device_id"] == device
    assert (told["rank"], told["world_size"]) == (7, 8)
    # Longer than the sweep's own time-out, which knows who is to blame.
    assert getattr(told["timeout"], "total_seconds", lambda: 0)() == 90


def test_a_probe_logs_to_a_file_of_each_rank_and_a_timed_start_is_silent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = {"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_FILE": "/home/me/x", "NCCL_PROTO": "^LL"}
    combination = Combination(backend="nccl", algorithm="ring", channels=2)
    probe = a_job(backend=NCCL, combination=combination, purpose="probe")
    for job, rank in ((probe, 0), (probe, 1), (replace(probe, purpose="time"), 0)):
        with monkeypatch.context() as patch:
            given = dict(environment)
            patch.setattr(os, "environ", given)
            in_effect.prepare(job, rank, tmp_path)
        assert (given["NCCL_ALGO"], given.get("NCCL_PROTO")) == ("Ring", None)
        assert (given["NCCL_MIN_CTAS"], given["NCCL_MAX_CTAS"]) == ("2", "2")
        if job.purpose == "time":
            assert given["NCCL_DEBUG"] == "WARN"
            assert "NCCL_DEBUG_FILE" not in given
            continue
        assert given["NCCL_DEBUG"] == "INFO"
        assert {"TUNING", "GRAPH", "ENV", "COLL", "P2P"} <= {*given["NCCL_DEBUG_SUBSYS"].split(",")}
        assert given["NCCL_DEBUG_FILE"] == str(tmp_path / f"rank-{rank}.nccl.log")
        dumps = [given.get(f"NCCL_{what}_DUMP_FILE") for what in ("TOPO", "GRAPH")]
        first = [str(tmp_path / "topology.xml"), str(tmp_path / "graphs.xml")]
        assert dumps == (first if rank == 0 else [None, None])


@pytest.mark.parametrize(
    ("dtype", "most"),
    [("bfloat16", 256), ("float16", 256), ("float8_e4m3fn", 16), ("float8_e5m2", 8)],
)
def test_the_data_of_a_rank_differ_from_call_to_call_and_sum_exactly(dtype: str, most: int) -> None:
    for ranks in (1, 8):
        job = replace(a_job(ranks=ranks), dtype=dtype)
        drawn = data.draw(job, torch.device("cpu"))
        assert drawn.numbers.shape == (ranks, 2 * data.PERIOD)
        exact = drawn.numbers.double()
        assert exact.abs().sum(0).max() <= most
        expected = ALL_REDUCE.expected(drawn.numbers, 0, 2 * data.PERIOD)
        assert torch.equal(expected[0].double(), exact.sum(0))
        assert len(set(exact[0].tolist())) == 2 * (most // ranks) + 1
        assert not torch.equal(drawn.windows(0, 64).float(), drawn.windows(1, 64).float())
        if ranks > 1:
            assert not torch.equal(exact[0], exact[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e5m2])
@pytest.mark.parametrize("length", [1, 7, 64, 1000])
def test_every_wrong_bit_is_counted_and_a_short_expectation_repeats(
    dtype: torch.dtype, length: int
) -> None:
    window = torch.randint(-1, 2, (64,)).to(dtype)[: min(64, length)]
    output = torch.empty(length, dtype=dtype)
    data.spread(window, into=output)
    whole = window.float().repeat(1000)[:length]
    assert torch.equal(output.float(), whole)
    assert int(data.mismatches(output, window)) == 0
    for at in {0, length // 2, length - 1}:
        output[at] = float("nan")
    assert int(data.mismatches(output, window)) == len({0, length // 2, length - 1})


def test_calls_in_a_row_on_large_buffers_are_fewer() -> None:
    job = a_job(iterations=20, batches=10, warmup=2)
    for mebibytes, row in ((1, 12), (4, 12), (8, 7), (64, 5)):
        point = replace(some_points()[0], size_bytes=mebibytes * 2**20)
        assert job.samples(EAGER, point) == 22
        assert job.samples(IN_A_ROW, point) == row
    assert replace(job, batches=1).samples(IN_A_ROW, point) == 3


def test_the_stress_takes_sizes_between_the_powers_of_two_and_those_of_the_points() -> None:
    job = a_job(sizes=(16, 64))
    point = replace(some_points(sizes=(16, 16))[0], size_bytes=44, elements=22)
    job = replace(job, tasks=(*job.tasks, Task(point=point, timings=())))
    assert stress.sizes(job) == [8, 14, 16, 26, 32, 44, 50, 64]
    assert all(size % 4 == 0 for size in stress.sizes(replace(job, dtype="float32")) if size != 44)


def test_two_outputs_with_one_other_bit_have_other_digests() -> None:
    output = torch.randn(1000).to(torch.bfloat16)
    other = output.clone()
    other[500:501].view(torch.int16).bitwise_xor_(1)
    swapped = output.flip(0)
    assert stress.digest(output) == stress.digest(output.clone())
    assert stress.digest(other) != stress.digest(output)
    assert stress.digest(swapped)[0] == stress.digest(output)[0]
    assert stress.digest(swapped) != stress.digest(output)


def test_what_is_read_back_is_shown_as_in_every_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "own.conf"
    file.write_text("NCCL_HOSTID=rack7\nNCCL_BUFFSIZE=1048576\nNCCL_COMM_ID=10.1.2.3:45\n")
    given = {"NCCL_CONF_FILE": str(file), "NCCL_GRAPH_FILE": "/home/alice/rings.xml"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)  # os.environ sets what getenv returns, too
    found = in_effect.read_back("none")
    assert found.settings["NCCL_GRAPH_FILE"] == "rings.xml"
    assert [(known.name, known.settings) for known in found.files] == [
        ("own.conf", {"NCCL_HOSTID": "<host>", "NCCL_BUFFSIZE": "1048576"})
    ]
    monkeypatch.setenv("NCCL_HOSTID", "rack7")
    found = in_effect.read_back(None)
    assert found.settings["NCCL_HOSTID"] == "<host>"
    assert [known.settings for known in found.files] == [{"NCCL_BUFFSIZE": "1048576"}]
    assert "rack7" not in repr(found)
