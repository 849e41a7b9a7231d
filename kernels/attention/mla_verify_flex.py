"""`mla_verify` through torch's flex_attention, compiled, with the tree as its mask function.

Like SDPA it reads neither pages nor a second tensor of key dims: each call copies latents and
rotated keys into rows of latent + rope, and that is timed; values are the first dims of the same
rows. The T x heads rows of a request are one matrix, as all share one key head. The index and the
block mask (`_flex`) are stages of their own; the compilation is the plan. An fp8 cache is refused:
the ratio of its two scales would have to round the queries once more, and the LSE shows that.

Errors: what torch's compiler raises, such as where it finds no tile of 576 and 512 dims that fits.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kernels import Case, Outputs, Prepared, Stage
from kernels.attention import _flex
from kernels.attention._gathered import gather, pack, unpack
from kernels.attention.mla_verify import OP, Given


def _refuses(case: Case) -> str | None:
    if case.dims["kv"] == "fp8":
        return "it takes one scale for a key; latents and rotated keys of an fp8 cache have two"
    return None


@OP.prepared_implementation("flex", kind="baseline-composed", needs=_flex.needs(_refuses))
def flex_attention(**inputs: Any) -> Prepared:
    """Plan the gather and the block mask for these lengths, and compile."""
    given = Given(**inputs)
    return _flex.compiled(lambda attend: plan(given, attend=attend))


def plan(given: Given, *, attend: Callable[..., Any]) -> Prepared:
    """Plan the gather and the block mask; a call copies the latents and attends by `attend`."""
    from torch.nn.attention.flex_attention import AuxRequest

    shape, lengths, words = given.shape, given.prefix_lens, given.mask_words
    indices = partial(
        gather,
        page_table=given.page_table,
        prefix_lens=lengths,
        mask_words=words,
        page_size=shape.page_size,
        group=shape.heads,
    )
    index = indices()
    blocks = partial(_flex.block_mask, index, lengths=lengths, words=words, group=shape.heads)
    mask = blocks()
    caches = (given.ckv_cache, given.kpe_cache)

    def call() -> Outputs:
        keys = torch.cat([index.keys(cache[:, :, None]) for cache in caches], dim=-1)
        rows, more = attend(
            pack(torch.cat([given.q_nope, given.q_pe], dim=-1), tokens=shape.tokens, kv_heads=1),
            keys,
            keys[..., : shape.latent],
            block_mask=mask,
            scale=given.scale,
            return_aux=AuxRequest(lse=True),
        )
        return {
            "out": unpack(rows, tokens=shape.tokens),
            "lse": unpack(more.lse, tokens=shape.tokens),
        }

    stages = (Stage(name="indices", run=indices), Stage(name="block mask", run=blocks))
    return Prepared(call=call, stages=stages)
