"""What is particular to `fused_moe` in CUDA C++: its plans, its tiles, and what it refuses."""

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels import _host_cuda
from kernels._check import poisoned
from kernels._raw import launching_by
from kernels._target import multiprocessors_of
from kernels.moe import _formats
from kernels.moe import fused_moe as op
from kernels.moe import fused_moe_cupy as cupy
from kernels.moe._fused_moe_cuda_tiles import TABLES, Plan, Product, Tile, plan_for
from kernels.moe._paths import PATHS, Path, path_for
from kernels.moe.fused_moe import Shape
from tests.fused_moe_problems import assert_matches, problem
from verifyscope.hardware import (
    RESERVED_SHARED_BYTES,
    SHARED_BYTES_PER_BLOCK,
    SHARED_BYTES_PER_MULTIPROCESSOR,
)
from verifyscope.models import TABLE

CAPABILITIES = pytest.mark.parametrize("capability", sorted(SHARED_BYTES_PER_BLOCK))
FORMS = pytest.mark.parametrize("form", _formats.FORMATS)
runs_on_cpu = pytest.mark.skipif(_host_cuda.why_not() is not None, reason=str(_host_cuda.why_not()))


def shape(
    tokens: int,
    *,
    top_k: int = 8,
    experts: int = 384,
    hidden: int = 7168,
    intermediate: int = 256,
    shared: int = 0,
) -> Shape:
    return Shape(
        tokens=tokens,
        top_k=top_k,
        experts=experts,
        hidden=hidden,
        intermediate=intermediate,
        shared=shared,
    )


def plan(
    of: Shape, form: _formats.FormatName, path: Path | None = None, *, capability: int = 120
) -> Plan:
    return plan_for(
        of,
        form,
        path or path_for(of.tokens),
        capability=capability,
        sms=multiprocessors_of(capability),
    )


def shapes() -> Iterator[tuple[Shape, _formats.FormatName]]:
    """Yield all models at all TP in all formats that hold them, T 1 to 256, and the ends."""
    tokens = (1, 2, 7, 8, 9, 16, 17, 64, 256)
    for known, tp in itertools.product(TABLE.values(), (1, 2, 4, 8)):
        moe = known.moe
        if moe is None:
            continue
        width = moe.intermediate // tp
        for name, given in _formats.FORMATS.items():
            if _formats.why_not_sizes(name, hidden=known.hidden, intermediate=width) is None:
                for n, shared in itertools.product(tokens, {0, width * moe.shared_experts}):
                    sizes = {"hidden": known.hidden, "intermediate": width, "shared": shared}
                    yield shape(n, top_k=moe.top_k, experts=moe.experts, **sizes), given.name
    for n, top_k, experts in itertools.product(tokens, (1, 2, 16), (8, 512)):
        if top_k <= experts:
            yield shape(n, top_k=top_k, experts=experts, hidden=2048, intermediate=96), "int4"


# ---- Plans ----


@CAPABILITIES
def test_every_launch_keeps_to_the_shared_memory_of_a_block(capability: int) -> None:
    limit = SHARED_BYTES_PER_BLOCK[capability]
    for of, form in shapes():
        for path in PATHS:
            if path == "direct" and of.tokens > 16:
                continue
            chosen = plan(of, form, path, capability=capability)
            for product in (chosen.gate_up, chosen.down):
                assert product.shared_bytes(of.choices) <= limit, (of, product)
                # Addresses of 16 bytes, and of 64 where pieces are told apart by an exclusive or.
                assert product.ring_bytes % (64 if form == "int4" else 16) == 0
                assert 32 * product.warps <= 1024


@CAPABILITIES
def test_a_choice_has_a_thread_and_a_share_of_it_a_lane(capability: int) -> None:
    for of, form in shapes():
        if of.tokens <= 16:
            down = plan(of, form, "direct", capability=capability).down
            assert of.choices <= 32 * down.warps
            assert of.choices << down.part_bits <= 32 * down.warps


@CAPABILITIES
def test_rows_are_cut_without_a_rest_and_the_grid_of_two_tiles_leaves_no_sm_idle(
    capability: int,
) -> None:
    sms = multiprocessors_of(capability)
    for of, form in shapes():
        chosen = plan(of, form, capability=capability)
        rows = chosen.gate_up.tile.rows // 2
        assert of.intermediate % rows == of.shared % rows == of.hidden % chosen.down.tile.rows == 0
        if chosen.path == "direct" and chosen.gate_up.tile.tiles > 1:
            assert of.choices * of.intermediate // rows >= sms
        if chosen.path == "direct" and chosen.down.tile.tiles > 1:
            assert of.hidden // chosen.down.tile.rows >= sms


def test_three_blocks_of_8_tokens_share_the_99_kilobytes_of_one_sm() -> None:
    chosen = plan(shape(8), "int4")
    for product in (chosen.gate_up, chosen.down):
        assert product.tile.blocks_per_sm == 3
        taken = 3 * (product.shared_bytes(64) + RESERVED_SHARED_BYTES)
        assert taken <= SHARED_BYTES_PER_MULTIPROCESSOR[120]


def test_tokens_choose_the_path_and_its_columns() -> None:
    def columns(tokens: int, **sizes: Any) -> tuple[str, int]:
        chosen = plan(shape(tokens, **sizes), "int4")
        assert chosen.gate_up.tile.columns == chosen.down.tile.columns
        return chosen.path, chosen.down.tile.columns

    assert [columns(n) for n in (1, 8, 9, 16)] == [("direct", n) for n in (8, 8, 16, 16)]
    # 8 tokens an expert on average: one block of 16; more: one of 64.
    assert [columns(n) for n in (17, 256)] == [("sorted", 16)] * 2
    few = {"experts": 8, "top_k": 2}
    assert [columns(n, **few) for n in (32, 33)] == [("sorted", 16), ("sorted", 64)]


def test_few_choices_are_split_over_k_by_the_warps_and_no_more_than_there_are_steps() -> None:
    def split(tokens: int, top_k: int, **sizes: Any) -> tuple[int, int, int]:
        chosen = plan(shape(tokens, top_k=top_k, **sizes), "int4")
        return chosen.gate_up.warps, 1 << chosen.down.part_bits, chosen.down.warps

    assert split(1, 8) == (8, 1, 8)
    assert split(1, 2, intermediate=2048) == (8, 4, 8)
    assert split(1, 1, intermediate=512) == (8, 4, 4)  # a step is 128 k
    assert split(1, 1, intermediate=96) == (8, 1, 1)
    assert split(1, 1, hidden=256, intermediate=96) == (2, 1, 1)
    assert split(1, 1, hidden=256, intermediate=96, shared=128) == (8, 1, 4)  # its step is 32 k


def test_the_plan_is_a_matter_of_shapes_alone() -> None:
    one, two = problem([[0, 3], [3, 5]]), problem([[-1, -1], [2, 2]], seed=1)
    for run in (cupy.cupy_experts, cupy.cupy_direct, cupy.cupy_sorted):
        assert run(**one).facts == run(**two).facts
    found = cupy.cupy_experts(**one)
    assert found.facts == {"path": "direct", "tile": "16x8, 16x8", "splits": "1, 1"}
    assert (found.launches, cupy.cupy_sorted(**one).launches) == (2, 4)
    many = cupy.cupy_experts(**problem([[0, 1]] * 17))
    assert (many.facts["path"], many.launches) == ("sorted", 4)


@CAPABILITIES
@FORMS
def test_the_gate_builds_every_entry_of_the_table(
    capability: int, form: _formats.FormatName
) -> None:
    def tiles(path: Path) -> Iterator[tuple[str, Tile]]:
        for case in op.OP.gate_cases:
            if case.dims["format"] == form and path_for(case.number("rows")) == path:
                names = ("top_k", "experts", "hidden", "intermediate", "shared")
                of = shape(case.number("rows"), **{name: case.number(name) for name in names})
                chosen = plan(of, form, capability=capability)
                yield from ((one.kernel, one.tile) for one in (chosen.gate_up, chosen.down))

    built = {*tiles("direct"), *tiles("sorted")}
    for tile in TABLES[capability]:
        kernels = ("gate_up", "down_direct" if tile.columns <= 16 else "down_sorted")
        assert {(kernel, tile) for kernel in kernels} <= built


# ---- What comes out ----


def run(inputs: dict[str, Any], chosen: Plan) -> torch.Tensor:
    """Run on this CPU by this plan, whatever the shapes would choose."""
    given = op.Given(**inputs)
    call = cupy.direct_call if chosen.path == "direct" else cupy.sorted_call
    with poisoned(), launching_by(_host_cuda.run):
        return call(given, chosen)()["y"]


def changed(chosen: Plan, *, warps: int | None = None, tile: Tile | None = None) -> Plan:
    """Return a plan with so many warps, or in this tile."""

    def other(product: Product) -> Product:
        taken = tile or product.tile
        return replace(product, tile=taken, warps=warps or min(product.warps, taken.warps))

    return replace(chosen, gate_up=other(chosen.gate_up), down=other(chosen.down))


def planned(inputs: dict[str, Any], path: Path = "direct") -> Plan:
    given = op.Given(**inputs)
    return plan(given.shape, given.format.name, path)


@runs_on_cpu
@FORMS
@pytest.mark.parametrize("path", PATHS)
def test_a_ring_is_filled_again_and_again(form: str, path: Path) -> None:
    # 5 and 3 steps of one warp, or more, in a ring of 3; an odd number of int4's groups at the end.
    sizes = {"bf16": (160, 96), "fp8": (384, 256), "int4": (544, 288)}[form]
    inputs = problem([[0, 1], [1, -1]], form, experts=2, sizes=sizes, shared=96)
    assert_matches(inputs, run(inputs, changed(planned(inputs, path), warps=1)))


@runs_on_cpu
@pytest.mark.parametrize(("top_k", "parts"), [(1, 4), (2, 4), (3, 2), (8, 1)])
def test_parts_of_k_are_added_up_whatever_warp_has_them(top_k: int, parts: int) -> None:
    inputs = problem([[*range(top_k)]], experts=8, sizes=(32, 544))  # 5 steps: parts are unequal
    chosen = planned(inputs)
    assert 1 << chosen.down.part_bits == parts
    assert_matches(inputs, run(inputs, chosen))


@runs_on_cpu
@pytest.mark.parametrize("tile", [*TABLES[90], *TABLES[120]], ids=str)
def test_every_tile_computes_the_same(tile: Tile) -> None:
    # Of 20 tokens one expert has 19, the last column tile is not full, and one has none.
    tokens = min(20, tile.columns)
    inputs = problem([[3, 1]] * (tokens - 1) + [[0, -1]], sizes=(64, 64), shared=32)
    path: Path = "direct" if tile.columns <= 16 else "sorted"
    assert_matches(inputs, run(inputs, changed(planned(inputs, path), tile=tile)))


@runs_on_cpu
def test_16_choices_of_16_tokens_are_more_than_the_lanes_of_four_warps() -> None:
    inputs = problem([[5] * 15 + [n] for n in range(16)], "bf16", experts=16, sizes=(32, 32))
    inputs["ids"][3, :4] = torch.tensor([-1, 16, 2, 2])
    chosen = plan(op.Given(**inputs).shape, "bf16", capability=90)
    assert (chosen.gate_up.tile.warps, chosen.down.warps) == (4, 8)
    assert_matches(inputs, run(inputs, chosen))


# ---- Refusals ----


@pytest.mark.parametrize("name", ["x", "gate_up", "gate_up_scales", "down", "down_scales"])
def test_an_address_that_16_byte_loads_cannot_take_is_refused(name: str) -> None:
    inputs = problem([[0]])
    tensor = inputs[name]
    room = torch.empty(tensor.numel() + 16, dtype=tensor.dtype)
    inputs[name] = room[room.data_ptr() % 16 // tensor.element_size() + 1 :][: tensor.numel()]
    inputs[name] = inputs[name].view(tensor.shape)
    with pytest.raises(ValueError, match=f"{name} starts at an address .* of 16 bytes"):
        cupy.cupy_experts(**inputs)


def test_what_a_path_does_not_hold_is_refused_by_the_call_and_by_the_case() -> None:
    reasons = {
        ("direct", 17, 2, 6): "17 tokens; the direct path takes 1 to 16",
        ("direct", 1, 17, 20): "top_k is 17; these kernels take 1 to 16",
        ("sorted", 1, 1, 513): "513 experts; these kernels take 1 to 512",
    }
    for (path, tokens, top_k, experts), reason in reasons.items():
        implementation = op.OP.implementations[f"cupy_{path}"]
        inputs = problem([[0] * top_k] * tokens, "bf16", experts=experts, sizes=(32, 32))
        with pytest.raises(ValueError, match=reason):
            implementation.prepare(inputs)
        dims = {"rows": tokens, "top_k": top_k, "experts": experts}
        case = op.OP.cases[0]
        refused = implementation.needs.refuses(
            dataclasses.replace(case, dims={**case.dims, **dims})
        )
        assert refused is not None
        assert refused.startswith(reason)
    assert op.OP.implementations["cupy"].needs.refuses(op.OP.cases[0]) is None
