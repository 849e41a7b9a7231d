"""float8 e4m3 as the 16-bit numbers that tensor cores multiply, in Triton, exact on every GPU."""

import torch
import triton
import triton.language as tl

WIDENED = 256.0


@triton.jit
def _number(high, dtype: tl.constexpr):
    # s.eeee.mmm in the upper byte of 16 bits becomes s.0eeee.mmm0000000.
    high = high.to(tl.uint16, bitcast=True)
    number = ((high & 0x8000) | ((high & 0x7F00) >> 1)).to(tl.float16, bitcast=True)
    if dtype == tl.float16:
        return number
    return number.to(tl.float32).to(dtype)


@triton.jit
def widen(pairs, dtype: tl.constexpr):
    """Return the lower and the upper numbers of int16 `pairs`, both divided by `WIDENED`."""
    return _number(pairs << 8, dtype), _number(pairs, dtype)
