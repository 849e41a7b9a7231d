"""A time between two measured sizes: linear in the size, and never beyond the measured ones."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Seconds at a size, from the sizes `below` and `above`, which are equal where it was met."""

    seconds: float
    below: int
    above: int


def medians(times: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Return the median seconds of each size, in the order of sizes."""
    by_size: dict[int, list[float]] = {}
    for size, seconds in times:
        by_size.setdefault(size, []).append(seconds)
    return {size: median(by_size[size]) for size in sorted(by_size)}


def at(size: int, points: Mapping[int, float]) -> Between | None:
    """Return the time at `size` from seconds by ascending size; None outside of them."""
    sizes = list(points)
    place = bisect_left(sizes, size)
    if place < len(sizes) and sizes[place] == size:
        return Between(seconds=points[size], below=size, above=size)
    if place in (0, len(sizes)):
        return None
    below, above = sizes[place - 1], sizes[place]
    share = (size - below) / (above - below)
    seconds = points[below] + share * (points[above] - points[below])
    return Between(seconds=seconds, below=below, above=above)
