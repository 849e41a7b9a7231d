"""Which experts the tokens of a verify pass choose, with a controlled overlap.

    uniform   every token draws top_k of the experts, each as likely as any other: the most distinct
              experts that a model can touch, E (1 - (1 - top_k / E)^T) on average
    zipf      the expert of rank r is 1 / r as likely, in an order of its own for each draw
    tree50    a token of the draft tree keeps half of its parent's experts, drawn at random, and
              draws the others from those that its parent has not
    tree80    keeps four fifths of them, rounded to whole experts
and, for tests,
    holes     uniform, but -1 in some places and in a whole row, and one id that is no expert's
    one       every token has the same expert in each place: of the others none has a token
    twice     uniform, but the last choice of each token is its first once more

ids [T, top_k] int32, none twice in a row; weights [T, top_k] float32, positive, descending, their
sum `scaling`, as routing leaves them. Draws are the CPU's, the same for every device.

Errors: ValueError for a pattern that is not known, and where top_k experts are not to be had.
Source: a draft token shares its context with its parent, so its experts overlap; how much of a real
model's do is measured by whoever has its traces, and bounded here.
"""

from collections.abc import Sequence

import torch

from kernels import _trees

SHARES = {"tree50": 0.5, "tree80": 0.8}  # of its parent's experts, kept by a child
SPOILED = ("holes", "one", "twice")
PATTERNS = ("uniform", "zipf", *SHARES, *SPOILED)


def routed_ids(
    pattern: str, *, tokens: int, experts: int, top_k: int, generator: torch.Generator
) -> torch.Tensor:
    """Return the experts of each token, int32 [tokens, top_k]; trees are those of eagle4 drafts.

    More tokens than a draft tree holds are several requests, a tree each.
    """
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k is {top_k}; give 1 to the number of experts, {experts}")
    if pattern in SHARES:
        kept = round(SHARES[pattern] * top_k)
        rows: list[torch.Tensor] = []
        for first in range(0, tokens, _trees.MOST_TOKENS):
            parents = _trees.tree("eagle4", min(tokens - first, _trees.MOST_TOKENS))
            rows += _inherited(parents, experts=experts, top_k=top_k, kept=kept, by=generator)
        return torch.stack(rows).to(torch.int32)
    if pattern not in PATTERNS:
        raise ValueError(f"unknown routing {pattern!r}; known: {', '.join(PATTERNS)}")
    likelihood = torch.zeros(experts)
    if pattern == "zipf":
        likelihood = -torch.log1p(torch.randperm(experts, generator=generator).float())
    # The largest of log-likelihood + Gumbel noise are a draw without replacement.
    noise = -torch.empty(tokens, experts).exponential_(generator=generator).log()
    return _spoiled(pattern, (likelihood + noise).topk(top_k).indices.to(torch.int32), experts)


def routed_weights(
    ids: torch.Tensor, *, generator: torch.Generator, scaling: float
) -> torch.Tensor:
    """Return weights for these ids, float32: those of sigmoid scores, renormalised."""
    score = torch.randn(ids.shape, generator=generator).sigmoid().sort(-1, descending=True).values
    return scaling * score / score.sum(-1, keepdim=True)


def distinct(ids: torch.Tensor, experts: int) -> int:
    """Return how many experts are chosen at all; ids below 0 and from `experts` on are none."""
    return int(torch.unique(ids[(ids >= 0) & (ids < experts)]).numel())


def _spoiled(pattern: str, ids: torch.Tensor, experts: int) -> torch.Tensor:
    if pattern == "holes":
        ids.view(-1)[::5] = -1
        ids[len(ids) // 2] = -1
        ids[-1, -1] = experts
    elif pattern == "one":
        ids[:] = ids[0, 0]
    elif pattern == "twice":
        ids[:, -1] = ids[:, 0]
    return ids


def _inherited(
    parents: Sequence[int], *, experts: int, top_k: int, kept: int, by: torch.Generator
) -> list[torch.Tensor]:
    """Return the experts of each node: `kept` of its parent's, the others none of its parent's."""
    rows: list[torch.Tensor] = []
    for parent in parents:
        fresh = torch.randperm(experts, generator=by)
        if parent == _trees.NONE:
            rows.append(fresh[:top_k])
            continue
        others = fresh[~torch.isin(fresh, rows[parent])][: top_k - kept]
        again = rows[parent][torch.randperm(top_k, generator=by)[: top_k - len(others)]]
        rows.append(torch.cat([again, others]))
    return rows
