"""`mla_verify` in CUDA C++ through CuPy, on tensor cores by `nvcuda::wmma` (sm_80 and later).

One kernel computes all three forms: they differ in which rows a block packs, and in whether the
keys are split (`_forms`). The parts of split keys are merged by `_merge_cupy`, a second launch.
Lengths, trees and page ids are read on the device; what is chosen here depends on shapes alone.

The tile is the smallest of 16, 32 or 64 rows that holds a unit's rows, as far as a block's shared
memory goes; more rows are several blocks, which find each other's keys in L2. Queries and keys lie
there as they are: 64 rows and 32 keys of 576 dims are 110 KB, so that GPUs of 99 KB take 32 rows at
a time. Of 16 rows, two blocks share a multiprocessor, one computing while the other loads.

Caches and queries need 16-byte alignment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from kernels import Case, Needs, Outputs, Prepared, _paged, _target
from kernels._forms import Form
from kernels._merge_cupy import merge
from kernels._mla_verify_cuda import SOURCE
from kernels._raw import RawKernel, must_be_aligned
from kernels._splits import sm_count, split_count
from kernels.mla_verify import FORM_COSTS, OP, Given, Shape
from verifyscope.hardware import (
    RESERVED_SHARED_BYTES,
    SHARED_BYTES_PER_BLOCK,
    SHARED_BYTES_PER_MULTIPROCESSOR,
)
from verifyscope.records import Mode

_LOG2_E = 1.4426950408889634
_ALIGNED_BYTES = 16
# Sums of 16, 32 and 64 rows take 32, 64 and 128 registers a thread; of 16 warps, which have 128 in
# all, a few of the others would spill.
_WARPS = 8
_ELEMENTS = {torch.bfloat16: ("__nv_bfloat16", "__float2bfloat16"),
             torch.float16: ("__half", "__float2half")}  # fmt: skip
# What e4m3 becomes when it is widened to float16 is this much too small (`_mla_verify_cuda`).
_FLOAT16_FROM_E4M3 = 256.0
_DIMS, _MOST_LATENT = {16, 32, 64, 128, 256, 512}, 512
_PADDING = 8  # elements a row, so that 8 rows of 16 bytes lie in different banks
_FACTOR_STEP = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Rows and keys of a block, and how many blocks share a multiprocessor."""

    rows: int
    keys: int
    blocks: int

    @property
    def ways(self) -> int:
        """Return how many warps share the dims of one 16 x 16 piece of the scores."""
        return _WARPS * 256 // (self.rows * self.keys)


# By rows, the preferred first.
TILES: Mapping[int, tuple[Tile, ...]] = MappingProxyType(
    {
        16: (Tile(rows=16, keys=32, blocks=2), Tile(rows=16, keys=16, blocks=2)),
        32: (Tile(rows=32, keys=32, blocks=1),),
        64: (Tile(rows=64, keys=32, blocks=1),),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A tile, the parts of the keys, and the least keys of a part."""

    tile: Tile
    splits: int
    least_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the pieces of a block's shared memory start, in bytes, and how many it takes."""

    starts: Mapping[str, int]
    shared_bytes: int


def layout_of(tile: Tile, *, dims: int) -> Layout:
    """Lay out queries and keys of `dims` elements, scores, weights, factors and page ids."""
    row_bytes = 2 * (dims + _PADDING)
    sizes = {
        "Q_AT": tile.rows * row_bytes,
        "KV_AT": tile.keys * row_bytes,
        "SCORES_AT": 4 * tile.ways * tile.rows * _score_step(tile),
        "WEIGHTS_AT": 2 * tile.rows * (tile.keys + _PADDING),
        "FACTORS_AT": 4 * tile.rows * _FACTOR_STEP,
        "PAGES_AT": 4 * tile.keys,
    }
    starts, at = {}, 0
    for name, size in sizes.items():
        starts[name] = at
        at += size
    return Layout(starts=starts, shared_bytes=max(at, _WARPS * _warp_bytes()))


def _score_step(tile: Tile) -> int:
    return tile.keys + 4


def _warp_bytes() -> int:
    return 4 * 16 * _FACTOR_STEP


def tile_for(rows: int, *, dims: int, capability: int) -> Tile:
    """Choose by the rule in this module's docstring; ValueError where not even 16 rows fit."""
    # A GPU that no table lists is taken for the smallest.
    block = SHARED_BYTES_PER_BLOCK.get(capability, min(SHARED_BYTES_PER_BLOCK.values()))
    together = SHARED_BYTES_PER_MULTIPROCESSOR.get(
        capability, min(SHARED_BYTES_PER_MULTIPROCESSOR.values())
    )
    wanted = min((size for size in TILES if size >= rows), default=max(TILES))
    for size in sorted((size for size in TILES if size <= wanted), reverse=True):
        for tile in TILES[size]:
            taken = layout_of(tile, dims=dims).shared_bytes
            if taken <= block and tile.blocks * (taken + RESERVED_SHARED_BYTES) <= together:
                return tile
    raise ValueError(f"{dims} dims a key: 16 rows and 16 keys of them do not fit {block} B")


def plan_for(shape: Shape, *, form: Form, sms: int, capability: int) -> Plan:
    """Choose tile and parts by shapes alone.

    A part of fewer keys than four a row would write and read more bytes of sums (8 * latent a row)
    than it reads of keys (2 * (latent + rope) each).
    """
    tile = tile_for(form.rows, dims=shape.latent + shape.rope, capability=capability)
    least_keys = max(64, 4 * tile.rows)
    splits = split_count(
        blocks=shape.requests * form.units * -(-form.rows // tile.rows),
        most_keys=shape.most_keys,
        least_keys=least_keys,
        slots=sms * tile.blocks,
    )
    return Plan(tile=tile, splits=splits if form.split else 1, least_keys=least_keys)


@cache
def _attend_kernel(
    dtype: torch.dtype, *, fp8: bool, dims: tuple[int, int], page_size: int, tile: Tile, once: bool
) -> RawKernel:
    element, narrow = _ELEMENTS[dtype]
    constants = {
        "ELEMENT": element,
        "NARROW": narrow,
        "CACHE": "unsigned char" if fp8 else element,
        "OUT": element if once else "float",
        "FP8": int(fp8),
        "BFLOAT16": int(dtype == torch.bfloat16),
        "LATENT": dims[0],
        "ROPE": dims[1],
        "PAGE": page_size,
        "ROWS": tile.rows,
        "KEYS": tile.keys,
        "WARPS": _WARPS,
        "BLOCKS": tile.blocks,
        "ROW_STEP": sum(dims) + _PADDING,
        "SCORE_STEP": _score_step(tile),
        "WEIGHT_STEP": tile.keys + _PADDING,
        "FACTOR_STEP": _FACTOR_STEP,
        "WARP_BYTES": _warp_bytes(),
        **layout_of(tile, dims=sum(dims)).starts,
    }
    text = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    return RawKernel("attend_part", text + SOURCE)


def _refuses(case: Case) -> str | None:
    return _refused_dims(case.number("latent"), case.number("rope"))


def _refused_dims(latent: int, rope: int) -> str | None:
    if {latent, rope} <= _DIMS and latent <= _MOST_LATENT:
        return None
    return (
        f"latent + rope are {latent} + {rope}; it is built for powers of two from 16, a latent of "
        f"at most {_MOST_LATENT}"
    )


def _prepared(inputs: Mapping[str, Any], *, mode: Mode) -> Prepared:
    """Choose tile and splits by the shapes; a call allocates its outputs and launches."""
    given = Given(**inputs)
    if refused := _refused_dims(given.shape.latent, given.shape.rope):
        raise ValueError(refused)
    if given.ckv_scale == 0:
        raise ValueError("ckv_scale is 0: give the scale that the latents were divided by")
    for name in ("q_nope", "q_pe", "ckv_cache", "kpe_cache"):
        must_be_aligned(name, getattr(given, name), to_bytes=_ALIGNED_BYTES)
    form = given.shape.form(mode)
    plan = plan_for(
        given.shape,
        form=form,
        sms=sm_count(given.q_nope.device),
        capability=_target.capability(),
    )
    return Prepared(
        call=lambda: attend(given, form=form, plan=plan),
        facts={
            "splits": str(plan.splits),
            "rows": str(plan.tile.rows),
            "keys": str(plan.tile.keys),
            "warps": str(_WARPS),
        },
        launches=1 if plan.splits == 1 else 2,
    )


def attend(given: Given, *, form: Form, plan: Plan) -> Outputs:
    """Launch by this form and plan, whatever the shape would choose."""
    shape, tile, q = given.shape, plan.tile, given.q_nope
    dims = (shape.latent, shape.rope)
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    once = plan.splits == 1
    part_out = out if once else lse.new_empty(lse.numel(), plan.splits, shape.latent)
    part_lse = lse if once else lse.new_empty(lse.numel(), plan.splits)
    fp8 = given.ckv_cache.dtype == _paged.FP8
    kernel = _attend_kernel(
        q.dtype, fp8=fp8, dims=dims, page_size=shape.page_size, tile=tile, once=once
    )
    lift = _FLOAT16_FROM_E4M3 if fp8 and q.dtype == torch.float16 else 1.0
    out_factor, rope_ratio = lift * given.ckv_scale, given.kpe_scale / given.ckv_scale
    sizes = (shape.tokens, shape.heads, form.tokens, form.heads, shape.width, plan.least_keys)
    kernel(
        (-(-form.rows // tile.rows) * form.units, plan.splits, shape.requests),
        (32 * _WARPS,),
        q, given.q_pe, given.ckv_cache, given.kpe_cache,
        given.page_table, given.prefix_lens, given.mask_words, part_out, part_lse,
        *given.ckv_cache.stride()[:2], *given.kpe_cache.stride()[:2],
        *map(np.int32, sizes),
        *map(np.float32, (given.scale * _LOG2_E * out_factor, rope_ratio, out_factor)),
        shared_bytes=layout_of(tile, dims=sum(dims)).shared_bytes,
    )  # fmt: skip
    if not once:
        merge(part_out=part_out, part_lse=part_lse, out=out, lse=lse)
    return {"out": out, "lse": lse}


_NEEDS = Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",), refuses=_refuses)
_DECLARES = ("tensor_core", "wide_load")


@OP.prepared_implementation("cupy", needs=_NEEDS, declares=_DECLARES, mode="verify")
def cupy_attention(**inputs: Any) -> Prepared:
    """Read each key once for all tokens and heads."""
    return _prepared(inputs, mode="verify")


@OP.prepared_implementation(
    "cupy_decode",
    needs=_NEEDS,
    declares=_DECLARES,
    mode="decode",
    form_cost=FORM_COSTS["decode"],
)
def cupy_decode_attention(**inputs: Any) -> Prepared:
    """Make each token a request of its own."""
    return _prepared(inputs, mode="decode")


@OP.prepared_implementation(
    "cupy_extend",
    needs=_NEEDS,
    declares=_DECLARES,
    mode="extend",
    form_cost=FORM_COSTS["extend"],
)
def cupy_extend_attention(**inputs: Any) -> Prepared:
    """Give each head a block that walks the whole prefix."""
    return _prepared(inputs, mode="extend")
