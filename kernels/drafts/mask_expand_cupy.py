"""`mask_expand` in CUDA C++: a row's prefix is filled by several blocks, its drafts by the last."""

import numpy as np
import torch

from kernels import Needs, Outputs
from kernels._raw import RawKernel
from kernels.drafts import _mask_layout
from kernels.drafts._mask_cupy import DEVICE_CODE, THREADS
from kernels.drafts.mask_expand import OP, empty_mask

_EXPAND = """
extern "C" __global__ void __launch_bounds__(128) expand_mask(
    const int* mask_words, const int* prefix_lens, unsigned char* mask, const int tokens,
    const long long mask_bits) {
  const int row = blockIdx.y, request = blockIdx.z;
  const long long length = columns(prefix_lens, request, tokens) - tokens;
  const long long first =
      units_before(prefix_lens, request, tokens, 1) + row * (length + tokens);
  fill_share(mask, first, min(first + length, mask_bits), 1);
  if (blockIdx.x != gridDim.x - 1 || threadIdx.x >= tokens) return;
  const long long at = first + length + threadIdx.x;
  if (at < mask_bits) mask[at] = mask_words[request * tokens + row] >> threadIdx.x & 1;
}
"""

_KERNEL = RawKernel("expand_mask", DEVICE_CODE + _EXPAND)


@OP.implementation("cupy", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",)))
def cupy_expand(*, mask_words: torch.Tensor, prefix_lens: torch.Tensor, mask_bits: int) -> Outputs:
    """Launch once, on a grid that the room decides and not the lengths."""
    requests, tokens = _mask_layout.must_fit(
        mask_words=mask_words, prefix_lens=prefix_lens, room=mask_bits, name="mask_bits"
    )
    mask = empty_mask(mask_bits, mask_words.device)
    parts = _mask_layout.parts_of_a_row(
        room_bytes=mask_bits, rows=requests * tokens, device=mask.device
    )
    _KERNEL(
        (parts, tokens, requests), (THREADS,),
        mask_words, prefix_lens, mask, np.int32(tokens), mask_bits,
    )  # fmt: skip
    return {"mask": mask.view(torch.bool)}
