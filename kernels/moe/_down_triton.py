"""out[slot] = W2_e h[slot] for the choices of experts, in Triton: the second product, float32.

Columns are few here, one rank's share of the intermediate size, and rows many. A program has a unit
(`_experts_triton`) and some neighbouring tiles of rows, each warp rows of its own, and walks the
columns of each tile in one pipelined loop: the weights of the next tile are in flight while this
one is multiplied. If the grid is too small for the SMs, the steps are parts of it as well, and
`out` has all rows once a part: `combine` adds them.

The shared expert's tiles are the first programs of the same launch; its rows of `out` are behind
those of the slots, in the first part alone.
"""

import triton
import triton.language as tl

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
_SIZES = ("tokens", "top_k", "experts", "units", "is_sorted", "steps", "part_steps", "each",
          "shared_intermediate", "shared_steps", "shared_blocks", "shared_each")  # fmt: skip


@triton.jit
def _tiles(
    h_ptr, w_ptr, scales_ptr, out_ptr, slot, first, count, first_step, last_step, steps, columns,
    hidden,
    FORM: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    WHOLE: tl.constexpr, STAGES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Compute steps of `count` tiles of WARPS x ROWS rows, from tile `first` on, for some slots."""
    EACH: tl.constexpr = 2 if FORM == "int4" else 1  # columns of an element
    WIDE: tl.constexpr = COLUMNS // EACH
    TILE: tl.constexpr = WARPS * ROWS
    row = tl.arange(0, WARPS)[:, None, None] * ROWS + tl.arange(0, ROWS)[None, :, None]
    at = tl.arange(0, WIDE)
    group = tl.arange(0, COLUMNS // GROUP)[None, None, :]
    row_elements = steps * WIDE if WHOLE else columns // EACH
    row_scales = steps * (COLUMNS // GROUP) if WHOLE else columns // GROUP
    w_ptr += row * row_elements + at[None, None, :]  # [WARPS, ROWS, WIDE]
    h_ptr += tl.maximum(slot, 0).to(tl.int64)[:, None] * row_elements + at[None, :]
    chosen = (slot >= 0)[:, None]
    if FORM == "int4":
        scales_ptr += row * row_scales + group
    total = tl.zeros([WARPS, ROWS, TOKENS], tl.float32)
    tile = first
    step = first_step
    for _ in tl.range(0, count * (last_step - first_step), num_stages=STAGES):
        left = columns // GROUP - step * (COLUMNS // GROUP)  # groups
        there = tile * TILE + row < hidden
        live = tl.full([1], True, tl.int1) if WHOLE else at // (GROUP // EACH) < left
        w_at = w_ptr + (tile * TILE * row_elements + step * WIDE)
        w = tl.load(w_at, mask=there & live[None, None, :], other=0)
        h = tl.load(h_ptr + step * WIDE, mask=chosen & live[None, :], other=0)
        scale = 0.0
        if FORM == "int4":
            live = there if WHOLE else there & (group < left)
            scale_at = scales_ptr + (tile * TILE * row_scales + step * (COLUMNS // GROUP))
            scale = tl.load(scale_at, mask=live, other=0.0)
        elif FORM == "fp8":  # a tile lies in one block of a scale
            block = tile * TILE // FP8_BLOCK * (columns // FP8_BLOCK) + step * COLUMNS // FP8_BLOCK
            scale = tl.load(scales_ptr + block, mask=tile * TILE < hidden, other=0.0)
        h = tl.broadcast_to(tl.trans(h)[None, :, :], (WARPS, WIDE, TOKENS))
        total = with_product(total, w, scale, h, FORM)
        step += 1
        ends = step == last_step
        if ends:
            n = tile * TILE + tl.arange(0, TILE)
            to = slot.to(tl.int64)[None, :] * hidden + n[:, None]
            store = (slot >= 0)[None, :] & (n < hidden)[:, None]
            tl.store(out_ptr + to, tl.reshape(total, (TILE, TOKENS)), mask=store)
            total = tl.zeros([WARPS, ROWS, TOKENS], tl.float32)
        # Not in the branch: where a load depends on one, Triton does not issue it ahead.
        step = tl.where(ends, first_step, step)
        tile = tl.where(ends, tile + 1, tile)


@triton.jit(do_not_specialize=_SIZES)
def down(
    h_ptr, ids_ptr, sorted_slots_ptr, block_experts_ptr, w_ptr, scales_ptr, out_ptr,
    shared_h_ptr, shared_w_ptr,
    tokens, top_k, experts, units, is_sorted, columns, steps, part_steps, each, hidden,
    shared_intermediate, shared_steps, shared_blocks, shared_each,
    FORM: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    WHOLE: tl.constexpr, STAGES: tl.constexpr, FULL_COLUMNS: tl.constexpr,
    FULL_STAGES: tl.constexpr, SHARED: tl.constexpr, SHARED_ROWS: tl.constexpr,
    SHARED_STAGES: tl.constexpr,
):  # fmt: skip
    MORE: tl.constexpr = COLUMNS // FULL_COLUMNS  # steps for more than 8 tokens
    program = tl.program_id(0)
    part = tl.program_id(1)
    slots = tokens * top_k
    if SHARED:
        tiles = tl.cdiv(hidden, WARPS * SHARED_ROWS)
        programs = tl.cdiv(tiles, shared_each) * shared_blocks
        if (program < programs) & (part == 0):
            first = program // shared_blocks * shared_each
            token = program % shared_blocks * _ROWS + tl.arange(0, _ROWS)
            _tiles(
                shared_h_ptr, shared_w_ptr, shared_w_ptr, out_ptr + slots.to(tl.int64) * hidden,
                tl.where(token < tokens, token, -1), first, tl.minimum(shared_each, tiles - first),
                0, shared_steps * MORE, shared_steps * MORE, shared_intermediate, hidden,
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
            first = program // units * each
            count = tl.minimum(each, tl.cdiv(hidden, WARPS * ROWS) - first)
            first_step = part * part_steps
            last_step = tl.minimum(first_step + part_steps, steps)
            out_ptr += part.to(tl.int64) * (slots + tokens if SHARED else slots) * hidden
            w_ptr, scales_ptr = to_expert(
                w_ptr, scales_ptr, expert, hidden, columns, steps, COLUMNS, FORM, WHOLE,
            )  # fmt: skip
            if tl.sum((slot >= 0).to(tl.int32), 0) <= _FEW:
                _tiles(
                    h_ptr, w_ptr, scales_ptr, out_ptr, squeezed(slot), first, count,
                    first_step, last_step, steps, columns, hidden,
                    FORM, WARPS, COLUMNS, ROWS, WHOLE, STAGES, _FEW,
                )  # fmt: skip
            else:
                _tiles(
                    h_ptr, w_ptr, scales_ptr, out_ptr, slot, first, count,
                    first_step * MORE, last_step * MORE, steps * MORE, columns, hidden,
                    FORM, WARPS, FULL_COLUMNS, ROWS, WHOLE, FULL_STAGES, _ROWS,
                )  # fmt: skip
