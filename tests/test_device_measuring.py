"""What is measured of a case on a GPU, on one that only stands for it: order, account, messages."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch

from graphs._stub import device_measuring, reducing, shrunken, work
from graphs._stub.asked import Case, Job, Reduce, quantised
from graphs._stub.device_measuring import ModeBroke
from graphs._stub.messages import Ablated, Built, Graphed, Passed, Profiled, Replayed
from graphs._stub.ranks import Alone
from tests.fake_device import EAGER_S, LAUNCH_S, NODE_S, FakeDevice
from verifyscope.errors import UsageError
from verifyscope.models import TABLE, Model

T = TypeVar("T")
LLAMA = shrunken.shrunken(TABLE["llama-3.1-70b"])
KIMI = quantised(shrunken.shrunken(TABLE["kimi-k2.5"]), "bf16")


pytestmark = pytest.mark.usefixtures("as_a_rank_runs")


def _job(model: Model = LLAMA, **more: Any) -> Job:
    case = Case(
        model=model,
        tp=2,
        rows=4,
        context=64,
        requests=1,
        tree="eagle4",
        attention="verify",
        path="auto",
        reduce=Reduce("delay", 1e-7),
    )
    fields: dict[str, Any] = {
        "case": case,
        "device": "cuda",
        "ranks": 1,
        "modes": ("eager", "graph", "piecewise"),
        "ablate": True,
        "time_cap_s": 1e-3,
        "timeout_s": 60.0,
    }
    return Job(**{**fields, **more})


def _measured(job: Job, device: FakeDevice | None = None) -> list[object]:
    sent: list[object] = []
    device_measuring.measure(
        job, Alone(), device=device or FakeDevice(), send=sent.append, beat=lambda: None
    )
    return sent


def _of(sent: list[object], kind: type[T]) -> list[T]:
    return [one for one in sent if isinstance(one, kind)]


@pytest.fixture(scope="module", autouse=True)
def _reducing() -> Iterator[None]:
    """Let a delay be an operation: here it would be a wait, which no tape holds. Two rounds do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "_FEWEST_ROUNDS", 2)
        patch.setattr(reducing, "_delay", lambda seconds, device: lambda x: x.mul_(1.0))
        yield


@pytest.fixture(scope="module")
def llama(_reducing: None) -> list[object]:
    with torch.inference_mode():
        return _measured(_job())


def test_captures_come_before_anything_is_measured(llama: list[object]) -> None:
    kinds = [type(one) for one in llama]
    assert kinds[0] is Built
    assert kinds[1:3] == [Graphed, Graphed]
    assert set(kinds[3:11]) == {Replayed}
    assert kinds[-1] is Ablated


def test_an_eager_pass_is_as_long_as_its_launches_and_a_graph_as_its_nodes(
    llama: list[object],
) -> None:
    passed = {one.mode: one for one in _of(llama, Passed)}
    graph = next(one for one in _of(llama, Graphed) if one.mode == "graph")
    nodes = graph.kinds["kernel"]
    assert passed["eager"].samples[0] == EAGER_S * nodes
    assert passed["graph"].samples[0] == LAUNCH_S + NODE_S * nodes
    assert passed["eager"].launches == nodes
    assert passed["graph"].launches == 1
    assert passed["graph"].proof == (
        f"1 graphs hold {nodes} kernel nodes; an eager pass runs {nodes} kernels and copies"
    )


def test_piecewise_launches_its_graphs_and_attention_with_a_copy_a_layer(
    llama: list[object],
) -> None:
    found = {one.mode: one for one in _of(llama, Graphed)}
    piecewise = next(one for one in _of(llama, Passed) if one.mode == "piecewise")
    assert found["piecewise"].graphs == 4
    assert found["piecewise"].copies == 3
    outside = found["graph"].kinds["kernel"] - found["piecewise"].kinds["kernel"]
    eager = outside + 3
    inside = LAUNCH_S * 4 + NODE_S * found["piecewise"].kinds["kernel"]
    assert piecewise.samples[0] == pytest.approx(EAGER_S * eager + inside)


def test_what_a_graph_costs_once_stands_apart(llama: list[object]) -> None:
    found = {one.mode: one for one in _of(llama, Graphed)}
    assert (found["graph"].instantiate_s, found["graph"].upload_s) == (0.25, 0.125)
    assert (found["piecewise"].instantiate_s, found["piecewise"].upload_s) == (1.0, 0.5)
    assert found["graph"].first_launch_s > 0


def test_the_parts_of_the_graph_add_up_and_what_is_left_is_its_launch(llama: list[object]) -> None:
    (found,) = _of(llama, Ablated)
    assert found.mode == "graph"
    account = found.account
    costs = {one.part: one for one in account.parts}
    marginal = costs["attention"].marginal
    assert marginal is not None
    assert marginal.median == pytest.approx(NODE_S * _kernels(llama, "attention"))
    assert account.marginal is not None
    assert account.marginal.unexplained.median == pytest.approx(LAUNCH_S)
    isolated = costs["attention"].isolated
    assert isolated is not None
    assert isolated.median == pytest.approx(LAUNCH_S + marginal.median)
    # In context its profiler saw 4 us a kernel, whatever the stopwatch says.
    context = costs["attention"].in_context
    assert context is not None
    assert context.median == pytest.approx(4e-6 * _kernels(llama, "attention"))


def _kernels(sent: list[object], part: str) -> int:
    """Return how many kernels the steps of a part launch: those that `only` leaves."""
    (found,) = _of(sent, Ablated)
    only = found.samples[f"only {part}"][0]
    return round((only - LAUNCH_S) / NODE_S)


def test_the_profiler_tells_kernels_by_class_and_the_time_between_them(
    llama: list[object],
) -> None:
    found = {one.mode: one for one in _of(llama, Profiled)}
    graph, eager = found["graph"], found["eager"]
    assert graph.by == eager.by == "kernels"
    assert graph.kernels == eager.kernels
    assert graph.kernels is not None
    assert graph.kernels["dense_gemm"] == 13  # four a layer, and the head
    count = sum(graph.kernels.values())
    assert graph.busy_s == pytest.approx(4e-6 * count)
    assert graph.idle_s == pytest.approx(1e-6 * (count - 1))
    assert eager.idle_s == pytest.approx(6e-6 * (count - 1))
    assert graph.unknown == ()


def test_a_pass_that_touches_less_than_the_cache_three_times_is_warm() -> None:
    (eager,) = _of(_measured(_job(modes=("eager",), ablate=False)), Passed)
    assert eager.cache == "cold"
    large = FakeDevice(l2_bytes=2**30)
    (eager,) = _of(_measured(_job(modes=("eager",), ablate=False), large), Passed)
    assert eager.cache == "warm"


def test_throttling_and_clocks_are_with_the_times() -> None:
    device = FakeDevice()
    device.throttle = ("sw_power_cap",)
    (eager,) = _of(_measured(_job(modes=("eager",), ablate=False), device), Passed)
    assert eager.throttled == ("sw_power_cap",)
    assert eager.conditions == {"sm_mhz_median": 1980}


def test_a_capture_that_breaks_ends_the_attempt_with_the_op_and_nothing_is_measured() -> None:
    sent: list[object] = []
    job = _job(KIMI)
    with pytest.raises(ModeBroke) as caught:
        device_measuring.measure(
            job, Alone(), device=FakeDevice(), send=sent.append, beat=lambda: None
        )
    broke = caught.value.broke
    assert (broke.mode, broke.op) == ("graph", "experts_down")
    assert [type(one) for one in sent] == [Built]


def test_without_the_modes_that_broke_the_rest_is_measured_and_taken_apart_eagerly() -> None:
    sent = _measured(replace(_job(KIMI), without=("graph", "piecewise")))
    assert [one.mode for one in _of(sent, Passed)] == ["eager"]
    (found,) = _of(sent, Ablated)
    assert found.mode == "eager"
    assert found.account.nothing is None  # nothing is launched then, and 1 operation takes no time
    assert found.account.marginal is not None
    assert found.account.marginal.unexplained.median == pytest.approx(0, abs=1e-12)


def test_a_capture_of_nothing_is_refused() -> None:
    device = FakeDevice()
    device.recorder_.forgets = True
    with pytest.raises(ModeBroke) as caught:
        _measured(_job(), device)
    assert caught.value.broke.op == "the whole pass"
    assert caught.value.broke.reason == "the capture recorded nothing"


def test_a_part_without_a_kernel_has_a_reason_and_the_others_have_their_times() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reducing, "_delay", lambda seconds, device: lambda x: None)
        sent = _measured(_job(modes=("eager", "graph")))
    (found,) = _of(sent, Ablated)
    costs = {one.part: one for one in found.account.parts}
    assert costs["all_reduce"].only is None
    assert costs["all_reduce"].why_not == (
        "only all_reduce: RecordedNothing: the capture recorded nothing"
    )
    assert costs["attention"].only is not None
    assert found.account.isolated is None
    assert found.account.marginal is not None


def test_collectives_outside_are_pieces_between_all_reduces() -> None:
    job = replace(_job(), modes=("eager", "collectives-outside"), ablate=False)
    sent = _measured(job)
    (found,) = _of(sent, Graphed)
    assert found.mode == "collectives-outside"
    assert found.graphs == 1 + 2 * 3 + 1
    alone = replace(job, case=replace(job.case, reduce=Reduce("none")))
    assert [one.mode for one in _of(_measured(alone), Passed)] == ["eager"]


def test_a_model_that_does_not_fit_is_refused_before_anything_is_built() -> None:
    with pytest.raises(UsageError, match=r"takes .* a rank .*, and .* can be used here"):
        _measured(_job(), FakeDevice(memory_bytes=2**20))
