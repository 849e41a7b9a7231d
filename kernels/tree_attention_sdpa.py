"""`tree_attention` through torch's scaled_dot_product_attention with an explicit mask.

SDPA reads no pages, so each call first copies the keys and values of every request into a row; that
copy is timed, because an engine with a paged cache would have to make it each time. The index and
the mask (added to the logits, in q's dtype: torch would turn a boolean one into that at each call)
are the plan: they are made once for given lengths and trees, and are not timed. The T x group rows
that share a key head are packed into one matrix, as in our own kernels: with `enable_gqa` only
torch's slowest path takes a mask. SDPA returns no LSE, so "out" is all there is.
"""

import torch

from kernels import Outputs, Prepared
from kernels._gathered import gather, pack, unpack
from kernels.tree_attention import OP, shape_of


@OP.prepared_implementation("sdpa", kind="baseline-composed", omits=("lse",))
def sdpa_attention(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
    scale: float,
    draft_tokens: int,
) -> Prepared:
    """Plan the gather and the mask for these lengths; a call copies the keys and attends."""
    shape = shape_of(
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        page_table=page_table,
        prefix_lens=prefix_lens,
        mask_words=mask_words,
        draft_tokens=draft_tokens,
    )
    plan = gather(
        page_table=page_table,
        prefix_lens=prefix_lens,
        mask_words=mask_words,
        page_size=shape.page_size,
        group=shape.group,
    )
    mask = torch.zeros_like(plan.visible, dtype=q.dtype)
    mask = mask.masked_fill_(~plan.visible, float("-inf"))[:, None]  # [batch, 1, rows, keys]

    def call() -> Outputs:
        rows = torch.nn.functional.scaled_dot_product_attention(
            pack(q, tokens=draft_tokens, kv_heads=shape.kv_heads),
            plan.keys(k_cache),
            plan.keys(v_cache),
            attn_mask=mask,
            scale=scale,
        )
        return {"out": unpack(rows, tokens=draft_tokens)}

    return Prepared(call=call)
