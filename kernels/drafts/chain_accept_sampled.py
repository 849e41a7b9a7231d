"""Stochastic verify of a chain of drawn drafts: what is emitted is distributed as the target.

    draft x = draft_ids[b, i] was drawn from q = draft_probs[b, i]; p = target_probs[b, i]
    it is accepted if coins[b, i] q(x) < p(x), that is with min(1, p(x) / q(x)); the first draft
    that is not ends the walk, at n = accepted[b]
    bonus[b] is drawn by bonus_coins[b] from max(0, p - q) at n, renormalised, or, where all drafts
    were accepted, from p behind the last one

Each emitted token is an exact draw from the target, given those before it, and draft i is accepted
with the probability sum_v min(p(v), q(v)).

draft_ids int32 [batch, T - 1], T at most 32 (the last accepted token and its drafts); draft_probs
float32 [batch, T - 1, vocabulary], target_probs float32 [batch, T, vocabulary]; coins float32
[batch, T - 1] and bonus_coins [batch] in [0, 1); accepted, bonus int32 [batch]. All arithmetic is
in whole numbers (`_speculative`): every implementation emits the same tokens. T = 1 is plain
sampling.

This is the algorithm for drafts that were *drawn* (an engine that samples its drafter). Candidates
that were chosen, as EAGLE-2 and -3 choose them, have no q: `tree_accept_sampled`, which for a chain
accepts with p(x) alone. FlashInfer's chain_speculative_sampling is this algorithm, with random
numbers of its own and float32 sums; its drafts, too, are a chain.

A token outside of the vocabulary is never accepted nor used as an index.

Errors: ValueError for shapes and dtypes that are not those.
Source: Leviathan et al. 2023, Chen et al. 2023 (arXiv 2302.01318).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance, _trees
from kernels.drafts import _drafts, _speculative
from kernels.drafts._speculative import COIN_BITS, coin_units, weights

_KIMI = 163_840
_SMALL = 32_000
_ACCEPTED_SHARE = 0.75  # where the target is certain: how often it is certain of the draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """How many drafts were accepted and tried; the token that was rejected, or -1."""

    accepted: int
    tries: int
    last: int


def walk(
    *,
    draft_ids: Sequence[int],
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    units: Sequence[int],
) -> Walk:
    """Walk one chain; the probabilities are [T - 1 or T, vocabulary]."""
    for node, token in enumerate(draft_ids):
        if not 0 <= token < target_probs.shape[1]:
            return Walk(accepted=node, tries=node + 1, last=_trees.NONE)
        p, q = (int(weights(rows[node, token])) for rows in (target_probs, draft_probs))
        if units[node] * q >= p << COIN_BITS:
            return Walk(accepted=node, tries=node + 1, last=token)
    return Walk(accepted=len(draft_ids), tries=len(draft_ids), last=_trees.NONE)


def must_fit(
    *,
    draft_ids: torch.Tensor,
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> tuple[int, int, int]:
    """Return batch, T and vocabulary; ValueError for inputs that do not fit each other."""
    _drafts.must_be_int32(draft_ids, "draft_ids", (None, None))
    requests, drafts = draft_ids.shape
    _drafts.must_be_block(requests, drafts + 1)
    _speculative.must_be_float32(target_probs, "target_probs", (requests, drafts + 1, None))
    vocabulary = _speculative.must_be_vocabulary(target_probs.shape[2])
    _speculative.must_be_float32(draft_probs, "draft_probs", (requests, drafts, vocabulary))
    _speculative.must_be_float32(coins, "coins", (requests, drafts))
    _speculative.must_be_float32(bonus_coins, "bonus_coins", (requests,))
    return requests, drafts + 1, vocabulary


def empty_outputs(draft_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Allocate `accepted` and `bonus`."""
    return {name: draft_ids.new_empty(len(draft_ids)) for name in ("accepted", "bonus")}


def _walks(
    *,
    draft_ids: torch.Tensor,
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> list[Walk]:
    rows = zip(
        draft_ids.tolist(),
        draft_probs.unbind(),
        target_probs.unbind(),
        coin_units(coins).tolist(),
        strict=True,
    )
    return [walk(draft_ids=ids, draft_probs=q, target_probs=p, units=k) for ids, q, p, k in rows]


def reference(
    *,
    draft_ids: torch.Tensor,
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> Outputs:
    """Walk and draw request after request."""
    walks = _walks(
        draft_ids=draft_ids,
        draft_probs=draft_probs,
        target_probs=target_probs,
        coins=coins,
        bonus_coins=bonus_coins,
    )
    units, bonus = coin_units(bonus_coins), []
    for request, found in enumerate(walks):
        left = weights(target_probs[request, found.accepted])
        if found.accepted < draft_ids.shape[1]:
            left = (left - weights(draft_probs[request, found.accepted])).clamp(min=0)
        last = left.new_tensor(found.last)
        bonus.append(_speculative.drawn(left[None], units[request, None], last=last))
    return {
        "accepted": _drafts.int32([one.accepted for one in walks], draft_ids.device),
        "bonus": torch.cat(bonus),
    }


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw peaked drafts, tokens from them, and targets: `near` the drafts, or `certain` of one.

    A certain target has all mass on one token, three times out of four the draft: as at temperature
    0. What is emitted then depends on no coin.
    """
    generator = torch.Generator(device).manual_seed(case.seed)
    requests, drafts = case.number("requests"), case.number("rows") - 1
    sizes = requests, drafts + 1, case.number("vocabulary")
    first = _speculative.probabilities(sizes, generator=generator, device=device)
    draft_probs = first[:, :drafts].contiguous()
    tokens = torch.multinomial(first.flatten(0, 1), 1, generator=generator).view(sizes[:2])
    if case.dims["target"] == "certain":
        other = torch.randint(sizes[2], sizes[:2], generator=generator, device=device)
        hit = torch.rand(sizes[:2], generator=generator, device=device) < _ACCEPTED_SHARE
        certain = torch.where(hit, tokens, other)
        target_probs = torch.zeros_like(first).scatter_(2, certain[..., None], 1.0)
    else:
        noise = _speculative.probabilities(sizes, generator=generator, device=device)
        target_probs = torch.lerp(first, noise, 0.3)
    return {
        "draft_ids": tokens[:, :drafts].int().contiguous(),
        "draft_probs": draft_probs,
        "target_probs": target_probs,
        "coins": torch.rand(requests, drafts, generator=generator, device=device),
        "bonus_coins": torch.rand(requests, generator=generator, device=device),
    }


def cost(given: Inputs) -> Cost:
    """Count four cells a try, and at the end a row of p, and of q after a rejection; waits."""
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    walks = _walks(**tensors)
    vocabulary, drafts = tensors["target_probs"].shape[2], tensors["draft_ids"].shape[1]
    rows = sum(2 if one.accepted < drafts else 1 for one in walks)
    cells = sum(4 * one.tries for one in walks) + len(walks)
    return Cost(
        flops=rows * vocabulary,
        read_bytes=4 * (cells + rows * vocabulary),
        written_bytes=8 * len(walks),
    )


def _case(
    rows: int, *, requests: int = 1, vocabulary: int = _KIMI, target: str = "near", **more: bool
) -> Case:
    dims = _speculative.dims_of(rows, tree="chain", requests=requests, vocabulary=vocabulary)
    certain = "-certain" if target == "certain" else ""
    name = f"t{rows}-b{requests}-v{vocabulary}{certain}"
    dims = {**dims, "target": target}
    return Case(name=name, dims=dims, dtype=torch.float32, mode="verify", **more)


def _measured_cases() -> tuple[Case, ...]:
    """Vary the tokens, then the batch, then the vocabulary; beside each, a certain target."""
    targets = ("near", "certain")
    return (
        *(_case(t, cpu=t in (1, 8)) for t in (1, 2, 3, 4, 6, 8, 12, 16)),
        *(_case(t, target="certain") for t in (1, 2, 4, 8, 16)),
        *(_case(t, requests=b, target=target)
          for target in targets for b in (4, 16, 64) for t in (1, 4, 8)),
        *(_case(t, vocabulary=_SMALL) for t in (1, 8)),
    )  # fmt: skip


OP = Op(
    name="chain_accept_sampled",
    part="sampling",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(
        _case(5, requests=4, vocabulary=50, tiny=True),
        _case(1, requests=2, vocabulary=2049, tiny=True),
        _case(3, requests=2, vocabulary=5000, tiny=True),
        _case(4, requests=3, vocabulary=70, target="certain", tiny=True),
        *_measured_cases(),
    ),
    gate_cases=(_case(32, requests=2, vocabulary=8192),),
    tolerance=Tolerance(row=0.0, why="whole numbers throughout: every order of sums is exact"),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_accept(
    *,
    draft_ids: torch.Tensor,
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> Outputs:
    """Test all drafts at once, then draw; nothing waits for the device."""
    requests, tokens, vocabulary = must_fit(
        draft_ids=draft_ids,
        draft_probs=draft_probs,
        target_probs=target_probs,
        coins=coins,
        bonus_coins=bonus_coins,
    )
    request, drafts = torch.arange(requests, device=draft_ids.device), tokens - 1
    token = draft_ids.long().clamp(0, vocabulary - 1)[..., None]
    known = (draft_ids >= 0) & (draft_ids < vocabulary)
    p = weights(target_probs[:, :drafts].gather(2, token))[..., 0]
    q = weights(draft_probs.gather(2, token))[..., 0]
    kept = known & (coin_units(coins) * q < p << COIN_BITS)
    accepted = kept.int().cumprod(1).sum(1)
    left = weights(target_probs[request, accepted])
    last = torch.full_like(accepted, _trees.NONE)
    if drafts:
        at = accepted.clamp(max=drafts - 1)
        rejected = accepted < drafts
        less = torch.where(rejected[:, None], weights(draft_probs[request, at]), 0)
        left = (left - less).clamp_(min=0)
        there = rejected & known[request, at]
        last = torch.where(there, draft_ids[request, at].long(), last)
    bonus = _speculative.drawn(left, coin_units(bonus_coins), last=last)
    return {"accepted": accepted.int(), "bonus": bonus}
