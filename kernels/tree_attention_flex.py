"""`tree_attention` through torch's flex_attention, compiled, with the tree as its mask function.

flex_attention reads no pages of these sizes (its own paged cache wants pages of a mask block, 128
keys or more), so each call first copies the keys and values of every request into a row, as `sdpa`
does, and that is timed. The T x group rows that share a key head are packed into one matrix. The
mask is computed from lengths and mask words where a block of it is mixed; which blocks are full,
mixed or empty is the block mask. That, the index and the compilation are the plan: they are made
once for given lengths and trees, and are not timed. An fp8 cache is widened in the copy.

torch's compiler makes the kernel with Triton. LSE: natural, `AuxRequest(lse=True)`.
Errors: what torch's compiler raises; it is told to raise where it would fall back to plain torch.
"""

from collections.abc import Callable
from typing import Any

import torch

from kernels import Case, Needs, Outputs, Prepared
from kernels._gathered import gather, pack, unpack
from kernels.tree_attention import OP, Given

_LEAST_TORCH = (2, 9)  # the first with AuxRequest
_MOST_SHAPES = 1024  # that stay compiled; torch's own limit of 8 is for models with one


def _refuses(case: Case) -> str | None:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _LEAST_TORCH:
        return f"needs torch 2.9 or newer, whose flex_attention returns its LSE; this is {version}"
    return None


@OP.prepared_implementation(
    "flex",
    kind="baseline-composed",
    needs=Needs(
        capabilities=(80, 89, 90, 100, 120),
        packages=("torch._inductor", "triton"),
        refuses=_refuses,
    ),
)
def flex_attention(**inputs: Any) -> Prepared:
    """Plan the gather and the block mask for these lengths, and compile."""
    from torch.nn.attention.flex_attention import flex_attention as plain

    prepared = plan(Given(**inputs), attend=torch.compile(plain, fullgraph=True, dynamic=False))
    dynamo: Any = torch._dynamo
    with dynamo.config.patch(
        recompile_limit=_MOST_SHAPES, accumulated_recompile_limit=_MOST_SHAPES
    ):
        prepared.call()
    return prepared


def plan(given: Given, *, attend: Callable[..., Any]) -> Prepared:
    """Plan the gather and the block mask; a call copies the keys and attends by `attend`."""
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

    shape, dtype, lengths, words = given.shape, given.q.dtype, given.prefix_lens, given.mask_words
    index = gather(
        page_table=given.page_table,
        prefix_lens=lengths,
        mask_words=words,
        page_size=shape.page_size,
        group=shape.group,
    )
    tokens, group = shape.tokens, shape.group

    def sees(
        request: torch.Tensor, head: torch.Tensor, row: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        draft = key - lengths[request]
        bit = words[request, row // group] >> draft.clamp(0, tokens - 1) & 1
        return (draft < 0) | ((draft < tokens) & (bit != 0))

    mask = create_block_mask(
        sees,
        B=shape.requests,
        H=None,
        Q_LEN=tokens * group,
        KV_LEN=index.page.shape[1],
        device=given.q.device,
    )

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
