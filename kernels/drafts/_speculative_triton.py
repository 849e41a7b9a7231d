"""What the stochastic accept ops share in Triton: whole-number weights, chunk sums, the draw.

As in CUDA C++ (`_speculative_cupy`): a program a chunk and request walks the drafts for itself and
adds up what is left of its chunk; then one program a request finds the chunk, and in it the token,
where the sum passes the coin.
"""

import torch
import triton
import triton.language as tl

from kernels.drafts._speculative import CHUNK, COIN_BITS, WEIGHT_BITS

_COIN_BITS = tl.constexpr(COIN_BITS)
_COINS = tl.constexpr(1 << COIN_BITS)
_WEIGHTS = tl.constexpr(float(1 << WEIGHT_BITS))
WARPS = 8


@triton.jit
def weight_of(p):
    """Return floor(2^38 p) as int64, with p held to 0 .. 1 and NaN as 0."""
    held = tl.where(p > 0, tl.where(p < 1, p, 1.0), 0.0)
    return (held * _WEIGHTS).to(tl.int64)


@triton.jit
def units_of(coin):
    """Return floor(2^24 coin) as int64, 0 .. 2^24 - 1."""
    held = tl.where(coin > 0, tl.where(coin < 1, coin, 1.0), 0.0)
    return tl.minimum((held * _COINS).to(tl.int64), _COINS - 1)


@triton.jit
def pick(values, at, node):
    """Return values[at] as a scalar; 0 where `at` is none of the nodes."""
    return tl.sum(tl.where(node == at, values, 0), 0)


@triton.jit
def left_of(p_ptr, q_ptr, at, vocabulary, minus):
    """Return max(0, p - q) of tokens `at` as weights, or p alone where not `minus`."""
    there = at < vocabulary
    p = weight_of(tl.load(p_ptr + at, mask=there, other=0.0))
    q = weight_of(tl.load(q_ptr + at, mask=there & minus, other=0.0))
    return tl.maximum(p - q, 0)


@triton.jit
def store_state(state_ptr, accepted_ptr, request, node, tried, last, accepted):
    """Leave what the draw needs to know of the walk."""
    tl.store(accepted_ptr + request, accepted)
    tl.store(state_ptr + 3 * request, node)
    tl.store(state_ptr + 3 * request + 1, tried)
    tl.store(state_ptr + 3 * request + 2, last)


@triton.jit
def _draw(
    draft_ids_ptr, target_probs_ptr, draft_probs_ptr, bonus_coins_ptr, sums_ptr, state_ptr,
    bonus_ptr, tokens, vocabulary, chunks,
    DRAWN: tl.constexpr, CHUNK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    node = tl.load(state_ptr + 3 * request)
    tried = tl.load(state_ptr + 3 * request + 1)
    chunk = tl.arange(0, BLOCK_C)
    sums = tl.load(sums_ptr + request * chunks + chunk, mask=chunk < chunks, other=0)
    up_to = tl.cumsum(sums, 0)
    total = tl.sum(sums, 0)
    units = units_of(tl.load(bonus_coins_ptr + request))
    wanted = (total >> _COIN_BITS) * units + ((total & (_COINS - 1)) * units >> _COIN_BITS)
    found = tl.sum((up_to <= wanted).to(tl.int32), 0)
    wanted -= tl.sum(tl.where(chunk < found, sums, 0), 0)

    at = found * CHUNK + tl.arange(0, CHUNK)
    p_ptr = target_probs_ptr + (request * tokens + node) * vocabulary
    q_ptr = draft_probs_ptr + (request * (tokens - 1) + node) * vocabulary
    left = left_of(p_ptr, q_ptr, at, vocabulary, DRAWN & (node < tokens - 1))
    if not DRAWN:
        for child in range(1, tokens):
            gone = tl.load(draft_ids_ptr + request * tokens + child, mask=child < tokens, other=-1)
            left = tl.where(((tried >> child) & 1 != 0) & (at == gone), 0, left)
    place = tl.sum((tl.cumsum(left, 0) <= wanted).to(tl.int32), 0)
    last = tl.load(state_ptr + 3 * request + 2)
    tl.store(bonus_ptr + request, tl.where(total > 0, found * CHUNK + place, last))


def draw(
    *,
    draft_ids: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    bonus_coins: torch.Tensor,
    scratch: dict[str, torch.Tensor],
    bonus: torch.Tensor,
    is_drawn: bool,
) -> None:
    """Launch the draw; where drafts are not drawn, `draft_probs` may be any tensor."""
    requests, tokens, vocabulary = target_probs.shape
    chunks = scratch["sums"].shape[1]
    _draw[(requests,)](
        draft_ids, target_probs, draft_probs, bonus_coins, scratch["sums"], scratch["state"],
        bonus, tokens, vocabulary, chunks,
        DRAWN=is_drawn, CHUNK=CHUNK, BLOCK_C=triton.next_power_of_2(chunks), num_warps=WARPS,
    )  # fmt: skip
