"""Launches the CUDA C++ product of few rows by a large weight (`_skinny_cuda`) through CuPy.

The tile, by reasoning, for nobody has timed it: 16, 32 or 64 rows in one block. Four warps share
the inputs of 16 outputs; fewer where there is not a chunk for each, where the outputs are so many
that not all blocks would run at once, or where 64 rows make x the larger traffic and warps side by
side find it in L1. A warp has 2 KB of a weight under way, of a gated product 4 KB: with 12 warps an
SM 24 to 48 KB. Three blocks of 16 rows fit an SM of 100 KB, four a larger one; of more rows, whose
sums and staged x take more, two. 64 rows take chunks of 32 inputs.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from kernels._elements_cuda import ELEMENTS
from kernels._raw import RawKernel, must_be_aligned
from kernels._splits import sm_count
from kernels._target import capability
from kernels.layer._elementwise_cuda import GATED, VECTOR_BYTES, VECTORS, why_not_width
from kernels.layer._skinny_cuda import DEVICE_CODE, KERNEL, warp_bytes
from kernels.layer._skinny_plan import Plan, Tile, arrivals, choose, is_large

WARPS = 4
_ROWS = (16, 32, 64)


def tiles_for(*, rows: int, inputs: int, capability: int) -> list[Tile]:
    """Return the tiles of the fewest rows that hold all, or of 64, the fewest outputs first."""
    size = next((size for size in _ROWS if rows <= size), max(_ROWS))
    chunk, most_ways, blocks = (32, 2, 2) if size == 64 else (64, WARPS, 2)
    if size == 16:
        blocks = 4 if is_large(capability) else 3
    return [
        Tile(
            rows=size,
            outputs=16 * WARPS // ways,
            inputs=chunk,
            step=ways * chunk,
            warps=WARPS,
            blocks_per_sm=blocks,
        )
        for ways in (4, 2, 1)
        if ways == 1 or (ways <= most_ways and ways * chunk <= inputs)
    ]


def plan_for(*, rows: int, inputs: int, outputs: int, device: torch.device) -> tuple[Tile, Plan]:
    """Choose tile and parts by the shape, for the GPU at hand or the one compiled for."""
    return choose(
        tiles_for(rows=rows, inputs=inputs, capability=capability()),
        rows=rows,
        inputs=inputs,
        outputs=outputs,
        sms=sm_count(device),
    )


@cache
def _kernel(dtype: torch.dtype, *, tile: Tile, gated: bool, once: bool) -> RawKernel:
    constants = {
        "ROWS": tile.rows,
        "CHUNK": tile.inputs,
        "WARPS": tile.warps,
        "WAYS": 16 * tile.warps // tile.outputs,
        "BLOCKS": tile.blocks_per_sm,
        "WARP_BYTES": warp_bytes(rows=tile.rows, chunk=tile.inputs, sets=1 + gated),
        "GATED": int(gated),
        "ONCE": int(once),
    }
    text = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    return RawKernel("skinny", ELEMENTS[dtype] + VECTORS + GATED + text + DEVICE_CODE + KERNEL)


def product(
    *, x: torch.Tensor, weight: torch.Tensor, gated: bool, tile: Tile, plan: Plan
) -> torch.Tensor:
    """Return x times the weight's rows, or silu of the first half of them times the second.

    ValueError for what 16-byte loads cannot read.
    """
    rows, inputs = x.shape
    if (reason := why_not_width(inputs)) is not None:
        raise ValueError(reason)
    for name, tensor in (("x", x), ("the weight", weight)):
        must_be_aligned(name, tensor, to_bytes=VECTOR_BYTES)
    sets = 1 + gated
    outputs, once = len(weight) // sets, plan.parts == 1
    y = x.new_empty(rows, outputs)
    # Allocated in the call: inside a capture torch hands the same memory to every layer.
    sums = 1 if once else plan.parts * sets * rows * outputs
    parts = torch.empty(sums, dtype=torch.float32, device=x.device)
    _kernel(x.dtype, tile=tile, gated=gated, once=once)(
        plan.grid, (32 * tile.warps,),
        x, weight, y, parts, arrivals(x.device),
        *map(np.int32, (rows, inputs, outputs, plan.part_inputs)),
        shared_bytes=tile.warps * warp_bytes(rows=tile.rows, chunk=tile.inputs, sets=sets),
    )  # fmt: skip
    return y
