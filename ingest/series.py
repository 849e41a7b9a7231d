"""A series of any length in bounded memory, and whether it grows.

A `Series` keeps every value until there are MOST_KEPT rows, then every second, every fourth and so
on, so that what is kept stays spread over the whole. `trend` compares the last quarter with the
first by their medians (`stats.compare`) and fits a line by least squares; its slope has the 95 %
interval of normal errors, 1.96 standard errors to both sides.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from verifyscope import stats

MOST_KEPT = 2048
LEAST_FOR_TREND = 12


@dataclass(slots=True)
class Series:
    """Rows of numbers; `count` is how many were added, `rows()` those that are kept."""

    columns: int = 1
    count: int = 0
    _kept: "list[array[float]]" = field(init=False)  # array takes no type before Python 3.12
    _stride: int = 1

    def __post_init__(self) -> None:
        self._kept = [array("d") for _ in range(self.columns)]

    def add(self, *row: float) -> None:
        """Add a row."""
        if self.count % self._stride == 0:
            if len(self._kept[0]) >= MOST_KEPT:
                self._kept = [column[::2] for column in self._kept]
                self._stride *= 2
            if self.count % self._stride == 0:
                for column, value in zip(self._kept, row, strict=True):
                    column.append(value)
        self.count += 1

    def rows(self) -> list[tuple[float, ...]]:
        """Return the rows that are kept, in order."""
        return list(zip(*self._kept, strict=True))

    def column(self, at: int = 0) -> list[float]:
        """Return the kept values of a column, in order."""
        return self._kept[at].tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Last quarter against first, and the change of y by one x, with its interval."""

    first: float
    last: float
    verdict: stats.Verdict
    slope: float
    low: float
    high: float

    @property
    def grows(self) -> bool:
        """Say whether both tests agree that the values grow."""
        return self.verdict == "slower" and self.low > 0

    @property
    def flat(self) -> bool:
        """Say whether the last quarter is the same as the first."""
        return self.verdict == "same"


def trend(values: Sequence[float], along: Sequence[float] | None = None) -> Trend | None:
    """Return the trend of `values` along `along`, or along their positions.

    None for fewer than LEAST_FOR_TREND values, or where `along` does not vary.
    """
    count = len(values)
    x = np.asarray(range(count) if along is None else along, dtype=np.float64)
    if count < LEAST_FOR_TREND or float(np.ptp(x)) == 0:
        return None
    order = np.argsort(x, kind="stable")
    x, y = x[order], np.asarray(values, dtype=np.float64)[order]
    quarter = count // 4
    first, last = y[:quarter].tolist(), y[-quarter:].tolist()
    away = x - x.mean()
    spread = float((away**2).sum())
    slope = float((away * y).sum()) / spread
    left = y - y.mean() - slope * away
    error = float(np.sqrt((left**2).sum() / (count - 2) / spread))
    return Trend(
        first=float(np.median(first)),
        last=float(np.median(last)),
        verdict=stats.compare(last, first).verdict,
        slope=slope,
        low=slope - 1.96 * error,
        high=slope + 1.96 * error,
    )
