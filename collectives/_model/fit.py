"""seconds = alpha + bytes / beta, fitted to measured rows of one combination, with an interval.

Least squares of the relative residuals, (measured - fitted) / measured: a microsecond counts as
much at 15 us as a millisecond at 15 ms. With n rows the 95 % interval of alpha, of the slope
1 / beta and of a fitted time is Student's t of n - 2. A straight line over rows in which the
protocol or the number of channels changes fits badly: `worst`, the largest relative residual, says
so.

`scaled` carries a line to another rank count by the ratios of NCCL's own model: latency by steps
and hops, time a byte by what each byte goes through.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from verifyscope.stats import student_t

LEAST_SIZES = 3
BAD_FIT = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """alpha_s + bytes x slope_s: seconds and seconds a byte, each with what their interval needs.

    centre_bytes: the weighted mean size, around which both are independent. sizes: how many
    different ones; low_bytes, high_bytes: the range that was measured. worst: largest relative
    residual, at worst_bytes.
    """

    alpha_s: float
    slope_s: float
    alpha_error_s: float
    slope_error_s: float
    centre_error_s: float
    centre_bytes: float
    rows: int
    sizes: int
    low_bytes: int
    high_bytes: int
    worst: float
    worst_bytes: int

    @property
    def bytes_per_s(self) -> float | None:
        """Return beta; None where more bytes took no longer."""
        return 1 / self.slope_s if self.slope_s > 0 else None

    def seconds(self, size_bytes: int) -> float:
        """Return the fitted time, not below 0."""
        return max(0.0, self.alpha_s + self.slope_s * size_bytes)

    def interval(self, size_bytes: int) -> tuple[float, float]:
        """Return the 95 % interval of the fitted line at a size, not below 0."""
        away = (size_bytes - self.centre_bytes) * self.slope_error_s
        width = math.hypot(self.centre_error_s, away)
        middle = self.alpha_s + self.slope_s * size_bytes
        return max(0.0, middle - width), max(0.0, middle + width)

    def bandwidth_interval(self) -> tuple[float | None, float | None]:
        """Return the 95 % interval of beta; None where it has no bound."""
        low, high = self.slope_s - self.slope_error_s, self.slope_s + self.slope_error_s
        return (1 / high if high > 0 else None), (1 / low if low > 0 else None)


def fit(rows: Sequence[tuple[int, float]]) -> Line:
    """Return the line through rows of bytes and seconds; ValueError where they are too few."""
    sizes = {size for size, _ in rows}
    if len(sizes) < LEAST_SIZES:
        raise ValueError(f"{len(sizes)} sizes; a line with an interval needs {LEAST_SIZES}")
    if min(seconds for _, seconds in rows) <= 0:
        raise ValueError("a measured time is above zero")
    weights = [1 / seconds**2 for _, seconds in rows]
    total = sum(weights)
    centre = sum(w * size for w, (size, _) in zip(weights, rows, strict=True)) / total
    level = sum(w * seconds for w, (_, seconds) in zip(weights, rows, strict=True)) / total
    spread = sum(w * (size - centre) ** 2 for w, (size, _) in zip(weights, rows, strict=True))
    slope = (
        sum(
            w * (size - centre) * (seconds - level)
            for w, (size, seconds) in zip(weights, rows, strict=True)
        )
        / spread
    )
    alpha = level - slope * centre
    residuals = [(size, alpha + slope * size - seconds, seconds) for size, seconds in rows]
    variance = sum((r / seconds) ** 2 for _, r, seconds in residuals) / (len(rows) - 2)
    t = student_t(len(rows) - 2)
    worst_bytes, worst = max(
        ((size, abs(r) / seconds) for size, r, seconds in residuals), key=lambda known: known[1]
    )
    return Line(
        alpha_s=alpha,
        slope_s=slope,
        alpha_error_s=t * math.sqrt(variance * (1 / total + centre**2 / spread)),
        slope_error_s=t * math.sqrt(variance / spread),
        centre_error_s=t * math.sqrt(variance / total),
        centre_bytes=centre,
        rows=len(rows),
        sizes=len(sizes),
        low_bytes=min(sizes),
        high_bytes=max(sizes),
        worst=worst,
        worst_bytes=worst_bytes,
    )


def scaled(line: Line, *, latency: float, slope: float) -> Line:
    """Return the line with its latency and its time a byte multiplied."""
    level = (line.alpha_s + line.slope_s * line.centre_bytes) or 1.0
    there = line.alpha_s * latency + line.slope_s * slope * line.centre_bytes
    return replace(
        line,
        alpha_s=line.alpha_s * latency,
        slope_s=line.slope_s * slope,
        alpha_error_s=line.alpha_error_s * latency,
        slope_error_s=line.slope_error_s * slope,
        centre_error_s=line.centre_error_s * there / level,
    )
