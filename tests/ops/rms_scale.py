"""RMS normalisation of rows: y[r, c] = x[r, c] / sqrt(mean_c(x[r, c]^2) + EPS).

x, y: [rows, cols], contiguous, bfloat16; sums are float32. An op for the tests alone: what the
machinery of `kernels` does with a new file is shown on it.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernels import Case, Cost, Inputs, Needs, Op, Outputs, Tolerance
from kernels._bfloat16 import narrow
from kernels._raw import RawKernel

EPS = 1e-6
_NVIDIA = (80, 89, 90, 100, 120)


def reference(x: torch.Tensor) -> Outputs:
    """Compute in float32 with plain torch."""
    wide = x.float()
    return {"y": wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw a normal x, the same on every call."""
    generator = torch.Generator(device).manual_seed(case.seed)
    x = torch.randn(case.number("rows"), case.number("cols"), generator=generator, device=device)
    return {"x": x.to(case.dtype)}


def _count(x: torch.Tensor) -> Cost:
    """Read x once, write y once; square, add, scale."""
    moved = x.numel() * x.element_size()
    return Cost(flops=3 * x.numel(), read_bytes=moved, written_bytes=moved)


_cost: Callable[..., Cost] = _count

OP = Op(
    name="rms_scale",
    part="norms",
    reference=reference,
    inputs=inputs,
    cost=lambda inputs: _cost(**inputs),
    cases=(
        Case(name="ragged", dims={"rows": 3, "cols": 100}, tiny=True, cpu=True),
        Case(name="hidden-7168", dims={"rows": 4096, "cols": 7168}),
    ),
    gate_cases=(Case(name="gate-hidden-7168", dims={"rows": 2, "cols": 7168}),),
    tolerance=Tolerance(row=4e-3, why="one rounding to bfloat16 is at most 2**-8 of each element"),
)


@triton.jit
def _rms_scale(x_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # int32 overflows at 2**31 elements
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + col, mask=col < cols, other=0.0).to(tl.float32)  # [BLOCK]
    y = x * tl.rsqrt(tl.sum(x * x) / cols + eps)
    tl.store(y_ptr + row * cols + col, narrow(y, y_ptr.dtype.element_ty), mask=col < cols)


@OP.implementation(
    "triton",
    needs=Needs(capabilities=_NVIDIA, packages=("triton",)),
    declares=("wide_load",),
)
def rms_scale_triton(x: torch.Tensor) -> Outputs:
    """One program per row; a row must fit one block."""
    y = torch.empty_like(x)
    rows, cols = x.shape
    _rms_scale[(rows,)](x, y, cols, EPS, BLOCK=triton.next_power_of_2(cols), num_warps=8)
    return {"y": y}


_SOURCE = f"""
#include <cuda_bf16.h>
extern "C" __global__ void rms_scale(const __nv_bfloat16* x, __nv_bfloat16* y, long long cols) {{
  const long long row = blockIdx.x;
  float sum = 0.f;
  for (long long c = threadIdx.x; c < cols; c += 32) {{
    const float v = __bfloat162float(x[row * cols + c]);
    sum += v * v;
  }}
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  const float scale = rsqrtf(sum / cols + {EPS}f);
  for (long long c = threadIdx.x; c < cols; c += 32)
    y[row * cols + c] = __float2bfloat16(__bfloat162float(x[row * cols + c]) * scale);
}}
"""
_rms_scale_raw = RawKernel("rms_scale", _SOURCE)


@OP.implementation("cupy", needs=Needs(capabilities=_NVIDIA, packages=("cupy",)))
def rms_scale_cupy(x: torch.Tensor) -> Outputs:
    """One warp strides over each row twice; bfloat16 only."""
    y = torch.empty_like(x)
    rows, cols = x.shape
    _rms_scale_raw((rows,), (32,), x, y, cols)
    return {"y": y}


@OP.implementation("torch", kind="baseline-direct")
def rms_scale_torch(x: torch.Tensor) -> Outputs:
    """What torch ships: the number to beat."""
    return {"y": torch.nn.functional.rms_norm(x, x.shape[-1:], eps=EPS)}
