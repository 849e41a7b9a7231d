"""`tree_accept_sampled` in Triton: each program walks the tree for itself, in registers.

A node learns its parent from the lists by comparing all pairs, then all nodes fetch the probability
of their token at their parent at once, and a step of the walk picks its cells by sums.
`_speculative_triton` says how the sums over the vocabulary and the draw go.
"""

import torch
import triton
import triton.language as tl

from kernels import Needs, Outputs
from kernels.drafts import _speculative
from kernels.drafts._speculative import CHUNK, COIN_BITS, WEIGHT_BITS
from kernels.drafts._speculative_triton import (
    WARPS,
    draw,
    left_of,
    pick,
    store_state,
    units_of,
    weight_of,
)
from kernels.drafts.tree_accept import empty_outputs
from kernels.drafts.tree_accept_sampled import OP, must_fit

_FINER = tl.constexpr(WEIGHT_BITS - COIN_BITS)


@triton.jit
def _parents_of(first, following, node, ROUNDS: tl.constexpr):
    """Return each node's parent, -1 for none: of a later child its elder sibling's, by doubling."""
    other = node[None, :]
    parent = tl.max(tl.where(first[None, :] == node[:, None], other, -1), 1)
    elder = tl.max(tl.where(following[None, :] == node[:, None], other, -1), 1)
    for _ in tl.static_range(ROUNDS):
        is_elder = elder[:, None] == other
        its_parent = tl.max(tl.where(is_elder, parent[None, :], -1), 1)
        elder = tl.max(tl.where(is_elder, elder[None, :], -1), 1)
        parent = tl.where(parent < 0, its_parent, parent)
    return parent


@triton.jit
def _sum_chunks(
    draft_ids_ptr, first_child_ptr, next_sibling_ptr, target_probs_ptr, coins_ptr, path_ptr,
    accepted_ptr, sums_ptr, state_ptr, tokens, vocabulary, chunks,
    BLOCK_T: tl.constexpr, ROUNDS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(1).to(tl.int64)
    node = tl.arange(0, BLOCK_T)
    there = node < tokens
    at = request * tokens + node
    token = tl.load(draft_ids_ptr + at, mask=there, other=-1)
    first = tl.load(first_child_ptr + at, mask=there, other=-1)
    following = tl.load(next_sibling_ptr + at, mask=there, other=-1)
    asked = units_of(tl.load(coins_ptr + at, mask=there, other=0.0)) << _FINER
    # What is no later node is none: each step goes forward, and the walk ends.
    first = tl.where((first > node) & (first < tokens), first, -1)
    following = tl.where((following > node) & (following < tokens), following, -1)
    parent = _parents_of(first, following, node, ROUNDS)
    known = (token >= 0) & (token < vocabulary)
    p_at = (request * tokens + parent) * vocabulary + token
    weight = weight_of(tl.load(target_probs_ptr + p_at, mask=known & (parent >= 0), other=0.0))

    ended = 0
    accepted = 0
    last = -1
    tried = tl.zeros([BLOCK_T], tl.int32)
    path = tl.where(node == 0, 0, -1)
    mass = tl.zeros([], tl.int64)
    child = pick(first, 0, node)
    while child > 0:
        its = pick(token, child, node)
        is_known = pick(known.to(tl.int32), child, node) != 0
        last = tl.where(is_known, its, last)
        twice = tl.sum(tl.where(token == its, tried, 0), 0) > 0
        some = is_known & (twice == 0)
        mass += tl.where(some, pick(weight, child, node), 0)
        tried = tl.where(some & (node == child), 1, tried)
        hit = pick(asked, ended, node) < mass
        accepted += hit.to(tl.int32)
        path = tl.where(hit & (node == accepted), child, path)
        ended = tl.where(hit, child, ended)
        tried = tl.where(hit, 0, tried)
        last = tl.where(hit, -1, last)
        mass = tl.where(hit, 0, mass)
        child = tl.where(hit, pick(first, child, node), pick(following, child, node))

    if tl.program_id(0) == 0:
        tl.store(path_ptr + at, path, mask=there)
        bits = tl.sum(tried << node, 0)
        store_state(state_ptr, accepted_ptr, request, ended, bits, last, accepted)
    begin = tl.program_id(0) * CHUNK
    p_ptr = target_probs_ptr + (request * tokens + ended) * vocabulary
    left = left_of(p_ptr, p_ptr, begin + tl.arange(0, CHUNK), vocabulary, False)
    inside = (tried != 0) & (token >= begin) & (token < begin + CHUNK)
    gone = tl.sum(tl.where(inside, weight, 0), 0)
    tl.store(sums_ptr + request * chunks + tl.program_id(0), tl.sum(left, 0) - gone)


@OP.implementation("triton", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",)))
def triton_accept(
    *,
    draft_ids: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> Outputs:
    """Launch two kernels."""
    requests, tokens, vocabulary = must_fit(
        draft_ids=draft_ids,
        first_child=first_child,
        next_sibling=next_sibling,
        target_probs=target_probs,
        coins=coins,
        bonus_coins=bonus_coins,
    )
    found = empty_outputs(draft_ids)
    scratch = _speculative.state_of(requests, vocabulary, draft_ids.device)
    chunks = scratch["sums"].shape[1]
    _sum_chunks[(chunks, requests)](
        draft_ids, first_child, next_sibling, target_probs, coins, found["path"],
        found["accepted"], scratch["sums"], scratch["state"], tokens, vocabulary, chunks,
        BLOCK_T=triton.next_power_of_2(tokens), ROUNDS=(tokens - 1).bit_length(), CHUNK=CHUNK,
        num_warps=WARPS,
    )  # fmt: skip
    draw(
        draft_ids=draft_ids,
        target_probs=target_probs,
        draft_probs=target_probs,  # candidates that were chosen have no distribution
        bonus_coins=bonus_coins,
        scratch=scratch,
        bonus=found["bonus"],
        is_drawn=False,
    )
    return found
