"""What both products of experts share, in Triton: whose unit a program has, and a tile's product.

A choice is a slot t top_k + j, as in `_align_layout`. A unit of work is, on the direct path, one
choice: its expert is ids[unit], and its rows are the tokens that chose it, each at its first such
choice; if an earlier slot chose it, the unit is nobody's. On the sorted path it is a block of
sorted slots. Ids are read on the device: nothing of them is known to the host.

Most experts of a verify pass have one row or two, so a unit of up to 8 rows is a loop of its own,
with the smallest tile of a tensor core: half the products, half of x.

Tiles are [warps, rows, columns], and a product of them one of a batch: each warp has a matrix of
its own, whatever the GPU, with mma.sync. Left to choose, Triton takes wgmma or tensor memory for 16
tokens on sm_90 and sm_100, which costs more instructions for unpacked weights than it saves.
"""

import triton
import triton.language as tl

from kernels._bfloat16 import dot
from kernels.moe._unpack_triton import pairs, unpack_fp8, unpack_int4

ROWS = 16  # of a unit: the tokens of the direct path, a block of the sorted one
FEW = 8  # the rows of a smaller tile, for most units
MOST_TOP_K = 16
GROUP = tl.constexpr(32)  # columns that are there or not together; divides all sizes
FP8_BLOCK = tl.constexpr(128)
_ROWS = tl.constexpr(ROWS)
_FEW = tl.constexpr(FEW)
_MOST_TOP_K = tl.constexpr(MOST_TOP_K)


@triton.jit
def unit_of(
    unit, ids_ptr, sorted_slots_ptr, block_experts_ptr, tokens, top_k, experts, is_sorted
):  # fmt: skip
    """Return the expert of `unit`, -1 if it is nobody's, and its slots, int32 [16], -1 for none."""
    slots = tokens * top_k
    row = tl.arange(0, _ROWS)
    if is_sorted:
        expert = tl.load(block_experts_ptr + unit)
        slot = tl.load(sorted_slots_ptr + unit * _ROWS + row)
        slot = tl.where(slot < slots, slot, -1)
    else:
        expert = tl.load(ids_ptr + unit)
        choice = tl.arange(0, _MOST_TOP_K)
        at = row[:, None] * top_k + choice[None, :]  # [16, 16]
        there = (row < tokens)[:, None] & (choice < top_k)[None, :]
        chosen = tl.load(ids_ptr + at, mask=there, other=-1)
        first = tl.min(tl.where(there & (chosen == expert), at, slots), 1)
        slot = tl.where(first < slots, first, -1)
        # Of several units with one expert the first computes all rows.
        expert = tl.where(tl.min(first, 0) == unit, expert, -1)
    return tl.where((expert >= 0) & (expert < experts), expert, -1), slot


@triton.jit
def squeezed(slot):
    """Return the slots that are some, of 16 at most 8, in their order; -1 behind them."""
    some = slot >= 0
    place = tl.cumsum(some.to(tl.int32), 0) - 1
    here = some[:, None] & (place[:, None] == tl.arange(0, _FEW)[None, :])  # [16, 8]
    return tl.max(tl.where(here, slot[:, None], -1), 0)


@triton.jit
def to_expert(
    w_ptr, scales_ptr, expert, rows, columns, steps,
    STEP: tl.constexpr, FORM: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Return where the weights of an expert begin, and its scales: [rows, columns] each.

    A row of whole steps is a multiple of a step's elements: it tells the compiler, here and in the
    kernels, that rows begin where 16 bytes can be loaded at once.
    """
    EACH: tl.constexpr = 2 if FORM == "int4" else 1  # columns of an element
    row = expert.to(tl.int64) * rows
    w_ptr += row * (steps * (STEP // EACH) if WHOLE else columns // EACH)
    if FORM == "int4":
        scales_ptr += row * (steps * (STEP // GROUP) if WHOLE else columns // GROUP)
    elif FORM == "fp8":
        scales_ptr += row // FP8_BLOCK * (columns // FP8_BLOCK)
    return w_ptr, scales_ptr


@triton.jit
def with_product(total, w, scale, x, FORM: tl.constexpr):
    """Return `total` + weights times tokens: [B, ROWS, TOKENS] float32.

    w [B, ROWS, columns] and x [B, columns, TOKENS] as they are loaded, int4 two weights a byte and
    two bfloat16 an int32. scale: int4 [B, ROWS, groups]; fp8 what fits [B, ROWS, TOKENS].
    """
    if FORM == "int4":
        sizes: tl.constexpr = (scale.shape[0], scale.shape[1], scale.shape[2], GROUP // 2)
        scale = tl.reshape(tl.broadcast_to(scale[:, :, :, None], sizes), w.shape)
        even, odd = unpack_int4(w, scale)
        x_even, x_odd = pairs(x)
        total += dot(even, x_even)
        total += dot(odd, x_odd)
    elif FORM == "fp8":
        total += dot(unpack_fp8(w), x) * scale
    else:
        total += dot(w, x)
    return total
