"""time(T) and time(L): base + slope x size by least squares, of two sizes or more.

worst_s is the farthest that a point lies from the line: experts make time(T) bend, for the more
rows there are, the more of them choose the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import linear_regression
from typing import Literal

Axis = Literal["rows", "context"]
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A line through the seconds of `name` over an axis, at one value of the other.

    bound: some of the points hold an upper bound, so that the slope is one, too.
    """

    name: str
    axis: Axis
    other: int
    base_s: float
    slope_s: float
    worst_s: float
    mean_s: float
    sizes: tuple[int, ...]
    bound: bool = False


def fit(
    name: str, axis: Axis, *, other: int, seconds: Mapping[int, float], bound: bool = False
) -> Fit | None:
    """Return the line through seconds by size; None of fewer than two sizes."""
    if len(seconds) < 2:
        return None
    sizes, times = list(seconds), list(seconds.values())
    slope_s, base_s = linear_regression([float(size) for size in sizes], times)
    worst_s = max(abs(base_s + slope_s * size - time) for size, time in seconds.items())
    mean_s = sum(times) / len(times)
    return Fit(
        name=name,
        axis=axis,
        other=other,
        base_s=base_s,
        slope_s=slope_s,
        worst_s=worst_s if worst_s > _ROUNDING * mean_s else 0.0,
        mean_s=mean_s,
        sizes=tuple(sizes),
        bound=bound,
    )
