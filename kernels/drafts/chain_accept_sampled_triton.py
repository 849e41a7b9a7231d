"""`chain_accept_sampled` in Triton: all drafts are tested at once, by each program for itself."""

import torch
import triton
import triton.language as tl

from kernels import Needs, Outputs
from kernels.drafts import _speculative
from kernels.drafts._speculative import CHUNK, COIN_BITS
from kernels.drafts._speculative_triton import (
    WARPS,
    draw,
    left_of,
    pick,
    store_state,
    units_of,
    weight_of,
)
from kernels.drafts.chain_accept_sampled import OP, empty_outputs, must_fit

_COIN_BITS = tl.constexpr(COIN_BITS)


@triton.jit
def _sum_chunks(
    draft_ids_ptr, target_probs_ptr, draft_probs_ptr, coins_ptr, accepted_ptr, sums_ptr, state_ptr,
    tokens, vocabulary, chunks, BLOCK_T: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(1).to(tl.int64)
    draft = tl.arange(0, BLOCK_T)
    drafts = tokens - 1
    at = request * drafts + draft
    there = draft < drafts
    token = tl.load(draft_ids_ptr + at, mask=there, other=-1)
    known = (token >= 0) & (token < vocabulary)
    p_at = (request * tokens + draft) * vocabulary + token
    p = weight_of(tl.load(target_probs_ptr + p_at, mask=known, other=0.0))
    q = weight_of(tl.load(draft_probs_ptr + at * vocabulary + token, mask=known, other=0.0))
    units = units_of(tl.load(coins_ptr + at, mask=there, other=0.0))
    kept = known & (units * q < p << _COIN_BITS)
    # The first that is not kept; behind the last draft there is always one, or `drafts`.
    accepted = tl.minimum(tl.min(tl.where(kept, BLOCK_T, draft), 0), drafts)
    if tl.program_id(0) == 0:
        last = tl.where(pick(known.to(tl.int32), accepted, draft) != 0,
                        pick(token, accepted, draft), -1)  # fmt: skip
        store_state(state_ptr, accepted_ptr, request, accepted, 0, last, accepted)
    token = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    p_ptr = target_probs_ptr + (request * tokens + accepted) * vocabulary
    q_ptr = draft_probs_ptr + (request * drafts + accepted) * vocabulary
    left = left_of(p_ptr, q_ptr, token, vocabulary, accepted < drafts)
    tl.store(sums_ptr + request * chunks + tl.program_id(0), tl.sum(left, 0))


@OP.implementation("triton", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",)))
def triton_accept(
    *,
    draft_ids: torch.Tensor,
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> Outputs:
    """Launch two kernels."""
    requests, tokens, vocabulary = must_fit(
        draft_ids=draft_ids,
        draft_probs=draft_probs,
        target_probs=target_probs,
        coins=coins,
        bonus_coins=bonus_coins,
    )
    found = empty_outputs(draft_ids)
    scratch = _speculative.state_of(requests, vocabulary, draft_ids.device)
    chunks = scratch["sums"].shape[1]
    _sum_chunks[(chunks, requests)](
        draft_ids, target_probs, draft_probs, coins, found["accepted"], scratch["sums"],
        scratch["state"], tokens, vocabulary, chunks,
        BLOCK_T=triton.next_power_of_2(tokens), CHUNK=CHUNK, num_warps=WARPS,
    )  # fmt: skip
    draw(
        draft_ids=draft_ids,
        target_probs=target_probs,
        draft_probs=draft_probs,
        bonus_coins=bonus_coins,
        scratch=scratch,
        bonus=found["bonus"],
        is_drawn=True,
    )
    return found
