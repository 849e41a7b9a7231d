"""Verdicts on many rows at once that two runs of one configuration do not trip.

    change of a row = log(new median / old median)
    spread^2        = spread^2 of both medians + what two runs differ by^2

A row is faster or slower only if both hold: its change is beyond `same_within`, and it is beyond
chance among all rows that were compared (Benjamini and Hochberg 1995 at FALSE_ALARMS: where
nothing changed, one comparison in a hundred flags any row at all). It is the same where the 95 %
interval of its ratio lies within `same_within`; anything else is unsure.

The spread of a median comes from the surest source that a row has:

    starts     medians of fresh starts, or of the same row measured again: what differs between
               processes is in it. Few starts borrow from those of the run's other rows.
    samples    the bootstrap of stats.py over the raw samples, or what BLOCKS of them in the order
               they were taken differ by, if that is more: samples that drift are not independent
    interval   the printed 95 % interval
    tail       p90 over a known count: (p90 - median) / 1.28 is one deviation
    assumed    one number, or fewer than FEW values, which may agree by accident: UNKNOWN, or as
               much as single samples of the run's other rows differ, if that is more; it says so

Where starts or samples are known, their ranks must agree, whatever their distribution: the test of
Mann and Whitney (1947) from ENOUGH_TO_RANK on each side, or all of one beyond all of the other.

Two runs of one configuration differ by 0.5 % to 10 % (reports of serving benchmarks, 2026). So one
process is taken to differ by RUN_TO_RUN from run to run, several processes that were started once
by SEVERAL, so that 10 % are three deviations, and a single number by UNKNOWN. Probabilities are
those of Student's t in the approximation of Wallace (1959).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from verifyscope.stats import SAME_WITHIN, Verdict, spread_of_median

FALSE_ALARMS = 0.01
RUN_TO_RUN = 0.005
SEVERAL = 0.03
UNKNOWN = 0.05
FEW = 5
BLOCKS = 5
ENOUGH_TO_RANK = 8
_DRIFTS = 1.5  # times what independent samples would differ by: their number no longer counts
_ASSUMED = UNKNOWN / math.sqrt(2)  # of one of two runs
NORMAL_95 = 1.96
_NORMAL_90_ONE_SIDED = 1.2816
_NORMAL_MAD = 1.4826
# The variance of a median is pi / 2 times that of a mean.
_MEDIAN = math.pi / 2
_MOST_BORROWED = 10

Basis = Literal["starts", "samples", "interval", "tail", "assumed", "exact"]
_ORDER: tuple[Basis, ...] = ("exact", "starts", "samples", "interval", "tail", "assumed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One median in one run: `spread` is the deviation of its logarithm, of `degrees` degrees.

    degrees: None is so many that they do not matter. behind: the starts or samples of it. between:
    what two runs of one configuration differ by.
    """

    median_s: float
    spread: float
    degrees: int | None
    basis: Basis
    behind: tuple[float, ...] = ()
    between: float = RUN_TO_RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """New against old: the ratio of medians with its 95 % interval, and the verdict.

    basis: the weaker source of the two spreads. chance: that as large a change comes by chance.
    between: what of the interval is the difference of two runs.
    """

    ratio: float
    low: float
    high: float
    chance: float
    verdict: Verdict
    basis: Basis
    between: float = RUN_TO_RUN


def level(
    median_s: float,
    *,
    starts: Sequence[float] = (),
    samples: Sequence[float] = (),
    interval: tuple[float, float] | None = None,
    count: int | None = None,
    p90_s: float | None = None,
    several: bool = False,
) -> Level:
    """Return what is known of a median, of all its sources by the surest one.

    several: it is of several processes; their starts hold what these differ by.
    """
    found = _level(median_s, starts, samples, interval, count, p90_s)
    return replace(found, between=SEVERAL) if several and found.basis != "starts" else found


def _level(
    median_s: float,
    starts: Sequence[float],
    samples: Sequence[float],
    interval: tuple[float, float] | None,
    count: int | None,
    p90_s: float | None,
) -> Level:
    if len(starts) >= 2:
        spread = deviation(starts) / math.sqrt(len(starts))
        return Level(
            median_s=median_s,
            spread=spread,
            degrees=len(starts) - 1,
            basis="starts",
            behind=tuple(starts),
        )
    if len(samples) >= 2 and min(samples) > 0:
        of_all, of_blocks = spread_of_median(samples), drift(samples)
        found = max(of_all, of_blocks)
        assumed = len(samples) < FEW and found < _ASSUMED
        degrees = BLOCKS - 1 if of_blocks > _DRIFTS * of_all else len(samples) - 1
        return Level(
            median_s=median_s,
            spread=_ASSUMED if assumed else found,
            degrees=None if assumed else degrees,
            basis="assumed" if assumed else "samples",
            behind=tuple(samples),
        )
    if interval is not None and interval[0] > 0 and count != 1:
        return _of_interval(median_s, interval, count)
    if p90_s is not None and count is not None and count >= FEW and p90_s >= median_s:
        one = math.log(p90_s / median_s) / _NORMAL_90_ONE_SIDED
        spread = one * math.sqrt(_MEDIAN / count)
        return Level(median_s=median_s, spread=spread, degrees=count - 1, basis="tail")
    return Level(median_s=median_s, spread=_ASSUMED, degrees=None, basis="assumed")


def drift(samples: Sequence[float]) -> float:
    """Return the deviation of the median by that of the medians of BLOCKS; 0 of fewer than 2 each.

    samples: in the order in which they were taken.
    """
    if len(samples) < 2 * BLOCKS:
        return 0.0
    blocks = np.array_split(np.asarray(samples, dtype=np.float64), BLOCKS)
    return deviation([float(np.median(block)) for block in blocks]) / math.sqrt(BLOCKS)


def of_one_sample(samples: Sequence[float]) -> float:
    """Return the deviation of the logarithm of a single sample, by the median deviation."""
    logs = np.log(np.asarray(samples, dtype=np.float64))
    return float(_NORMAL_MAD * np.median(np.abs(logs - np.median(logs))))


def deviation(values: Sequence[float]) -> float:
    """Return the deviation of the logarithms of at least two values."""
    logs = [math.log(value) for value in values]
    mean = sum(logs) / len(logs)
    return math.sqrt(sum((one - mean) ** 2 for one in logs) / (len(logs) - 1))


def borrowed(levels: Sequence[Level]) -> list[Level]:
    """Return the levels of one run and op; those of few starts share their deviations.

    Three starts alone say little of their own spread; those of all rows together say more. Each
    row's variance is averaged with the mean of all, which counts as up to ten starts.
    """
    of_starts = [one for one in levels if one.basis == "starts" and one.degrees]
    degrees = [one.degrees or 0 for one in of_starts]
    variances = [one.spread**2 * len(one.behind) for one in of_starts]
    if len(of_starts) < 2:
        return list(levels)
    mean = sum(v * d for v, d in zip(variances, degrees, strict=True)) / sum(degrees)
    found = []
    for one in levels:
        if one.basis != "starts" or not one.degrees:
            found.append(one)
            continue
        others = min(_MOST_BORROWED, sum(degrees) - one.degrees)
        own = one.spread**2 * len(one.behind)
        variance = (others * mean + one.degrees * own) / (others + one.degrees)
        spread = math.sqrt(variance / len(one.behind))
        found.append(replace(one, spread=spread, degrees=others + one.degrees))
    return found


def exact(old_s: float, new_s: float, *, same_within: float = SAME_WITHIN) -> Change:
    """Return the change between two numbers that have no noise, such as predictions."""
    ratio = new_s / old_s
    verdict = _beyond(ratio, same_within) or "same"
    return Change(ratio=ratio, low=ratio, high=ratio, chance=0.0, verdict=verdict, basis="exact")


def changes(
    pairs: Sequence[tuple[Level, Level]], *, same_within: float = SAME_WITHIN
) -> list[Change]:
    """Return the change of each (old, new), judged together: the more rows, the more it takes."""
    found = [_tested(old, new) for old, new in pairs]
    limit = largest_chance([one.chance for one in found])
    return [_with_verdict(one, one.chance <= limit, same_within) for one in found]


def largest_chance(chances: Sequence[float], *, rate: float = FALSE_ALARMS) -> float:
    """Return the largest chance that counts: below i x rate / n for the i-th smallest of n."""
    ordered = sorted(chances)
    fitting = [
        chance for number, chance in enumerate(ordered, 1) if chance <= rate * number / len(ordered)
    ]
    return max(fitting, default=-1.0)


def pooled(changes: Sequence[Change]) -> Change | None:
    """Return the mean change of rows that belong together, its verdict still to be judged.

    Their samples are independent; what differs between two runs as wholes is not, and stays.
    """
    if not changes:
        return None
    logs = [math.log(one.ratio) for one in changes]
    variances = [
        max(0.0, (math.log(one.high / one.low) / 2 / NORMAL_95) ** 2 - one.between**2)
        for one in changes
    ]
    mean, count, between = sum(logs) / len(logs), len(logs), max(one.between for one in changes)
    spread = math.sqrt(sum(variances) / count**2 + between**2)
    return Change(
        ratio=math.exp(mean),
        low=math.exp(mean - NORMAL_95 * spread),
        high=math.exp(mean + NORMAL_95 * spread),
        chance=math.erfc(abs(mean) / spread / math.sqrt(2)),
        verdict="unsure",
        basis=max((one.basis for one in changes), key=_ORDER.index),
        between=between,
    )


def judged(pooled: Sequence[Change], *, same_within: float = SAME_WITHIN) -> list[Change]:
    """Return pooled changes with their verdicts, judged together."""
    limit = largest_chance([one.chance for one in pooled])
    return [_with_verdict(one, one.chance <= limit, same_within) for one in pooled]


def _tested(old: Level, new: Level) -> Change:
    change = math.log(new.median_s / old.median_s)
    between = max(old.between, new.between)
    variance = old.spread**2 + new.spread**2 + between**2
    spread = math.sqrt(variance)
    return Change(
        ratio=math.exp(change),
        low=math.exp(change - NORMAL_95 * spread),
        high=math.exp(change + NORMAL_95 * spread),
        chance=max(
            _chance(change / spread, _degrees(old, new, variance)),
            chance_of_ranks(old.behind, new.behind),
        ),
        verdict="unsure",
        basis=max(old.basis, new.basis, key=_ORDER.index),
        between=between,
    )


def _degrees(old: Level, new: Level, variance: float) -> float | None:
    """Return the degrees of freedom of a difference, by Welch and Satterthwaite."""
    shares = sum(one.spread**4 / one.degrees for one in (old, new) if one.degrees)
    return variance**2 / shares if shares else None


def _chance(score: float, degrees: float | None) -> float:
    """Return the two-sided probability of a score of Student's t."""
    normal = abs(score)
    if degrees is not None:
        factor = (8 * degrees + 1) / (8 * degrees + 3)
        normal = factor * math.sqrt(degrees * math.log1p(score**2 / degrees))
    return math.erfc(normal / math.sqrt(2))


def chance_of_ranks(old: Sequence[float], new: Sequence[float]) -> float:
    """Return the chance that two sets overlap as little by ranks; 1 for few values that do.

    It is 0 where they do not overlap, or one is not known: then ranks say no more.
    """
    if not old or not new or max(old) < min(new) or max(new) < min(old):
        return 0.0
    if min(len(old), len(new)) < ENOUGH_TO_RANK:
        return 1.0
    a, b = np.sort(np.asarray(old)), np.asarray(new)
    below, upto = (np.searchsorted(a, b, side=side) for side in ("left", "right"))
    wins, every = float((below + upto).sum()) / 2, len(a) * len(b)
    _, ties = np.unique(np.concatenate((a, b)), return_counts=True)
    total = len(a) + len(b)
    tied = float((ties.astype(float) ** 3 - ties).sum()) / (total * (total - 1))
    variance = every / 12 * (total + 1 - tied)
    if variance <= 0:
        return 1.0  # all values are one
    return math.erfc(abs(wins - every / 2) / math.sqrt(2 * variance))


def _with_verdict(one: Change, beyond_chance: bool, same_within: float) -> Change:
    moved = _beyond(one.ratio, same_within) if beyond_chance else None
    same = 1 - same_within <= one.low and one.high <= 1 + same_within
    return replace(one, verdict=moved or ("same" if same else "unsure"))


def _beyond(ratio: float, same_within: float) -> Verdict | None:
    if ratio > 1 + same_within:
        return "slower"
    return "faster" if ratio < 1 - same_within else None


def _of_interval(median_s: float, interval: tuple[float, float], count: int | None) -> Level:
    """Return the level of a printed interval; few values may agree by accident."""
    spread = math.log(interval[1] / interval[0]) / 2 / NORMAL_95
    degrees = None if count is None else max(1, count - 1)
    if count is not None and count < FEW and spread < _ASSUMED:
        return Level(median_s=median_s, spread=_ASSUMED, degrees=None, basis="assumed")
    return Level(median_s=median_s, spread=spread, degrees=degrees, basis="interval")
