"""Whether a pass grows with its rows and with its context: lines through what was measured.

    time(T) = base + slope x rows          at one context
    time(L) = base + slope x context       at one number of rows

`Growth.grows` compares the longest with the shortest by their intervals: a pass whose cost does not
hang on the context has a slope that is none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from graphs._predicted.fits import Axis, Fit, fit
from graphs._stub.asked import Case, PassMode
from verifyscope import units
from verifyscope.stats import Comparison, Summary, compare, summarise

Grows = Literal["grows", "shrinks", "does not grow", "unsure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured pass of a case in a mode; samples in seconds."""

    case: Case
    mode: PassMode
    samples: tuple[float, ...]

    @property
    def summary(self) -> Summary:
        """Return the median and its interval."""
        return summarise(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A line, and the pass of the largest size against that of the smallest."""

    line: Fit
    mode: PassMode
    smallest: Point
    largest: Point

    @property
    def ratio(self) -> Comparison:
        """Return how much longer the largest takes."""
        return compare(self.largest.samples, self.smallest.samples)

    @property
    def grows(self) -> Grows:
        """Say whether the pass grows beyond noise."""
        words: dict[str, Grows] = {
            "slower": "grows",
            "faster": "shrinks",
            "same": "does not grow",
        }
        return words.get(self.ratio.verdict, "unsure")


def growths(points: Sequence[Point]) -> Iterator[Growth]:
    """Yield the lines over rows, then those over context, of passes that differ in nothing else."""
    axes: tuple[Axis, Axis] = ("rows", "context")
    for axis in axes:
        groups: dict[tuple[object, ...], dict[int, Point]] = {}
        for one in points:
            groups.setdefault(_others(one, axis), {})[_size(one, axis)] = one
        for by_size in groups.values():
            yield from _growth(axis, by_size)


def sentence(found: Growth) -> str:
    """Return what a growth says, in one line."""
    line, ratio = found.line, found.ratio
    what, other = ("rows", "context") if line.axis == "rows" else ("context", "rows")
    slope = f"{'-' if line.slope_s < 0 else '+'} {units.seconds(abs(line.slope_s))}"
    return (
        f"time over {what} at {other} {line.other}, {found.mode}: {units.seconds(line.base_s)} "
        f"{slope} each; {max(line.sizes):,} against {min(line.sizes):,} is x {ratio.ratio:.2f} "
        f"({ratio.low:.2f} to {ratio.high:.2f}): {found.grows}"
    )


def _growth(axis: Axis, by_size: dict[int, Point]) -> Iterator[Growth]:
    sizes = sorted(by_size)
    first = by_size[sizes[0]]
    line = fit(
        "forward",
        axis,
        other=first.case.context if axis == "rows" else first.case.rows,
        seconds={size: by_size[size].summary.median for size in sizes},
    )
    if line is not None:
        yield Growth(line=line, mode=first.mode, smallest=first, largest=by_size[sizes[-1]])


def _others(one: Point, axis: Axis) -> tuple[object, ...]:
    """Return all that a line must have in common; the tree follows from the rows."""
    case = one.case
    other = case.context if axis == "rows" else case.rows
    return one.mode, other, case.requests, str(case.reduce), case.model.name, case.tp


def _size(one: Point, axis: Axis) -> int:
    return one.case.rows if axis == "rows" else one.case.context
