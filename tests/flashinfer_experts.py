"""What FlashInfer's experts compute, in float64 from what they are handed.

Nibbles are signed, up comes first. Written apart from `kernels/moe`, from the layouts that the
wheels document, so that an adapter that forgets a conversion gives another result here.
"""

import functools
from collections.abc import Callable

import torch

Unpack = Callable[[int], tuple[torch.Tensor, torch.Tensor]]  # expert -> [2 I, H], [H, I]


def experts(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, *, count: int, unpack: Unpack
) -> torch.Tensor:
    """Return y, float64: the rows of up come first; ids that name none of `count` are skipped."""
    y, unpacked = torch.zeros(x.shape, dtype=torch.float64), functools.cache(unpack)
    for token, row in enumerate(ids.tolist()):
        for choice, expert in enumerate(row):
            if 0 <= expert < count:
                first, second = unpacked(expert)
                up, gate = (first.double() @ x[token].double()).chunk(2)
                middle = (gate * gate.sigmoid() * up).bfloat16().double()
                y[token] += float(weights[token, choice]) * (second.double() @ middle)
    return y


def signed(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return what two's complement nibbles [N, K / 2], even k in the low one, mean: [N, K]."""
    codes = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2).long()
    codes = torch.where(codes >= 8, codes - 16, codes)
    return codes.double() * scales.double().repeat_interleave(32, dim=-1)


def shuffled_rows(count: int) -> torch.Tensor:
    """Return which row stands where in a matrix that is shuffled for a tile of 128.

    In each 32 rows, row 4 b + a goes to place 8 a + b.
    """
    place = torch.arange(count)
    within = place % 32
    return place - within + 4 * (within % 8) + within // 8


def interleaved(scales: torch.Tensor) -> torch.Tensor:
    """Return scales [M, K] in tiles of 128 x 4, flat: row r, column c at (r % 32, r // 32, c)."""
    rows, columns = scales.shape
    tiles = scales.view(rows // 128, 4, 32, columns // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1)


def uninterleaved(flat: torch.Tensor, *, rows: int, columns: int) -> torch.Tensor:
    """Return scales [M, K] of what `interleaved` gives."""
    tiles = flat.view(rows // 128, columns // 4, 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, columns)


def trtllm_rows(
    blocks: torch.Tensor, scales: torch.Tensor, *, gated: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return nibbles [N, K / 2] and scales [N, K / 32] of an expert as trtllm-gen reads them.

    blocks [K / 256, N, 128] bytes of shuffled rows; where `gated`, rows of up and gate alternate.
    """
    count, row_bytes = blocks.shape[1], blocks.shape[0] * blocks.shape[2]
    packed = blocks.permute(1, 0, 2).reshape(count, row_bytes)
    rows = uninterleaved(scales, rows=count, columns=row_bytes // 16)
    back = shuffled_rows(count).argsort()
    packed, rows = packed[back], rows[back]
    if gated:
        apart = torch.cat([torch.arange(0, count, 2), torch.arange(1, count, 2)])
        packed, rows = packed[apart], rows[apart]
    return packed, rows
