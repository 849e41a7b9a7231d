"""`tree_build` in Triton: one warp a request, all pairs of its nodes at once.

T is at most 32, so a [T, T] comparison is 32 values a thread and nothing goes through memory.
Ancestors are found by pointer doubling: in round n each node takes over what the node 2^n above it
sees, and jumps as far again.
"""

import torch
import triton
import triton.language as tl

from kernels import Needs, Outputs
from kernels.drafts.tree_build import OP, OUTPUTS, must_fit


@triton.jit
def _pick(values, at, node):
    """Return values[at[i]] for each i; 0 where `at` is no node."""
    return tl.sum(tl.where(at[:, None] == node[None, :], values[None, :], 0), 1)


@triton.jit
def _build_tree(
    parents_ptr, prefix_lens_ptr, positions_ptr, mask_words_ptr, first_child_ptr, next_sibling_ptr,
    tokens, BLOCK_T: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, BLOCK_T)
    there = node < tokens
    at = request * tokens + node
    given = tl.load(parents_ptr + at, mask=there, other=-1)
    some = (given >= 0) & (given < node)
    parent = tl.where(some, given, -1)
    other = node[None, :]
    is_child = parent[None, :] == node[:, None]  # [BLOCK_T, BLOCK_T]
    child = tl.min(tl.where(is_child, other, BLOCK_T), 1)
    is_later = (parent[None, :] == parent[:, None]) & some[:, None] & (other > node[:, None])
    sibling = tl.min(tl.where(is_later, other, BLOCK_T), 1)
    word = 1 << node
    up = parent
    for _ in tl.static_range(ROUNDS):
        word = word | _pick(word, up, node)
        up = tl.where(up >= 0, _pick(up, up, node), -1)
    depth = tl.sum((word[:, None] >> other) & 1, 1) - 1
    prefix = tl.load(prefix_lens_ptr + request)
    tl.store(positions_ptr + at, prefix + depth, mask=there)
    tl.store(mask_words_ptr + at, word, mask=there)
    tl.store(first_child_ptr + at, tl.where(child < BLOCK_T, child, -1), mask=there)
    tl.store(next_sibling_ptr + at, tl.where(sibling < BLOCK_T, sibling, -1), mask=there)


@OP.implementation("triton", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",)))
def triton_build(*, parents: torch.Tensor, prefix_lens: torch.Tensor) -> Outputs:
    """Launch one warp a request."""
    requests, tokens = must_fit(parents=parents, prefix_lens=prefix_lens)
    built = {name: torch.empty_like(parents) for name in OUTPUTS}
    _build_tree[(requests,)](
        parents, prefix_lens, *built.values(), tokens,
        BLOCK_T=triton.next_power_of_2(tokens), ROUNDS=(tokens - 1).bit_length(), num_warps=1,
    )  # fmt: skip
    return built
