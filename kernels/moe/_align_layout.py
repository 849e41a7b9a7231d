"""The order in which a grouped GEMM reads routed slots: sorted by expert, padded to blocks.

A slot is one choice of a token: slot t k + j is ids[t, j], of N = T k. An expert's slots stand
together, in rising order; each expert begins at a multiple of `block`. What is left of its last
block holds N, which is no slot.

    sorted_slots   int32 [capacity]          slots and padding; past `padded_count` padding alone
    block_experts  int32 [capacity / block]  the expert of each block; -1 past `padded_count`
    padded_count   int32 [1]                 slots and padding of the blocks in use

    capacity = (min(N, E) + N // block) * block

which no ids can exceed: an expert with c slots needs c // block blocks and at most one more.

Source: the layout that moe_align_block_size of SGLang and vLLM gives, with two differences: the
capacity is exact, and a block without an expert says -1 (vllm#35161: 0 ran expert 0).
"""

import torch

NO_EXPERT = -1
MOST_EXPERTS = 512
MOST_TOP_K = 16
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def capacity_of(*, slots: int, experts: int, block: int) -> int:
    """Return how many cells `sorted_slots` has; no ids need more."""
    return (min(slots, experts) + slots // block) * block


def empty_outputs(ids: torch.Tensor, *, experts: int, block: int) -> dict[str, torch.Tensor]:
    """Allocate `sorted_slots`, `block_experts` and `padded_count`; ValueError as `must_fit`."""
    must_fit(ids, experts=experts, block=block)
    capacity = capacity_of(slots=ids.numel(), experts=experts, block=block)
    return {
        "sorted_slots": ids.new_empty(capacity, dtype=torch.int32),
        "block_experts": ids.new_empty(capacity // block, dtype=torch.int32),
        "padded_count": ids.new_empty(1, dtype=torch.int32),
    }


def must_fit(ids: torch.Tensor, *, experts: int, block: int) -> None:
    """Raise ValueError for ids, a number of experts or a block that the op does not take."""
    if ids.dtype != torch.int32 or ids.dim() != 2 or not ids.is_contiguous():
        raise ValueError(
            f"ids are {ids.dtype} of {tuple(ids.shape)}, strides {ids.stride()}: give a "
            f"contiguous int32 tensor, [tokens, top_k]"
        )
    if not 1 <= ids.shape[1] <= MOST_TOP_K or not len(ids):
        raise ValueError(
            f"ids are of {tuple(ids.shape)}: give at least one token and 1 to {MOST_TOP_K} a token"
        )
    if not 1 <= experts <= MOST_EXPERTS:
        raise ValueError(f"{experts} experts: give 1 to {MOST_EXPERTS}")
    if block not in BLOCKS:
        raise ValueError(f"a block of {block}: give one of {', '.join(map(str, BLOCKS))}")
