"""`mask_expand` in Triton: a row's prefix is filled by several programs, its drafts by the last."""

import torch
import triton
import triton.language as tl

from kernels import Needs, Outputs
from kernels.drafts import _mask_layout
from kernels.drafts._mask_triton import columns_of, fill_share, units_before
from kernels.drafts.mask_expand import OP, empty_mask

_BLOCK = 2048  # bytes; 16 a thread of four warps


@triton.jit
def _expand_mask(
    mask_words_ptr, prefix_lens_ptr, mask_ptr, tokens, mask_bits,
    BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1)
    request = tl.program_id(2)
    columns = columns_of(prefix_lens_ptr, request, tokens)
    first = units_before(prefix_lens_ptr, request, tokens, 1, BLOCK_B) + row * columns
    drafts = first + columns - tokens
    fill_share(mask_ptr, first, tl.minimum(drafts, mask_bits), 1, BLOCK)
    draft = tl.arange(0, BLOCK_T)
    word = tl.load(mask_words_ptr + request * tokens + row)
    seen = (word >> draft) & 1
    last = tl.program_id(0) == tl.num_programs(0) - 1
    inside = (draft < tokens) & (drafts + draft < mask_bits) & last
    tl.store(mask_ptr + drafts + draft, seen.to(tl.uint8), mask=inside)


@OP.implementation("triton", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",)))
def triton_expand(
    *, mask_words: torch.Tensor, prefix_lens: torch.Tensor, mask_bits: int
) -> Outputs:
    """Launch once, on a grid that the room decides and not the lengths."""
    requests, tokens = _mask_layout.must_fit(
        mask_words=mask_words, prefix_lens=prefix_lens, room=mask_bits, name="mask_bits"
    )
    mask = empty_mask(mask_bits, mask_words.device)
    parts = _mask_layout.parts_of_a_row(
        room_bytes=mask_bits, rows=requests * tokens, device=mask.device
    )
    _expand_mask[(parts, tokens, requests)](
        mask_words, prefix_lens, mask, tokens, mask_bits,
        BLOCK_B=triton.next_power_of_2(requests), BLOCK_T=triton.next_power_of_2(tokens),
        BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return {"mask": mask.view(torch.bool)}
