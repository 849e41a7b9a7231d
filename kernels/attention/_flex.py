"""What attention through torch's flex_attention shares: the compiler, and the tree as a function.

The mask is computed from lengths and mask words where a block of it is mixed; which blocks are
full, mixed or empty is the block mask, which an engine would make again for each step. torch's
compiler makes the kernel with Triton, and is told to raise where it would fall back to plain torch.
LSE: natural, by `AuxRequest(lse=True)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from kernels import Needs, Prepared
from kernels._registry import Case, Reason
from kernels.attention._gathered import Gathered

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_LEAST_TORCH = (2, 9)  # the first with AuxRequest
_MOST_SHAPES = 1024  # that stay compiled; torch's own limit of 8 is for models with one


def needs(refuses: Callable[[Case], Reason | None] = lambda case: None) -> Needs:
    """Return what an implementation needs that is compiled, with what it refuses beside."""

    def refused(case: Case) -> Reason | None:
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        if version < _LEAST_TORCH:
            return (
                f"needs torch 2.9 or newer, whose flex_attention returns its LSE; this is {version}"
            )
        return refuses(case)

    return Needs(
        capabilities=(80, 89, 90, 100, 120),
        packages=("torch._inductor", "triton"),
        refuses=refused,
    )


def compiled(plan: Callable[[Callable[..., Any]], Prepared]) -> Prepared:
    """Return what `plan` prepares with a compiled flex_attention, compiled for its shapes."""
    from torch.nn.attention.flex_attention import flex_attention

    prepared = plan(torch.compile(flex_attention, fullgraph=True, dynamic=False))
    dynamo: Any = torch._dynamo
    with dynamo.config.patch(
        recompile_limit=_MOST_SHAPES, accumulated_recompile_limit=_MOST_SHAPES
    ):
        prepared.call()
    return prepared


def block_mask(
    index: Gathered, *, lengths: torch.Tensor, words: torch.Tensor, group: int
) -> BlockMask:
    """Return which blocks of T x group rows and gathered keys hold a key to see."""
    from torch.nn.attention.flex_attention import create_block_mask

    requests, tokens = words.shape

    def sees(
        request: torch.Tensor, head: torch.Tensor, row: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        draft = key - lengths[request]
        bit = words[request, row // group] >> draft.clamp(0, tokens - 1) & 1
        return (draft < 0) | ((draft < tokens) & (bit != 0))

    return create_block_mask(
        sees,
        B=requests,
        H=None,
        Q_LEN=tokens * group,
        KV_LEN=index.page.shape[1],
        device=words.device,
    )
