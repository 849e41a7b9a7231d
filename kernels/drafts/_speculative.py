"""Sampling in whole numbers: what the two stochastic accept ops share.

Float32 sums over 163,840 probabilities round by more than a rare token weighs, and differently in
each order, so two right kernels would emit different tokens. Here nothing rounds after one step:

    w(v)  = floor(2^38 p(v)), with p(v) held to 0 .. 1 and NaN as 0     exact for p >= 2^-14
    k     = floor(2^24 coin), at most 2^24 - 1                          exact for a float32 coin
    draw  from weights w with coin k: the smallest v with sum_{u <= v} w(u) > floor(k W / 2^24),
          where W is the sum of all w; v has the probability w(v) / W, to 2^-24

Sums of int64 are the same in every order, on every device, and from run to run. Where W is 0, which
takes probabilities that do not sum to 1, the last token tried is drawn: it is the only one that the
missing mass can belong to; -1 if none was.

A chunk is what one block sums up before the draw: CHUNK tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels._inputs import must_be
from kernels.drafts import _drafts
from verifyscope.records import Value

WEIGHT_BITS = 38
COIN_BITS = 24
CHUNK = 2048
_COINS = 1 << COIN_BITS
# Logits of 8 x normal: the likeliest of 163,840 tokens has about a third, as in real text.
_LOGIT_SCALE = 8.0


def weights(probabilities: torch.Tensor) -> torch.Tensor:
    """Return floor(2^38 p) as int64."""
    held = torch.where(probabilities > 0, probabilities.clamp(max=1.0), 0.0)
    return (held.double() * 2.0**WEIGHT_BITS).long()


def coin_units(coins: torch.Tensor) -> torch.Tensor:
    """Return floor(2^24 coin) as int64, 0 .. 2^24 - 1."""
    held = torch.where(coins > 0, coins, 0.0)
    return (held.double() * _COINS).clamp(max=_COINS - 1).long()


def thresholds(totals: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """Return floor(units x totals / 2^24) without leaving int64."""
    return (totals >> COIN_BITS) * units + ((totals & (_COINS - 1)) * units >> COIN_BITS)


def drawn(left: torch.Tensor, units: torch.Tensor, *, last: torch.Tensor) -> torch.Tensor:
    """Draw from each row of weights [batch, vocabulary] by its coin [batch]; `last` where W = 0."""
    sums = left.cumsum(-1)
    total = sums[:, -1:]
    found = torch.searchsorted(sums, thresholds(total, units[:, None]), right=True)[:, 0]
    return torch.where(total[:, 0] > 0, found, last).to(torch.int32)


def must_be_float32(tensor: torch.Tensor, name: str, sizes: tuple[int | None, ...]) -> None:
    """Raise ValueError unless `tensor` is a contiguous float32 of these sizes; None is any."""
    must_be(tensor, name, sizes, dtype=torch.float32)


def must_be_probabilities(
    target_probs: torch.Tensor,
    *,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
    requests: int,
    tokens: int,
) -> int:
    """Return the vocabulary; ValueError for probabilities and coins that do not fit the drafts."""
    must_be_float32(target_probs, "target_probs", (requests, tokens, None))
    must_be_float32(coins, "coins", (requests, tokens))
    must_be_float32(bonus_coins, "bonus_coins", (requests,))
    return must_be_vocabulary(target_probs.shape[2])


def must_be_vocabulary(size: int) -> int:
    """Return `size`; ValueError where it is none, or too large for int32 tokens."""
    if not 1 <= size < 2**31 - CHUNK:
        raise ValueError(f"target_probs has {size} tokens: give 1 to {2**31 - CHUNK - 1}")
    return size


def probabilities(
    sizes: Sequence[int], *, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    """Draw distributions over the last dimension, about as peaked as those of real text."""
    logits = torch.randn(*sizes, generator=generator, device=device)
    return logits.mul_(_LOGIT_SCALE).softmax(-1)


def dims_of(rows: int, *, tree: str, requests: int, vocabulary: int) -> dict[str, Value]:
    """Return the dims of a case; the committed length does not matter here."""
    dims = _drafts.dims_of(rows, 8192, tree=tree, requests=requests)
    return {**dims, "vocabulary": vocabulary}


def state_of(requests: int, vocabulary: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Allocate what the first kernel leaves for the second.

    sums int64 [batch, chunks]: the weights of each chunk; state int32 [batch, 3]: the node where
    the walk ended, its tried children as bits, the last token tried or -1.
    """
    chunks = -(-vocabulary // CHUNK)
    return {
        "sums": torch.empty(requests, chunks, dtype=torch.int64, device=device),
        "state": torch.empty(requests, 3, dtype=torch.int32, device=device),
    }
