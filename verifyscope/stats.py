"""Medians, their intervals, outliers, and the verdict between two sets of samples.

The interval of a median is the percentile bootstrap at 95 % (Efron 1979): RESAMPLES draws with
replacement from one generator with a fixed seed, so the same samples give the same interval.
The modified z-score is 0.6745 (x - median) / MAD (Iglewicz and Hoaglin 1993); above 3.5 in absolute
value a sample is an outlier. A difference of means has the interval of Welch (1947).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

RESAMPLES = 1000
OUTLIER_Z = 3.5
SAME_WITHIN = 0.02
FEWEST_TO_JUDGE = 3

_ROUNDING = 1e-9  # 4 degrees of freedom are to be 4, not 3.9999999999
# Student's t at 97.5 % for 1 to 30 degrees of freedom; above, the leading terms of its expansion.
# fmt: off
_T = (
    12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on

Verdict = Literal["faster", "slower", "same", "unsure"]
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Median, its 95 % interval and upper percentiles of `count` samples, in their unit."""

    median: float
    low: float
    high: float
    p90: float
    p99: float
    count: int

    @property
    def relative_width(self) -> float:
        """Return the half-width of the interval as a fraction of the median: the stop rule."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The verdict on new against old: `ratio` is new median / old median, with its interval."""

    verdict: Verdict
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What is saved, in the unit of the samples, with its 95 % interval; below 0 is a loss."""

    value: float
    low: float
    high: float


def summarise(samples: Sequence[float]) -> Summary:
    """Summarise at least one sample; with fewer than 5 the interval is minimum to maximum."""
    values = _checked(samples)
    low, high = _interval(values)
    return Summary(
        median=float(np.median(values)),
        low=low,
        high=high,
        p90=float(np.percentile(values, 90)),
        p99=float(np.percentile(values, 99)),
        count=len(values),
    )


def spread_of_median(samples: Sequence[float]) -> float:
    """Return the deviation of the logarithm of the median, by resampling.

    It is a number without a unit, about the ratio of deviation and median. `ValueError` for samples
    that are not above zero.
    """
    values = _checked(samples)
    if values.min() <= 0:
        raise ValueError("times to compare must be above zero")
    return float(np.log(_resampled_medians(values, 3)).std())


def compare(
    new: Sequence[float], old: Sequence[float], *, same_within: float = SAME_WITHIN
) -> Comparison:
    """Say whether `new` is faster than `old` beyond noise.

    The interval of the ratio of medians comes from resampling both sets. All of it below
    1 - `same_within`: faster; above 1 + `same_within`: slower; all inside that band: same; anything
    else, or fewer than 3 samples on a side: unsure. `ValueError` for samples not above zero.
    """
    a, b = _checked(new), _checked(old)
    if min(a.min(), b.min()) <= 0:
        raise ValueError("times to compare must be above zero")
    medians_a, medians_b = _resampled_medians(a, 1), _resampled_medians(b, 2)
    low, high = (float(x) for x in np.percentile(medians_a / medians_b, [2.5, 97.5]))
    verdict: Verdict = "unsure"
    if min(len(a), len(b)) >= FEWEST_TO_JUDGE:
        if high < 1 - same_within:
            verdict = "faster"
        elif low > 1 + same_within:
            verdict = "slower"
        elif low >= 1 - same_within and high <= 1 + same_within:
            verdict = "same"
    ratio = float(np.median(a) / np.median(b))
    return Comparison(verdict=verdict, ratio=ratio, low=low, high=high)


def student_t(degrees: int) -> float:
    """Return the 97.5 % point of Student's t with at least 1 degree of freedom."""
    return _T[degrees - 1] if degrees <= len(_T) else 1.960 + 2.372 / degrees + 2.82 / degrees**2


def difference_of_means(new: Sequence[float], old: Sequence[float]) -> Difference:
    """Return mean old - mean new with its 95 % interval by Welch (1947).

    The variances need not be equal; degrees of freedom are rounded down, so that few samples give a
    wide interval. Samples without any spread give an interval without a width.
    `ValueError` for fewer than 2 samples on a side.
    """
    a, b = _checked(new), _checked(old)
    if min(len(a), len(b)) < 2:
        raise ValueError("the spread of a mean needs at least 2 samples on each side")
    parts = [float(values.var(ddof=1)) / len(values) for values in (a, b)]
    error, value = sum(parts), float(b.mean() - a.mean())
    if not error:
        return Difference(value=value, low=value, high=value)
    weights = sum(part**2 / (len(x) - 1) for part, x in zip(parts, (a, b), strict=True))
    width = student_t(max(1, int(error**2 / weights + _ROUNDING))) * float(np.sqrt(error))
    return Difference(value=value, low=value - width, high=value + width)


def modified_z_scores(values: Sequence[float]) -> list[float]:
    """Return 0.6745 (x - median) / MAD for each value.

    Where more than half of the values are equal the MAD is 0: equal values score 0, others
    infinity with the sign of their difference.
    """
    array = _checked(values)
    away = array - np.median(array)
    spread = float(np.median(np.abs(away)))
    if spread == 0:
        return [0.0 if x == 0 else float(np.copysign(np.inf, x)) for x in away]
    return [float(x) for x in 0.6745 * away / spread]


def outliers(values: Sequence[float]) -> list[int]:
    """Return the positions whose modified z-score is above OUTLIER_Z in absolute value."""
    return [at for at, z in enumerate(modified_z_scores(values)) if abs(z) > OUTLIER_Z]


def _checked(samples: Sequence[float]) -> _Array:
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError("samples must be a non-empty list of finite numbers")
    return values


def _interval(values: _Array) -> tuple[float, float]:
    if len(values) < 5:
        return float(values.min()), float(values.max())
    low, high = np.percentile(_resampled_medians(values, 0), [2.5, 97.5])
    return float(low), float(high)


def _resampled_medians(values: _Array, seed: int) -> _Array:
    """Draw the medians of RESAMPLES resamples, without drawing the resamples.

    A resample picks ordered[floor(n u)] for n uniform u; so its middle values are those at the
    middle ones of the sorted u, whose distributions are beta.
    """
    ordered, count = np.sort(values), len(values)
    generator = np.random.default_rng(seed)
    half = count // 2
    if count % 2:
        lower = upper = generator.beta(half + 1, half + 1, RESAMPLES)
    else:
        lower = generator.beta(half, half + 1, RESAMPLES)
        upper = lower + (1 - lower) * generator.beta(1, half, RESAMPLES)
    last = count - 1
    low, high = (np.minimum((count * u).astype(int), last) for u in (lower, upper))
    return np.asarray((ordered[low] + ordered[high]) / 2)
