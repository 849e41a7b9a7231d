"""Products of few rows by a large weight: how they are cut, and that it does not show."""

import re
from typing import Any

import pytest
import torch

from kernels._target import compiling_for
from kernels.layer import _skinny_cupy, _skinny_plan, _skinny_triton
from kernels.layer._skinny_plan import Plan, Tile, arrivals, choose, plan_for
from tests.layer_problems import normal
from tests.op_runs import DEVICE

BACKENDS = {"triton": _skinny_triton, "cupy": _skinny_cupy}
CPU = torch.device("cpu")


def tile(outputs: int = 16, *, rows: int = 16, step: int = 256, blocks: int = 3) -> Tile:
    return Tile(rows=rows, outputs=outputs, inputs=64, step=step, warps=4, blocks_per_sm=blocks)


def wanted(x: torch.Tensor, weight: torch.Tensor, *, gated: bool) -> torch.Tensor:
    product = x.double() @ weight.double().T
    if not gated:
        return product
    gate, up = product.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("steps", [1, 2, 3, 9])
def test_any_number_of_parts_gives_the_same_product(name: str, steps: int, gated: bool) -> None:
    backend: Any = BACKENDS[name]
    x, weight = normal(5, 1048) / 32, normal(48, 1048, seed=1)
    chosen, _ = backend.plan_for(rows=5, inputs=1048, outputs=24, device=DEVICE)
    part = steps * chosen.step
    plan = Plan(
        row_blocks=1,
        output_blocks=-(-(24 if gated else 48) // chosen.outputs),
        parts=-(-1048 // part),
        part_inputs=part,
    )
    got = backend.product(x=x, weight=weight, gated=gated, tile=chosen, plan=plan)
    want = wanted(x, weight, gated=gated)
    assert ((got.double() - want).norm(dim=-1) / want.norm(dim=-1)).max() < 4e-3
    assert (arrivals(DEVICE) == 0).all()
    again = backend.product(x=x, weight=weight, gated=gated, tile=chosen, plan=plan)
    assert torch.equal(got, again)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("rows", [3, 20, 40])
def test_every_tile_of_the_tables_computes_the_product(name: str, rows: int) -> None:
    backend: Any = BACKENDS[name]
    x, weight = normal(rows, 136) / 12, normal(2 * 40, 136, seed=1)
    more = {"inputs": 136} if name == "cupy" else {}
    tiles = backend.tiles_for(rows=rows, capability=120, **more)
    assert len({one.outputs for one in tiles}) == len(tiles) >= 2
    for one in tiles:
        plan = plan_for(rows=rows, inputs=136, outputs=40, tile=one, sms=4)
        got = backend.product(x=x, weight=weight, gated=True, tile=one, plan=plan)
        want = wanted(x, weight, gated=True)
        assert ((got.double() - want).norm(dim=-1) / want.norm(dim=-1)).max() < 4e-3


def test_few_outputs_are_cut_into_parts_that_fill_the_gpu_once() -> None:
    # Gate and up of Kimi-K2.5's shared expert under TP 8, on 188 SMs of three blocks.
    plan = plan_for(rows=4, inputs=7168, outputs=256, tile=tile(), sms=188)
    assert plan.grid == (1, 16, 28)
    assert plan.part_inputs == 256
    # Fewer places than parts of one step: two steps each, not some with two and some with one.
    assert plan_for(rows=4, inputs=7168, outputs=256, tile=tile(), sms=132).grid == (1, 16, 14)


def test_many_outputs_are_one_part_of_larger_blocks_that_run_at_once() -> None:
    tiles = [tile(16), tile(32, step=128), tile(64, step=64)]
    for outputs, want in ((8192, 16), (16_384, 32), (28_672, 64)):
        chosen, plan = choose(tiles, rows=1, inputs=8192, outputs=outputs, sms=188)
        assert (chosen.outputs, plan.parts) == (want, 1)
        assert plan.output_blocks <= 3 * 188
    chosen, plan = choose(tiles, rows=1, inputs=64, outputs=100_000, sms=188)
    assert chosen.outputs == 64  # the last, though its blocks run in turns


def test_rows_of_several_blocks_are_neighbours_and_share_the_places() -> None:
    plan = plan_for(rows=130, inputs=512, outputs=64, tile=tile(rows=64, blocks=1), sms=24)
    assert plan.grid == (3, 4, 2)


def test_more_blocks_in_parts_than_are_counted_are_refused() -> None:
    with pytest.raises(ValueError, match="5000 blocks in 2 parts: at most 4096 are counted"):
        plan_for(rows=1, inputs=512, outputs=80_000, tile=tile(), sms=4000)


@pytest.mark.parametrize("capability", [80, 89, 90, 100, 120])
@pytest.mark.parametrize("name", BACKENDS)
def test_no_measured_shape_has_more_parts_than_are_counted(name: str, capability: int) -> None:
    backend: Any = BACKENDS[name]
    with compiling_for(capability):
        for rows in (1, 16, 32, 256):
            for inputs, outputs in ((7168, 256), (7168, 18_432), (28_672, 8192), (256, 7168)):
                _, plan = backend.plan_for(rows=rows, inputs=inputs, outputs=outputs, device=CPU)
                assert plan.parts * plan.part_inputs >= inputs
                assert (plan.parts - 1) * plan.part_inputs < inputs


def test_counters_are_shared_by_all_products_of_a_device() -> None:
    assert arrivals(CPU) is arrivals(CPU)
    assert arrivals(CPU).dtype == torch.int32
    assert _skinny_plan.is_large(90)
    assert not _skinny_plan.is_large(120)


def test_warps_that_are_left_over_take_other_outputs() -> None:
    (few,) = _skinny_cupy.tiles_for(rows=1, inputs=64, capability=120)
    assert (few.outputs, few.step) == (64, 64)
    many = _skinny_cupy.tiles_for(rows=1, inputs=256, capability=120)
    assert [(one.outputs, one.step) for one in many] == [(16, 256), (32, 128), (64, 64)]


@pytest.mark.parametrize("gated", [False, True])
def test_a_misaligned_weight_is_named(gated: bool) -> None:
    weight = torch.zeros(32 * 64 + 1).bfloat16()[1:].view(32, 64)
    tile_, plan = _skinny_cupy.plan_for(rows=1, inputs=64, outputs=16, device=CPU)
    with pytest.raises(ValueError, match=re.escape("the weight starts at an address")):
        _skinny_cupy.product(x=normal(1, 64), weight=weight, gated=gated, tile=tile_, plan=plan)
