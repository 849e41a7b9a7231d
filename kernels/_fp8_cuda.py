"""float8 e4m3 -> float16 in CUDA C++, times 2**-8 and exact, on any GPU and on this CPU.

e4m3 has 4 bits of exponent and 3 of mantissa, float16 5 and 10: moved into the same places of a
float16, the bits mean 2**-8 of what they meant, subnormal numbers too. Whoever multiplies by a
scale of the cache multiplies by `LIFT` at once. GPUs before sm_89 have no instruction for e4m3,
nor has the host runner.

Bits that mean NaN (0x7F, 0xFF) become 480: a kernel hides slots that hold no key, it does not
look at them.
"""

LIFT = 256.0  # 2**8, which the caller multiplies by

WIDEN_FP8 = """
#include <cuda_fp16.h>

// Bytes 0 and 1 of `four` e4m3 numbers, or 2 and 3 if `high`, times 2^-8.
__device__ inline __half2 widen_fp8(const unsigned four, const bool high) {
  const unsigned two = __byte_perm(four, 0, high ? 0x3424 : 0x1404);  // each in the upper byte
  const unsigned halves = (two & 0x80008000) | (two & 0x7F007F00) >> 1;
  return reinterpret_cast<const __half2&>(halves);
}
"""
