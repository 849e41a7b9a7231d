"""Which combination to take, by size: only where it wins beyond noise over neighbouring sizes.

A win at a single size is noise or an accident of that size, and no range: a range has at least
LEAST_SIZES neighbours. Where several combinations win and none of them beats the others for such a
range, the one that holds longest is taken, so that a recommendation changes as seldom as it can.
Combinations that may give wrong values are never recommended; what they would give is `unsafe`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from verifyscope.contests import Contest, is_unsafe
from verifyscope.fresh_starts import is_faster
from verifyscope.records import Measurement

LEAST_SIZES = 2
_Rows = Mapping[int, Measurement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Neighbouring sizes, in bytes, for which one implementation is taken."""

    implementation: str
    sizes: tuple[int, ...]

    @property
    def low_bytes(self) -> int:
        """Return the smallest."""
        return self.sizes[0]

    @property
    def high_bytes(self) -> int:
        """Return the largest."""
        return self.sizes[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """One combination for every size, as environment variables can ask for.

    wins, losses: the ranges in which it beats the default beyond noise, or is beaten by it.
    """

    implementation: str
    wins: tuple[tuple[int, ...], ...]
    losses: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What to take: `ranges` by ascending size, elsewhere the default; `single` for all sizes."""

    ranges: tuple[Range, ...]
    single: Single | None
    unsafe: tuple[Range, ...]

    def at(self, size: int) -> str | None:
        """Return the implementation for a measured size; None where the default is no worse."""
        return next((one.implementation for one in self.ranges if size in one.sizes), None)


def runs(new: _Rows, old: _Rows, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the ranges of neighbours in `sizes` where `new` is faster than `old` beyond noise."""
    found: list[list[int]] = [[]]
    for size in sizes:
        if size in new and size in old and is_faster(new[size], old[size]):
            found[-1].append(size)
        else:
            found.append([])
    return tuple(tuple(run) for run in found if len(run) >= LEAST_SIZES)


def recommend(contest: Contest) -> Recommendation:
    """Return what to take in a contest."""
    default, sizes = contest.times(contest.default), contest.sizes
    rows = {name: contest.times(name) for name in contest.combinations}
    wins = {name: _flat(runs(own, default, sizes)) for name, own in rows.items()}
    safe = {name: won for name, won in wins.items() if won and not is_unsafe(contest.rows[name])}
    ranges = _ranges(safe, rows, sizes)
    return Recommendation(
        ranges=ranges,
        single=_single(safe, rows, default, sizes),
        unsafe=tuple(
            Range(implementation=name, sizes=run)
            for name, won in wins.items()
            if won and name not in safe
            for run in runs(rows[name], best(contest, ranges), sizes)
        ),
    )


def best(contest: Contest, ranges: Sequence[Range]) -> dict[int, Measurement]:
    """Return what is recommended at each size, the default where nothing is."""
    found = contest.times(contest.default)
    for one in ranges:
        rows = contest.times(one.implementation)
        found |= {size: rows[size] for size in one.sizes}
    return found


def _ranges(
    wins: Mapping[str, Collection[int]], rows: Mapping[str, _Rows], sizes: Sequence[int]
) -> tuple[Range, ...]:
    """Return as few ranges as there can be, of combinations that no other one beats there."""
    beaten = {name: _beaten(name, wins, rows, sizes) for name in wins}
    unbeaten = [
        [name for name in wins if size in wins[name] and size not in beaten[name]] for size in sizes
    ]
    found: list[Range] = []
    at = 0
    while at < len(sizes):
        lengths = {name: _length(name, unbeaten[at:]) for name in unbeaten[at]}
        if not lengths:
            at += 1
            continue
        longest = max(lengths.values())
        equals = [name for name, length in lengths.items() if length == longest]
        taken = sizes[at : at + longest]
        name = min(equals, key=lambda one: _mean_log(rows[one], taken))
        found.append(Range(implementation=name, sizes=tuple(taken)))
        at += longest
    return tuple(_joined(found, wins, sizes))


def _beaten(
    name: str, wins: Mapping[str, Collection[int]], rows: Mapping[str, _Rows], sizes: Sequence[int]
) -> set[int]:
    """Return where another combination that wins, too, beats this one over neighbouring sizes."""
    return {
        size
        for other, won in wins.items()
        for size in _flat(runs(rows[other], rows[name], sizes))
        if size in won
    }


def _length(name: str, unbeaten: Sequence[Collection[str]]) -> int:
    """Return for how many sizes from the first on a combination stays unbeaten."""
    return next((at for at, names in enumerate(unbeaten) if name not in names), len(unbeaten))


def _joined(
    found: Sequence[Range], wins: Mapping[str, Collection[int]], sizes: Sequence[int]
) -> list[Range]:
    """Give a size that would stand alone to a neighbour that wins there, too, or to the default."""
    ranges = list(found)
    for at, one in enumerate(found):
        if len(one.sizes) >= LEAST_SIZES:
            continue
        size = one.sizes[0]
        for beside in (at - 1, at + 1):
            if not 0 <= beside < len(ranges) or len(ranges[beside].sizes) < LEAST_SIZES:
                continue
            near, whole = ranges[beside], sorted((*ranges[beside].sizes, size))
            place = sizes.index(whole[0])
            touching = tuple(whole) == tuple(sizes[place : place + len(whole)])
            if touching and size in wins[near.implementation]:
                ranges[beside] = Range(implementation=near.implementation, sizes=tuple(whole))
                break
    return [one for one in ranges if len(one.sizes) >= LEAST_SIZES]


def _single(
    wins: Mapping[str, Collection[int]],
    rows: Mapping[str, _Rows],
    default: _Rows,
    sizes: Sequence[int],
) -> Single | None:
    """Return the combination that gains most over all sizes of a model, else over all sizes."""
    of_model = [size for size in sizes if size in default and "tokens" in default[size].dims]
    asked = of_model or [size for size in sizes if size in default]
    gains = {
        name: _mean_log(default, asked) - _mean_log(rows[name], asked)
        for name in wins
        if all(size in rows[name] for size in asked) and any(size in wins[name] for size in asked)
    }
    name = max(gains, key=lambda one: gains[one], default=None)
    if name is None or gains[name] <= 0:
        return None
    return Single(
        implementation=name,
        wins=runs(rows[name], default, sizes),
        losses=runs(default, rows[name], sizes),
    )


def _mean_log(rows: _Rows, sizes: Sequence[int]) -> float:
    """Return the mean logarithm of the times: a tenth counts as much at 15 us as at 15 ms."""
    return sum(math.log(rows[size].median_s or math.inf) for size in sizes) / len(sizes)


def _flat(found: Sequence[tuple[int, ...]]) -> set[int]:
    return {size for run in found for size in run}
