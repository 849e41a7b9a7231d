"""Kernel rows: what each implementation took on each case, beside the best baseline.

A point is one implementation on one case under one set of circumstances (environment, launch,
settings). Of repeats the last counts and the others are named. The baseline of a point is the
fastest direct one under the same circumstances, else the fastest composed one; one that does
different work is no baseline. Verdicts come from the raw samples, or from the printed intervals
where those were not kept.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reports._text import divided
from verifyscope.records import Measurement
from verifyscope.stats import SAME_WITHIN, Verdict, compare

Samples = Mapping[str, Sequence[float]]
_BASELINES = ("baseline-direct", "baseline-composed")
_MAIN_FIRST = ("cold", "flushed", None, "warm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One implementation on one case.

    main: the cold time, or a flushed, else the warm one; warm: the warm time beside a cold one.
    earlier_s: medians of the same that were measured before.
    """

    main: Measurement
    warm: Measurement | None
    earlier_s: tuple[float, ...]

    @property
    def circumstances(self) -> tuple[object, ...]:
        """Return what two points must share to be compared."""
        return (self.main.source, self.main.environment, self.main.launch, self.main.cache)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A time over the baseline's; `from_samples` is False where only intervals were compared."""

    value: float | None
    verdict: Verdict
    from_samples: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A point, and how it compares with the baseline that it is held to.

    is_baseline: other rows of the case are held to this one.
    """

    point: Point
    baseline: Point | None
    ratio: Ratio | None
    is_baseline: bool


def points(measured: Iterable[Measurement]) -> list[Point]:
    """Return the points of one case, in the order of the records."""
    same: dict[tuple[object, ...], list[Measurement]] = {}
    for one in measured:
        circumstances = (
            one.implementation,
            one.environment,
            one.launch,
            one.source,
            None if one.origin is None else one.origin.file,
            tuple(sorted(one.requested.items())),
        )
        same.setdefault(circumstances, []).append(one)
    return [_point(of_point) for of_point in same.values()]


def rows(points: Sequence[Point], samples: Samples) -> list[Row]:
    """Return the points of one case, by environment and then the fastest first."""
    best: dict[tuple[object, ...], Point] = {}
    for kind in reversed(_BASELINES):  # a direct one replaces a composed one
        of_kind = [point for point in points if point.main.kind == kind]
        for point in sorted(of_kind, key=_seconds, reverse=True):
            best[point.circumstances] = point
    alike = Counter(point.circumstances for point in points)
    found = []
    for point in points:
        baseline = best.get(point.circumstances)
        if baseline is None or baseline is point:
            held_to = baseline is point and alike[point.circumstances] > 1
            found.append(Row(point, None, None, held_to))
        else:
            ratio = compared(point.main, baseline.main, samples=samples)
            found.append(Row(point, baseline, ratio, is_baseline=False))
    order = {point.main.environment: number for number, point in reversed([*enumerate(points)])}
    return sorted(found, key=lambda row: (order[row.point.main.environment], _seconds(row.point)))


def compared(new: Measurement, old: Measurement, *, samples: Samples) -> Ratio:
    """Say how `new` compares with `old`."""
    a, b = samples.get(new.id), samples.get(old.id)
    if a and b and min(*a, *b) > 0:
        comparison = compare(a, b)
        return Ratio(comparison.ratio, comparison.verdict, from_samples=True)
    value = divided(new.median_s, old.median_s)
    low, high = divided(new.low_s, old.high_s), divided(new.high_s, old.low_s)
    return Ratio(value, _verdict(low, high), from_samples=False)


def _verdict(low: float | None, high: float | None) -> Verdict:
    if low is None or high is None:
        return "unsure"
    if high < 1 - SAME_WITHIN:
        return "faster"
    if low > 1 + SAME_WITHIN:
        return "slower"
    return "same" if low >= 1 - SAME_WITHIN and high <= 1 + SAME_WITHIN else "unsure"


def _point(same: Sequence[Measurement]) -> Point:
    latest = {one.cache: one for one in same}
    main = next(latest[cache] for cache in _MAIN_FIRST if cache in latest)
    earlier = [one.median_s for one in same if one.cache == main.cache and one is not main]
    return Point(
        main=main,
        warm=latest.get("warm") if main.cache != "warm" else None,
        earlier_s=tuple(median_s for median_s in earlier if median_s is not None),
    )


def _seconds(point: Point) -> float:
    return point.main.median_s or 0.0
