"""`mla_verify` in Triton: the latents are split, each part attends, the parts are merged.

A latent is 1152 bytes and meets T x heads rows, each with 2 * (576 + 512) flops: a GPU waits for
DRAM up to about 100 rows, and above that for its tensor cores. Hence:
- the T x heads rows are the rows of one tile, so that a latent is read once a request; it lies in
  shared memory once, as keys (transposed) for the scores and as values for the result;
- the keys are split until the grid fills the SMs once, then merged by LSE (`_merge_triton`);
- the tree is one mask word a row: no mask in memory, and nothing to fill or pack per step;
- loads are 16 bytes a thread along the dims and pipelined, pages to int64 before they meet a
  stride, and masked with `other`, for what lies behind the last key may be NaN;
- an fp8 cache is read as pairs of numbers, widened in registers (`_fp8_triton`): even dims are one
  product, odd dims another, for a sum over dims has no order. Its scales join the softmax scale.
Tiles, and how many bytes they keep in flight: `_mla_verify_tiles`.

Three implementations, one kernel: `triton` is the above, `triton_decode` and `triton_extend` pack
the rows as those forms of `_forms` do, the last unsplit.

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
from kernels._fp8_triton import LIFT, widen_pairs
from kernels._splits import sm_count
from kernels._target import capability
from kernels.attention._merge_triton import merge
from kernels.attention._mla_verify_tiles import plan_for, tile_for
from kernels.attention._online_softmax_triton import (
    divisor_and_lse,
    only_seen,
    page_of,
    weights,
)
from kernels.attention._paged import FP8
from kernels.attention._split_plan import Plan, part_sums
from kernels.attention.mla_verify import FORM_COSTS, OP, Given
from verifyscope.records import Mode

_LOG2_E = 1.4426950408889634


# Numbers that change nothing but a loop's length or a row's place: no kernel of its own for a 1.
_SIZES = ("tokens", "heads", "rows", "unit_step", "row_step", "width", "splits", "least_keys")


@triton.jit(do_not_specialize=_SIZES)
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
    # Which of the request's T x heads rows. What is 64 bits wide is added to pointers once: in the
    # addresses of a whole tile it would take the registers that the sums need. A request's rows
    # times the parts that fill a GPU once times 512 dims stay far below 2**31.
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
        page = page_of(page_row_ptr, key, start, last, PAGE, BLOCK_N)
        slot = (key % PAGE).to(tl.int64)
        ckv_at = (page * stride_cp + slot * stride_cs)[
            :, None
        ] + nope_at  # [BLOCK_N, LATENT // EACH]
        kpe_at = (page * stride_rp + slot * stride_rs)[:, None] + pe_at
        latent = tl.load(ckv_ptr + ckv_at, mask=live[:, None], other=0)
        rotated = tl.load(kpe_ptr + kpe_at, mask=live[:, None], other=0)
        if FP8:
            latent, latent_odd = widen_pairs(latent, q_nope.dtype)
            rotated, rotated_odd = widen_pairs(rotated, q_pe.dtype)
            score = dot(q_pe, tl.trans(rotated)) + dot(q_pe_odd, tl.trans(rotated_odd))
            score = score * rope_ratio + dot(q_nope, tl.trans(latent))
            score += dot(q_nope_odd, tl.trans(latent_odd))
        else:
            score = dot(q_pe, tl.trans(rotated)) + dot(q_nope, tl.trans(latent))
        score *= score_scale  # [BLOCK_M, BLOCK_N]
        score = only_seen(score, word, key, prefix, last)
        weight, kept, top = weights(score, top)
        total = total * kept + tl.sum(weight, 1)
        weight = narrow(weight, latent.dtype)
        out = out * kept[:, None] + dot(weight, latent)
        if FP8:
            out_odd = out_odd * kept[:, None] + dot(weight, latent_odd)

    divisor, lse = divisor_and_lse(top, total)
    factor = (out_scale / divisor)[:, None]
    at = out_row * splits
    tl.store(lse_ptr + at, lse, mask=there)
    # An empty part leaves its sums unwritten: the merge knows it by its LSE.
    store = some_row if ONCE else some_row & (first < keys)
    out_ptr += at[:, None] * LATENT + nope_at * EACH
    tl.store(out_ptr, narrow(out * factor, out_ptr.dtype.element_ty), mask=store)
    if FP8:
        tl.store(out_ptr + 1, narrow(out_odd * factor, out_ptr.dtype.element_ty), mask=store)


def _refuses(case: Case) -> str | None:
    least = 32 if case.dims["kv"] == "fp8" else 16  # a product of 16 dims, of fp8 two of them
    for name, most in (("latent", 512), ("rope", 64)):
        dim = case.number(name)
        if not least <= dim <= most or dim & (dim - 1):
            return f"{name} is {dim}; its tiles are powers of two from {least} to {most}"
    return None


_NEEDS = Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",), refuses=_refuses)
_own = partial(OP.prepared_implementation, needs=_NEEDS, declares=("tensor_core", "wide_load"))


@_own("triton", mode="verify")
def triton_attention(**inputs: Any) -> Prepared:
    """Read each latent once for all tokens and heads of a request."""
    return _prepared(Given(**inputs), "verify")


@_own("triton_decode", mode="decode", form_cost=FORM_COSTS["decode"])
def triton_decode(**inputs: Any) -> Prepared:
    """Treat each draft token as a decode request of its own."""
    return _prepared(Given(**inputs), "decode")


@_own("triton_extend", mode="extend", form_cost=FORM_COSTS["extend"])
def triton_extend(**inputs: Any) -> Prepared:
    """Let one block a head and row tile walk the whole prefix."""
    return _prepared(Given(**inputs), "extend")


def _prepared(given: Given, mode: Mode) -> Prepared:
    """Choose tile and parts by the shapes; a call allocates its outputs and launches."""
    shape, caches = given.shape, _as_loaded(given)
    element_bytes = given.ckv_cache.element_size()
    tile = tile_for(
        rows=shape.form(mode).rows, element_bytes=element_bytes, capability=capability()
    )
    sms = sm_count(given.q_nope.device)
    plan = plan_for(shape, mode, tile=tile, element_bytes=element_bytes, sms=sms)
    return plan.prepared(lambda: _attend(given, plan, caches))


def attend(given: Given, plan: Plan) -> Outputs:
    """Launch by this plan, whatever the shape would choose."""
    return _attend(given, plan, _as_loaded(given))


def _as_loaded(given: Given) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the caches as the kernel reads them: pairs of numbers, if they are fp8."""
    caches = given.ckv_cache, given.kpe_cache
    if given.ckv_cache.dtype != FP8:
        return caches
    for name, cache in zip(("ckv_cache", "kpe_cache"), caches, strict=True):
        if any(number % 2 for number in (cache.data_ptr(), *cache.stride()[:2])):
            raise ValueError(
                f"{name} starts at an odd address or has odd strides {cache.stride()[:2]}: fp8 is "
                f"read in pairs of two bytes; copy it"
            )
    return given.ckv_cache.view(torch.int16), given.kpe_cache.view(torch.int16)


def _attend(given: Given, plan: Plan, caches: tuple[torch.Tensor, torch.Tensor]) -> Outputs:
    shape, form, tile, q = given.shape, plan.form, plan.tile, given.q_nope
    lift = LIFT if given.ckv_cache.dtype == FP8 else 1.0
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    once = plan.splits == 1
    part_out, part_lse = part_sums(out, lse, splits=plan.splits)
    whole = form.heads == shape.heads  # of all heads a unit's rows lie side by side
    _attend_part[(plan.blocks, plan.splits, shape.requests)](
        q, given.q_pe, *caches, given.page_table, given.prefix_lens, given.mask_words,
        part_out, part_lse,
        given.scale * given.ckv_scale * lift * _LOG2_E, given.kpe_scale / given.ckv_scale,
        given.ckv_scale * lift,
        shape.tokens, shape.heads, form.rows,
        form.tokens * shape.heads if whole else 1, 1 if whole else shape.heads,
        shape.width, plan.splits, plan.least_keys,
        *caches[0].stride()[:2], *caches[1].stride()[:2],
        LATENT=shape.latent, ROPE=shape.rope, PAGE=shape.page_size,
        BLOCK_M=tile.rows, BLOCK_N=tile.keys, ONCE=once,
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
    )  # fmt: skip
    if not once:
        merge(part_out=part_out, part_lse=part_lse, out=out, lse=lse)
    return {"out": out, "lse": lse}
