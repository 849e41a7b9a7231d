"""Mask words to FlashInfer's packed mask in one step, without the bool mask between.

    packed byte k of request b holds its bits 8 k .. 8 k + 7, lowest first; bit i n_b + c is
    1 for c < L_b, else bit (c - L_b) of mask_words[b, i];  n_b = L_b + T

mask_words int32 [batch, T], the bits of unsigned numbers, T at most 32; prefix_lens int32 [batch]:
L, read on the device; packed_bytes: the size of `packed` [packed_bytes], uint8. What `mask_expand`
and `mask_pack` give one after the other, for an eighth of the bytes written and none read back.
The layout, and what a size that does not fit means: `_mask_layout`.

Errors: ValueError for shapes, dtypes and sizes that are not those.
Source: packed_custom_mask of FlashInfer 0.6 and 0.7; see `_mask_layout`.
"""

from __future__ import annotations

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance
from kernels._inputs import number, tensor
from kernels.attention import _paged
from kernels.drafts import _mask_layout
from kernels.drafts.mask_expand import expand_with_torch
from kernels.drafts.mask_pack import pack_with_torch


def reference(*, mask_words: torch.Tensor, prefix_lens: torch.Tensor, packed_bytes: int) -> Outputs:
    """Expand and pack request after request; ValueError for a size that is not theirs."""
    rows = zip(mask_words.unbind(), prefix_lens.tolist(), strict=True)
    masks = [_mask_layout.expanded(words, length).flatten() for words, length in rows]
    packed = torch.cat([_mask_layout.packed(mask) for mask in masks])
    if len(packed) != packed_bytes:
        raise ValueError(f"packed_bytes is {packed_bytes}, but these lengths have {len(packed)}")
    return {"packed": packed}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw the trees and lengths of a case."""
    sizes = _mask_layout.bytes_of(_paged.prefix_lengths(case), case.number("rows"))
    return {**_mask_layout.words_and_lengths(case, device), "packed_bytes": sum(sizes)}


def cost(given: Inputs) -> Cost:
    """Read words and lengths, write a bit a bit."""
    read = tensor(given, "mask_words").nbytes + tensor(given, "prefix_lens").nbytes
    return Cost(flops=0, read_bytes=read, written_bytes=number(given, "packed_bytes"))


OP = Op(
    name="mask_expand_packed",
    part="metadata",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(*_mask_layout.tiny_cases(), *_mask_layout.measured_cases()),
    tolerance=Tolerance(row=0.0, why="bits"),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_expand_packed(
    *, mask_words: torch.Tensor, prefix_lens: torch.Tensor, packed_bytes: int
) -> Outputs:
    """Expand to bools and pack those. The bools are given all the room that the bytes have bits."""
    _, tokens = _mask_layout.must_fit(
        mask_words=mask_words, prefix_lens=prefix_lens, room=packed_bytes, name="packed_bytes"
    )
    mask = expand_with_torch(mask_words, prefix_lens, mask_bits=8 * packed_bytes)
    packed = pack_with_torch(mask, prefix_lens, draft_tokens=tokens, packed_bytes=packed_bytes)
    return {"packed": packed}
