"""`mask_pack` in Triton: eight bools a byte as the columns of a tile, added up with their worth."""

import torch
import triton
import triton.language as tl

from kernels import Needs, Outputs
from kernels.drafts import _mask_layout
from kernels.drafts._mask_triton import columns_of, units_before
from kernels.drafts.mask_pack import OP, must_fit

_BLOCK = 512  # bytes written, eight times as many read


@triton.jit
def _pack_mask(
    mask_ptr, prefix_lens_ptr, packed_ptr, tokens, mask_bits, packed_bytes,
    BLOCK_B: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(1)
    bits = columns_of(prefix_lens_ptr, request, tokens) * tokens
    first = units_before(prefix_lens_ptr, request, tokens, 1, BLOCK_B)
    start = units_before(prefix_lens_ptr, request, tokens, 8, BLOCK_B)
    count = tl.minimum((bits + 7) // 8, packed_bytes - start)
    bits = tl.minimum(bits, mask_bits - first)
    bit = tl.arange(0, 8)
    step = tl.num_programs(0) * BLOCK
    for begin in range(tl.program_id(0) * BLOCK, count, step):
        byte = begin + tl.arange(0, BLOCK)
        at = byte[:, None] * 8 + bit[None, :]  # [BLOCK, 8]
        seen = tl.load(mask_ptr + first + at, mask=at < bits, other=0).to(tl.int32)
        value = tl.sum(tl.where(seen != 0, 1, 0) << bit[None, :], 1)
        tl.store(packed_ptr + start + byte, value.to(tl.uint8), mask=byte < count)


@OP.implementation("triton", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",)))
def triton_pack(
    *, mask: torch.Tensor, prefix_lens: torch.Tensor, draft_tokens: int, packed_bytes: int
) -> Outputs:
    """Launch once, on a grid that the room decides and not the lengths."""
    requests = must_fit(
        mask=mask, prefix_lens=prefix_lens, draft_tokens=draft_tokens, packed_bytes=packed_bytes
    )
    packed = torch.empty(packed_bytes, dtype=torch.uint8, device=mask.device)
    parts = _mask_layout.parts_of_a_row(room_bytes=len(mask), rows=requests, device=mask.device)
    _pack_mask[(parts, requests)](
        mask.view(torch.uint8), prefix_lens, packed, draft_tokens, len(mask), packed_bytes,
        BLOCK_B=triton.next_power_of_2(requests), BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return {"packed": packed}
