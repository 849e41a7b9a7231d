"""`rms_norm` in Triton: a row is held in registers between its sum and its scaling.

A program takes one row, or, of narrow ones, as many as fill a warp with 16-byte loads. A warp holds
512 elements, and at most 16 warps a row: nobody has timed it.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from kernels import Needs, Outputs
from kernels._bfloat16 import narrow
from kernels.layer.rms_norm import OP, Given

_LEAST_ELEMENTS = 256  # 16 bytes a thread of one warp
_WARP_ELEMENTS = 512
_MOST_WARPS = 16


@triton.jit
def _rms_norm(
    x_ptr, residual_ptr, weight_ptr, y_ptr, new_residual_ptr,
    rows, heads, width, stride_xt, stride_xh, eps,
    ADD: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    at = tl.arange(0, BLOCK)
    there = (row < rows)[:, None] & (at < width)[None, :]
    x_at = (row // heads * stride_xt + row % heads * stride_xh)[:, None] + at[None, :]
    y_at = (row * width)[:, None] + at[None, :]
    total = tl.load(x_ptr + x_at, mask=there, other=0.0).to(tl.float32)  # [BLOCK_R, BLOCK]
    if ADD:
        total += tl.load(residual_ptr + y_at, mask=there, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=at < width, other=0.0).to(tl.float32)  # [BLOCK]
    if ADD:
        kept = narrow(total, new_residual_ptr.dtype.element_ty)
        tl.store(new_residual_ptr + y_at, kept, mask=there)
    scale = tl.rsqrt(tl.sum(total * total, 1) / width + eps)
    y = total * scale[:, None] * weight[None, :]
    tl.store(y_ptr + y_at, narrow(y, y_ptr.dtype.element_ty), mask=there)


@OP.implementation(
    "triton",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",)),
    declares=("wide_load",),
)
def triton_norm(**inputs: Any) -> Outputs:
    """Launch once."""
    given = Given(**inputs)
    outputs = given.empty_outputs()
    block = triton.next_power_of_2(given.width)
    rows = max(1, _LEAST_ELEMENTS // block)
    warps = min(_MOST_WARPS, max(1, rows * block // _WARP_ELEMENTS))
    add = given.residual is not None
    _rms_norm[(triton.cdiv(given.rows, rows),)](
        given.x, given.residual if add else given.x, given.weight,
        outputs["y"], outputs["new_residual"] if add else outputs["y"],
        given.rows, given.heads, given.width, *given.strides, given.eps,
        ADD=add, BLOCK_R=rows, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return outputs
