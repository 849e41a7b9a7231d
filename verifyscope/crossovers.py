"""Up to which size another implementation of a collective is faster than the best of the backend.

A one-shot all-reduce sends everything to everybody in one step: little latency, many bytes. Its
crossover lies between the last size of a range in which it wins beyond noise and the first size of
one in which it loses; the estimate inside is where straight lines between the medians, both axes
logarithmic, meet.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verifyscope.contests import Contest
from verifyscope.recommendation import Recommendation, best, runs
from verifyscope.records import Measurement

_Rows = Mapping[int, Measurement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Where one implementation wins and loses against the best of the backend, beyond noise.

    between: the last size of a win and the first of the loss after it, in bytes; None where the
    sizes that were measured hold no such change. near_bytes: the estimate inside.
    """

    implementation: str
    wins: tuple[tuple[int, ...], ...]
    losses: tuple[tuple[int, ...], ...]
    between: tuple[int, int] | None
    near_bytes: int | None


def crossovers(contest: Contest, recommended: Recommendation) -> tuple[Crossover, ...]:
    """Return the crossover of each other implementation in a contest."""
    held_to = best(contest, recommended.ranges)
    return tuple(
        _crossover(name, contest.times(name), held_to, contest.sizes) for name in contest.others
    )


def _crossover(name: str, rows: _Rows, held_to: _Rows, sizes: Sequence[int]) -> Crossover:
    wins, losses = runs(rows, held_to, sizes), runs(held_to, rows, sizes)
    changes = [(won[-1], lost[0]) for won in wins for lost in losses if lost[0] > won[-1]]
    between = min(changes, key=lambda change: (change[1], -change[0]), default=None)
    return Crossover(
        implementation=name,
        wins=wins,
        losses=losses,
        between=between,
        near_bytes=None if between is None else _meeting(rows, held_to, sizes, between),
    )


def _meeting(
    rows: _Rows, held_to: _Rows, sizes: Sequence[int], between: tuple[int, int]
) -> int | None:
    """Return where the medians meet first; each is taken as a line between its neighbours."""
    inside = [
        (size, _lead(rows[size], held_to[size]))
        for size in sizes
        if between[0] <= size <= between[1] and size in rows and size in held_to
    ]
    for (low, before), (high, after) in itertools.pairwise(inside):
        if before > 0 >= after:
            part = before / (before - after)
            return round(math.exp(math.log(low) + part * (math.log(high) - math.log(low))))
    return None


def _lead(new: Measurement, old: Measurement) -> float:
    """Return how far ahead `new` is, as a logarithm."""
    return math.log(old.median_s or math.inf) - math.log(new.median_s or math.inf)
