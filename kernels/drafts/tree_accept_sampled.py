"""Stochastic verify of a tree of fixed candidates: what is emitted is distributed as the target.

    at node i (first the root), with p = target_probs[b, i] and the coin of the node:
        try i's children in sibling order: the first c is accepted for which
            coin < sum of p(draft_ids[b, c']) over the children c' tried so far, c included
        and the walk goes on from it; if there is none, the walk ends at i
    path[b] = 0, then the accepted nodes, then -1;  accepted[b] = how many, the root not counted
    bonus[b] is drawn by bonus_coins[b] from what is left of p at the last node: p without the
        tokens of the children tried there (all of them), renormalised

A child x is accepted with probability p(x), else its mass is taken out of p: node i emits x with
p(x) for a child, and with (1 - sum of the children) x p(x) / (1 - sum of the children) else. Given
the path, each emitted token is an exact draw from the target; a node accepts with the sum of p over
its children. A token that stands twice among siblings has no mass left the second time.

draft_ids, first_child, next_sibling int32 [batch, T], T at most 32, as `tree_build` gives the
lists; target_probs float32 [batch, T, vocabulary]; coins float32 [batch, T] in [0, 1), one a node,
bonus_coins [batch]; path int32 [batch, T], accepted and bonus int32 [batch]. All arithmetic is in
whole numbers (`_speculative`): every implementation emits the same tokens.

This is the algorithm for candidates that were chosen and not drawn, as EAGLE-2 and EAGLE-3 choose
the likeliest (their q is 1 at the candidate): no draft probabilities are needed. It is SGLang's
tree_speculative_sampling_target_only with both thresholds at 1, one coin a node included. EAGLE's
own code takes a new coin for each sibling and renormalises between: the same distribution. A draft
that was *drawn* from q is accepted with min(1, p / q): `chain_accept_sampled`. SpecInfer's siblings
drawn independently from one q are neither; no engine for these GPUs drafts so.

A child or sibling that is no later node than the one that names it counts as none, and a token
outside of the vocabulary has no mass: whatever a padded request holds, nothing is read outside.

Errors: ValueError for shapes and dtypes that are not those.
Source: Leviathan et al. 2023 (rejection and residual), Miao et al. 2024 (SpecInfer: siblings),
Li et al. 2024 (EAGLE-2), speculative_sampling.cuh of SGLang's sgl-kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance, _trees
from kernels.drafts import _drafts, _speculative
from kernels.drafts._speculative import COIN_BITS, WEIGHT_BITS, coin_units, weights

KIMI = 163_840
_LLAMA = 128_256
_SMALL = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The accepted nodes after the root, the tokens whose mass is gone, the last token tried.

    tries: how many children were looked at on the whole way.
    """

    accepted: tuple[int, ...]
    gone: tuple[int, ...]
    last: int
    tries: int


def walk(
    *,
    draft_ids: Sequence[int],
    first_child: Sequence[int],
    next_sibling: Sequence[int],
    target_probs: torch.Tensor,
    units: Sequence[int],
) -> Walk:
    """Walk one tree; target_probs [T, vocabulary], units: its coins."""
    accepted: list[int] = []
    gone: list[int] = []
    node, last, mass, tries = 0, _trees.NONE, 0, 0
    child, before = first_child[0], 0
    while before < child < len(draft_ids):
        token, tries = draft_ids[child], tries + 1
        if 0 <= token < target_probs.shape[1]:
            last = token
            if token not in gone:
                mass += int(weights(target_probs[node, token]))
                gone.append(token)
        if units[node] << (WEIGHT_BITS - COIN_BITS) < mass:
            accepted.append(child)
            gone, last, mass = [], _trees.NONE, 0
            node, before, child = child, child, first_child[child]
        else:
            before, child = child, next_sibling[child]
    return Walk(accepted=tuple(accepted), gone=tuple(gone), last=last, tries=tries)


def must_fit(
    *,
    draft_ids: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> tuple[int, int, int]:
    """Return batch, T and vocabulary; ValueError for inputs that do not fit each other."""
    _drafts.must_be_int32(draft_ids, "draft_ids", (None, None))
    requests, tokens = draft_ids.shape
    _drafts.must_be_block(requests, tokens)
    _drafts.must_be_int32(first_child, "first_child", (requests, tokens))
    _drafts.must_be_int32(next_sibling, "next_sibling", (requests, tokens))
    vocabulary = _speculative.must_be_probabilities(
        target_probs, coins=coins, bonus_coins=bonus_coins, requests=requests, tokens=tokens
    )
    return requests, tokens, vocabulary


def _walks(
    *,
    draft_ids: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> list[Walk]:
    return [
        walk(
            draft_ids=drafts,
            first_child=firsts,
            next_sibling=nexts,
            target_probs=probs,
            units=units,
        )
        for drafts, firsts, nexts, probs, units in zip(
            draft_ids.tolist(),
            first_child.tolist(),
            next_sibling.tolist(),
            target_probs.unbind(),
            coin_units(coins).tolist(),
            strict=True,
        )
    ]


def reference(
    *,
    draft_ids: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> Outputs:
    """Walk and draw request after request."""
    walks = _walks(
        draft_ids=draft_ids,
        first_child=first_child,
        next_sibling=next_sibling,
        target_probs=target_probs,
        coins=coins,
        bonus_coins=bonus_coins,
    )
    units, bonus, paths = coin_units(bonus_coins), [], []
    for request, found in enumerate(walks):
        path = [0, *found.accepted]
        left = weights(target_probs[request, path[-1]])
        left[list(found.gone)] = 0
        last = left.new_tensor(found.last)
        bonus.append(_speculative.drawn(left[None], units[request, None], last=last))
        paths.append(path + [_trees.NONE] * (draft_ids.shape[1] - len(path)))
    return {
        "path": _drafts.int32(paths, draft_ids.device),
        "accepted": _drafts.int32([len(one.accepted) for one in walks], draft_ids.device),
        "bonus": torch.cat(bonus),
    }


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw trees, peaked targets, and as the children of a node its likeliest tokens, in order."""
    generator = torch.Generator(device).manual_seed(case.seed)
    trees, tokens = _drafts.parents_of(case), case.number("rows")
    sizes = len(trees), tokens, case.number("vocabulary")
    target_probs = _speculative.probabilities(sizes, generator=generator, device=device)
    likeliest = target_probs.topk(min(tokens, sizes[2])).indices.tolist()  # [batch, T, rank]
    drafts = [
        [0, *(likeliest[n][tree[node]][_rank(tree, node)] for node in range(1, tokens))]
        for n, tree in enumerate(trees)
    ]
    return {
        "draft_ids": _drafts.int32(drafts, device),
        "first_child": _drafts.int32([_trees.first_children(tree) for tree in trees], device),
        "next_sibling": _drafts.int32([_trees.next_siblings(tree) for tree in trees], device),
        "target_probs": target_probs,
        "coins": torch.rand(sizes[:2], generator=generator, device=device),
        "bonus_coins": torch.rand(sizes[0], generator=generator, device=device),
    }


def _rank(tree: Sequence[int], node: int) -> int:
    return sum(parent == tree[node] for parent in tree[:node])


def cost(given: Inputs) -> Cost:
    """Count the walk's cells, and at its end one row of the vocabulary; waits for the device."""
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    walks = _walks(**tensors)
    vocabulary = tensors["target_probs"].shape[2]
    # A node: first child and coin. A try: token and its probability; a rejection: the sibling.
    cells = sum(2 * (1 + len(one.accepted)) + 3 * one.tries - len(one.accepted) for one in walks)
    return Cost(
        flops=len(walks) * vocabulary,
        read_bytes=4 * (cells + len(walks) * (1 + vocabulary)),
        written_bytes=tensors["draft_ids"].nbytes + 8 * len(walks),
    )


def _case(rows: int, tree: str, *, requests: int = 1, vocabulary: int = KIMI, **more: bool) -> Case:
    dims = _speculative.dims_of(rows, tree=tree, requests=requests, vocabulary=vocabulary)
    name = f"t{rows}-b{requests}-{tree}-v{vocabulary}"
    return Case(name=name, dims=dims, dtype=torch.float32, mode="verify", **more)


def _measured_cases() -> tuple[Case, ...]:
    """Vary the tokens, then the batch, then the vocabulary; a chain beside a tree of each T."""
    tree_of = _drafts.TREE_OF_TOKENS
    return (
        *(_case(t, tree, cpu=t in (1, 8)) for t, tree in tree_of.items()),
        *(_case(t, "chain") for t in (4, 8, 16)),
        *(_case(t, tree_of[t], requests=b) for b in (4, 16, 64) for t in (1, 4, 16)),
        *(_case(t, tree_of[t], vocabulary=v) for v in (_SMALL, _LLAMA) for t in (1, 8)),
    )


OP = Op(
    name="tree_accept_sampled",
    part="sampling",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(
        _case(7, "random", requests=3, vocabulary=50, tiny=True),
        _case(1, "chain", requests=2, vocabulary=5000, tiny=True),
        _case(9, "mixed", requests=3, vocabulary=2049, tiny=True),
        *_measured_cases(),
    ),
    gate_cases=(_case(32, "star", requests=2, vocabulary=8192),),
    tolerance=Tolerance(row=0.0, why="whole numbers throughout: every order of sums is exact"),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_accept(
    *,
    draft_ids: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> Outputs:
    """Take T - 1 steps for all requests together, then draw; nothing waits for the device."""
    requests, tokens, vocabulary = must_fit(
        draft_ids=draft_ids,
        first_child=first_child,
        next_sibling=next_sibling,
        target_probs=target_probs,
        coins=coins,
        bonus_coins=bonus_coins,
    )
    request = torch.arange(requests, device=draft_ids.device)
    asked = coin_units(coins) << (WEIGHT_BITS - COIN_BITS)
    node = torch.zeros(requests, dtype=torch.long, device=draft_ids.device)
    path = torch.full_like(draft_ids, _trees.NONE)
    path[:, 0] = 0
    accepted, mass = torch.zeros_like(node), torch.zeros_like(node)
    last = torch.full_like(node, _trees.NONE)
    taken = torch.zeros_like(draft_ids, dtype=torch.int64)  # the mass of each node tried at `node`
    before, child = node, first_child[:, 0].long()
    for _ in range(tokens - 1):
        live = (child > before) & (child < tokens)
        at = torch.where(live, child, 0)
        token = draft_ids[request, at].long()
        twice = ((taken > 0) & (draft_ids == token[:, None])).any(1)
        known = live & (token >= 0) & (token < vocabulary)
        some = known & ~twice
        weight = weights(target_probs[request, node, token.clamp(0, vocabulary - 1)])
        weight = torch.where(some, weight, 0)
        mass, last = mass + weight, torch.where(known, token, last)
        hit = live & (asked[request, node] < mass)
        taken[request, at] = torch.where(some, weight, taken[request, at])
        accepted = accepted + hit
        path[request, accepted] = torch.where(hit, at.int(), path[request, accepted])
        node, mass = torch.where(hit, at, node), torch.where(hit, 0, mass)
        taken, last = taken.masked_fill(hit[:, None], 0), last.masked_fill(hit, _trees.NONE)
        step = torch.where(hit, first_child[request, at], next_sibling[request, at])
        before, child = at, torch.where(live, step.long(), 0)
    left = weights(target_probs[request, node])
    left.scatter_add_(1, draft_ids.long().clamp(0, vocabulary - 1), -taken)
    bonus = _speculative.drawn(left, coin_units(bonus_coins), last=last)
    return {"path": path, "accepted": accepted.int(), "bonus": bonus}
