"""Slots sorted by expert and padded to blocks, in CUDA C++: for any op with a grouped GEMM.

What is filled, and with what: `_align_layout`. One launch, whatever the size: each block of threads
counts all ids by expert for itself (they are a few KB in L2), so that none waits for another, and
places some of the slots, a warp each:

    place of slot n = sum_{e < ids[n]} padded count of e  +  how many slots before n have its expert

Counts and ranks are whole numbers, and what an atomic add returns is not used: the same ids give
the same order each time, whatever runs first.
"""

from functools import cache

import numpy as np
import torch

from kernels._raw import RawKernel

_ROWS = 16  # slots a block of threads places
_WARPS = 4
_THREADS = 32 * _WARPS

_ALIGN = """
__device__ int padded(const int count) { return (count + BLOCK - 1) / BLOCK * BLOCK; }

extern "C" __global__ void __launch_bounds__(THREADS) align(
    const int* ids, int* sorted_slots, int* block_experts, int* padded_count, const int slots,
    const int capacity) {
  SHARED_ARRAY(int, counts, EXPERTS);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int e = threadIdx.x; e < EXPERTS; e += THREADS) counts[e] = 0;
  __syncthreads();
  for (int n = threadIdx.x; n < slots; n += THREADS) {
    const int id = ids[n];
    if (id >= 0 && id < EXPERTS) atomicAdd(&counts[id], 1);
  }
  __syncthreads();
  int total = 0;
  for (int e = lane; e < EXPERTS; e += 32) total += padded(counts[e]);
  total = __reduce_add_sync(~0u, total);

  const int first = blockIdx.x * ROWS;
  for (int slot = first + warp; slot < min(first + ROWS, slots); slot += THREADS / 32) {
    const int id = ids[slot];
    if (id < 0 || id >= EXPERTS) continue;
    int begin = 0, rank = 0;
    for (int e = lane; e < id; e += 32) begin += padded(counts[e]);
#pragma unroll 4
    for (int n = lane; n < slot; n += 32) rank += ids[n] == id;
    begin = __reduce_add_sync(~0u, begin);
    rank = __reduce_add_sync(~0u, rank);
    const int place = begin + rank, count = counts[id];
    if (lane == 0) {
      sorted_slots[place] = slot;
      if (rank % BLOCK == 0) block_experts[place / BLOCK] = id;
    }
    // The last slot of an expert pads the rest of its block.
    if (rank == count - 1)
      for (int at = place + 1 + lane; at < begin + padded(count); at += 32)
        sorted_slots[at] = slots;
  }
  const int thread = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
  for (int at = total + thread; at < capacity; at += step) sorted_slots[at] = slots;
  for (int at = total / BLOCK + thread; at < capacity / BLOCK; at += step) block_experts[at] = -1;
  if (thread == 0) *padded_count = total;
}
"""


@cache
def _align_kernel(*, experts: int, block: int) -> RawKernel:
    constants = (
        f"#define EXPERTS {experts}\n#define BLOCK {block}\n"
        f"#define ROWS {_ROWS}\n#define THREADS {_THREADS}\n"
    )
    return RawKernel("align", constants + _ALIGN)


def align(
    ids: torch.Tensor,
    *,
    experts: int,
    block: int,
    sorted_slots: torch.Tensor,
    block_experts: torch.Tensor,
    padded_count: torch.Tensor,
) -> None:
    """Fill the three tensors, of the sizes that `_align_layout` gives, in one launch."""
    slots = ids.numel()
    _align_kernel(experts=experts, block=block)(
        (-(-slots // _ROWS),), (_THREADS,),
        ids, sorted_slots, block_experts, padded_count,
        np.int32(slots), np.int32(sorted_slots.numel()),
    )  # fmt: skip
