"""`mla_verify` through torch's flex_attention, which Inductor compiles into one Triton kernel.

The tree is a function of two indices that reads the mask words, so no mask lies in memory; the
block mask, which names the tiles that have a key to see, is the plan: a stage of its own, as is the
index of the gather. Like SDPA it reads no second tensor of key dims: each call copies latents and
rotated keys into rows of latent + rope, and values are the first dims of those. The T x heads rows
of a request are one matrix, as all share one key head. An fp8 cache is refused: the ratio of its
two scales would have to round the queries once more, and the LSE shows that.

Whether Inductor finds a tile for 576 and 512 dims that fits a GPU shows at the first call, which
compiles: where it does not, that is this baseline's reason. Out is in the queries' dtype, the LSE
natural, -inf where a row sees nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from kernels import Case, Needs, Outputs, Prepared, Stage
from kernels._gathered import Gathered, gather, pack, unpack
from kernels.mla_verify import OP, Given

# Dynamo gives up on a function after 8 shapes, and would then run it without a fused kernel.
_MOST_SHAPES = 4096


@cache
def compiled() -> Callable[..., Any]:
    """Return flex_attention compiled for each shape that it meets; compiling waits for a call."""
    from torch._dynamo import config
    from torch.nn.attention.flex_attention import flex_attention

    config.recompile_limit = config.accumulated_recompile_limit = _MOST_SHAPES
    function: Callable[..., Any] = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return function


def _refuses(case: Case) -> str | None:
    if case.dims["kv"] == "fp8":
        return "it takes one scale for a key; latents and rotated keys of an fp8 cache have two"
    return None


@OP.prepared_implementation(
    "flex",
    kind="baseline-composed",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("torch",), refuses=_refuses),
)
def flex_attention(**inputs: Any) -> Prepared:
    """Plan the gather and the block mask for these lengths; a call copies the latents, attends."""
    from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask

    given = Given(**inputs)
    shape = given.shape
    lengths, words = given.prefix_lens, given.mask_words

    def index() -> Gathered:
        return gather(
            page_table=given.page_table,
            prefix_lens=lengths,
            mask_words=words,
            page_size=shape.page_size,
            group=shape.heads,
        )

    plan = index()

    def seen(
        request: torch.Tensor, head: torch.Tensor, row: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        draft = key - lengths[request]
        bit = (words[request, row // shape.heads] >> draft.clamp(0, shape.tokens - 1)) & 1
        return (draft < 0) | ((draft < shape.tokens) & (bit != 0))

    def blocks() -> BlockMask:
        rows, keys = plan.visible.shape[1:]
        return create_block_mask(seen, shape.requests, None, rows, keys, device=str(words.device))

    block_mask = blocks()
    attend = compiled()

    def call() -> Outputs:
        caches = (given.ckv_cache, given.kpe_cache)
        keys = torch.cat([plan.keys(cache[:, :, None]) for cache in caches], dim=-1)
        rows, more = attend(
            pack(torch.cat([given.q_nope, given.q_pe], dim=-1), tokens=shape.tokens, kv_heads=1),
            keys,
            keys[..., : shape.latent],
            block_mask=block_mask,
            scale=given.scale,
            return_aux=AuxRequest(lse=True),
        )
        return {
            "out": unpack(rows, tokens=shape.tokens),
            "lse": unpack(more.lse, tokens=shape.tokens),
        }

    return Prepared(
        call=call, stages=(Stage(name="indices", run=index), Stage(name="block mask", run=blocks))
    )
