"""Predictions: costs counted without drawing, launches as on the GPU named, nothing measured."""

from typing import Any

import msgspec
import pytest
import torch

from kernels import Case, Implementation, Op, _predict, _undrawn, all_ops
from kernels._points import Predicted
from kernels._predict import predicted, predicted_measurement
from kernels._registry import find_case
from kernels.attention import tree_attention
from verifyscope.hardware import Gpu, find_gpu

SERVER = find_gpu("rtx-pro-6000-server")
ATTENTION = tree_attention.OP
EIGHT = "t8-b1-l8k-eagle4-p16-h8x1-d128-bf16"


def implementation(name: str, op: Op = ATTENTION) -> Implementation:
    return all_ops()[op.name].implementations[name]


def row(name: str, case: str = EIGHT, *, gpu: Gpu = SERVER, **more: Any) -> Predicted:
    return predicted(implementation(name), find_case(ATTENTION, case), gpu=gpu, **more)


@pytest.mark.parametrize("op", all_ops().values(), ids=lambda op: op.name)
def test_a_cost_is_the_same_without_drawing(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_undrawn, "_LARGE", 0)
    for case in op.cases:
        if case.tiny and _undrawn.sizes_suffice(op):
            drawn = op.inputs(case, torch.device("cpu"))
            inputs = _undrawn.undrawn(op, case)
            assert op.cost(inputs) == op.cost(drawn)
            for name, value in drawn.items():
                # Packed weights are uint8, and values: only indices and lengths must be as drawn.
                if isinstance(value, torch.Tensor) and value.dtype in (torch.int32, torch.int64):
                    got = inputs[name]
                    assert isinstance(got, torch.Tensor)
                    assert torch.equal(got, value)


def test_a_cost_that_depends_on_what_is_drawn_is_known_as_such() -> None:
    suffice = {name: _undrawn.sizes_suffice(op) for name, op in all_ops().items()}
    assert suffice["tree_attention"]
    assert suffice["mla_verify"]
    sampled = "chain_accept_sampled"  # how many tokens a draw accepts
    assert not suffice[sampled]
    one = implementation("cupy", all_ops()[sampled])
    case = next(case for case in one.op.cases if not case.tiny)
    reason = "its cost depends on the values that are drawn, not on sizes alone"
    assert predicted(one, case, gpu=SERVER).reason == reason


def test_a_cache_of_gigabytes_is_reserved_and_not_written() -> None:
    sizes: list[torch.Size] = []

    def inputs(case: Case, device: torch.device) -> dict[str, torch.Tensor]:
        cache = torch.randn(2**19, 2**13, device=device, dtype=torch.bfloat16)  # 8 GiB
        cache[7, 5:] = 0
        sizes.append(cache.shape)
        return {"cache": cache, "q": torch.randn((4, 8), device=device)}

    fake: Any = type("Fake", (), {"inputs": staticmethod(inputs), "cases": ()})
    given = _undrawn.undrawn(fake, Case(name="huge", dims={}))
    assert sizes == [torch.Size([2**19, 2**13])]
    q = given["q"]
    assert isinstance(q, torch.Tensor)
    assert q.std() > 0.5


def test_the_forms_differ_in_what_they_move_and_not_in_their_floor() -> None:
    verify, decode, extend = (row(f"triton{form}") for form in ("", "_decode", "_extend"))
    # 8,192 + 8 keys of 512 B, q and out of 8 x 8 x 128 x 2 B, LSEs, and 4 B a page, word, length.
    keys, rest = 8200 * 512, 2 * 8 * 8 * 128 * 2 + 4 * 8 * 8 + 4 * (513 + 8 + 1)
    for one, times, mode in ((verify, 1, "verify"), (decode, 8, "decode"), (extend, 8, "extend")):
        assert one.reason is None
        assert (one.mode, one.touched_bytes) == (mode, keys + rest)
        assert one.moved_bytes == times * keys + rest
        assert one.floor_s == pytest.approx((keys + rest) / 1597e9)
        assert one.roof_s == one.predicted_s == pytest.approx((times * keys + rest) / 1597e9)
        assert one.limited_by == "bytes"
    # Eight heads of one block each walk the prefix; the others fill the 188 SMs.
    assert [grid.blocks for grid in extend.grids] == [8]
    assert (verify.nodes, decode.nodes, extend.nodes) == (2, 2, 1)
    assert all(grid.waves is None for grid in verify.grids)


def test_launches_are_those_of_the_gpu_that_is_named() -> None:
    long = "t1-b1-l128k-chain-p64-h8x1-d128-bf16"
    blocks = {
        name: row("cupy", long, gpu=find_gpu(name)).grids[0].blocks
        for name in ("rtx-pro-6000-server", "rtx-5090", "h200")
    }
    # Two blocks an SM: 188, 170 and 132 of them.
    assert blocks == {"rtx-pro-6000-server": 376, "rtx-5090": 340, "h200": 264}


def test_an_empty_node_makes_small_cases_wait_for_their_launches() -> None:
    small = row("triton", "t8-b1-l1k-chain-p16-h8x1-d128-bf16", node_s=1.5e-6)
    assert small.roof_s is not None
    assert small.roof_s < 0.4e-6
    assert (small.limited_by, small.nodes) == ("nodes", 2)
    assert small.predicted_s == pytest.approx(small.roof_s + 3e-6)


def test_a_record_is_predicted_and_says_for_which_gpu_and_by_what() -> None:
    record = predicted_measurement(row("triton"))
    assert (record.source, record.status, record.kind) == ("predicted", "ok", "own")
    assert record.dims == dict(find_case(ATTENTION, EIGHT).dims)
    assert record.median_s == record.floor_s
    assert record.method["gpu"] == "rtx-pro-6000-server"
    assert record.method["bytes_per_s"] == 1597e9
    assert record.method["nodes"] == 2
    assert record.method["limited_by"] == "bytes"
    assert "node_s" not in record.method


def test_what_cannot_be_said_is_a_reason() -> None:
    assert row("cupy", gpu=find_gpu("h200")).reason is None
    old = Gpu(name="old", title="Old", capability=70, multiprocessors=80, dram_bytes_per_s=9e11)
    assert row("cupy", gpu=old).reason == "is not built for old, capability 70"
    unknown = Gpu(name="new", title="New", capability=120, multiprocessors=80)
    assert row("cupy", gpu=unknown).reason == "the bandwidth of new is not known"
    broken = predicted_measurement(
        msgspec.structs.replace(row("cupy"), reason="no", predicted_s=None)
    )
    assert (broken.status, broken.reason, broken.median_s) == ("skipped", "no", None)


def test_a_baseline_has_a_floor_and_no_launches() -> None:
    torch_row = row("torch")
    assert torch_row.floor_s == row("triton").floor_s
    assert (torch_row.nodes, torch_row.grids) == (None, ())


def test_every_own_kernel_can_be_predicted() -> None:
    reasons = {}
    for op in all_ops().values():
        for one in op.implementations.values():
            case = next((case for case in op.cases if not case.tiny), None)
            if one.kind != "own" or case is None or one.needs.refuses(case) is not None:
                continue
            if _undrawn.sizes_suffice(op):
                reasons[one.id] = predicted(one, case, gpu=SERVER).reason
    assert set(reasons.values()) == {None}, reasons


def test_a_peak_is_known_for_what_the_matrix_units_take() -> None:
    assert _predict.peak(SERVER, torch.float16) == _predict.peak(SERVER, torch.bfloat16) == 468e12
    assert _predict.peak(SERVER, torch.float32) is None
