"""Attention over a paged cache with a tree of drafts, in Triton: what a loop over keys repeats.

    seen    rows x keys: all of the committed prefix, draft j where bit j of the row's mask word is
    top     the largest score of a row so far, total = sum of 2^(score - top): scores are base 2
    lse     ln sum_n exp(score[n]) of a row, natural as everywhere here, -inf where it saw no key

A row that has seen no key yet has a maximum of -inf: a shift of 0 keeps its weights 0. NaN is no 0:
what a bad key spoils does not pass for a row or a part without keys.
"""

import triton
import triton.language as tl


@triton.jit
def page_of(table_row_ptr, key, start, last, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the page of each key, int64: one for a tile that no page ends in, else [BLOCK_N]."""
    # Masked even where it is one page a tile: loads are issued ahead of the loop's end.
    if PAGE % BLOCK_N == 0:
        page = tl.load(table_row_ptr + start // PAGE, mask=start < last, other=0)
    else:
        page = tl.load(table_row_ptr + key // PAGE, mask=key < last, other=0)
    return page.to(tl.int64)


@triton.jit
def only_seen(score, word, key, prefix, last):
    """Return scores [rows, keys] with -inf where the row does not see the key."""
    draft = key - prefix
    bit = (word[:, None] >> tl.minimum(tl.maximum(draft, 0), 31)[None, :]) & 1
    seen = (key < last)[None, :] & ((draft < 0)[None, :] | (bit != 0))
    return tl.where(seen, score, float("-inf"))


@triton.jit
def weights(score, top):
    """Return weights [rows, keys] of these scores, what is kept of earlier sums, the new top."""
    new_top = tl.maximum(top, tl.max(score, 1))
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    return tl.exp2(score - shift[:, None]), tl.exp2(top - shift), new_top


@triton.jit
def divisor_and_lse(top, total):
    """Return what the sums of a row are divided by, 1 where it saw no key, and its LSE."""
    some = total != 0
    divisor = tl.where(some, total, 1.0)
    lse = tl.where(some, (top + tl.log2(divisor)) * 0.6931471805599453, float("-inf"))
    return divisor, lse
