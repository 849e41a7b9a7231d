"""Slots sorted by expert and padded to blocks, in CUDA C++: for any op with a grouped GEMM.

What is filled, and with what: `_align_layout`. One launch, whatever the size: each block of threads
counts all ids by expert for itself (they are a few KB in L2), so that none waits for another, and
places some of the slots, a warp each:

    place of slot n = sum_{e < ids[n]} padded count of e  +  how many slots before n have its expert

Counts and ranks are whole numbers, and what an atomic add returns is not used: the same ids give
the same order each time, whatever runs first.
"""

import numpy as np
import torch

from kernels._raw import RawKernel
from kernels.moe._align_layout import MOST_EXPERTS, must_fit

_ROWS = 16  # slots a block of threads places
_WARPS = 4
_THREADS = 32 * _WARPS

_ALIGN = (
    f"""
#define MOST_EXPERTS {MOST_EXPERTS}
#define ROWS {_ROWS}
#define THREADS {_THREADS}
"""
    + """
extern "C" __global__ void __launch_bounds__(THREADS) align(
    const int* ids, int* sorted_slots, int* block_experts, int* padded_count, const int slots,
    const int experts, const int block, const int capacity) {
  SHARED_ARRAY(int, counts, MOST_EXPERTS);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int shift = __ffs(block) - 1;  // a power of two: no division
  const auto padded = [=](const int count) { return (count + block - 1) & -block; };
  for (int e = threadIdx.x; e < experts; e += THREADS) counts[e] = 0;
  __syncthreads();
  for (int n = threadIdx.x; n < slots; n += THREADS) {
    const int id = ids[n];
    if (id >= 0 && id < experts) atomicAdd(&counts[id], 1);
  }
  __syncthreads();
  int total = 0;
  for (int e = lane; e < experts; e += 32) total += padded(counts[e]);
  total = __reduce_add_sync(~0u, total);

  const int first = blockIdx.x * ROWS;
  for (int slot = first + warp; slot < min(first + ROWS, slots); slot += THREADS / 32) {
    const int id = ids[slot];
    if (id < 0 || id >= experts) continue;
    int begin = 0, rank = 0;
    for (int e = lane; e < id; e += 32) begin += padded(counts[e]);
#pragma unroll 4
    for (int n = lane; n < slot; n += 32) rank += ids[n] == id;
    begin = __reduce_add_sync(~0u, begin);
    rank = __reduce_add_sync(~0u, rank);
    const int place = begin + rank, count = counts[id];
    if (lane == 0) {
      sorted_slots[place] = slot;
      if ((rank & (block - 1)) == 0) block_experts[place >> shift] = id;
    }
    // The last slot of an expert pads the rest of its block.
    if (rank == count - 1)
      for (int at = place + 1 + lane; at < begin + padded(count); at += 32)
        sorted_slots[at] = slots;
  }
  const int thread = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
  for (int at = total + thread; at < capacity; at += step) sorted_slots[at] = slots;
  for (int at = (total >> shift) + thread; at < capacity >> shift; at += step)
    block_experts[at] = -1;
  if (thread == 0) *padded_count = total;
}
"""
)

_KERNEL = RawKernel("align", _ALIGN)


def align(
    ids: torch.Tensor,
    *,
    experts: int,
    block: int,
    sorted_slots: torch.Tensor,
    block_experts: torch.Tensor,
    padded_count: torch.Tensor,
) -> None:
    """Fill the three tensors, of the sizes that `_align_layout` gives, in one launch.

    ValueError for ids, a number of experts or a block that are not what it takes.
    """
    must_fit(ids, experts=experts, block=block)
    slots = ids.numel()
    _KERNEL(
        (-(-slots // _ROWS),), (_THREADS,),
        ids, sorted_slots, block_experts, padded_count,
        np.int32(slots), np.int32(experts), np.int32(block), np.int32(sorted_slots.numel()),
    )  # fmt: skip
