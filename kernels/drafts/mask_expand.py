"""The full mask of a verify step from mask words: one byte a draft and key, as engines keep it.

    mask[start_b + i n_b + c] = 1 for c < L_b, else bit (c - L_b) of mask_words[b, i]
    n_b = L_b + T,  start_b = sum over a < b of T n_a

mask_words int32 [batch, T], the bits of unsigned numbers, T at most 32; prefix_lens int32 [batch]:
L, read on the device; mask_bits: the size of `mask` [mask_bits], bool, which the host knows from
the lengths it scheduled. The layout, and what a size that does not fit means: `_mask_layout`.

At 128k tokens and T = 16 that is 2.1 MB to write for 64 bytes of information: the cost of handing a
tree to attention kernels that take no words.

Errors: ValueError for shapes, dtypes and sizes that are not those.
Source: FULL_MASK of SGLang 0.5.23 and custom_mask of FlashInfer; see `_mask_layout`.
"""

from __future__ import annotations

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance
from kernels._inputs import number, tensor
from kernels.attention import _paged
from kernels.drafts import _mask_layout


def reference(*, mask_words: torch.Tensor, prefix_lens: torch.Tensor, mask_bits: int) -> Outputs:
    """Put rows together request after request; ValueError for a size that is not theirs."""
    rows = zip(mask_words.unbind(), prefix_lens.tolist(), strict=True)
    mask = torch.cat([_mask_layout.expanded(words, length).flatten() for words, length in rows])
    if len(mask) != mask_bits:
        raise ValueError(f"mask_bits is {mask_bits}, but these lengths have {len(mask)}")
    return {"mask": mask}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw the trees and lengths of a case."""
    bits = _mask_layout.bits_of(_paged.prefix_lengths(case), case.number("rows"))
    return {**_mask_layout.words_and_lengths(case, device), "mask_bits": sum(bits)}


def cost(given: Inputs) -> Cost:
    """Read words and lengths, write a byte a bit."""
    read = tensor(given, "mask_words").nbytes + tensor(given, "prefix_lens").nbytes
    return Cost(flops=0, read_bytes=read, written_bytes=number(given, "mask_bits"))


OP = Op(
    name="mask_expand",
    part="metadata",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(*_mask_layout.tiny_cases(), *_mask_layout.measured_cases()),
    tolerance=Tolerance(row=0.0, why="bits"),
)


def empty_mask(mask_bits: int, device: torch.device) -> torch.Tensor:
    """Allocate the mask as the bytes that the kernels write; `.view(torch.bool)` is the output."""
    return torch.empty(mask_bits, dtype=torch.uint8, device=device)


@OP.implementation("torch", kind="baseline-composed")
def torch_expand(*, mask_words: torch.Tensor, prefix_lens: torch.Tensor, mask_bits: int) -> Outputs:
    """Fill with ones and scatter the draft blocks, as SGLang does with a kernel of its own.

    Lengths stay on the device. A size that is too small for them makes torch raise.
    """
    _mask_layout.must_fit(
        mask_words=mask_words, prefix_lens=prefix_lens, room=mask_bits, name="mask_bits"
    )
    return {"mask": expand_with_torch(mask_words, prefix_lens, mask_bits=mask_bits)}


def expand_with_torch(
    mask_words: torch.Tensor, prefix_lens: torch.Tensor, *, mask_bits: int
) -> torch.Tensor:
    """Return the mask by torch alone, without waiting for the device."""
    tokens = mask_words.shape[1]
    token = torch.arange(tokens, device=mask_words.device)
    length = prefix_lens.long().clamp_(min=0)
    columns = length + tokens
    start = (columns * tokens).cumsum(0) - columns * tokens
    row = start[:, None] + token * columns[:, None] + length[:, None]  # [batch, T]: its first draft
    seen = (mask_words.long()[:, :, None] >> token) & 1 != 0  # [batch, T, T]
    mask = torch.ones(mask_bits, dtype=torch.bool, device=mask_words.device)
    return mask.scatter_(0, (row[:, :, None] + token).flatten(), seen.flatten())
