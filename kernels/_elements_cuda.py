"""What a CUDA C++ kernel is told of its 16-bit elements, by their torch dtype, as macros.

ELEMENT and PAIR are types, WIDEN makes two floats of a pair, NARROW an element of a float, and
FROM_HALVES a pair of a `__half2`, in which `widen_fp8` gives what was fp8 (`_fp8_cuda`). PUT brings
what was loaded from a cache into shared memory; it wants these, FP8 (0 or 1) and WIDEN_FP8 before.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch

ELEMENTS: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.bfloat16: """
#include <cuda_bf16.h>
#define ELEMENT __nv_bfloat16
#define PAIR __nv_bfloat162
#define WIDEN __bfloat1622float2
#define NARROW __float2bfloat16
#define FROM_HALVES(two) __float22bfloat162_rn(__half22float2(two))
""",
        torch.float16: """
#include <cuda_fp16.h>
#define ELEMENT __half
#define PAIR __half2
#define WIDEN __half22float2
#define NARROW __float2half
#define FROM_HALVES(two) (two)
""",
    }
)

PUT = """
// 16 bytes of a cache become VECTOR elements, from `to` on.
template <class Place>
__device__ inline void put(const uint4 bits, const Place to) {
#if FP8
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    alignas(16) PAIR pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      pairs[i] = FROM_HALVES(widen_fp8(words[2 * half + i / 2], i % 2));
    SHARED_AS(uint4, to + 8 * half)[0] = *reinterpret_cast<const uint4*>(pairs);
  }
#else
  SHARED_AS(uint4, to)[0] = bits;
#endif
}
"""
