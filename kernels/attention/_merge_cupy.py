"""The merge of attention over disjoint sets of keys, in CUDA C++: for any op that splits its keys.

    top = max_s part_lse[r, s],  w_s = exp(part_lse[r, s] - top)
    out[r] = sum_s w_s part_out[r, s] / sum_s w_s,  lse[r] = top + ln sum_s w_s

part_out [rows, splits, dim] float32, bfloat16 or float16, part_lse [rows, splits] float32, natural
logarithm, as everywhere here: there is no argument for another base. A part of no keys has an LSE
of -inf; its part_out may hold anything and is not read. A row of such parts alone gives 0 and -inf.
NaN in an LSE stays NaN: a part that was never written does not pass for an empty one.

A block takes 128 bytes of each part of a row, eight lanes a part with 16-byte loads, and as many
parts at once as its warps hold: a few rows of many parts still use many SMs. dim is a multiple of
16 bytes.

Source: the log-sum-exp identity that split attention rests on (FlashDecoding, FlashInfer).
"""

from functools import cache

import numpy as np
import torch

from kernels._raw import RawKernel

_LANES = 8  # a part; each loads 16 bytes
_LOAD_BYTES = 16
_PARTS_A_WARP = 32 // _LANES
_MOST_WARPS = 8

_TYPES = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16", torch.float16: "__half"}

_MERGE = """
constexpr int VECTOR = 16 / sizeof(PART), AT_ONCE = 32 * WARPS / LANES;
struct alignas(16) Load { PART at[VECTOR]; };
struct alignas(VECTOR * sizeof(OUT)) Store { OUT at[VECTOR]; };

extern "C" __global__ void __launch_bounds__(32 * WARPS) merge_parts(
    const PART* part_out, const float* part_lse, OUT* out, float* lse, const int splits) {
  SHARED_ARRAY(float, sums, WARPS * LANES * VECTOR);
  const float minus_infinity = __int_as_float(0xff800000);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int mine = threadIdx.x / LANES, piece = threadIdx.x % LANES;  // which part, which dims
  const long long row = blockIdx.x;
  const int dim = (blockIdx.y * LANES + piece) * VECTOR;
  part_lse += row * splits;
  part_out += row * splits * DIM + dim;
  // Each warp for itself: nothing to wait for.
  float top = minus_infinity, total = 0.f;
  for (int n = lane; n < splits; n += 32) top = fmaxf(top, part_lse[n]);
  for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  const float shift = top == minus_infinity ? 0.f : top;
  for (int n = lane; n < splits; n += 32) total += expf(part_lse[n] - shift);
  for (int step = 16; step; step /= 2) total += __shfl_xor_sync(~0u, total, step);

  float value[VECTOR] = {};
#pragma unroll 4
  for (int n = mine; n < splits; n += AT_ONCE) {
    const float weight = expf(part_lse[n] - shift);
    if (weight == 0.f || dim >= DIM) continue;
    const Load part = *reinterpret_cast<const Load*>(part_out + (long long)n * DIM);
#pragma unroll
    for (int d = 0; d < VECTOR; d++) value[d] += weight * float(part.at[d]);
  }
#pragma unroll
  for (int d = 0; d < VECTOR; d++) {
    for (int step = LANES; step < 32; step *= 2)
      value[d] += __shfl_xor_sync(~0u, value[d], step);
    if (lane < LANES) sums[(warp * VECTOR + d) * LANES + piece] = value[d];
  }
  __syncthreads();
  if (warp == 0 && lane < LANES && dim < DIM) {
    Store merged;
#pragma unroll
    for (int d = 0; d < VECTOR; d++) {
      float sum = 0.f;
      for (int w = 0; w < WARPS; w++) sum += sums[(w * VECTOR + d) * LANES + piece];
      merged.at[d] = OUT(total == 0.f ? 0.f : sum / total);
    }
    *reinterpret_cast<Store*>(out + row * DIM + dim) = merged;
  }
  if (threadIdx.x == 0 && blockIdx.y == 0)
    lse[row] = total == 0.f ? minus_infinity : top + logf(total);
}
"""


@cache
def _merge_kernel(part: torch.dtype, out: torch.dtype, *, dim: int, warps: int) -> RawKernel:
    constants = (
        "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"
        f"#define PART {_TYPES[part]}\n#define OUT {_TYPES[out]}\n"
        f"#define DIM {dim}\n#define WARPS {warps}\n#define LANES {_LANES}\n"
    )
    return RawKernel("merge_parts", constants + _MERGE)


def why_not_dim(dim: int, dtype: torch.dtype) -> str | None:
    """Say why parts of this width cannot be merged; None if they can."""
    vector = _LOAD_BYTES // dtype.itemsize
    if dim % vector == 0:
        return None
    return f"parts of {dim} {dtype} are no multiple of {vector}, the {_LOAD_BYTES} bytes of a load"


def merge(
    *, part_out: torch.Tensor, part_lse: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
) -> None:
    """Write `out` and `lse`, contiguous with rows x dim and rows elements, in one launch.

    ValueError for parts that 16-byte loads cannot read.
    """
    rows, splits, dim = part_out.shape
    if (reason := why_not_dim(dim, part_out.dtype)) is not None:
        raise ValueError(reason)
    if part_out.data_ptr() % _LOAD_BYTES:
        raise ValueError(f"part_out starts at no multiple of {_LOAD_BYTES} bytes: copy it")
    warps = min(_MOST_WARPS, -(-splits // _PARTS_A_WARP))
    dims = _LANES * _LOAD_BYTES // part_out.element_size()
    _merge_kernel(part_out.dtype, out.dtype, dim=dim, warps=warps)(
        (rows, -(-dim // dims)), (32 * warps,), part_out, part_lse, out, lse, np.int32(splits)
    )
