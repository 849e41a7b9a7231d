"""`mla_verify` in Triton: one kernel, which packs its rows as verify, decode or extend (`_forms`)."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernels import Case, Needs, Outputs, Prepared, _paged
from kernels._bfloat16 import dot, narrow
from kernels._fp8 import WIDENED, widen
from kernels._merge_triton import merge
from kernels.mla_verify import OP, Given, Shape

_LOG2_E = 1.4426950408889634


@triton.jit(
    do_not_specialize=[
        "tokens", "heads", "rows", "unit_step", "row_step", "width", "splits", "least_keys"
    ]
)  # fmt: skip
def _attend_part(
    q_nope_ptr, q_pe_ptr, ckv_ptr, kpe_ptr, page_table_ptr, prefix_lens_ptr, mask_words_ptr,
    out_ptr, lse_ptr, score_scale, rope_ratio, out_scale,
    tokens, heads, rows, unit_step, row_step, width, splits, least_keys,
    stride_cp, stride_cs, stride_rp, stride_rs,
    LATENT: tl.constexpr, ROPE: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    # Of an fp8 cache a load brings pairs of numbers: even dims in one product, odd in another.
    FP8: tl.constexpr = ckv_ptr.dtype.element_ty == tl.int16
    EACH: tl.constexpr = 2 if FP8 else 1
    # Row tiles and units of one part are neighbours in the grid: they share lines and pages.
    tiles = tl.cdiv(rows, BLOCK_M)
    tile = tl.program_id(0) % tiles
    unit = tl.program_id(0) // tiles
    split = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)

    prefix = tl.load(prefix_lens_ptr + request)
    keys = tl.minimum(prefix + tokens, width * PAGE)
    part = tl.cdiv(tl.maximum(tl.cdiv(keys, splits), least_keys), BLOCK_N) * BLOCK_N
    first = split * part
    last = tl.minimum(first + part, keys)

    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    there = row < rows
    # Of the request's T x heads rows: all that is 64 bits wide is added to the pointers, once.
    out_row = unit * unit_step + row * row_step
    first_row = request * tokens * heads
    q_nope_ptr += first_row * LATENT
    q_pe_ptr += first_row * ROPE
    first_part = first_row * splits + split
    out_ptr += first_part * LATENT
    lse_ptr += first_part
    nope_at = tl.arange(0, LATENT // EACH)
    pe_at = tl.arange(0, ROPE // EACH)
    some_row = there[:, None]
    nope_ptr = q_nope_ptr + out_row[:, None] * LATENT + nope_at * EACH
    pe_ptr = q_pe_ptr + out_row[:, None] * ROPE + pe_at * EACH
    q_nope = tl.load(nope_ptr, mask=some_row, other=0.0)  # [BLOCK_M, LATENT // EACH]
    q_pe = tl.load(pe_ptr, mask=some_row, other=0.0)
    if FP8:
        q_nope_odd = tl.load(nope_ptr + 1, mask=some_row, other=0.0)
        q_pe_odd = tl.load(pe_ptr + 1, mask=some_row, other=0.0)
    word = tl.load(mask_words_ptr + request * tokens + out_row // heads, mask=there, other=0)

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, LATENT // EACH], tl.float32)
    out_odd = tl.zeros([BLOCK_M, LATENT // EACH], tl.float32)
    page_row_ptr = page_table_ptr + request * width
    for start in range(first, last, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        live = key < last
        if PAGE % BLOCK_N == 0:  # one page a tile
            page = tl.load(page_row_ptr + start // PAGE).to(tl.int64)
        else:
            page = tl.load(page_row_ptr + key // PAGE, mask=live, other=0).to(tl.int64)
        slot = (key % PAGE).to(tl.int64)
        ckv_at = (page * stride_cp + slot * stride_cs)[:, None] + nope_at
        kpe_at = (page * stride_rp + slot * stride_rs)[:, None] + pe_at
        latent = tl.load(ckv_ptr + ckv_at, mask=live[:, None], other=0)
        rotated = tl.load(kpe_ptr + kpe_at, mask=live[:, None], other=0)
        if FP8:
            latent, latent_odd = widen(latent, q_nope.dtype)
            rotated, rotated_odd = widen(rotated, q_pe.dtype)
            score = dot(q_pe, tl.trans(rotated)) + dot(q_pe_odd, tl.trans(rotated_odd))
            score = score * rope_ratio + dot(q_nope, tl.trans(latent))
            score += dot(q_nope_odd, tl.trans(latent_odd))
        else:
            score = dot(q_pe, tl.trans(rotated)) + dot(q_nope, tl.trans(latent))
        score *= score_scale  # [BLOCK_M, BLOCK_N]
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
        weight = narrow(weight, latent.dtype)
        out = out * kept[:, None] + dot(weight, latent)
        if FP8:
            out_odd = out_odd * kept[:, None] + dot(weight, latent_odd)
        top = new_top

    some = total > 0
    divisor = tl.where(some, total, 1.0)
    factor = (out_scale / divisor)[:, None]
    lse = tl.where(some, (top + tl.log2(divisor)) * 0.6931471805599453, float("-inf"))
    at = out_row * splits
    tl.store(lse_ptr + at, lse, mask=there)
    # An empty part leaves its sums unwritten: the merge knows it by its LSE.
    store = some_row if ONCE else some_row & (first < keys)
    out_ptr += at[:, None] * LATENT + nope_at * EACH
    tl.store(out_ptr, narrow(out * factor, out_ptr.dtype.element_ty), mask=store)
    if FP8:
        tl.store(out_ptr + 1, narrow(out_odd * factor, out_ptr.dtype.element_ty), mask=store)
