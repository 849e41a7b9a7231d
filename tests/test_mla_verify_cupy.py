"""What is particular to `mla_verify` in CUDA C++: its tiles and its refusals."""

import dataclasses
from typing import Any

import pytest
import torch

from kernels import Outputs, _host_cuda
from kernels._check import compare, poisoned
from kernels._raw import launching_by
from kernels.attention import mla_verify
from kernels.attention import mla_verify_cupy as cupy
from kernels.attention._forms import FORMS
from kernels.attention._mla_verify_tiles import plan_for
from kernels.attention._split_plan import Plan
from kernels.attention._tiles import Tile
from verifyscope.hardware import (
    RESERVED_SHARED_BYTES,
    SHARED_BYTES_PER_BLOCK,
    SHARED_BYTES_PER_MULTIPROCESSOR,
)

DIMS = 512 + 64
CAPABILITIES = pytest.mark.parametrize("capability", sorted(SHARED_BYTES_PER_BLOCK))
runs_on_cpu = pytest.mark.skipif(_host_cuda.why_not() is not None, reason=str(_host_cuda.why_not()))
CPU = torch.device("cpu")
ALL_TILES = [tile for tiles in cupy.TILES.values() for tile in tiles]
SMALLEST = cupy.TILES[16][-1]


def draw(**change: Any) -> dict[str, Any]:
    """Draw two requests of 20 and 3 keys in pages of 3, with chains of 3 tokens and 3 heads."""
    sizes: dict[str, Any] = {
        "lengths": [20, 3], "words": [[1, 3, 7], [1, 3, 7]], "page_size": 3, "heads": 3,
        "dims": (32, 16), "dtype": torch.bfloat16, "device": CPU,
    }  # fmt: skip
    return dict(mla_verify.draw(**(sizes | change)))


def run(inputs: dict[str, Any], *, splits: int, tile: Tile = SMALLEST) -> Outputs:
    """Run on this CPU with so many parts, each of at least one key, whatever would be chosen."""
    given = mla_verify.Given(**inputs)
    plan = Plan(form=given.shape.form("verify"), tile=tile, splits=splits, least_keys=1)
    with poisoned(), launching_by(_host_cuda.run):
        return cupy.attend(given, plan)


def assert_matches(inputs: dict[str, Any], got: Outputs) -> None:
    want = mla_verify.reference(**inputs)
    failures = [
        one.problem
        for one in compare(got, want, tolerance=mla_verify.OP.tolerance)
        if not one.passed
    ]
    assert failures == []


# ---- Tiles ----


@CAPABILITIES
def test_each_tile_keeps_to_the_shared_memory_of_a_block_and_of_a_multiprocessor(
    capability: int,
) -> None:
    for rows in range(1, 300):
        tile = cupy.tile_for(rows, dims=DIMS, capability=capability)
        taken = cupy.layout_of(tile, dims=DIMS).shared_bytes
        assert taken <= SHARED_BYTES_PER_BLOCK[capability]
        together = tile.blocks_per_sm * (taken + RESERVED_SHARED_BYTES)
        assert together <= SHARED_BYTES_PER_MULTIPROCESSOR[capability]


def test_rows_choose_the_tile_and_99_kilobytes_hold_32_of_them() -> None:
    def sizes(capability: int) -> list[tuple[int, int]]:
        tiles = [cupy.tile_for(n, dims=DIMS, capability=capability) for n in (1, 16, 17, 33, 2048)]
        return [(tile.rows, tile.keys) for tile in tiles]

    assert sizes(90) == [(16, 32), (16, 32), (32, 32), (64, 32), (64, 32)]
    assert sizes(120) == [(16, 16), (16, 16), (32, 32), (32, 32), (32, 32)]
    assert sizes(89) == sizes(86) == sizes(120)
    assert sizes(80) == sizes(100) == sizes(90)


@CAPABILITIES
def test_the_gate_builds_every_tile_that_a_shape_can_choose(capability: int) -> None:
    def tile(rows: int) -> Tile:
        return cupy.tile_for(rows, dims=DIMS, capability=capability)

    for kv in ("bf16", "fp16", "fp8"):
        cases = [case for case in mla_verify.OP.gate_cases if case.dims["kv"] == kv]
        built = {tile(case.number("rows") * case.number("heads")) for case in cases}
        reachable = {tile(rows) for rows in range(1, 32 * 128 + 1)}
        # Each kind of cache meets most tiles, all kinds together each of them.
        assert built <= reachable
    every = {tile(case.number("rows") * case.number("heads")) for case in mla_verify.OP.gate_cases}
    assert every == reachable


def test_dims_that_no_tile_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="2048 dims a key: 16 rows and 16 keys of them do not fit"):
        cupy.tile_for(1, dims=2048, capability=120)


def test_the_parts_fill_the_places_for_blocks_at_most_once_and_extend_has_one() -> None:
    inputs = draw(lengths=[5000] * 4, words=[[1] * 8] * 4, heads=8, page_size=64)
    shape = mla_verify.Given(**inputs).shape
    blocks = {"verify": 4 * 2, "decode": 4 * 8, "extend": 4 * 8}  # at 32, 16 and 16 rows a tile
    for mode in FORMS:
        tile = cupy.tile_for(shape.form(mode).rows, dims=DIMS, capability=120)
        chosen = plan_for(shape, mode, tile=tile, element_bytes=2, sms=188)
        assert shape.requests * chosen.blocks == blocks[mode]
        assert blocks[mode] * chosen.splits <= 188 * tile.blocks_per_sm
        assert (chosen.splits > 1) == (mode != "extend")


def test_the_plan_is_a_matter_of_shapes_alone() -> None:
    inputs = draw(lengths=[500, 3], page_size=64)
    other = inputs | {
        "prefix_lens": torch.tensor([1, 400], dtype=torch.int32),
        "mask_words": torch.zeros(2, 3, dtype=torch.int32),
    }
    one, two = (cupy.cupy_attention(**given).facts for given in (inputs, other))
    assert one == two


# ---- What comes out ----


@runs_on_cpu
@pytest.mark.parametrize("tile", ALL_TILES, ids=lambda tile: f"{tile.rows}x{tile.keys}")
def test_every_tile_computes_the_same_whatever_fills_it(tile: Tile) -> None:
    inputs = draw(lengths=[70, 33], heads=7)  # 21 rows: two tiles of 16, a part of 32 or 64
    assert_matches(inputs, run(inputs, splits=3, tile=tile))


@runs_on_cpu
def test_nan_in_a_key_that_is_seen_is_nan_and_not_an_empty_row() -> None:
    inputs = draw(lengths=[5], words=[[1]])
    inputs["ckv_cache"][int(inputs["page_table"][0, 0]), 2] = float("nan")
    for splits in (1, 2):
        got = run(inputs, splits=splits)
        assert got["out"].isnan().all()
        assert got["lse"].isnan().all()


# ---- Refusals ----


@pytest.mark.parametrize("name", ["q_nope", "q_pe", "ckv_cache", "kpe_cache"])
def test_an_address_that_16_byte_loads_cannot_take_is_refused(name: str) -> None:
    inputs = draw()
    tensor = inputs[name]
    moved = torch.empty(tensor.numel() * 4 + 1, dtype=tensor.dtype)[1:]
    steps = tensor.contiguous().stride()
    inputs[name] = moved.as_strided(tensor.shape, steps)
    with pytest.raises(ValueError, match=f"{name} starts at an address .* of 16 bytes"):
        cupy.cupy_attention(**inputs)


def test_a_cache_whose_slots_are_no_multiples_of_16_bytes_apart_is_refused() -> None:
    inputs = draw()
    inputs["ckv_cache"] = torch.zeros(4, 16, 33, dtype=torch.bfloat16)[..., :32]
    inputs["kpe_cache"] = torch.zeros(4, 16, 16, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"ckv_cache .* \(\[1056, 66\] B\)"):
        cupy.cupy_attention(**inputs)


@pytest.mark.parametrize("dims", [(48, 16), (32, 24), (1024, 64), (32, 8)])
def test_dims_that_it_is_not_built_for_are_refused_by_the_case_and_by_the_call(
    dims: tuple[int, int],
) -> None:
    reason = f"latent [+] rope are {dims[0]} [+] {dims[1]}; it is built for powers of two from 16"
    with pytest.raises(ValueError, match=reason):
        cupy.cupy_attention(**draw(dims=dims))
    case = mla_verify.OP.cases[0]
    case = dataclasses.replace(case, dims={**case.dims, "latent": dims[0], "rope": dims[1]})
    refused = mla_verify.OP.implementations["cupy"].needs.refuses(case)
    assert refused is not None
    assert refused.startswith(f"latent + rope are {dims[0]} + {dims[1]}")
