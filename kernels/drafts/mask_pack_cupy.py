"""`mask_pack` in CUDA C++: a warp reads 32 bools side by side, and a ballot is their four bytes."""

import numpy as np
import torch

from kernels import Needs, Outputs
from kernels._raw import RawKernel
from kernels.drafts import _mask_layout
from kernels.drafts._mask_cupy import DEVICE_CODE, THREADS
from kernels.drafts.mask_pack import OP, must_fit

_PACK = """
extern "C" __global__ void __launch_bounds__(128) pack_mask(
    const unsigned char* mask, const int* prefix_lens, unsigned char* packed, const int tokens,
    const long long mask_bits, const long long packed_bytes) {
  const int request = blockIdx.y, lane = threadIdx.x % 32;
  const long long first = units_before(prefix_lens, request, tokens, 1);
  const long long start = units_before(prefix_lens, request, tokens, 8);
  const long long bits = tokens * columns(prefix_lens, request, tokens);
  const long long count = min((bits + 7) / 8, packed_bytes - start);
  const long long there = min(bits, mask_bits - first);
  const unsigned char* const mine = mask + first + lane;
  unsigned char* const to = packed + start + lane;
  const long long warps = gridDim.x * blockDim.x / 32;
  // Lane n stores byte n of four: it writes little, but a warp reads 32 bytes for it.
#pragma unroll 2
  for (long long byte = 4 * (long long)((blockIdx.x * blockDim.x + threadIdx.x) / 32);
       byte < count; byte += 4 * warps) {
    const bool seen = 8 * byte + lane < there && mine[8 * byte] != 0;
    const unsigned word = __ballot_sync(~0u, seen);
    if (lane < 4 && byte + lane < count) to[byte] = word >> 8 * lane;
  }
}
"""

_KERNEL = RawKernel("pack_mask", DEVICE_CODE + _PACK)


@OP.implementation("cupy", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",)))
def cupy_pack(
    *, mask: torch.Tensor, prefix_lens: torch.Tensor, draft_tokens: int, packed_bytes: int
) -> Outputs:
    """Launch once, on a grid that the room decides and not the lengths."""
    requests = must_fit(
        mask=mask, prefix_lens=prefix_lens, draft_tokens=draft_tokens, packed_bytes=packed_bytes
    )
    packed = torch.empty(packed_bytes, dtype=torch.uint8, device=mask.device)
    parts = _mask_layout.parts_of_a_row(room_bytes=len(mask), rows=requests, device=mask.device)
    _KERNEL(
        (parts, requests), (THREADS,),
        mask.view(torch.uint8), prefix_lens, packed, np.int32(draft_tokens), len(mask),
        packed_bytes,
    )  # fmt: skip
    return {"packed": packed}
