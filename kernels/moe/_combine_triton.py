"""y[t] = sum_j weights[t, j] x out[slot of t and j], in Triton: the same bits each time.

Added in float32 in the order of j, then rounded to bfloat16 once. A choice of no expert is not
read. One that repeats an earlier choice of its token has the row of that: the direct path computes
it once. `out` has all rows PARTS times, each a sum over some of the columns: added first, in their
order. The shared expert's row of a token, behind those of the slots in the first part, comes last.
"""

import triton
import triton.language as tl

from kernels._bfloat16 import narrow


@triton.jit(do_not_specialize=("tokens", "experts"))
def combine(
    ids_ptr, weights_ptr, out_ptr, y_ptr, tokens, experts, hidden,
    TOP_K: tl.constexpr, PARTS: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < hidden
    # All ids, then all rows, are in flight at once; what is added waits for them in its order.
    expert = ()
    weight = ()
    for j in tl.static_range(TOP_K):
        choice = token * TOP_K + j
        expert += (tl.load(ids_ptr + choice),)  # type: ignore[assignment]  # longer
        weight += (tl.load(weights_ptr + choice),)  # type: ignore[assignment]  # longer
    rows = tokens * (TOP_K + 1 if SHARED else TOP_K)  # of a part
    one = ()
    for j in tl.static_range(TOP_K):
        first = j
        for i in tl.static_range(j):
            first = tl.where((first == j) & (expert[i] == expert[j]), i, first)
        some = there & (expert[j] >= 0) & (expert[j] < experts)
        for part in tl.static_range(PARTS):
            at = out_ptr + (part * rows + token * TOP_K + first) * hidden + column
            one += (tl.load(at, mask=some, other=0.0),)  # type: ignore[assignment]  # as above
    y = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(TOP_K):
        total = tl.zeros([BLOCK], tl.float32)
        for part in tl.static_range(PARTS):
            total += one[j * PARTS + part]
        some = (expert[j] >= 0) & (expert[j] < experts)
        y += tl.where(some, weight[j], 0.0) * total
    if SHARED:
        at = out_ptr + (tokens * TOP_K + token) * hidden + column
        y += tl.load(at, mask=there, other=0.0)
    tl.store(y_ptr + token * hidden + column, narrow(y, tl.bfloat16), mask=there)
