"""What the mask kernels in Triton share: sums over the requests before, and a wide fill.

Most of a mask is the prefix, which is all ones: a block that lies wholly within is stored without
a mask at an aligned place, 16 bytes a thread; only the two at the edges go byte by byte.
"""

import triton
import triton.language as tl


@triton.jit
def columns_of(prefix_lens_ptr, request, tokens):
    """Return L + T of a request, int64."""
    return tl.maximum(tl.load(prefix_lens_ptr + request), 0).to(tl.int64) + tokens


@triton.jit
def units_before(prefix_lens_ptr, request, tokens, UNIT: tl.constexpr, BLOCK_B: tl.constexpr):
    """Return the bits of the requests before, each rounded up to UNIT, in units; int64."""
    other = tl.arange(0, BLOCK_B)
    length = tl.load(prefix_lens_ptr + other, mask=other < request, other=0)
    bits = (tl.maximum(length, 0).to(tl.int64) + tokens) * tokens
    return tl.sum(tl.where(other < request, (bits + UNIT - 1) // UNIT, 0), 0)


@triton.jit
def fill_share(bytes_ptr, first, last, VALUE: tl.constexpr, BLOCK: tl.constexpr):
    """Set this program's share of the bytes [first, last), of num_programs(0), to VALUE."""
    parts = tl.num_programs(0)
    share = tl.cdiv(tl.cdiv(last - first, parts), BLOCK) * BLOCK
    mine = first + tl.program_id(0) * share
    end = tl.minimum(last, mine + share)
    value = tl.full([BLOCK], VALUE, tl.uint8)
    for block in range(mine // BLOCK, tl.cdiv(end, BLOCK)):
        start = block * BLOCK
        at = start + tl.arange(0, BLOCK)
        if (start >= mine) & (start + BLOCK <= end):
            tl.store(bytes_ptr + at, value)
        else:
            tl.store(bytes_ptr + at, value, mask=(at >= mine) & (at < end))
