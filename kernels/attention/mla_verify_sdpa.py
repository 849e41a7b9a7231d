"""`mla_verify` through torch's scaled_dot_product_attention with an explicit mask.

SDPA reads no pages and no second tensor of key dims, so each call copies latents and rotated keys
of every request into rows of latent + rope; values are the first dims of the same rows. That copy
is timed, because an engine with a paged cache would have to make it each time. The index and the
mask (added to the logits, in the queries' dtype) are the plan: stages of their own. The T x heads
rows of a request are one matrix, since all share one key head. An fp8 cache is widened in the copy;
the ratio of its two scales is multiplied into the rotated queries, rounded once more. SDPA returns
no LSE, so "out" is all there is.

With 576 dims a query and 512 a value, torch's fused kernels refuse, and what runs is its plain one,
which writes the scores: it is the baseline of code that uses what torch ships.
"""

from functools import partial
from typing import Any

import torch

from kernels import Outputs, Prepared, Stage
from kernels.attention._gathered import Gathered, gather, pack, unpack
from kernels.attention.mla_verify import OP, Given


@OP.prepared_implementation("sdpa", kind="baseline-composed", omits=("lse",))
def sdpa_attention(**inputs: Any) -> Prepared:
    """Plan the gather and the mask for these lengths; a call copies the latents and attends."""
    given = Given(**inputs)
    shape, dtype = given.shape, given.q_nope.dtype

    def index() -> Gathered:
        return gather(
            page_table=given.page_table,
            prefix_lens=given.prefix_lens,
            mask_words=given.mask_words,
            page_size=shape.page_size,
            group=shape.heads,
        )

    plan = index()

    fill = partial(plan.mask, dtype)
    mask = fill()

    def call() -> Outputs:
        q_pe = given.q_pe
        if given.kpe_scale != given.ckv_scale:
            q_pe = q_pe * (given.kpe_scale / given.ckv_scale)
        caches = (given.ckv_cache, given.kpe_cache)
        keys = torch.cat([plan.keys(cache[:, :, None]).to(dtype) for cache in caches], dim=-1)
        rows = torch.nn.functional.scaled_dot_product_attention(
            pack(torch.cat([given.q_nope, q_pe], dim=-1), tokens=shape.tokens, kv_heads=1),
            keys,
            keys[..., : shape.latent],
            attn_mask=mask,
            scale=given.scale * given.ckv_scale,
        )
        if given.ckv_scale != 1.0:
            rows = rows * given.ckv_scale
        return {"out": unpack(rows, tokens=shape.tokens)}

    return Prepared(
        call=call, stages=(Stage(name="indices", run=index), Stage(name="mask", run=fill))
    )
