"""What only a device can show: `pytest -m gpu`. Capture, replay, cold against warm, event times."""

import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from kernels import Case, _capture, _timing
from kernels.ceilings import memory_ceiling
from suites._gpu_bench import GpuBench
from suites._measure import measure
from verifyscope.alternate import StopRule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

ROOT = Path(__file__).resolve().parent.parent
HOLD_NS = 2_000_000


def test_a_replay_gives_what_an_eager_run_gives() -> None:
    x = torch.randn(512, 512, device="cuda")
    captured = _capture.capture(lambda: torch.softmax(x @ x, -1))
    x.copy_(torch.randn(512, 512, device="cuda"))
    captured.outputs.fill_(torch.nan)
    captured.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured.outputs, torch.softmax(x @ x, -1))


def test_a_graph_has_a_node_for_each_kernel() -> None:
    x = torch.zeros(1000, device="cuda")

    def five() -> None:
        for _ in range(5):
            x.add_(1)

    captured = _capture.capture(five, warmup_calls=1)
    assert captured.node_count in (5, None)
    captured.replay()
    torch.cuda.synchronize()
    assert x.eq(10).all()  # 5 of the warm-up, 5 of the replay


def test_a_synchronizing_call_is_named_without_a_capture() -> None:
    x = torch.ones(3, device="cuda")
    assert _capture.why_not_capturable(lambda: x + 1) is None
    assert "synchronizing" in (_capture.why_not_capturable(lambda: x.sum().item()) or "")
    assert torch.cuda.get_sync_debug_mode() == 0


FAILED_CAPTURE = """
import torch
from kernels import _capture
x, before = torch.ones(3, device="cuda"), torch.cuda.current_stream()
try:
    _capture.capture(lambda: x.sum().item())
except _capture.CaptureFailed as error:
    print(error)
print(torch.cuda.current_stream() == before)
"""


def test_a_failed_capture_leaves_the_callers_stream() -> None:
    # In a process of its own, which it leaves in doubt.
    done = subprocess.run(
        [sys.executable, "-c", FAILED_CAPTURE], cwd=ROOT, capture_output=True, text=True
    )
    reason, same_stream = done.stdout.splitlines()
    assert reason.startswith("capture failed: ")
    assert same_stream == "True"


@triton.jit
def _hold(elapsed_ptr, hold_ns):  # type: ignore[no-untyped-def]
    start = globaltimer()
    now = start
    while now - start < hold_ns:
        now = globaltimer()
    tl.store(elapsed_ptr, now - start)


def test_events_take_the_time_of_a_kernel_that_holds_for_a_known_time() -> None:
    elapsed = torch.zeros(1, dtype=torch.int64, device="cuda")

    def hold() -> None:
        _hold[(1,)](elapsed, HOLD_NS, num_warps=1)

    hold()
    taken_s = _timing.CudaEvents().seconds(hold, before=hold)
    held_s = elapsed.item() / 1e9
    assert held_s >= HOLD_NS / 1e9
    assert taken_s == pytest.approx(held_s, rel=0.05)


def test_cold_is_no_faster_than_warm_for_what_fits_the_l2() -> None:
    bench = GpuBench(_timing.CudaGpu())
    case = Case(name="4M", dims={"bytes": 2**22}, dtype=torch.float32)
    given = memory_ceiling.READ.inputs(case, bench.device)
    touched = memory_ceiling.READ.cost(given).touched_bytes
    chosen = bench.input_sets(touched_bytes=touched, set_bytes=2**22)
    assert chosen.count * touched >= 3 * (bench.cache_bytes or 0)
    sets = [memory_ceiling.READ.inputs(case, bench.device) for _ in range(chosen.count)]
    cold, warm = bench.timings(
        memory_ceiling.READ.implementations["triton"],
        sets,
        touched_bytes=touched,
        why_flushed=chosen.why_flushed,
    )
    taken = {
        name: statistics.median(timing.timer.sample() for _ in range(20))
        for name, timing in (("cold", cold), ("warm", warm))
    }
    assert taken["cold"] >= taken["warm"]


def test_a_gigabyte_is_measured_cold_and_its_conditions_sampled() -> None:
    bench = GpuBench(_timing.CudaGpu())
    case = next(case for case in memory_ceiling.COPY.cases if case.name == "1G")
    done = measure(
        memory_ceiling.COPY,
        case,
        [*memory_ceiling.COPY.implementations.values()],
        bench=bench,
        rule=StopRule(time_cap_s=2.0),
    )
    assert {name: outcome.reason for name, outcome in done.outcomes.items()} == {
        "triton": None,
        "torch": None,
    }
    assert {timed.cache for one in done.outcomes.values() for timed in one.timed} == {"cold"}
    assert done.conditions
