"""float8 e4m3 -> float16 or bfloat16 in Triton, times 2**-8 and exact, on any GPU and interpreted.

e4m3 has 4 bits of exponent and 3 of mantissa, float16 5 and 10: moved into the same places of a
float16, the bits mean 2**-8 of what they meant, subnormal numbers too. Whoever multiplies by a
scale of the cache multiplies by `LIFT` at once. GPUs before sm_89 have no instruction for e4m3, and
Triton refuses the type there: give the cache as uint8 (`tensor.view(torch.uint8)`).

Bits that mean NaN (0x7F, 0xFF) become 480: a kernel hides slots that hold no key, it does not
look at them.
"""

import triton
import triton.language as tl

from kernels._bfloat16 import narrow

LIFT = 256.0  # 2**8, which the caller multiplies by


@triton.jit
def widen(bits, dtype: tl.constexpr):
    """Return the numbers whose e4m3 `bits` are given as uint8, times 2**-8."""
    wide = bits.to(tl.uint16)
    half = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
    if dtype == tl.float16:
        return half
    return narrow(half.to(tl.float32), dtype)


@triton.jit
def widen_pairs(pairs, dtype: tl.constexpr):
    """Return the lower and the upper number of each int16, as `widen` does.

    Two numbers of 8 bits are loaded and laid out as one of 16. A tile that is used in two products
    stays one tile then: as bytes Triton would load it once for each.
    """
    bits = pairs.to(tl.uint16, bitcast=True)
    return widen(bits & 0xFF, dtype), widen(bits >> 8, dtype)
