"""A full bool mask to bits as FlashInfer's kernels read them: eight to a byte, lowest bit first.

    packed[start_b + k] = sum over i < 8 of mask[first_b + 8 k + i] 2^i    (0 behind the request)
    first_b = sum over a < b of T n_a,  start_b = sum over a < b of ceil(T n_a / 8),  n_a = L_a + T

mask bool [bits], as `mask_expand` gives it; prefix_lens int32 [batch], read on the device;
draft_tokens: T; packed_bytes: the size of `packed` [packed_bytes], uint8. Requests begin on a byte,
rows do not. numpy.packbits and FlashInfer's own default are the other bit order, which gives a mask
that is wrong without an error (tests/test_mask_expand.py). The layout: `_mask_layout`.

Errors: ValueError for shapes, dtypes and sizes that are not those.
Source: packed_custom_mask of FlashInfer 0.6 and 0.7.
"""

from __future__ import annotations

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance
from kernels._inputs import must_be, number, tensor
from kernels.attention import _paged
from kernels.drafts import _drafts, _mask_layout


def must_fit(
    *, mask: torch.Tensor, prefix_lens: torch.Tensor, draft_tokens: int, packed_bytes: int
) -> int:
    """Return batch; ValueError for inputs that do not fit each other."""
    if mask.dtype != torch.bool or mask.dim() != 1 or not mask.is_contiguous():
        raise ValueError(
            f"mask is {mask.dtype} of {tuple(mask.shape)}: give a flat contiguous bool"
        )
    must_be(prefix_lens, "prefix_lens", (None,))
    requests = len(prefix_lens)
    _drafts.must_be_block(requests, draft_tokens)
    _mask_layout.must_have_room(
        prefix_lens, requests=requests, room=packed_bytes, name="packed_bytes"
    )
    return requests


def reference(
    *, mask: torch.Tensor, prefix_lens: torch.Tensor, draft_tokens: int, packed_bytes: int
) -> Outputs:
    """Pack request after request; ValueError for sizes that are not theirs."""
    bits = _mask_layout.bits_of(prefix_lens.tolist(), draft_tokens)
    if len(mask) != sum(bits):
        raise ValueError(f"mask has {len(mask)} bits, but these lengths have {sum(bits)}")
    packed = torch.cat([_mask_layout.packed(part) for part in torch.split(mask, bits)])
    if len(packed) != packed_bytes:
        raise ValueError(f"packed_bytes is {packed_bytes}, but these lengths have {len(packed)}")
    return {"packed": packed}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Expand the masks of a case's trees."""
    tokens = case.number("rows")
    drawn = _mask_layout.words_and_lengths(case, device)
    lengths = _paged.prefix_lengths(case)
    rows = zip(drawn["mask_words"].unbind(), lengths, strict=True)
    return {
        "mask": torch.cat([_mask_layout.expanded(*row).flatten() for row in rows]),
        "prefix_lens": drawn["prefix_lens"],
        "draft_tokens": tokens,
        "packed_bytes": sum(_mask_layout.bytes_of(lengths, tokens)),
    }


def cost(given: Inputs) -> Cost:
    """Read a byte a bit and the lengths, write a bit a bit."""
    read = tensor(given, "mask").nbytes + tensor(given, "prefix_lens").nbytes
    return Cost(flops=0, read_bytes=read, written_bytes=number(given, "packed_bytes"))


OP = Op(
    name="mask_pack",
    part="metadata",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(*_mask_layout.tiny_cases(), *_mask_layout.measured_cases()),
    tolerance=Tolerance(row=0.0, why="bits"),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_pack(
    *, mask: torch.Tensor, prefix_lens: torch.Tensor, draft_tokens: int, packed_bytes: int
) -> Outputs:
    """Gather eight bools a byte and add them up, weighted; lengths stay on the device."""
    must_fit(
        mask=mask, prefix_lens=prefix_lens, draft_tokens=draft_tokens, packed_bytes=packed_bytes
    )
    packed = pack_with_torch(
        mask, prefix_lens, draft_tokens=draft_tokens, packed_bytes=packed_bytes
    )
    return {"packed": packed}


def pack_with_torch(
    mask: torch.Tensor, prefix_lens: torch.Tensor, *, draft_tokens: int, packed_bytes: int
) -> torch.Tensor:
    """Return the packed mask by torch alone, without waiting for the device."""
    bits = (prefix_lens.long().clamp_(min=0) + draft_tokens) * draft_tokens
    last_bit, last_byte = bits.cumsum(0), ((bits + 7) // 8).cumsum(0)
    byte = torch.arange(packed_bytes, device=mask.device)
    request = torch.searchsorted(last_byte, byte, right=True).clamp_(max=len(bits) - 1)
    first_bit = last_bit - bits
    first_byte = last_byte - (bits + 7) // 8
    bit = torch.arange(8, device=mask.device)
    at = (first_bit[request] + 8 * (byte - first_byte[request]))[:, None] + bit  # [bytes, 8]
    there = at < last_bit[request][:, None]
    seen = mask[at.clamp_(max=len(mask) - 1)] & there
    return (seen << bit).sum(1).to(torch.uint8)
