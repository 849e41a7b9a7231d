"""`mask_expand_packed` in CUDA C++: bytes within a row's prefix are filled, the rest put together.

A byte belongs to the row that its lowest bit lies in. Of those of a row, the ones that hold nothing
but prefix are filled by several blocks; the few left hold drafts and perhaps the beginning of the
next rows, and the last block puts them together bit by bit.
"""

import numpy as np
import torch

from kernels import Needs, Outputs
from kernels._raw import RawKernel
from kernels.drafts import _mask_layout
from kernels.drafts._mask_cupy import DEVICE_CODE, THREADS
from kernels.drafts.mask_expand_packed import OP

_EXPAND = """
extern "C" __global__ void __launch_bounds__(128) expand_packed(
    const int* mask_words, const int* prefix_lens, unsigned char* packed, const int tokens,
    const long long packed_bytes) {
  const int row = blockIdx.y, request = blockIdx.z;
  const long long row_bits = columns(prefix_lens, request, tokens), length = row_bits - tokens;
  const long long start = units_before(prefix_lens, request, tokens, 8);
  const long long bit = row * row_bits;  // of the request, where the row begins
  const long long first = (bit + 7) / 8, last = (bit + row_bits + 7) / 8;
  const long long mixed = max(first, (bit + length) / 8);  // from here on more than prefix
  const long long room = packed_bytes - start;
  fill_share(packed, start + first, start + min(mixed, room), 255);
  if (blockIdx.x != gridDim.x - 1) return;
  for (long long byte = mixed + threadIdx.x; byte < min(last, room); byte += blockDim.x) {
    int of_row = row;
    long long column = 8 * byte - bit;
    unsigned value = 0;
    for (int n = 0; n < 8; n++, column++) {
      if (column >= row_bits) {
        of_row++;
        column = 0;
      }
      if (of_row >= tokens) break;
      const bool seen = column < length ||
          (mask_words[request * tokens + of_row] >> (column - length) & 1);
      value |= unsigned(seen) << n;
    }
    packed[start + byte] = value;
  }
}
"""

_KERNEL = RawKernel("expand_packed", DEVICE_CODE + _EXPAND)


@OP.implementation("cupy", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",)))
def cupy_expand_packed(
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
    _KERNEL(
        (parts, tokens, requests), (THREADS,),
        mask_words, prefix_lens, packed, np.int32(tokens), packed_bytes,
    )  # fmt: skip
    return {"packed": packed}
