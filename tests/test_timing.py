"""How a GPU is timed: how many input sets, cold, flushed or warm, and what stands around a sample.

The rules are pure, or run on a fake that captures and counts; tests/test_timing_gpu.py shows on a
device what a fake cannot.
"""

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels import Implementation, Inputs, Needs, Prepared, _capture, _timing
from kernels._timing import FlushedTimer, GraphTimer, InputSets, flush_passes, input_sets
from suites._gpu_bench import GpuBench
from tests.fake_gpu import CALL_S, FakeGpu
from tests.timed_ops import doubling

MB = 10**6
L2 = 128 * 2**20


def test_enough_sets_are_walked_to_be_three_times_the_l2() -> None:
    chosen = input_sets(touched_bytes=10 * MB, set_bytes=40 * MB, cache_bytes=L2, free_bytes=10**12)
    assert chosen == InputSets(count=41)
    assert 41 * 10 * MB >= 3 * L2 > 40 * 10 * MB


def test_touched_bytes_are_counted_and_not_tensors() -> None:
    whole_pool = input_sets(
        touched_bytes=37.7 * MB, set_bytes=4 * 2**30, cache_bytes=L2, free_bytes=140 * 2**30
    )
    assert whole_pool.count == 11


def test_one_set_is_cold_by_itself_when_it_is_three_times_the_l2() -> None:
    chosen = input_sets(touched_bytes=3 * L2, set_bytes=3 * L2, cache_bytes=L2, free_bytes=10**12)
    assert chosen == InputSets(count=1)


def test_512_sets_are_the_most() -> None:
    least = 3 * L2 / 512
    given: dict[str, Any] = {"set_bytes": 1, "cache_bytes": L2, "free_bytes": 10**12}
    assert input_sets(touched_bytes=least, **given) == InputSets(count=512)
    flushed = input_sets(touched_bytes=least - 1, **given)
    assert flushed.count == 1
    assert flushed.why_flushed == "512 input sets of 786 kB are less than 3 x the L2 of 134 MB"


def test_nothing_touched_is_flushed_and_not_divided_by() -> None:
    assert input_sets(touched_bytes=0, set_bytes=1, cache_bytes=L2, free_bytes=9).why_flushed


def test_sets_may_use_half_of_the_free_memory() -> None:
    given: dict[str, Any] = {"touched_bytes": L2, "set_bytes": 100, "cache_bytes": L2}
    assert input_sets(free_bytes=600, **given) == InputSets(count=3)
    flushed = input_sets(free_bytes=599, **given)
    assert flushed.count == 1
    assert flushed.why_flushed == "3 input sets of 100 B are more than half of the free 599 B"


def test_flush_reads_outlast_the_enqueue_of_what_is_timed() -> None:
    assert flush_passes(enqueue_s=10e-6, pass_s=100e-6) == (2, True)
    assert flush_passes(enqueue_s=200e-6, pass_s=100e-6) == (4, True)
    assert flush_passes(enqueue_s=10e-3, pass_s=100e-6) == (16, False)


def test_a_warm_graph_is_long_enough_to_hide_its_launch() -> None:
    assert _timing.warm_calls(1e-6) == 300
    assert _timing.warm_calls(1e-3) == 8
    assert _timing.warm_calls(1e-9) == 2048


def test_a_short_walk_is_repeated_within_its_graph() -> None:
    given: dict[str, Any] = {"calls": 4, "call_bytes": 1000, "free_bytes": 10**9}
    assert _timing.walks(42e-6, **given) == 8
    assert _timing.walks(300e-6, **given) == 1
    assert _timing.walks(1.0, **given) == 1
    assert _timing.walks(1e-9, **given) == 512
    assert _timing.walks(42e-6, **(given | {"free_bytes": 4 * 4 * 1000 * 3})) == 3
    assert _timing.walks(42e-6, **(given | {"free_bytes": 0})) == 1
    assert _timing.walks(42e-6, **(given | {"call_bytes": 0})) == 8


@dataclasses.dataclass
class Watch:
    """A stopwatch that notes what happens around what it times."""

    log: list[str]
    taken_s: float

    def seconds(self, timed: Callable[[], object], *, before: Callable[[], object]) -> float:
        before()
        self.log.append("start")
        timed()
        self.log.append("end")
        return self.taken_s


def test_a_replay_is_timed_right_behind_another_and_divided_by_its_calls() -> None:
    log: list[str] = []
    timer = GraphTimer(replay=lambda: log.append("replay"), calls=41, stopwatch=Watch(log, 8.2))
    assert timer.sample() == 8.2 / 41
    assert log == ["replay", "start", "replay", "end"]


def test_a_flush_is_before_the_timed_call_and_never_inside() -> None:
    log: list[str] = []
    timer = FlushedTimer(
        call=lambda: log.append("call"),
        flush=lambda: log.append("flush"),
        passes=3,
        stopwatch=Watch(log, 0.5),
    )
    assert timer.sample() == 0.5
    assert log == ["flush", "flush", "flush", "start", "call", "end"]


def test_a_flush_reads_twice_the_cache() -> None:
    flush = _timing.ReadFlush(4096, torch.device("cpu"))
    assert flush._buffer.nbytes == 2 * 4096
    flush()


# The bench of a GPU, on the fake.


def implementation(gpu: FakeGpu) -> Implementation:
    def prepare(inputs: Inputs) -> Prepared:
        x = inputs["x"]
        assert isinstance(x, torch.Tensor)
        name = f"set {SETS.setdefault(x.data_ptr(), len(SETS))}"
        return Prepared(call=gpu.counted(lambda: {"y": 2 * x}, name))

    SETS: dict[int, int] = {}
    return Implementation(
        op=doubling.OP, name="fake", prepare=prepare, kind="own", needs=Needs(), declares=()
    )


def sets_of(count: int) -> list[Inputs]:
    return [{"x": torch.arange(8.0)} for _ in range(count)]


def timings(gpu: FakeGpu, count: int, *, touched: float, flushed: str | None = None) -> Any:
    return GpuBench(gpu).timings(
        implementation(gpu), sets_of(count), touched_bytes=touched, why_flushed=flushed
    )


def test_cold_walks_all_sets_in_order_and_counts_time_per_call() -> None:
    gpu = FakeGpu(l2_bytes=64)
    cold, _ = timings(gpu, 3, touched=64)
    assert (cold.cache, cold.launch, cold.clock) == ("cold", "graph", "cuda-graph")
    repeats = _timing.walks(3 * CALL_S, calls=3, call_bytes=0, free_bytes=2**40)
    assert repeats > 1
    assert (cold.calls, cold.sets, cold.facts) == (3 * repeats, 3, {"graph_nodes": 7})
    gpu.log.clear()
    assert cold.timer.sample() == CALL_S
    walk = ["set 0", "set 1", "set 2"] * repeats
    assert gpu.log == [*walk, "start", *walk, "end"]


def test_warm_repeats_the_last_set_so_that_the_walk_starts_cold() -> None:
    gpu = FakeGpu(l2_bytes=64)
    _, warm = timings(gpu, 3, touched=64)
    assert (warm.cache, warm.launch, warm.sets) == ("warm", "graph", 1)
    assert warm.calls == _timing.warm_calls(CALL_S)
    gpu.log.clear()
    assert warm.timer.sample() == CALL_S
    assert set(gpu.log) == {"set 2", "start", "end"}


def test_a_graph_holds_what_it_reads() -> None:
    cold, warm = timings(FakeGpu(l2_bytes=64), 3, touched=64)
    assert len(cold.holds) == cold.calls
    assert len(warm.holds) == warm.calls


def test_what_is_too_small_is_flushed_and_its_warm_graph_stands_beside() -> None:
    gpu = FakeGpu(l2_bytes=64)
    flushed, warm = timings(gpu, 1, touched=0.1, flushed="too small to be walked")
    assert (flushed.cache, flushed.launch, flushed.clock) == ("flushed", "eager", "cuda-events")
    assert flushed.facts["why_flushed"] == "too small to be walked"
    assert flushed.facts["flush_passes"] >= 1
    assert flushed.facts["resolution_s"] == 0.5e-6
    gpu.log.clear()
    assert flushed.timer.sample() == CALL_S
    assert gpu.log == ["start", "set 0", "end"]
    assert warm.cache == "warm"


def test_what_is_larger_than_the_l2_has_no_warm_time() -> None:
    (cold,) = timings(FakeGpu(l2_bytes=64), 2, touched=128)
    assert cold.cache == "cold"
    assert cold.facts["why_not_warm"] == "one input set is more than the L2"


def test_outputs_that_do_not_fit_once_a_set_make_it_flushed() -> None:
    class Growing(FakeGpu):
        def allocated_bytes(self) -> int:
            return 1000 * self.calls

    gpu = Growing(l2_bytes=64, memory_bytes=5999)
    flushed, _ = timings(gpu, 3, touched=64)
    assert flushed.facts["why_flushed"] == (
        "3 input sets of 1.00 kB are more than half of the free 6.00 kB"
    )


def test_what_cannot_be_captured_is_flushed_with_the_reason_and_never_tried() -> None:
    gpu = FakeGpu(l2_bytes=64, capturable="RuntimeError: called a synchronizing CUDA operation")
    (flushed,) = timings(gpu, 3, touched=64)
    assert flushed.cache == "flushed"
    assert flushed.facts["why_flushed"] == "RuntimeError: called a synchronizing CUDA operation"
    assert flushed.facts["why_not_warm"] == flushed.facts["why_flushed"]


def test_a_failed_capture_is_flushed_and_puts_the_process_in_doubt() -> None:
    gpu = FakeGpu(l2_bytes=64, capture_error="an event was queried")
    bench = GpuBench(gpu)
    assert bench.in_doubt is None
    (flushed,) = bench.timings(implementation(gpu), sets_of(3), touched_bytes=64, why_flushed=None)
    assert flushed.facts["why_flushed"] == "capture failed: an event was queried"
    assert bench.in_doubt == "after a failed capture of doubling/fake"


def test_the_run_after_timing_returns_the_outputs_of_every_set() -> None:
    cold, warm = timings(FakeGpu(l2_bytes=64), 3, touched=64)
    for outputs in (*cold.run(), *warm.run()):
        assert outputs["y"].tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert len(cold.run()) == cold.calls


# Capturing, with torch's calls replaced, to see what a failed one leaves behind.


class FakeStream:
    """A stream that nothing runs on."""

    def wait_stream(self, other: "FakeStream") -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args: object) -> None:
        pass


@dataclasses.dataclass
class FakeCuda:
    """What the replaced calls of torch.cuda saw; `ending` is raised at the end of a capture."""

    caller: FakeStream = dataclasses.field(default_factory=FakeStream)
    current: FakeStream | None = None
    collecting: list[bool] = dataclasses.field(default_factory=list)
    ending: Exception | None = None
    nodes: int = 2
    steps: list[str] = dataclasses.field(default_factory=list)

    def set_stream(self, stream: FakeStream) -> None:
        self.current = stream


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    seen = FakeCuda()

    class Graph:
        def __init__(self, keep_graph: bool = False) -> None:
            assert keep_graph

        def raw_cuda_graph(self) -> int:
            return 1

        def instantiate(self) -> None:
            seen.steps.append("instantiated")

    class Capturing:
        def __init__(self, graph: Graph, *, stream: FakeStream, **options: object) -> None:
            self._stream = stream

        def __enter__(self) -> None:
            seen.current = self._stream
            seen.collecting.append(gc.isenabled())

        def __exit__(self, *args: object) -> None:
            if seen.ending is not None:
                raise seen.ending  # as torch does, which then never leaves the stream
            seen.current = seen.caller

    replaced: dict[str, Any] = {
        "current_stream": lambda: seen.caller,
        "Stream": FakeStream,
        "stream": lambda stream: stream,
        "synchronize": lambda: None,
        "CUDAGraph": Graph,
        "graph": Capturing,
        "set_stream": seen.set_stream,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(_capture, "_node_count", lambda raw: seen.nodes)
    monkeypatch.setattr(_capture, "upload", lambda graph, stream: seen.steps.append("uploaded"))
    return seen


def test_a_capture_is_warmed_up_instantiated_and_uploaded(fake_cuda: FakeCuda) -> None:
    calls: list[None] = []

    def body() -> int:
        calls.append(None)
        return len(calls)

    captured = _capture.capture(body, warmup_calls=3)
    assert captured.outputs == 4
    assert captured.node_count == 2
    assert fake_cuda.steps == ["instantiated", "uploaded"]
    assert fake_cuda.collecting == [False]
    assert gc.isenabled()


def test_a_failed_capture_names_the_cause_and_returns_to_the_stream(fake_cuda: FakeCuda) -> None:
    fake_cuda.ending = RuntimeError("CUDA error: operation failed due to a previous error")
    calls: list[None] = []

    def body() -> None:
        calls.append(None)
        if len(calls) == 2:
            raise ValueError("copied to the CPU")

    with pytest.raises(_capture.CaptureFailed, match="ValueError: copied to the CPU"):
        _capture.capture(body, warmup_calls=1)
    assert fake_cuda.current is fake_cuda.caller
    assert gc.isenabled()


def test_an_empty_graph_is_refused(fake_cuda: FakeCuda) -> None:
    fake_cuda.nodes = 0
    with pytest.raises(_capture.CaptureFailed, match="recorded nothing"):
        _capture.capture(lambda: None)
    assert fake_cuda.steps == []
