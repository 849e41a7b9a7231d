"""A product of few rows by a large weight in Triton: see `_skinny_plan`.

`sums_of` is what a program does over its part of the inputs, for rows of x and rows of the weight
that are given as pointers: a kernel of experts may gather the one and offset the other. `skinny` is
the product with or without a gate.

The tiles, by reasoning and by what the compile gate says, for nobody has timed them: 16, 32 or 64
rows, and 32 outputs (of a gated product of either half) of 128 inputs, 64 of 64 where the outputs
are many. With three stages two such pieces are under way while one is multiplied, 16 to 32 KB a
program.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels._bfloat16 import dot, narrow
from kernels._splits import sm_count
from kernels._target import capability
from kernels.layer._elementwise_triton import gated as joined
from kernels.layer._skinny_plan import Plan, Tile, arrivals, choose, is_large

_ROWS = (16, 32, 64)
_STAGES = 3
# By rows: what shared memory lets an SM hold, of 100 KB and of more.
_BLOCKS, _BLOCKS_OF_LARGE = {16: 2, 32: 2, 64: 1}, {16: 4, 32: 3, 64: 1}


@triton.jit
def sums_of(
    x_ptrs, some_rows, weight_ptrs, other_ptrs, some_outputs, first, last,
    GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return the sums over inputs first .. last - 1, float32 [BLOCK_M, BLOCK_N], of both weights.

    x_ptrs [BLOCK_M, 1] and weight_ptrs, other_ptrs [BLOCK_N, 1] point at input 0 of each row; the
    masks say which rows are there. Without GATED the second result is 0.
    """
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    others = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(first, last, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)[None, :]
        live = k < last
        x = tl.load(x_ptrs + k, mask=some_rows & live, other=0.0)  # [BLOCK_M, BLOCK_K]
        weight = tl.load(weight_ptrs + k, mask=some_outputs & live, other=0.0)  # [BLOCK_N, BLOCK_K]
        sums += dot(x, tl.trans(weight))
        if GATED:
            other = tl.load(other_ptrs + k, mask=some_outputs & live, other=0.0)
            others += dot(x, tl.trans(other))
    return sums, others


@triton.jit
def _added_up(
    part_ptrs, there, size, parts,
    SETS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return the sums of all parts, in their order; past the L1, which may not know of them."""
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    others = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for n in range(parts):
        at = part_ptrs + n * SETS * size
        sums += tl.load(at, mask=there, other=0.0, cache_modifier=".cg")
        if SETS == 2:
            others += tl.load(at + size, mask=there, other=0.0, cache_modifier=".cg")
    return sums, others


@triton.jit
def _skinny(
    x_ptr, weight_ptr, y_ptr, parts_ptr, arrivals_ptr, rows, inputs, outputs, part_inputs,
    GATED: tl.constexpr, ONCE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(2)
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    output = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    some_rows, some_outputs = (row < rows)[:, None], (output < outputs)[:, None]
    weight_ptrs = weight_ptr + (output * inputs)[:, None]
    first = part * part_inputs
    sums, others = sums_of(
        x_ptr + (row * inputs)[:, None], some_rows,
        weight_ptrs, weight_ptrs + tl.cast(outputs, tl.int64) * inputs, some_outputs,
        first, tl.minimum(first + part_inputs, inputs),
        GATED, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    at = (row * outputs)[:, None] + output[None, :]
    there = some_rows & (output < outputs)[None, :]
    dtype = y_ptr.dtype.element_ty
    if ONCE:
        y = joined(sums, others) if GATED else sums
        tl.store(y_ptr + at, narrow(y, dtype), mask=there)
    else:
        SETS: tl.constexpr = 2 if GATED else 1
        size = tl.cast(rows, tl.int64) * outputs
        part_ptrs = parts_ptr + part * SETS * size + at
        tl.store(part_ptrs, sums, mask=there)
        if GATED:
            tl.store(part_ptrs + size, others, mask=there)
        # What all threads wrote is there before one of them counts.
        tl.debug_barrier()
        parts = tl.num_programs(2)
        arrived_ptr = arrivals_ptr + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if tl.atomic_add(arrived_ptr, 1) == parts - 1:
            tl.store(arrived_ptr, 0)
            sums, others = _added_up(parts_ptr + at, there, size, parts, SETS, BLOCK_M, BLOCK_N)
            y = joined(sums, others) if GATED else sums
            tl.store(y_ptr + at, narrow(y, dtype), mask=there)


def tiles_for(*, rows: int, capability: int) -> list[Tile]:
    """Return the tiles of the fewest rows that hold all, or of 64, the fewest outputs first."""
    size = next((size for size in _ROWS if rows <= size), max(_ROWS))
    blocks = (_BLOCKS_OF_LARGE if is_large(capability) else _BLOCKS)[size]
    return [
        Tile(
            rows=size,
            outputs=outputs,
            inputs=inputs,
            step=2 * inputs,
            warps=8 if size == 64 else 4,
            stages=_STAGES,
            blocks_per_sm=blocks,
        )
        for outputs, inputs in ((32, 128), (64, 64))
    ]


def plan_for(*, rows: int, inputs: int, outputs: int, device: torch.device) -> tuple[Tile, Plan]:
    """Choose tile and parts by the shape, for the GPU at hand or the one compiled for."""
    return choose(
        tiles_for(rows=rows, capability=capability()),
        rows=rows,
        inputs=inputs,
        outputs=outputs,
        sms=sm_count(device),
    )


def product(
    *, x: torch.Tensor, weight: torch.Tensor, gated: bool, tile: Tile, plan: Plan
) -> torch.Tensor:
    """Return x times the weight's rows, or silu of the first half of them times the second."""
    rows, inputs = x.shape
    sets = 1 + gated
    outputs, once = len(weight) // sets, plan.parts == 1
    y = x.new_empty(rows, outputs)
    # Allocated in the call: inside a capture torch hands the same memory to every layer.
    sums = 1 if once else plan.parts * sets * rows * outputs
    parts = torch.empty(sums, dtype=torch.float32, device=x.device)
    _skinny[plan.grid](
        x, weight, y, parts, arrivals(x.device), rows, inputs, outputs, plan.part_inputs,
        GATED=gated, ONCE=once, BLOCK_M=tile.rows, BLOCK_N=tile.outputs, BLOCK_K=tile.inputs,
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
    )  # fmt: skip
    return y
