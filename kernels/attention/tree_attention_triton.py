"""`tree_attention` in Triton: the keys are split, each part attends, the parts are merged.

Bytes decide: a key and its value are 4 * head_dim bytes (half of that in fp8) and meet T x group
rows, so with fewer than about 100 rows a GPU waits for DRAM and not for its tensor cores. Hence:
- the T x group rows that share a key head are the rows of one tile, and read each key once; only
  beyond 64 rows a second tile of the same keys runs beside the first and finds them in L2;
- the keys are split until the grid fills the SMs once (`kernels/_splits.py`), then merged by LSE;
- the tree is one mask word a row: no mask in memory, and nothing to fill or pack per step;
- loads are 16 bytes a thread along head_dim and pipelined by `num_stages`, pages to int64 before
  they meet a stride, and masked with `other`, for what lies behind the last key may be NaN. They
  carry no eviction hint: Triton 3.7 drops it from the asynchronous copies that they become.

Three implementations, one kernel: `triton` is the above, `triton_decode` and `triton_extend` pack
the rows as those forms of `_forms.py` do, the last unsplit. fp8 caches are read as bytes
and widened in registers (`kernels/_fp8_triton.py`), their scales applied to scores and result.

Lengths, trees and page ids are read on the device: a captured graph follows them. The number of
parts is fixed by shapes, and each row is summed in one order: the same bits come out each time.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from kernels import Case, Needs, Outputs, Prepared
from kernels._bfloat16 import dot, narrow
from kernels._fp8_triton import LIFT, widen
from kernels.attention._merge_triton import merge
from kernels.attention._online_softmax_triton import (
    divisor_and_lse,
    only_seen,
    page_of,
    weights,
)
from kernels.attention._paged import FP8
from kernels.attention._split_plan import Plan, part_sums
from kernels.attention._tree_attention_plan import prepare, tile_for
from kernels.attention.tree_attention import FORM_COSTS, OP, Given
from verifyscope.records import Mode

_LOG2_E = 1.4426950408889634


# Numbers that change nothing but a loop's length or a row's place: no kernel of its own for a 1.
_SIZES = ("unit_tokens", "unit_heads", "units", "tokens", "kv_heads", "group", "width", "splits",
          "least_keys")  # fmt: skip


@triton.jit(do_not_specialize=_SIZES)
def _attend_part(
    q_ptr, k_ptr, v_ptr, page_table_ptr, prefix_lens_ptr, mask_words_ptr, out_ptr, lse_ptr,
    scale_log2, v_scale, unit_tokens, unit_heads, units,
    tokens, kv_heads, group, width, splits, least_keys,
    stride_kp, stride_ks, stride_kh, stride_vp, stride_vs, stride_vh,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ONCE: tl.constexpr,
):  # fmt: skip
    # Row tiles, units and heads of one part are neighbours in the grid: they share lines and pages.
    tiles = tl.cdiv(unit_tokens * unit_heads, BLOCK_M)
    tile = tl.program_id(0) % tiles
    unit = tl.program_id(0) // tiles % units
    kv_head = (tl.program_id(0) // (tiles * units)).to(tl.int64)
    split = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)

    prefix = tl.load(prefix_lens_ptr + request)
    keys = tl.minimum(prefix + tokens, width * PAGE)
    part = tl.cdiv(tl.maximum(tl.cdiv(keys, splits), least_keys), BLOCK_N) * BLOCK_N
    first = split * part
    last = tl.minimum(first + part, keys)

    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    there = row < unit_tokens * unit_heads
    sharing = group // unit_heads  # units of the same tokens
    token = unit // sharing * unit_tokens + row // unit_heads
    head = kv_head * group + unit % sharing * unit_heads + row % unit_heads
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
        page = page_of(page_row_ptr, key, start, last, PAGE, BLOCK_N)
        slot = (key % PAGE).to(tl.int64)
        k_at = (page * stride_kp + slot * stride_ks)[:, None] + dim  # [BLOCK_N, HEAD_DIM]
        v_at = (page * stride_vp + slot * stride_vs)[:, None] + dim
        k = tl.load(k_head_ptr + k_at, mask=live[:, None], other=0)
        v = tl.load(v_head_ptr + v_at, mask=live[:, None], other=0)
        if k_ptr.dtype.element_ty == tl.uint8:
            k = widen(k, q.dtype)
            v = widen(v, q.dtype)
        score = dot(q, tl.trans(k)) * scale_log2  # [BLOCK_M, BLOCK_N]
        score = only_seen(score, word, key, prefix, last)
        weight, kept, top = weights(score, top)
        total = total * kept + tl.sum(weight, 1)
        out = out * kept[:, None] + dot(narrow(weight, v.dtype), v)

    divisor, lse = divisor_and_lse(top, total)
    out = out * (v_scale / divisor)[:, None]
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
    return None


_NEEDS = Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",), refuses=_refuses)
_own = partial(OP.prepared_implementation, needs=_NEEDS, declares=("tensor_core", "wide_load"))


@_own("triton", mode="verify")
def triton_attention(**inputs: Any) -> Prepared:
    """Read each key once for all the rows that share it."""
    return _prepared(Given(**inputs), "verify")


@_own("triton_decode", mode="decode", form_cost=FORM_COSTS["decode"])
def triton_decode(**inputs: Any) -> Prepared:
    """Treat each draft token as a decode request of its own."""
    return _prepared(Given(**inputs), "decode")


@_own("triton_extend", mode="extend", form_cost=FORM_COSTS["extend"])
def triton_extend(**inputs: Any) -> Prepared:
    """Let one block a query head and row tile walk the whole prefix."""
    return _prepared(Given(**inputs), "extend")


def _prepared(given: Given, mode: Mode) -> Prepared:
    shape = given.shape
    tile = tile_for("triton", rows=shape.form(mode).rows, head_dim=shape.head_dim)
    return prepare(given, mode, tile=tile, attend=attend)


def attend(given: Given, plan: Plan) -> Outputs:
    """Launch by this plan, whatever the shape would choose."""
    shape, form, tile, q = given.shape, plan.form, plan.tile, given.q
    caches, lift = (given.k_cache, given.v_cache), 1.0
    if given.k_cache.dtype == FP8:
        caches, lift = (given.k_cache.view(torch.uint8), given.v_cache.view(torch.uint8)), LIFT
    out = torch.empty_like(q)
    lse = torch.empty(len(q), shape.q_heads, dtype=torch.float32, device=q.device)
    once = plan.splits == 1
    part_out, part_lse = part_sums(out, lse, splits=plan.splits)
    _attend_part[(plan.blocks, plan.splits, shape.requests)](
        q, *caches, given.page_table, given.prefix_lens, given.mask_words, part_out, part_lse,
        given.scale * given.k_scale * lift * _LOG2_E, given.v_scale * lift,
        form.tokens, form.heads, form.units,
        shape.tokens, shape.kv_heads, shape.group, shape.width, plan.splits, plan.least_keys,
        *caches[0].stride()[:3], *caches[1].stride()[:3],
        HEAD_DIM=shape.head_dim, PAGE=shape.page_size,
        BLOCK_M=tile.rows, BLOCK_N=tile.keys, ONCE=once,
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
    )  # fmt: skip
    if not once:
        merge(part_out=part_out, part_lse=part_lse, out=out, lse=lse)
    return {"out": out, "lse": lse}
