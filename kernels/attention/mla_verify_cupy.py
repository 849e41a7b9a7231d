"""`mla_verify` in CUDA C++ through CuPy, on tensor cores by `nvcuda::wmma` (sm_80 and later).

One kernel computes all three forms: they differ in which rows a block packs, and in whether the
keys are split (`_forms`). The parts of split keys are merged by `_merge_cupy`, a second launch.
Lengths, trees and page ids are read on the device; what is chosen here depends on shapes alone.

The tile, by reasoning, for nobody has timed it, is the smallest of 16, 32 or 64 rows that holds a
unit's rows, as far as shared memory goes; more rows are several blocks, which find each other's
keys in L2. Queries and keys lie in shared memory as they are: 64 rows and 32 keys of 576 dims are
110 KB, so that GPUs of 99 KB take 32 rows at a time. Of 16 rows two blocks share a multiprocessor,
one computing while the other waits for DRAM; where that leaves no room for 32 keys they take 16.
The next tile is under way in registers meanwhile: 36 KB of 32 keys, of 16 in two blocks as many.

Caches and queries need 16-byte alignment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from kernels import Case, Needs, Outputs, Prepared
from kernels._elements_cuda import ELEMENTS, PUT
from kernels._fp8_cuda import LIFT, WIDEN_FP8
from kernels._raw import RawKernel, must_be_aligned
from kernels._splits import sm_count
from kernels._target import capability, listed
from kernels.attention._merge_cupy import merge
from kernels.attention._mla_verify_cuda import SOURCE
from kernels.attention._mla_verify_tiles import plan_for
from kernels.attention._paged import FP8
from kernels.attention._softmax_cuda import SOFTMAX
from kernels.attention._split_plan import Plan, part_sums
from kernels.attention._tiles import Tile
from kernels.attention.mla_verify import FORM_COSTS, OP, Given
from verifyscope.hardware import (
    RESERVED_SHARED_BYTES,
    SHARED_BYTES_PER_BLOCK,
    SHARED_BYTES_PER_MULTIPROCESSOR,
)
from verifyscope.records import Mode

_LOG2_E = 1.4426950408889634
_DIMS, _MOST_LATENT = {16, 32, 64, 128, 256, 512}, 512
_PADDING = 8  # elements a row, so that 8 rows of 16 bytes lie in different banks
_FACTOR_STEP = 20
# Sums of 16, 32 and 64 rows take 32, 64 and 128 registers a thread; of 16 warps, which have 128 in
# all, a few of the others would spill.
_WARPS = 8


def _tile(rows: int, keys: int, *, blocks: int) -> Tile:
    return Tile(rows=rows, keys=keys, warps=_WARPS, stages=1, blocks_per_sm=blocks)


# By rows, the preferred first.
TILES: Mapping[int, tuple[Tile, ...]] = MappingProxyType(
    {
        16: (_tile(16, 32, blocks=2), _tile(16, 16, blocks=2)),
        32: (_tile(32, 32, blocks=1),),
        64: (_tile(64, 32, blocks=1),),
    }
)


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
        "SCORES_AT": 4 * _ways(tile) * tile.rows * _score_step(tile),
        "WEIGHTS_AT": 2 * tile.rows * (tile.keys + _PADDING),
        "FACTORS_AT": 4 * tile.rows * _FACTOR_STEP,
        "PAGES_AT": 4 * tile.keys,
    }
    starts, at = {}, 0
    for name, size in sizes.items():
        starts[name] = at
        at += size
    return Layout(starts=starts, shared_bytes=max(at, _WARPS * _warp_bytes()))


def _ways(tile: Tile) -> int:
    """Return how many warps share the dims of one 16 x 16 piece of the scores."""
    return tile.warps * 16 * 16 // (tile.rows * tile.keys)


def _score_step(tile: Tile) -> int:
    return tile.keys + 4


def _warp_bytes() -> int:
    return 4 * 16 * _FACTOR_STEP


def tile_for(rows: int, *, dims: int, capability: int) -> Tile:
    """Choose by the rule in this module's docstring; ValueError where not even 16 rows fit."""
    block = SHARED_BYTES_PER_BLOCK[listed(capability)]
    together = SHARED_BYTES_PER_MULTIPROCESSOR[listed(capability)]
    wanted = min((size for size in TILES if size >= rows), default=max(TILES))
    for size in sorted((size for size in TILES if size <= wanted), reverse=True):
        for tile in TILES[size]:
            taken = layout_of(tile, dims=dims).shared_bytes
            if taken <= block and tile.blocks_per_sm * (taken + RESERVED_SHARED_BYTES) <= together:
                return tile
    raise ValueError(f"{dims} dims a key: 16 rows and 16 keys of them do not fit {block} B")


@cache
def _attend_kernel(
    dtype: torch.dtype, *, fp8: bool, dims: tuple[int, int], page_size: int, tile: Tile, once: bool
) -> RawKernel:
    constants = {
        "CACHE": "unsigned char" if fp8 else "ELEMENT",
        "FP8": int(fp8),
        "OUT": "ELEMENT" if once else "float",
        "STORE": "NARROW" if once else "",
        "LATENT": dims[0],
        "ROPE": dims[1],
        "PAGE": page_size,
        "ROWS": tile.rows,
        "KEYS": tile.keys,
        "WARPS": tile.warps,
        "BLOCKS": tile.blocks_per_sm,
        "ROW_STEP": sum(dims) + _PADDING,
        "SCORE_STEP": _score_step(tile),
        "WEIGHT_STEP": tile.keys + _PADDING,
        "FACTOR_STEP": _FACTOR_STEP,
        "WARP_BYTES": _warp_bytes(),
        **layout_of(tile, dims=sum(dims)).starts,
    }
    text = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    return RawKernel("attend_part", ELEMENTS[dtype] + text + WIDEN_FP8 + PUT + SOFTMAX + SOURCE)


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
    """Choose tile and parts by the shapes; a call allocates its outputs and launches."""
    given = Given(**inputs)
    shape = given.shape
    if refused := _refused_dims(shape.latent, shape.rope):
        raise ValueError(refused)
    for name in ("q_nope", "q_pe", "ckv_cache", "kpe_cache"):
        must_be_aligned(name, getattr(given, name), to_bytes=16)
    tile = tile_for(shape.form(mode).rows, dims=shape.latent + shape.rope, capability=capability())
    plan = plan_for(
        shape,
        mode,
        tile=tile,
        element_bytes=given.ckv_cache.element_size(),
        sms=sm_count(given.q_nope.device),
    )
    return plan.prepared(lambda: attend(given, plan))


def attend(given: Given, plan: Plan) -> Outputs:
    """Launch by this plan, whatever the shape would choose."""
    shape, form, tile, q = given.shape, plan.form, plan.tile, given.q_nope
    dims = (shape.latent, shape.rope)
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    once = plan.splits == 1
    part_out, part_lse = part_sums(out, lse, splits=plan.splits)
    fp8 = given.ckv_cache.dtype == FP8
    kernel = _attend_kernel(
        q.dtype, fp8=fp8, dims=dims, page_size=shape.page_size, tile=tile, once=once
    )
    out_factor = given.ckv_scale * (LIFT if fp8 else 1.0)
    rope_ratio = given.kpe_scale / given.ckv_scale
    sizes = (shape.tokens, shape.heads, form.tokens, form.heads, shape.width, plan.least_keys)
    kernel(
        (plan.blocks, plan.splits, shape.requests),
        (32 * tile.warps,),
        q, given.q_pe, given.ckv_cache, given.kpe_cache,
        given.page_table, given.prefix_lens, given.mask_words, part_out, part_lse,
        *given.ckv_cache.stride()[:2], *given.kpe_cache.stride()[:2],
        *map(np.int32, sizes),
        *map(np.float32, (given.scale * out_factor * _LOG2_E, rope_ratio, out_factor)),
        shared_bytes=layout_of(tile, dims=sum(dims)).shared_bytes,
    )  # fmt: skip
    if not once:
        merge(part_out=part_out, part_lse=part_lse, out=out, lse=lse)
    return {"out": out, "lse": lse}


_own = partial(
    OP.prepared_implementation,
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",), refuses=_refuses),
    declares=("tensor_core", "wide_load"),
)


@_own("cupy", mode="verify")
def cupy_attention(**inputs: Any) -> Prepared:
    """Read each latent once for all tokens and heads of a request."""
    return _prepared(inputs, mode="verify")


@_own("cupy_decode", mode="decode", form_cost=FORM_COSTS["decode"])
def cupy_decode(**inputs: Any) -> Prepared:
    """Treat each draft token as a decode request of its own."""
    return _prepared(inputs, mode="decode")


@_own("cupy_extend", mode="extend", form_cost=FORM_COSTS["extend"])
def cupy_extend(**inputs: Any) -> Prepared:
    """Let one block a head and row tile walk the whole prefix."""
    return _prepared(inputs, mode="extend")
