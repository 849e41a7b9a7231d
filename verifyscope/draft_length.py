"""How many tokens to draft: what each length of a chain, and each size of a tree, would yield.

    verify(rows)  = base + slope x rows           rows of all requests in one pass
    cycle         = verify(requests x (drafted + 1)) + steps x draft step + rest
    tokens/s      = requests x accepted / cycle
    plain         = base + slope x requests       or a step that was measured, plus what rows add
    break-even    = cycle / plain

A chain drafts one token a step. A tree drafts several candidates for a place: `chances` are those
of the first, second, ... candidate of a place to be the right one if the node above it was; a
node's chance is the product along its path, and a tree yields 1 + the sum of its nodes' chances.
So the best tree of n nodes is the n likeliest nodes: a child is never likelier than its parent.
Its depth is the number of draft steps.

Rows are taken as alike wherever they stand; the drafter's step costs the same at any width and for
any number of requests. Seconds throughout. Source: the formulas above; positional chances as in
Chen et al. 2024 (Sequoia).
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from verifyscope import speculation

MOST_DRAFTS = 15
MOST_CANDIDATES = 8
MOST_TREE_ROWS = 64

Shape = Literal["chain", "tree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """time(rows) = base + slope x rows; at and between known `points` the times of those.

    points: (rows, seconds) by ascending rows. Beyond them each further row adds the slope.
    """

    base_s: float
    slope_s: float
    points: tuple[tuple[int, float], ...] = ()

    def seconds(self, rows: float) -> float:
        """Return the time of a pass of `rows`, of all requests together."""
        if not self.points:
            return self.base_s + self.slope_s * rows
        below, above = self.points[0], self.points[-1]
        for one in self.points:
            if one[0] <= rows:
                below = one
        if rows <= below[0] or below is above:
            return below[1] + self.slope_s * (rows - below[0])
        above = next(one for one in self.points if one[0] > rows)
        part = (rows - below[0]) / (above[0] - below[0])
        return below[1] + part * (above[1] - below[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a cycle is made of, beside the tokens that it yields.

    draft_step_s: one step of the drafter; rest_s: what a cycle takes beside verify and drafting.
    plain_s: a plain step of `plain_requests` as it was measured; None: the line says it.
    """

    line: Line
    draft_step_s: float = 0.0
    rest_s: float = 0.0
    plain_s: float | None = None
    plain_requests: int = 1

    def cycle_s(self, requests: int, *, drafted: int, steps: int) -> float:
        """Return a cycle of so many drafted tokens a request, in so many draft steps."""
        verify_s = self.line.seconds(requests * (drafted + 1))
        return verify_s + steps * self.draft_step_s + self.rest_s

    def plain_step_s(self, requests: int) -> float:
        """Return a step of plain decoding: its rows grow with the requests, too."""
        if self.plain_s is None:
            return self.line.seconds(requests)
        added_s = self.line.seconds(requests) - self.line.seconds(self.plain_requests)
        return self.plain_s + added_s

    def break_even(self, requests: int, *, drafted: int) -> float:
        """Return the accepted tokens at which a chain equals plain decoding."""
        cycle_s = self.cycle_s(requests, drafted=drafted, steps=drafted)
        plain_s = self.plain_step_s(requests)
        return speculation.break_even_accepted(cycle_s, plain_token_s=plain_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One way to draft: `drafted` tokens a request in `steps` steps, and what that yields."""

    shape: Shape
    drafted: int
    steps: int
    accepted: float
    cycle_s: float
    tokens_per_s: float


def chains(
    step_acceptance: float, costs: Costs, *, requests: int, most: int = MOST_DRAFTS
) -> list[Draft]:
    """Return chains of 1 to `most` drafted tokens."""
    return [
        _draft(
            "chain",
            costs,
            requests=requests,
            drafted=drafted,
            steps=drafted,
            accepted=speculation.chain_accepted(step_acceptance, drafts=drafted),
        )
        for drafted in range(1, most + 1)
    ]


def trees(
    chances: Sequence[float],
    costs: Costs,
    *,
    requests: int,
    most_rows: int = MOST_TREE_ROWS,
    most_steps: int = MOST_DRAFTS,
) -> list[Draft]:
    """Return, for each number of drafted tokens below `most_rows`, the tree of the highest rate."""
    best: dict[int, Draft] = {}
    for deepest in range(1, most_steps + 1):
        accepted, steps = 1.0, 0
        for drafted, (chance, depth) in zip(
            range(1, most_rows), likeliest(chances, deepest=deepest), strict=False
        ):
            accepted, steps = accepted + chance, max(steps, depth)
            one = _draft(
                "tree",
                costs,
                requests=requests,
                drafted=drafted,
                steps=steps,
                accepted=accepted,
            )
            known = best.get(drafted)
            if known is None or one.tokens_per_s > known.tokens_per_s:
                best[drafted] = one
    return [best[drafted] for drafted in sorted(best)]


def likeliest(chances: Sequence[float], *, deepest: int) -> Iterator[tuple[float, int]]:
    """Yield chance and depth (from 1) of the nodes of a tree, the likeliest first.

    chances: of each candidate of a place to be right, at most 1 together, in any order; else it is
    a `ValueError`.
    """
    if not chances or any(not 0 <= chance <= 1 for chance in chances) or sum(chances) > 1 + 1e-9:
        raise ValueError(f"chances of candidates are 0 to 1 and at most 1 together, got {chances}")
    ranked = sorted(chances, reverse=True)
    # A node's next sibling and its first child wait until the node itself is taken.
    waiting = [(-ranked[0], 1, 0, 1.0)]
    while waiting:
        negative, depth, rank, above = heapq.heappop(waiting)
        if not negative:
            return
        yield -negative, depth
        if rank + 1 < len(ranked):
            heapq.heappush(waiting, (-above * ranked[rank + 1], depth, rank + 1, above))
        if depth < deepest:
            heapq.heappush(waiting, (negative * ranked[0], depth + 1, 0, -negative))


def equal_tries(step_acceptance: float, *, candidates: int = MOST_CANDIDATES) -> tuple[float, ...]:
    """Return the chances of candidates of which each is right with p where those before are not.

    p, p (1 - p), p (1 - p)^2, ...: an assumption, and for most drafters a kind one: what they hold
    for second is right less often than that.
    """
    refused = 1 - step_acceptance
    return tuple(step_acceptance * refused**rank for rank in range(candidates))


def best(drafts: Sequence[Draft]) -> Draft:
    """Return the draft of the highest rate, of equals the one of fewest tokens."""
    return max(drafts, key=lambda one: (one.tokens_per_s, -one.drafted))


def _draft(
    shape: Shape, costs: Costs, *, requests: int, drafted: int, steps: int, accepted: float
) -> Draft:
    cycle_s = costs.cycle_s(requests, drafted=drafted, steps=steps)
    return Draft(
        shape=shape,
        drafted=drafted,
        steps=steps,
        accepted=accepted,
        cycle_s=cycle_s,
        tokens_per_s=requests * speculation.tokens_per_s(accepted, cycle_s=cycle_s),
    )
