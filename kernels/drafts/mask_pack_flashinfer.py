"""`mask_pack` by FlashInfer's `segment_packbits`, told the bit order that its kernels read.

Its default order is "big", which makes a mask that is wrong without an error. The offsets of the
requests are the plan: int32, in bits, made once for these lengths. A call reads how many bytes come
out from the device, so it cannot be captured into a graph; the record says so.

Refused: masks of 2^31 bits and more, which its int32 offsets do not hold.
Source: signature and Python of FlashInfer 0.6.18.post1; 0.7 by `_flashinfer`.
"""

from __future__ import annotations

import torch

from kernels import Case, Needs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.attention import _flashinfer_lists, _paged
from kernels.drafts import _mask_layout
from kernels.drafts.mask_pack import OP, must_fit

PACK = Call(function="segment_packbits", needed=("x", "indptr", "bitorder"))
CALLS = (PACK,)


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot pack this mask."""
    bits = _mask_layout.bits_of(_paged.prefix_lengths(case), case.number("rows"))
    return _flashinfer_lists.mask_too_large(sum(bits)) or _flashinfer.why_not(CALLS)


NEEDS = Needs(capabilities=(80, 90, 100, 110, 120), packages=("flashinfer",), refuses=refuses)


@OP.prepared_implementation("flashinfer", kind="baseline-direct", needs=NEEDS)
def flashinfer_pack(
    *, mask: torch.Tensor, prefix_lens: torch.Tensor, draft_tokens: int, packed_bytes: int
) -> Prepared:
    """Prepare the offsets for these lengths; a call packs."""
    must_fit(
        mask=mask, prefix_lens=prefix_lens, draft_tokens=draft_tokens, packed_bytes=packed_bytes
    )
    library = _flashinfer.installed()
    pack = PACK.find(library)
    offsets = offsets_of(prefix_lens, draft_tokens)
    given = PACK.accepted(library, x=mask, indptr=offsets, bitorder="little").kwargs

    def call() -> Outputs:
        return {"packed": pack(**given)[0]}

    facts = {"flashinfer": _flashinfer.version(library), "bitorder": "little"}
    return Prepared(call=call, facts=facts)


def offsets_of(prefix_lens: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return where each request's bits begin, int32; ValueError where they are too many for it."""
    bits = _flashinfer_lists.countable_bits(prefix_lens.tolist(), tokens)
    return _flashinfer_lists.indptr(bits, prefix_lens.device)
