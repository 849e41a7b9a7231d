"""`silu_mul` in CUDA C++ through CuPy: 16 bytes of gate and of up a thread.

Refused: widths that are no multiple of 8, which 16-byte loads cannot read.
"""

from functools import cache

import numpy as np
import torch

from kernels import Case, Needs, Outputs
from kernels._elements_cuda import ELEMENTS
from kernels._raw import RawKernel, must_be_aligned
from kernels.layer._elementwise_cuda import (
    GATED,
    VECTOR,
    VECTOR_BYTES,
    VECTORS,
    why_not_width,
)
from kernels.layer.silu_mul import OP, must_fit

_THREADS = 128

_SOURCE = """
extern "C" __global__ void __launch_bounds__(128) silu_mul(
    const ELEMENT* gate_up, ELEMENT* y, const int width) {
  const int at = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
  if (at >= width) return;
  const long long row = blockIdx.x;
  gate_up += row * 2 * width + at;
  const uint4 gate_bits = load_vector(gate_up), up_bits = load_vector(gate_up + width);
  const Eight gate = widened(gate_bits), up = widened(up_bits);
  Eight out;
#pragma unroll
  for (int i = 0; i < 8; i++) out.at[i] = gated(gate.at[i], up.at[i]);
  store_vector(y + row * width + at, narrowed(out));
}
"""


@cache
def _kernel(dtype: torch.dtype) -> RawKernel:
    return RawKernel("silu_mul", ELEMENTS[dtype] + VECTORS + GATED + _SOURCE)


def _refuses(case: Case) -> str | None:
    return why_not_width(case.number("width"))


@OP.implementation(
    "cupy",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",), refuses=_refuses),
    declares=("wide_load",),
)
def cupy_silu_mul(*, gate_up: torch.Tensor) -> Outputs:
    """Launch once; a row of one token still uses several SMs."""
    rows, width = must_fit(gate_up)
    if (reason := why_not_width(width)) is not None:
        raise ValueError(reason)
    must_be_aligned("gate_up", gate_up, to_bytes=VECTOR_BYTES)
    y = gate_up.new_empty(rows, width)
    blocks = -(-width // (VECTOR * _THREADS))
    _kernel(gate_up.dtype)((rows, blocks), (_THREADS,), gate_up, y, np.int32(width))
    return {"y": y}
