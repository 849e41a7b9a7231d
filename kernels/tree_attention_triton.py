"""`tree_attention` in Triton: the keys are split, each part attends, the parts are merged.

Bytes decide: a key and its value are 4 * head_dim bytes and meet T x group rows, so with fewer than
about 100 rows a GPU waits for DRAM and not for its tensor cores. Hence:
- the T x group rows that share a key head are the rows of one tile, and read each key once; only
  beyond 64 rows a second tile of the same keys runs beside the first and finds them in L2;
- the keys are split until the grid fills the SMs once (`kernels/_splits.py`), then merged by LSE;
- the tree is one mask word a row: no mask in memory, and nothing to fill or pack per step;
- loads are 16 bytes a thread along head_dim and pipelined by `num_stages`, pages to int64 before
  they meet a stride, and masked with `other`, for what lies behind the last key may be NaN. They
  carry no eviction hint: Triton 3.7 drops it from the asynchronous copies that they become.

Lengths, trees and page ids are read on the device: a captured graph follows them. The number of
parts is fixed by shapes, and each row is summed in one order: the same bits come out each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import triton
import triton.language as tl

from kernels import Case, Needs, Outputs, Prepared
from kernels._bfloat16 import dot, narrow
from kernels._merge_triton import merge
from kernels._splits import sm_count, split_count
from kernels._target import capability
from kernels.tree_attention import OP, Given, Shape

_LOG2_E = 1.4426950408889634
_SMALL_SHARED = (86, 89, 120, 121)  # 101,376 B a block; sm_80 has 166,912, sm_90 and 100 232,448


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Rows and keys of a tile, warps, pipeline stages, and the blocks an SM should hold."""

    rows: int
    keys: int
    warps: int
    stages: int
    blocks_per_sm: int

    @property
    def registers(self) -> int:
        """Return what a thread may have so that this many blocks share an SM's 65,536.

        Left alone, ptxas aims at more blocks than shared memory lets in, and spills for them.
        """
        return min(255, 65536 // (32 * self.warps * self.blocks_per_sm) // 8 * 8)


# Five stages are two tiles in flight: page ids are loaded two stages before the keys they lead to.
# With three, Triton issues the loads of a tile only after it has finished the one before.
# Tiles are as wide as lets two blocks share an SM; beyond 64 rows of 128 (or any of 256) one fits.
# Chosen by bytes in flight, shared memory and registers, with no spill; nobody has timed them yet.
_SMALL_TILES: Mapping[tuple[int, int], Tile] = MappingProxyType(
    {
        (64, 16): Tile(rows=16, keys=64, warps=4, stages=5, blocks_per_sm=2),
        (64, 32): Tile(rows=32, keys=64, warps=4, stages=5, blocks_per_sm=2),
        (64, 64): Tile(rows=64, keys=64, warps=4, stages=5, blocks_per_sm=2),
        (128, 16): Tile(rows=16, keys=32, warps=4, stages=5, blocks_per_sm=2),
        (128, 32): Tile(rows=32, keys=32, warps=4, stages=5, blocks_per_sm=2),
        (128, 64): Tile(rows=64, keys=64, warps=8, stages=5, blocks_per_sm=1),
        (256, 16): Tile(rows=16, keys=32, warps=4, stages=5, blocks_per_sm=1),
        (256, 32): Tile(rows=32, keys=32, warps=8, stages=5, blocks_per_sm=1),
        (256, 64): Tile(rows=64, keys=16, warps=8, stages=5, blocks_per_sm=1),
    }
)
_LARGE_TILES: Mapping[tuple[int, int], Tile] = MappingProxyType(
    {
        (64, 16): Tile(rows=16, keys=128, warps=4, stages=5, blocks_per_sm=2),
        (64, 32): Tile(rows=32, keys=128, warps=4, stages=5, blocks_per_sm=2),
        (64, 64): Tile(rows=64, keys=64, warps=4, stages=5, blocks_per_sm=2),
        (128, 16): Tile(rows=16, keys=64, warps=4, stages=5, blocks_per_sm=2),
        (128, 32): Tile(rows=32, keys=64, warps=8, stages=5, blocks_per_sm=2),
        (128, 64): Tile(rows=64, keys=32, warps=4, stages=5, blocks_per_sm=2),
        (256, 16): Tile(rows=16, keys=32, warps=4, stages=5, blocks_per_sm=2),
        (256, 32): Tile(rows=32, keys=32, warps=4, stages=5, blocks_per_sm=2),
        (256, 64): Tile(rows=64, keys=32, warps=8, stages=5, blocks_per_sm=1),
    }
)


def tile_for(shape: Shape) -> Tile:
    """Return the tile for the device that `kernels._target` names."""
    table = _SMALL_TILES if capability() in _SMALL_SHARED else _LARGE_TILES
    rows = 16 if shape.form("verify").rows <= 16 else 32 if shape.form("verify").rows <= 32 else 64
    return table[max(64, shape.head_dim), rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Into how many parts the keys are cut, and the keys below which a part is not worth it."""

    count: int
    least_keys: int


def split_for(shape: Shape, tile: Tile, *, sms: int) -> Split:
    """Fill the SMs once, with parts that cost no more to merge than to read.

    A part of n keys reads 4 * n * head_dim bytes from DRAM; its sums are 4 * rows * head_dim,
    written and read once more, but through L2 at two to three times that speed: hence n >= rows.
    """
    least_keys = max(64, shape.form("verify").rows, tile.keys)
    blocks = shape.requests * shape.kv_heads * -(-shape.form("verify").rows // tile.rows)
    count = split_count(
        blocks=blocks,
        most_keys=shape.most_keys,
        least_keys=least_keys,
        slots=sms * tile.blocks_per_sm,
    )
    return Split(count=count, least_keys=least_keys)


@triton.jit
def _attend_part(
    q_ptr, k_ptr, v_ptr, page_table_ptr, prefix_lens_ptr, mask_words_ptr, out_ptr, lse_ptr,
    scale_log2, tokens, kv_heads, group, width, splits, least_keys,
    stride_kp, stride_ks, stride_kh, stride_vp, stride_vs, stride_vh,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ONCE: tl.constexpr,
):  # fmt: skip
    # Row tiles and heads of one part are neighbours in the grid: they share lines and pages.
    tiles = tl.cdiv(tokens * group, BLOCK_M)
    tile = tl.program_id(0) % tiles
    kv_head = (tl.program_id(0) // tiles).to(tl.int64)
    split = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)

    prefix = tl.load(prefix_lens_ptr + request)
    keys = tl.minimum(prefix + tokens, width * PAGE)
    part = tl.cdiv(tl.maximum(tl.cdiv(keys, splits), least_keys), BLOCK_N) * BLOCK_N
    first = split * part
    last = tl.minimum(first + part, keys)

    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    token = row // group
    there = token < tokens
    head = kv_head * group + row % group
    out_row = (request * tokens + token) * kv_heads * group + head  # int64 [BLOCK_M]
    dim = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + out_row[:, None] * HEAD_DIM + dim, mask=there[:, None], other=0.0)
    word = tl.load(mask_words_ptr + request * tokens + token, mask=there, other=0)

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    page_row_ptr = page_table_ptr + request * width
    k_head_ptr = k_ptr + kv_head * stride_kh
    v_head_ptr = v_ptr + kv_head * stride_vh
    for start in range(first, last, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        live = key < last
        if PAGE % BLOCK_N == 0:  # one page a tile
            page = tl.load(page_row_ptr + start // PAGE).to(tl.int64)
        else:
            page = tl.load(page_row_ptr + key // PAGE, mask=live, other=0).to(tl.int64)
        slot = (key % PAGE).to(tl.int64)
        k_at = (page * stride_kp + slot * stride_ks)[:, None] + dim  # [BLOCK_N, HEAD_DIM]
        v_at = (page * stride_vp + slot * stride_vs)[:, None] + dim
        k = tl.load(k_head_ptr + k_at, mask=live[:, None], other=0.0)
        v = tl.load(v_head_ptr + v_at, mask=live[:, None], other=0.0)
        score = dot(q, tl.trans(k)) * scale_log2  # [BLOCK_M, BLOCK_N]
        draft = key - prefix
        bit = (word[:, None] >> tl.minimum(tl.maximum(draft, 0), 31)[None, :]) & 1
        seen = live[None, :] & ((draft < 0)[None, :] | (bit != 0))
        score = tl.where(seen, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        # Before a row has seen a key its maximum is -inf; a shift of 0 keeps its weights 0.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp2(score - shift[:, None])
        kept = tl.exp2(top - shift)
        total = total * kept + tl.sum(weight, 1)
        out = out * kept[:, None] + dot(narrow(weight, v.dtype), v)
        top = new_top

    some = total > 0
    divisor = tl.where(some, total, 1.0)
    out = out / divisor[:, None]
    lse = tl.where(some, (top + tl.log2(divisor)) * 0.6931471805599453, float("-inf"))
    at = out_row if ONCE else out_row * splits + split
    # An empty part leaves its sums unwritten: the merge knows it by its LSE.
    store = there if ONCE else there & (first < keys)
    tl.store(
        out_ptr + at[:, None] * HEAD_DIM + dim,
        narrow(out, out_ptr.dtype.element_ty),
        mask=store[:, None],
    )
    tl.store(lse_ptr + at, lse, mask=there)


def _refuses(case: Case) -> str | None:
    dim = case.number("head_dim")
    if dim not in (16, 32, 64, 128, 256):
        return f"head_dim is {dim}; its tiles are powers of two from 16 to 256"
    if case.dims["kv"] == "fp8":
        return "it does not read fp8 caches"
    return None


@OP.prepared_implementation(
    "triton",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",), refuses=_refuses),
    declares=("tensor_core", "wide_load"),
)
def triton_attention(**inputs: Any) -> Prepared:
    """Choose tile and splits by the shapes; a call allocates its outputs and launches.

    The partial sums are allocated in the call: inside a capture torch then hands the same memory
    to every layer, as an engine does, and it stays in L2.
    """
    given = Given(**inputs)
    tile = tile_for(given.shape)
    split = split_for(given.shape, tile, sms=sm_count(given.q.device))
    facts = {
        "splits": str(split.count),
        "tile": f"{tile.rows}x{tile.keys}",
        "warps": str(tile.warps),
        "stages": str(tile.stages),
    }
    return Prepared(
        call=lambda: attend(given, tile=tile, split=split),
        facts=facts,
        launches=1 if split.count == 1 else 2,
    )


def attend(given: Given, *, tile: Tile, split: Split) -> Outputs:
    """Launch with this tile and split, whatever the shape would choose."""
    shape, q, k_cache, v_cache = given.shape, given.q, given.k_cache, given.v_cache
    rows = len(q) * shape.q_heads
    out = torch.empty_like(q)
    lse = torch.empty(len(q), shape.q_heads, dtype=torch.float32, device=q.device)
    once = split.count == 1
    parts = (rows, split.count)
    part_out = out if once else lse.new_empty(*parts, shape.head_dim)
    part_lse = lse if once else lse.new_empty(parts)
    tiles = -(-shape.form("verify").rows // tile.rows)
    _attend_part[(tiles * shape.kv_heads, split.count, shape.requests)](
        q, k_cache, v_cache, given.page_table, given.prefix_lens, given.mask_words,
        part_out, part_lse,
        given.scale * _LOG2_E, shape.tokens, shape.kv_heads, shape.group, shape.width,
        split.count, split.least_keys, *k_cache.stride()[:3], *v_cache.stride()[:3],
        HEAD_DIM=shape.head_dim, PAGE=shape.page_size,
        BLOCK_M=tile.rows, BLOCK_N=tile.keys, ONCE=once,
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
    )  # fmt: skip
    if not once:
        merge(part_out=part_out, part_lse=part_lse, out=out, lse=lse)
    return {"out": out, "lse": lse}
