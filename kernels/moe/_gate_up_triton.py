"""h[slot] = silu(W1_e x[t]) * (W3_e x[t]) for the choices of experts, in Triton: the first product.

A program has a unit (`_experts_triton`) and a tile of rows, half of them of gate and half of the
same of up, and walks the columns. Of each step every warp multiplies a slice of the columns, all
rows of it; the slices are added at the end, in one order. So a tile of 32 rows keeps eight warps
busy, and x is taken apart once a block.

If the grid is too small for the SMs, the steps are parts of it as well: each part stores its sums,
float32, and `activate` adds them in their order. Otherwise h is stored here, bfloat16.

The shared expert's tiles are the first programs of the same launch: they are the longest.
"""

import triton
import triton.language as tl

from kernels._bfloat16 import narrow
from kernels.moe._experts_triton import (
    FEW,
    FP8_BLOCK,
    GROUP,
    ROWS,
    squeezed,
    to_expert,
    unit_of,
    with_product,
)

_ROWS = tl.constexpr(ROWS)
_FEW = tl.constexpr(FEW)
# Numbers that change nothing but a loop's length or a row's place: no kernel of its own for a 1.
_SIZES = ("tokens", "top_k", "experts", "units", "is_sorted", "steps", "part_steps", "parts",
          "shared_intermediate", "shared_blocks")  # fmt: skip


@triton.jit
def _products(
    x_ptr, w_ptr, scales_ptr, token, tile, first, last, steps, columns, intermediate,
    FORM: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    WHOLE: tl.constexpr, STAGES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Return the products of a tile's rows with some tokens, float32 [ROWS, TOKENS]."""
    EACH: tl.constexpr = 2 if FORM == "int4" else 1  # columns of an element
    WIDE: tl.constexpr = COLUMNS // EACH
    STEP: tl.constexpr = WARPS * COLUMNS
    HALF: tl.constexpr = ROWS // 2
    row = tl.arange(0, ROWS)[None, :, None]
    row = row // HALF * intermediate + tile * HALF + row % HALF
    warp = tl.arange(0, WARPS)[:, None, None]
    at = warp * WIDE + tl.arange(0, WIDE)[None, None, :]
    group = warp * (COLUMNS // GROUP) + tl.arange(0, COLUMNS // GROUP)[None, None, :]
    row_elements = steps * (STEP // EACH) if WHOLE else columns // EACH
    w_ptr += row * row_elements + at  # [WARPS, ROWS, WIDE]
    of_token = tl.maximum(token, 0).to(tl.int64)[None, :, None] * row_elements
    x_ptr += of_token + at  # [WARPS, TOKENS, WIDE]
    chosen = (token >= 0)[None, :, None]
    if FORM == "int4":
        scales_ptr += row * (steps * (STEP // GROUP) if WHOLE else columns // GROUP) + group
    elif FORM == "fp8":  # the tile's rows of gate lie in one block of a scale, so do those of up
        blocks = columns // FP8_BLOCK
        up_at = (intermediate + tile * HALF) // FP8_BLOCK * blocks
        up_at -= tile * HALF // FP8_BLOCK * blocks
        scales_ptr += tile * HALF // FP8_BLOCK * blocks + warp * COLUMNS // FP8_BLOCK
    total = tl.zeros([WARPS, ROWS, TOKENS], tl.float32)
    for step in tl.range(first, last, num_stages=STAGES):
        left = columns // GROUP - step * (STEP // GROUP)  # groups
        # Whole groups are there or not: a load of 16 bytes has one mask.
        live = tl.full([1, 1, 1], True, tl.int1) if WHOLE else at // (GROUP // EACH) < left
        w = tl.load(w_ptr + step * (STEP // EACH), mask=live, other=0)
        x = tl.load(x_ptr + step * (STEP // EACH), mask=chosen & live, other=0)
        scale = 0.0
        if FORM == "int4":
            live = tl.full([1, 1, 1], True, tl.int1) if WHOLE else group < left
            scale = tl.load(scales_ptr + step * (STEP // GROUP), mask=live, other=0.0)
        elif FORM == "fp8":
            live = warp * (COLUMNS // GROUP) < left
            gate = tl.load(scales_ptr + step * STEP // FP8_BLOCK, mask=live, other=0.0)
            up = tl.load(scales_ptr + (up_at + step * STEP // FP8_BLOCK), mask=live, other=0.0)
            scale = tl.where((tl.arange(0, ROWS) < HALF)[None, :, None], gate, up)
        total = with_product(total, w, scale, tl.permute(x, (0, 2, 1)), FORM)
    return tl.sum(total, 0)


@triton.jit
def silu_mul(gate, up):
    """Return silu(gate) x up, float32; no power is too large for it."""
    power = tl.exp(-tl.abs(gate))
    return gate * tl.where(gate < 0.0, power, 1.0) / (1.0 + power) * up


@triton.jit
def _tile(
    x_ptr, w_ptr, scales_ptr, h_ptr, sums_ptr, slot, slots, a_token, tile, part, part_steps, parts,
    steps, columns, intermediate,
    FORM: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    WHOLE: tl.constexpr, STAGES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Compute a tile for some slots, of which `a_token` are one token's; store h, or the sums."""
    HALF: tl.constexpr = ROWS // 2
    token = tl.where(slot >= 0, slot // a_token, -1)
    first = part * part_steps
    total = _products(
        x_ptr, w_ptr, scales_ptr, token, tile, first, tl.minimum(first + part_steps, steps),
        steps, columns, intermediate, FORM, WARPS, COLUMNS, ROWS, WHOLE, STAGES, TOKENS,
    )  # fmt: skip
    total = tl.permute(tl.reshape(total, (2, HALF, TOKENS)), (1, 2, 0))
    gate, up = tl.split(total)  # [HALF, TOKENS]
    n = tile * HALF + tl.arange(0, HALF)
    there = (slot >= 0)[None, :]
    row = slot.to(tl.int64)
    if parts == 1:
        at = row[None, :] * intermediate + n[:, None]
        tl.store(h_ptr + at, narrow(silu_mul(gate, up), tl.bfloat16), mask=there)
    else:
        at = (part.to(tl.int64) * slots + row)[None, :] * (2 * intermediate) + n[:, None]
        tl.store(sums_ptr + at, gate, mask=there)
        tl.store(sums_ptr + at + intermediate, up, mask=there)


@triton.jit(do_not_specialize=_SIZES)
def gate_up(
    x_ptr, ids_ptr, sorted_slots_ptr, block_experts_ptr, w_ptr, scales_ptr, h_ptr, sums_ptr,
    shared_x_ptr, shared_w_ptr, shared_h_ptr,
    tokens, top_k, experts, units, is_sorted, columns, steps, part_steps, parts, intermediate,
    shared_intermediate, shared_blocks,
    FORM: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    WHOLE: tl.constexpr, STAGES: tl.constexpr, FULL_COLUMNS: tl.constexpr,
    FULL_STAGES: tl.constexpr, SHARED: tl.constexpr, SHARED_ROWS: tl.constexpr,
    SHARED_STAGES: tl.constexpr,
):  # fmt: skip
    MORE: tl.constexpr = COLUMNS // FULL_COLUMNS  # steps for more than 8 tokens
    program = tl.program_id(0)
    part = tl.program_id(1)
    if SHARED:
        programs = shared_intermediate // (SHARED_ROWS // 2) * shared_blocks
        if (program < programs) & (part == 0):
            token = program % shared_blocks * _ROWS + tl.arange(0, _ROWS)
            _tile(
                shared_x_ptr, shared_w_ptr, shared_w_ptr, shared_h_ptr, sums_ptr,
                tl.where(token < tokens, token, -1), tokens, 1, program // shared_blocks,
                part, steps * MORE, 1, steps * MORE, columns, shared_intermediate,
                "bf16", WARPS, FULL_COLUMNS, SHARED_ROWS, WHOLE, SHARED_STAGES, _ROWS,
            )  # fmt: skip
        program -= programs
    if program >= 0:
        # Blocks of one expert are neighbours: they share its lines in L2.
        expert, slot = unit_of(
            program % units, ids_ptr, sorted_slots_ptr, block_experts_ptr, tokens, top_k, experts,
            is_sorted,
        )  # fmt: skip
        if expert >= 0:
            w_ptr, scales_ptr = to_expert(
                w_ptr, scales_ptr, expert, 2 * intermediate, columns, steps,
                WARPS * COLUMNS, FORM, WHOLE,
            )  # fmt: skip
            if tl.sum((slot >= 0).to(tl.int32), 0) <= _FEW:
                _tile(
                    x_ptr, w_ptr, scales_ptr, h_ptr, sums_ptr, squeezed(slot), tokens * top_k,
                    top_k, program // units, part, part_steps, parts, steps, columns, intermediate,
                    FORM, WARPS, COLUMNS, ROWS, WHOLE, STAGES, _FEW,
                )  # fmt: skip
            else:
                _tile(
                    x_ptr, w_ptr, scales_ptr, h_ptr, sums_ptr, slot, tokens * top_k,
                    top_k, program // units, part, part_steps * MORE, parts, steps * MORE, columns,
                    intermediate, FORM, WARPS, FULL_COLUMNS, ROWS, WHOLE, FULL_STAGES, _ROWS,
                )  # fmt: skip


@triton.jit(do_not_specialize=("slots", "parts", "experts"))
def activate(ids_ptr, sums_ptr, h_ptr, slots, parts, experts, intermediate, BLOCK: tl.constexpr):
    """Add the parts of a slot's gate and up in their order, and store h; no expert, no h."""
    slot = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = n < intermediate
    expert = tl.load(ids_ptr + slot)
    if (expert >= 0) & (expert < experts):
        gate = tl.zeros([BLOCK], tl.float32)
        up = tl.zeros([BLOCK], tl.float32)
        for part in range(parts):
            at = sums_ptr + (part * slots + slot) * (2 * intermediate) + n
            gate += tl.load(at, mask=there, other=0.0)
            up += tl.load(at + intermediate, mask=there, other=0.0)
        h = narrow(silu_mul(gate, up), tl.bfloat16)
        tl.store(h_ptr + slot * intermediate + n, h, mask=there)
