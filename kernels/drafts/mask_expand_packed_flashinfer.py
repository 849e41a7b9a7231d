"""`mask_expand_packed` as an engine has it with FlashInfer: bools by torch, then segment_packbits.

The bool mask is made in the call, the offsets of the requests in the plan. For what is refused, and
why it cannot be captured, see `mask_pack_flashinfer`.
"""

import torch

from kernels import Outputs, Prepared, _flashinfer
from kernels.drafts import _mask_layout
from kernels.drafts.mask_expand import expand_with_torch
from kernels.drafts.mask_expand_packed import OP
from kernels.drafts.mask_pack_flashinfer import NEEDS, PACK, offsets_of

CALLS = (PACK,)


@OP.prepared_implementation("flashinfer", kind="baseline-composed", needs=NEEDS)
def flashinfer_expand_packed(
    *, mask_words: torch.Tensor, prefix_lens: torch.Tensor, packed_bytes: int
) -> Prepared:
    """Prepare the offsets for these lengths; a call fills, scatters and packs."""
    _, tokens = _mask_layout.must_fit(
        mask_words=mask_words, prefix_lens=prefix_lens, room=packed_bytes, name="packed_bytes"
    )
    library = _flashinfer.installed()
    pack = PACK.find(library)
    offsets = offsets_of(prefix_lens, tokens)
    bits = int(offsets[-1])

    def call() -> Outputs:
        mask = expand_with_torch(mask_words, prefix_lens, mask_bits=bits)
        given = PACK.accepted(library, x=mask, indptr=offsets, bitorder="little").kwargs
        return {"packed": pack(**given)[0]}

    facts = {"flashinfer": _flashinfer.version(library), "bitorder": "little"}
    return Prepared(call=call, facts=facts)
