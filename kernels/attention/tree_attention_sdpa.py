"""`tree_attention` through torch's scaled_dot_product_attention with an explicit mask.

SDPA reads no pages, so each call first copies the keys and values of every request into a row; that
copy is timed, because an engine with a paged cache would have to make it each time. The index and
the mask (added to the logits, in q's dtype: torch would turn a boolean one into that at each call)
are the plan: stages of their own. The T x group rows
that share a key head are packed into one matrix, as in our own kernels: with `enable_gqa` only
torch's slowest path takes a mask. An fp8 cache is widened in the copy. SDPA returns no LSE, so
"out" is all there is.
"""

from functools import partial
from typing import Any

import torch

from kernels import Outputs, Prepared, Stage
from kernels.attention._gathered import Gathered, gather, pack, unpack
from kernels.attention.tree_attention import OP, Given


@OP.prepared_implementation("sdpa", kind="baseline-composed", omits=("lse",))
def sdpa_attention(**inputs: Any) -> Prepared:
    """Plan the gather and the mask for these lengths; a call copies the keys and attends."""
    given = Given(**inputs)
    shape, dtype = given.shape, given.q.dtype

    def index() -> Gathered:
        return gather(
            page_table=given.page_table,
            prefix_lens=given.prefix_lens,
            mask_words=given.mask_words,
            page_size=shape.page_size,
            group=shape.group,
        )

    plan = index()

    fill = partial(plan.mask, dtype)
    mask = fill()

    def call() -> Outputs:
        rows = torch.nn.functional.scaled_dot_product_attention(
            pack(given.q, tokens=shape.tokens, kv_heads=shape.kv_heads),
            plan.keys(given.k_cache).to(dtype),
            plan.keys(given.v_cache).to(dtype),
            attn_mask=mask,
            scale=given.scale * given.k_scale,
        )
        if given.v_scale != 1.0:
            rows = rows * given.v_scale
        return {"out": unpack(rows, tokens=shape.tokens)}

    return Prepared(
        call=call, stages=(Stage(name="indices", run=index), Stage(name="mask", run=fill))
    )
