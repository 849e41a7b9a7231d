"""Slots sorted by expert and padded to blocks, in Triton: for any op with a grouped GEMM.

What is filled, and with what: `_align_layout`. One launch, whatever the size: each program counts
all ids by expert for itself (they are a few KB in L2), so that none waits for another, and places
some of the slots:

    place of slot n = sum_{e < ids[n]} padded count of e  +  how many slots before n have its expert

Counts and ranks are whole numbers: the same ids give the same order each time, whatever runs first.
"""

import torch
import triton
import triton.language as tl

from kernels.moe._align_layout import must_fit

_ROWS = 16  # slots a program places
_COUNTED = 1024  # ids counted at once, at most
_RANKED = 128  # ids a slot is compared with at once
_FILLED = 512  # cells past the last block, written at once
_WARPS = 4
_THREADS = 32 * _WARPS


@triton.jit(do_not_specialize=("slots", "capacity"))
def _align(
    ids_ptr, sorted_slots_ptr, block_experts_ptr, padded_count_ptr, slots, capacity,
    EXPERTS: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr, COUNTED: tl.constexpr,
    RANKED: tl.constexpr, FILLED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    expert = tl.arange(0, BINS)
    counts = tl.zeros([BINS], tl.int32)
    for start in range(0, slots, COUNTED):
        at = start + tl.arange(0, COUNTED)
        one = tl.load(ids_ptr + at, mask=at < slots, other=-1)
        counts += tl.histogram(one, BINS, mask=(one >= 0) & (one < EXPERTS))
    padded = tl.cdiv(counts, BLOCK) * BLOCK  # [BINS]
    total = tl.sum(padded, 0)

    slot = program * ROWS + tl.arange(0, ROWS)
    mine = tl.load(ids_ptr + slot, mask=slot < slots, other=-1)
    live = (mine >= 0) & (mine < EXPERTS)
    begin = tl.sum(tl.where(expert[None, :] < mine[:, None], padded[None, :], 0), 1)
    count = tl.sum(tl.where(expert[None, :] == mine[:, None], counts[None, :], 0), 1)
    rank = tl.zeros([ROWS], tl.int32)
    for start in range(0, tl.minimum((program + 1) * ROWS, slots), RANKED):
        at = start + tl.arange(0, RANKED)
        one = tl.load(ids_ptr + at, mask=at < slots, other=-1)
        before = (one[None, :] == mine[:, None]) & (at[None, :] < slot[:, None])  # [ROWS, RANKED]
        rank += tl.sum(before.to(tl.int32), 1)
    place = begin + rank
    tl.store(sorted_slots_ptr + place, slot, mask=live)
    tl.store(block_experts_ptr + place // BLOCK, mine, mask=live & (rank % BLOCK == 0))
    # The last slot of an expert pads the rest of its block.
    behind = place[:, None] + 1 + tl.arange(0, BLOCK)[None, :]  # [ROWS, BLOCK]
    end = begin + tl.cdiv(count, BLOCK) * BLOCK
    pads = (live & (rank == count - 1))[:, None] & (behind < end[:, None])
    tl.store(sorted_slots_ptr + behind, tl.zeros_like(behind) + slots, mask=pads)

    step = tl.num_programs(0) * FILLED
    for start in range(total + program * FILLED, capacity, step):
        at = start + tl.arange(0, FILLED)
        tl.store(sorted_slots_ptr + at, tl.zeros_like(at) + slots, mask=at < capacity)
    for start in range(total // BLOCK + program * FILLED, capacity // BLOCK, step):
        at = start + tl.arange(0, FILLED)
        tl.store(
            block_experts_ptr + at, tl.full([FILLED], -1, tl.int32), mask=at < capacity // BLOCK
        )
    tl.store(padded_count_ptr, total, mask=program == 0)


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
    counted = min(_COUNTED, max(_THREADS, triton.next_power_of_2(slots)))
    _align[(triton.cdiv(slots, _ROWS),)](
        ids, sorted_slots, block_experts, padded_count, slots, sorted_slots.numel(),
        EXPERTS=experts, BLOCK=block, BINS=max(32, triton.next_power_of_2(experts)),
        COUNTED=counted, RANKED=_RANKED, FILLED=_FILLED, ROWS=_ROWS, num_warps=_WARPS,
    )  # fmt: skip
