"""A profiler's trace of passes: kernels by class and step, what lies between, spans of a CPU."""

import time

import pytest
import torch

from graphs import class_times
from graphs._stub.step import Flow, Step
from ingest.trace import Trace
from tests.trace_files import Kineto, read

NORM, PRODUCT, ATTENTION = "rms_norm_kernel", "nvjet_tst_64x64", "flash_fwd_kernel"


def _step(name: str, part: str, run: object = None) -> Step:
    def nothing(flow: Flow) -> None:
        return

    return Step(
        name=name,
        part=part,
        layer=0,
        covers=(name,),
        writes=(),
        run=run if callable(run) else nothing,
    )


STEPS = (_step("norm", "norms"), _step("o_proj", "attention_projections"), _step("a", "attention"))


def _eager(made: Kineto, ts: float, kernels: dict[int, list[str]], *, dur: float = 5) -> float:
    """Write a pass whose steps launch these kernels, 10 us apart."""
    begin = ts
    for step, names in kernels.items():
        made.annotation(f"forward step {step}", ts, 10 * len(names) - 1)
        for name in names:
            made.call("cudaLaunchKernel", ts + 1, 2)
            made.gpu(name, ts + 4, dur)
            ts += 10
    made.annotation("forward pass 0", begin - 1, ts - begin + 50)
    return ts


def _trace(made: Kineto) -> Trace:
    (trace,), _ = read(made.bytes())
    return trace


def test_a_kernel_belongs_to_the_class_of_its_name_and_the_part_of_the_step_that_launched_it() -> (
    None
):
    made = Kineto()
    _eager(made, 100, {0: [NORM], 1: [PRODUCT, "elementwise_kernel"], 2: [ATTENTION]})
    found = class_times.seen(_trace(made), STEPS)
    assert found.by == "kernels"
    assert found.by_class_s == pytest.approx(
        {"norm_elementwise": 10e-6, "dense_gemm": 5e-6, "attention": 5e-6}
    )
    assert found.kernels == {"attention": 1, "dense_gemm": 1, "norm_elementwise": 2}
    assert found.by_part is not None
    assert found.by_part["attention_projections"] == pytest.approx((10e-6,))
    assert found.step_kernels == (1, 2, 1)
    assert found.launches == 4


def test_busy_and_idle_are_the_pass_from_its_first_kernel_to_its_last() -> None:
    made = Kineto()
    _eager(made, 100, {0: [NORM], 1: [PRODUCT]}, dur=5)
    found = class_times.seen(_trace(made), STEPS)
    assert (found.busy_s, found.idle_s) == pytest.approx((10e-6, 5e-6))


def test_kernels_that_overlap_leave_no_idle_time_and_count_once_as_busy() -> None:
    made = Kineto()
    _eager(made, 100, {0: [NORM], 1: [PRODUCT]}, dur=14)
    found = class_times.seen(_trace(made), STEPS)
    assert (found.busy_s, found.idle_s) == pytest.approx((24e-6, 0.0), abs=1e-12)


def _graph(kernels: list[str]) -> Trace:
    made = Kineto()
    end = made.graph(kernels, 100, dur=5, gap=1)
    made.annotation("forward pass 0", 99, end - 90)
    return _trace(made)


def test_kernels_of_a_graph_are_told_by_their_place_among_those_of_the_steps() -> None:
    trace = _graph([NORM, PRODUCT, "elementwise_kernel", ATTENTION])
    found = class_times.seen(trace, STEPS, step_kernels=(1, 2, 1))
    assert found.by_part is not None
    assert found.by_part["attention_projections"] == pytest.approx((10e-6,))
    assert found.launches == 1
    assert found.idle_s == pytest.approx(3e-6)


@pytest.mark.parametrize("counts", [None, (1, 1, 1), (2, 2, 1)])
def test_where_a_graph_has_more_or_fewer_kernels_nothing_is_said_of_parts(
    counts: tuple[int, ...] | None,
) -> None:
    trace = _graph([NORM, PRODUCT, "elementwise_kernel", ATTENTION])
    found = class_times.seen(trace, STEPS, step_kernels=counts)
    assert found.by_part is None
    assert found.step_kernels is None
    assert found.by_class_s["attention"] == pytest.approx(5e-6)


def test_of_several_passes_the_median_counts_and_kernels_between_them_do_not() -> None:
    made = Kineto()
    ts = 100.0
    for dur in (3, 5, 9):
        ts = _eager(made, ts, {2: [ATTENTION]}, dur=dur) + 200
        made.gpu("vectorized_elementwise_kernel", ts - 60, 50)  # within no pass
    found = class_times.seen(_trace(made), STEPS)
    assert found.passes == 3
    assert found.by_class_s == pytest.approx({"attention": 5e-6})
    assert found.by_part is not None
    assert found.by_part["attention"] == pytest.approx((3e-6, 5e-6, 9e-6))


def test_a_kernel_of_no_known_class_is_named() -> None:
    made = Kineto()
    _eager(made, 100, {0: ["frobnicate_v2"]})
    found = class_times.seen(_trace(made), STEPS)
    assert found.by_class_s == pytest.approx({"unclassified": 5e-6})
    assert found.unknown == ("frobnicate_v2",)


def test_a_trace_without_a_pass_is_refused() -> None:
    made = Kineto()
    made.gpu(NORM, 100, 5)
    with pytest.raises(ValueError, match="the trace holds no pass"):
        class_times.seen(_trace(made), STEPS)


def test_torch_tells_the_steps_of_a_cpu_by_their_spans() -> None:
    def wait(flow: Flow) -> None:
        time.sleep(0.01)

    steps = (_step("slow", "attention", wait), _step("quick", "norms"))
    run = class_times.spanned(steps, {"x": torch.zeros(1)})
    trace = class_times.record(run, passes=3, synchronize=lambda: None)
    found = class_times.seen(trace, steps)
    assert (found.by, found.passes) == ("spans", 3)
    assert found.by_class_s["attention"] >= 0.01
    assert found.by_class_s["norm_elementwise"] < 0.005
    assert found.kernels is None
    assert found.idle_s is None
    assert found.by_part is not None
    assert len(found.by_part["attention"]) == 3
