"""`rms_norm` in CUDA C++ through CuPy: a row is held in registers between its sum and its scaling.

A row of up to 256 elements is a power of two of lanes, and several share a block; a wider one is a
block of at most 512 threads, each with up to four times 16 bytes of x, residual and weight, all on
their way at once.

Refused: widths that are no multiple of 8, which 16-byte loads cannot read. x, residual and weight
need 16-byte alignment, the rows of x too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from kernels import Case, Needs, Outputs
from kernels._elements_cuda import ELEMENTS
from kernels._raw import RawKernel, must_be_aligned
from kernels.layer._elementwise_cuda import VECTOR, VECTOR_BYTES, VECTORS, why_not_width
from kernels.layer.rms_norm import OP, Given

_WARP = 32
_MOST_THREADS = 512
_NARROW_THREADS = 128  # of a block of several rows

_SOURCE = """
extern "C" __global__ void __launch_bounds__(THREADS) rms_norm(
    const ELEMENT* x, const ELEMENT* residual, const ELEMENT* weight, ELEMENT* y,
    ELEMENT* new_residual, const long long stride_t, const long long stride_h, const int rows,
    const int heads, const float eps) {
  const int row = blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
  const int lane = threadIdx.x % GROUP;
  x += row / heads * stride_t + row % heads * stride_h;
  const long long first = (long long)row * WIDTH;
  uint4 sums[PER], others[PER], scales[PER];
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const int at = (lane + i * GROUP) * 8;
    sums[i] = others[i] = scales[i] = make_uint4(0, 0, 0, 0);
    if (row >= rows || at >= WIDTH) continue;
    sums[i] = load_vector(x + at);
#if ADD
    others[i] = load_vector(residual + first + at);
#endif
    scales[i] = load_vector(weight + at);
  }
  Eight held[PER];
  float total = 0.f;
#pragma unroll
  for (int i = 0; i < PER; i++) {
    held[i] = widened(sums[i]);
#if ADD
    const int at = (lane + i * GROUP) * 8;
    const Eight other = widened(others[i]);
#pragma unroll
    for (int j = 0; j < 8; j++) held[i].at[j] += other.at[j];
    if (row < rows && at < WIDTH) store_vector(new_residual + first + at, narrowed(held[i]));
#endif
#pragma unroll
    for (int j = 0; j < 8; j++) total += held[i].at[j] * held[i].at[j];
  }
#pragma unroll
  for (int step = (GROUP < 32 ? GROUP : 32) / 2; step; step /= 2)
    total += __shfl_xor_sync(~0u, total, step);
#if GROUP > 32
  SHARED_ARRAY(float, of_warps, THREADS / 32);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = total;
  __syncthreads();
  total = 0.f;
  for (int warp = 0; warp < THREADS / 32; warp++) total += of_warps[warp];
#endif
  const float scale = rsqrtf(total / WIDTH + eps);
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const int at = (lane + i * GROUP) * 8;
    const Eight weights = widened(scales[i]);
#pragma unroll
    for (int j = 0; j < 8; j++) held[i].at[j] *= scale * weights.at[j];
    if (row < rows && at < WIDTH) store_vector(y + first + at, narrowed(held[i]));
  }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Threads of a block, those that share a row, and the 16 bytes that each of them takes."""

    threads: int
    group: int
    per: int


def _layout(width: int) -> _Layout:
    vectors = width // VECTOR
    if vectors <= _WARP:
        group = 1 << (vectors - 1).bit_length()
        return _Layout(threads=_NARROW_THREADS, group=group, per=1)
    per = -(-vectors // _MOST_THREADS)
    threads = -(-vectors // (per * _WARP)) * _WARP
    return _Layout(threads=threads, group=threads, per=per)


@cache
def _kernel(dtype: torch.dtype, *, width: int, add: bool) -> RawKernel:
    layout = _layout(width)
    constants = (
        f"#define WIDTH {width}\n#define ADD {int(add)}\n#define THREADS {layout.threads}\n"
        f"#define GROUP {layout.group}\n#define PER {layout.per}\n"
    )
    return RawKernel("rms_norm", ELEMENTS[dtype] + constants + VECTORS + _SOURCE)


def _refuses(case: Case) -> str | None:
    return why_not_width(case.number("width"))


@OP.implementation(
    "cupy",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",), refuses=_refuses),
    declares=("wide_load",),
)
def cupy_norm(**inputs: Any) -> Outputs:
    """Launch once."""
    given = Given(**inputs)
    if (reason := why_not_width(given.width)) is not None:
        raise ValueError(reason)
    for name in ("x", "residual", "weight"):
        if (tensor := getattr(given, name)) is not None:
            must_be_aligned(name, tensor, to_bytes=VECTOR_BYTES)
    outputs, layout = given.empty_outputs(), _layout(given.width)
    add = given.residual is not None
    rows = layout.threads // layout.group
    _kernel(given.x.dtype, width=given.width, add=add)(
        (-(-given.rows // rows),), (layout.threads,),
        given.x, given.residual if given.residual is not None else given.x, given.weight,
        outputs["y"], outputs["new_residual"] if add else outputs["y"],
        *given.strides, np.int32(given.rows), np.int32(given.heads), np.float32(given.eps),
    )  # fmt: skip
    return outputs
