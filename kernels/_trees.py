"""Draft trees: parents -> mask words, depths, positions, first children, next siblings.

A tree of T draft tokens is its parents: parents[0] = -1 (the root is the last accepted token) and
0 <= parents[i] < i. Node i sees node j when j is i or an ancestor of i. A mask word holds one row
of that as an unsigned number: bit j is set when the row's node sees node j, so T is at most 32.
position(i) = committed + depth(i), by parents and never by the flat index.

Errors: ValueError for parents that are no tree, an unknown tree name, or a count out of range.
Source: the definitions that EAGLE-3 verification shares across SGLang, vLLM and FlashInfer.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

NONE = -1  # no parent, no child, no sibling
MOST_TOKENS = 32  # bits of a mask word
TREES = ("chain", "star", "binary", "eagle4", "eagle8")

# EAGLE drafts a few steps of `width` tokens each and keeps the likeliest. How much less likely each
# next child is: a wider draft is what one uses where the next token is harder to guess.
_NEXT_CHILD_RATIO = {"eagle4": 0.45, "eagle8": 0.75}
_EAGLE_STEPS = 5


def check(parents: Sequence[int]) -> None:
    """Raise ValueError unless `parents` is a tree of 1 to 32 tokens."""
    if not 1 <= len(parents) <= MOST_TOKENS:
        raise ValueError(
            f"a tree of {len(parents)} tokens: a mask word holds 1 to {MOST_TOKENS}; "
            f"verify fewer tokens at once"
        )
    if parents[0] != NONE:
        raise ValueError(f"parents[0] is {parents[0]}, but the root has no parent: give {NONE}")
    for node, parent in enumerate(parents[1:], start=1):
        if not 0 <= parent < node:
            raise ValueError(f"parents[{node}] is {parent}: give an earlier node, 0 to {node - 1}")


def mask_words(parents: Sequence[int]) -> list[int]:
    """Return one unsigned word a node: bit j is set when the node sees node j."""
    check(parents)
    words: list[int] = []
    for node, parent in enumerate(parents):
        words.append(1 << node | (words[parent] if node else 0))
    return words


def depths(parents: Sequence[int]) -> list[int]:
    """Return each node's distance from the root."""
    check(parents)
    found = [0]
    for parent in parents[1:]:
        found.append(found[parent] + 1)
    return found


def positions(parents: Sequence[int], committed: int) -> list[int]:
    """Return each node's position in the sequence after `committed` tokens."""
    return [committed + depth for depth in depths(parents)]


def first_children(parents: Sequence[int]) -> list[int]:
    """Return each node's smallest child, -1 for a leaf."""
    check(parents)
    children = [NONE] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        children[parents[node]] = node
    return children


def next_siblings(parents: Sequence[int]) -> list[int]:
    """Return the next larger child of each node's parent, -1 for the last."""
    check(parents)
    siblings, latest = [NONE] * len(parents), [NONE] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        siblings[node] = latest[parents[node]]
        latest[parents[node]] = node
    return siblings


def tree(name: str, tokens: int) -> list[int]:
    """Return the parents of a tree of one of the `TREES` shapes."""
    if not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(f"a tree of {tokens} tokens: give 1 to {MOST_TOKENS}")
    if name == "chain":
        return [node - 1 for node in range(tokens)]
    if name == "star":
        return [NONE, *[0] * (tokens - 1)]
    if name == "binary":
        return [NONE, *((node - 1) // 2 for node in range(1, tokens))]
    if name in _NEXT_CHILD_RATIO:
        width = int(name.removeprefix("eagle"))
        return _likeliest(tokens, width=width, ratio=_NEXT_CHILD_RATIO[name])
    raise ValueError(f"unknown tree {name!r}; known: {', '.join(TREES)}")


def _likeliest(tokens: int, *, width: int, ratio: float) -> list[int]:
    """Return the `tokens` likeliest nodes of a tree with `width` children a node, level by level.

    A node is its path: the ranks of the children from the root down to it.
    """
    steps = [ratio**rank for rank in range(width)]
    steps = [step / sum(steps) for step in steps]
    candidates: list[tuple[float, int, tuple[int, ...]]] = [(-1.0, 0, ())]
    kept: list[tuple[int, ...]] = []
    while len(kept) < tokens:
        likelihood, depth, path = heapq.heappop(candidates)
        kept.append(path)
        if depth < _EAGLE_STEPS:
            for rank, step in enumerate(steps):
                heapq.heappush(candidates, (likelihood * step, depth + 1, (*path, rank)))
    kept.sort(key=lambda path: (len(path), path))
    number = {path: node for node, path in enumerate(kept)}
    return [number[path[:-1]] if path else NONE for path in kept]
