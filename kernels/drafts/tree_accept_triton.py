"""`tree_accept` in Triton: one warp a request, its lists in registers.

All lists are loaded at once, so that memory is waited for once and not at each step of the walk; a
step picks its cells by a sum over the warp.
"""

import torch
import triton
import triton.language as tl

from kernels import Needs, Outputs
from kernels.drafts.tree_accept import OP, empty_outputs, must_fit


@triton.jit
def pick(values, at, node):
    """Return values[at] as a scalar; 0 where `at` is none of the nodes."""
    return tl.sum(tl.where(node == at, values, 0), 0)


@triton.jit
def _accept(
    draft_ids_ptr, target_ids_ptr, first_child_ptr, next_sibling_ptr,
    path_ptr, accepted_ptr, bonus_ptr, tokens, BLOCK_T: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, BLOCK_T)
    there = node < tokens
    at = request * tokens + node
    draft = tl.load(draft_ids_ptr + at, mask=there, other=0)
    target = tl.load(target_ids_ptr + at, mask=there, other=0)
    first = tl.load(first_child_ptr + at, mask=there, other=-1)
    following = tl.load(next_sibling_ptr + at, mask=there, other=-1)
    # What is no later node is none: each step goes forward, and the walk ends.
    first = tl.where((first > node) & (first < tokens), first, -1)
    following = tl.where((following > node) & (following < tokens), following, -1)
    path = tl.where(node == 0, 0, -1)
    accepted = 0
    choice = pick(target, 0, node)
    child = pick(first, 0, node)
    while child > 0:
        hit = pick(draft, child, node) == choice
        accepted += hit.to(tl.int32)
        path = tl.where(hit & (node == accepted), child, path)
        choice = tl.where(hit, pick(target, child, node), choice)
        child = tl.where(hit, pick(first, child, node), pick(following, child, node))
    tl.store(path_ptr + at, path, mask=there)
    tl.store(accepted_ptr + request, accepted)
    tl.store(bonus_ptr + request, choice)


@OP.implementation("triton", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",)))
def triton_accept(
    *,
    draft_ids: torch.Tensor,
    target_ids: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
) -> Outputs:
    """Launch one warp a request."""
    lists = {"draft_ids": draft_ids, "target_ids": target_ids,
             "first_child": first_child, "next_sibling": next_sibling}  # fmt: skip
    requests, tokens = must_fit(**lists)
    found = empty_outputs(draft_ids)
    _accept[(requests,)](
        *lists.values(), *found.values(), tokens,
        BLOCK_T=triton.next_power_of_2(tokens), num_warps=1,
    )  # fmt: skip
    return found
