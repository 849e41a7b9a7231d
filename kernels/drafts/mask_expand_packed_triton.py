"""`mask_expand_packed` in Triton: bytes within a row's prefix are filled, the others put together.

A byte belongs to the row that its lowest bit lies in. Of those of a row, the ones that hold nothing
but prefix are filled by several programs; the few left hold drafts and perhaps the beginning of the
next rows, and the last program puts them together bit by bit.
"""

import torch
import triton
import triton.language as tl

from kernels import Needs, Outputs
from kernels.drafts import _mask_layout
from kernels.drafts._mask_triton import columns_of, fill_share, units_before
from kernels.drafts.mask_expand_packed import OP

_BLOCK = 2048  # bytes; 16 a thread of four warps


@triton.jit
def _expand_packed(
    mask_words_ptr, prefix_lens_ptr, packed_ptr, tokens, packed_bytes,
    BLOCK_B: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1)
    request = tl.program_id(2)
    columns = columns_of(prefix_lens_ptr, request, tokens)
    length = columns - tokens
    start = units_before(prefix_lens_ptr, request, tokens, 8, BLOCK_B)
    bit = row * columns  # of the request, where the row begins
    first = (bit + 7) // 8
    last = (bit + columns + 7) // 8
    mixed = tl.maximum(first, (bit + length) // 8)  # from here on a byte holds more than prefix
    room = packed_bytes - start
    fill_share(packed_ptr, start + first, start + tl.minimum(mixed, room), 255, BLOCK)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        byte = mixed + tl.arange(0, BLOCK_K)  # int64 [BLOCK_K]
        there = (byte < last) & (byte < room)
        of_row = tl.zeros([BLOCK_K], tl.int32) + row
        column = byte * 8 - bit
        value = tl.zeros([BLOCK_K], tl.int32)
        for n in tl.static_range(8):
            over = column >= columns
            of_row = tl.where(over, of_row + 1, of_row)
            column = tl.where(over, 0, column)
            draft = column - length
            asks = there & (draft >= 0) & (of_row < tokens)
            word = tl.load(mask_words_ptr + request * tokens + of_row, mask=asks, other=0)
            drawn = (word >> tl.maximum(draft, 0).to(tl.int32)) & 1
            seen = tl.where(draft < 0, 1, drawn)
            value |= tl.where(of_row < tokens, seen, 0) << n
            column += 1
        tl.store(packed_ptr + start + byte, value.to(tl.uint8), mask=there)


@OP.implementation("triton", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",)))
def triton_expand_packed(
    *, mask_words: torch.Tensor, prefix_lens: torch.Tensor, packed_bytes: int
) -> Outputs:
    """Launch once, on a grid that the room decides and not the lengths."""
    requests, tokens = _mask_layout.must_fit(
        mask_words=mask_words, prefix_lens=prefix_lens, room=packed_bytes, name="packed_bytes"
    )
    packed = torch.empty(packed_bytes, dtype=torch.uint8, device=mask_words.device)
    parts = _mask_layout.parts_of_a_row(
        room_bytes=packed_bytes, rows=requests * tokens, device=packed.device
    )
    _expand_packed[(parts, tokens, requests)](
        mask_words, prefix_lens, packed, tokens, packed_bytes,
        BLOCK_B=triton.next_power_of_2(requests),
        BLOCK_K=triton.next_power_of_2(_mask_layout.mixed_bytes(tokens)),
        BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return {"packed": packed}
