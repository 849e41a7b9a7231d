"""Greedy verify: walk the draft tree along the target's own choices, and take one token more.

    at node i (first the root): among i's children, in sibling order, the first c with
    draft_ids[b, c] = target_ids[b, i] is accepted, and the walk goes on from it; if there is none,
    the walk ends at i
    path[b]     = 0, then the accepted nodes, then -1
    accepted[b] = how many drafts were accepted, the root not counted; 0 is an outcome like others
    bonus[b]    = target_ids[b, i] of the last node: the token that the target adds by itself

draft_ids, target_ids (the argmax of the logits after each node), first_child, next_sibling int32
[batch, T], T at most 32, as `tree_build` gives the lists; draft_ids[b, 0] is not looked at. path
int32 [batch, T], accepted and bonus int32 [batch]. accepted + 1 tokens are emitted.

A child or sibling that is no later node than the one that names it, or none of the T, counts as
none: whatever a padded request holds, nothing is read outside and the walk ends.

Errors: ValueError for shapes and dtypes that are not those.
Source: greedy verification of SpecInfer and EAGLE; the lists and -1 as in SGLang 0.5.23.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance, _trees
from kernels.drafts import _drafts

_VOCABULARY = 163_840  # Kimi-K2.5
_ACCEPTED_SHARE = 0.75  # of nodes with a child: one of the children is what the target chose


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The accepted nodes after the root, and how many children were looked at on the way."""

    accepted: tuple[int, ...]
    tried: int


def walk(
    *,
    draft_ids: Sequence[int],
    target_ids: Sequence[int],
    first_child: Sequence[int],
    next_sibling: Sequence[int],
) -> Walk:
    """Walk one tree."""
    accepted: list[int] = []
    node, tried, child, before = 0, 0, first_child[0], 0
    while before < child < len(draft_ids):
        tried += 1
        if draft_ids[child] == target_ids[node]:
            accepted.append(child)
            node, before, child = child, child, first_child[child]
        else:
            before, child = child, next_sibling[child]
    return Walk(accepted=tuple(accepted), tried=tried)


def must_fit(
    *,
    draft_ids: torch.Tensor,
    target_ids: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
) -> tuple[int, int]:
    """Return batch and T; ValueError for inputs that do not fit each other."""
    _drafts.must_be_int32(draft_ids, "draft_ids", (None, None))
    requests, tokens = draft_ids.shape
    _drafts.must_be_block(requests, tokens)
    for name, tensor in (
        ("target_ids", target_ids),
        ("first_child", first_child),
        ("next_sibling", next_sibling),
    ):
        _drafts.must_be_int32(tensor, name, (requests, tokens))
    return requests, tokens


def empty_outputs(draft_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Allocate `path`, `accepted` and `bonus`."""
    return {
        "path": torch.empty_like(draft_ids),
        "accepted": draft_ids.new_empty(len(draft_ids)),
        "bonus": draft_ids.new_empty(len(draft_ids)),
    }


def reference(
    *,
    draft_ids: torch.Tensor,
    target_ids: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
) -> Outputs:
    """Walk request after request in plain Python."""
    paths, accepted, bonus = [], [], []
    lists = (draft_ids.tolist(), target_ids.tolist(), first_child.tolist(), next_sibling.tolist())
    for drafts, targets, firsts, nexts in zip(*lists, strict=True):
        found = walk(
            draft_ids=drafts, target_ids=targets, first_child=firsts, next_sibling=nexts
        ).accepted
        path = [0, *found]
        paths.append(path + [_trees.NONE] * (len(drafts) - len(path)))
        accepted.append(len(found))
        bonus.append(targets[path[-1]])
    device = draft_ids.device
    return {
        "path": _drafts.int32(paths, device),
        "accepted": _drafts.int32(accepted, device),
        "bonus": _drafts.int32(bonus, device),
    }


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw trees, distinct tokens, and targets of which most are the token of some child."""
    drawn, trees = random.Random(case.seed), _drafts.parents_of(case)
    drafts = [drawn.sample(range(_VOCABULARY), len(tree)) for tree in trees]
    targets = []
    for tree, tokens in zip(trees, drafts, strict=True):
        chosen = [drawn.randrange(_VOCABULARY) for _ in tree]
        for node in range(len(tree)):
            children = [child for child, parent in enumerate(tree) if parent == node]
            if children and drawn.random() < _ACCEPTED_SHARE:
                chosen[node] = tokens[drawn.choice(children)]
        targets.append(chosen)
    return {
        "draft_ids": _drafts.int32(drafts, device),
        "target_ids": _drafts.int32(targets, device),
        "first_child": _drafts.int32([_trees.first_children(tree) for tree in trees], device),
        "next_sibling": _drafts.int32([_trees.next_siblings(tree) for tree in trees], device),
    }


def cost(given: Inputs) -> Cost:
    """Count the walk: target and first child of each node on it, token and sibling of each try."""
    lists = {name: tensor for name, tensor in given.items() if isinstance(tensor, torch.Tensor)}
    names = ("draft_ids", "target_ids", "first_child", "next_sibling")
    walks = [
        walk(**dict(zip(names, row, strict=True)))
        for row in zip(*(lists[name].tolist() for name in names), strict=True)
    ]
    cells = sum(2 * (1 + len(one.accepted)) + 2 * one.tried - len(one.accepted) for one in walks)
    return Cost(
        flops=0,
        read_bytes=4 * cells,
        written_bytes=lists["draft_ids"].nbytes + 8 * len(walks),
    )


def _case(rows: int, tree: str, *, requests: int = 1, **more: bool) -> Case:
    dims = _drafts.dims_of(rows, 8192, tree=tree, requests=requests)
    return Case(name=_drafts.name_of(dims), dims=dims, dtype=torch.int32, mode="verify", **more)


def _measured_cases() -> tuple[Case, ...]:
    """Vary the tokens, then the batch, then the shape of the tree; lengths do not matter here."""
    tree_of = _drafts.TREE_OF_TOKENS
    return (
        *(_case(tokens, tree, cpu=tokens in (1, 8)) for tokens, tree in tree_of.items()),
        *(_case(t, tree_of[t], requests=b) for b in (4, 16, 64) for t in (1, 4, 16)),
        *(_case(8, tree) for tree in ("chain", "star", "binary")),
    )


OP = Op(
    name="tree_accept",
    part="sampling",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(
        _case(7, "random", requests=3, tiny=True),
        _case(1, "chain", requests=2, tiny=True),
        _case(32, "mixed", requests=5, tiny=True),
        *_measured_cases(),
    ),
    tolerance=Tolerance(row=0.0, why="whole numbers, which have no rounding"),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_accept(
    *,
    draft_ids: torch.Tensor,
    target_ids: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
) -> Outputs:
    """Take T - 1 steps for all requests together; none waits for the device."""
    requests, tokens = must_fit(
        draft_ids=draft_ids,
        target_ids=target_ids,
        first_child=first_child,
        next_sibling=next_sibling,
    )
    node = torch.zeros(requests, 1, dtype=torch.long, device=draft_ids.device)
    path = torch.full_like(draft_ids, _trees.NONE)
    path[:, 0] = 0
    accepted = torch.zeros_like(node)
    before, child = node, first_child[:, :1].long()
    for _ in range(tokens - 1):
        live = (child > before) & (child < tokens)
        at = torch.where(live, child, 0)
        hit = live & (draft_ids.gather(1, at) == target_ids.gather(1, node))
        accepted = accepted + hit
        path.scatter_(1, accepted, torch.where(hit, at, path.gather(1, accepted)).int())
        node = torch.where(hit, at, node)
        step = torch.where(hit, first_child.gather(1, at), next_sibling.gather(1, at)).long()
        before, child = at, torch.where(live, step, 0)
    return {
        "path": path,
        "accepted": accepted[:, 0].int(),
        "bonus": target_ids.gather(1, node)[:, 0],
    }
