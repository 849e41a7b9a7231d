"""`tree_attention` through torch's flex_attention, compiled, with the tree as its mask function.

flex_attention reads no pages of these sizes (its own paged cache wants pages of a mask block, 128
keys or more), so each call first copies the keys and values of every request into a row, as `sdpa`
does, and that is timed. The T x group rows that share a key head are packed into one matrix. The
index, the block mask (`_flex`) and the compilation are the plan: they are made once for given
lengths and trees, and are not timed. An fp8 cache is widened in the copy.

Errors: what torch's compiler raises.
"""

from collections.abc import Callable
from typing import Any

from kernels import Outputs, Prepared
from kernels.attention import _flex
from kernels.attention._gathered import gather, pack, unpack
from kernels.attention.tree_attention import OP, Given


@OP.prepared_implementation("flex", kind="baseline-composed", needs=_flex.needs())
def flex_attention(**inputs: Any) -> Prepared:
    """Plan the gather and the block mask for these lengths, and compile."""
    given = Given(**inputs)
    return _flex.compiled(lambda attend: plan(given, attend=attend))


def plan(given: Given, *, attend: Callable[..., Any]) -> Prepared:
    """Plan the gather and the block mask; a call copies the keys and attends by `attend`."""
    from torch.nn.attention.flex_attention import AuxRequest

    shape, dtype, lengths, words = given.shape, given.q.dtype, given.prefix_lens, given.mask_words
    index = gather(
        page_table=given.page_table,
        prefix_lens=lengths,
        mask_words=words,
        page_size=shape.page_size,
        group=shape.group,
    )
    tokens = shape.tokens
    mask = _flex.block_mask(index, lengths=lengths, words=words, group=shape.group)

    def call() -> Outputs:
        rows, aux = attend(
            pack(given.q, tokens=tokens, kv_heads=shape.kv_heads).contiguous(),
            index.keys(given.k_cache).to(dtype),
            index.keys(given.v_cache).to(dtype),
            block_mask=mask,
            scale=given.scale * given.k_scale,
            return_aux=AuxRequest(lse=True),
        )
        if given.v_scale != 1.0:
            rows = rows * given.v_scale
        return {"out": unpack(rows, tokens=tokens), "lse": unpack(aux.lse, tokens=tokens)}

    return Prepared(call=call)
