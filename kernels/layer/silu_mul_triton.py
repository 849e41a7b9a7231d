"""`silu_mul` in Triton: a program takes a piece of one row, gate and up."""

import torch
import triton
import triton.language as tl

from kernels import Needs, Outputs
from kernels._bfloat16 import narrow
from kernels.layer._elementwise_triton import gated
from kernels.layer.silu_mul import OP, must_fit

_WARP_ELEMENTS = 256  # 16 bytes a thread
_MOST_WARPS = 4


@triton.jit
def _silu_mul(gate_up_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < width
    gate_ptr = gate_up_ptr + row * 2 * width + at
    gate = tl.load(gate_ptr, mask=there, other=0.0).to(tl.float32)  # [BLOCK]
    up = tl.load(gate_ptr + width, mask=there, other=0.0).to(tl.float32)
    y = narrow(gated(gate, up), y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * width + at, y, mask=there)


@OP.implementation(
    "triton",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",)),
    declares=("wide_load",),
)
def triton_silu_mul(*, gate_up: torch.Tensor) -> Outputs:
    """Launch once; a row of one token still uses several SMs."""
    rows, width = must_fit(gate_up)
    y = gate_up.new_empty(rows, width)
    warps = min(_MOST_WARPS, triton.next_power_of_2(triton.cdiv(width, _WARP_ELEMENTS)))
    block = warps * _WARP_ELEMENTS
    _silu_mul[(rows, triton.cdiv(width, block))](gate_up, y, width, BLOCK=block, num_warps=warps)
    return {"y": y}
