"""Rows of a sweep that was started afresh several times: what differs beyond noise.

Processes that are started again get other memory, other channels, another place on the machine: the
medians of starts differ by more than the samples of one of them. So a row is faster than another
one only if all of this holds:

    its interval, which holds the medians of all its starts, lies below the other's
    the 95 % interval of the difference between the means of both rows' starts is above 0 (Welch)
    the difference is over SAME_WITHIN of the other
    both have LEAST_STARTS starts

The medians stand in `method` as start_0_median_s, start_1_median_s and so on.
"""

from verifyscope.records import Measurement
from verifyscope.stats import SAME_WITHIN, Difference, difference_of_means

LEAST_STARTS = 3


def medians(row: Measurement) -> tuple[float, ...]:
    """Return the median of each fresh start in seconds; none where they were not recorded."""
    found: list[float] = []
    while isinstance(value := row.method.get(f"start_{len(found)}_median_s"), int | float):
        found.append(float(value))
    return tuple(found)


def difference(new: Measurement, old: Measurement) -> Difference | None:
    """Return the seconds that `new` saves of `old`, per call; None with fewer than 2 starts."""
    a, b = medians(new), medians(old)
    return None if min(len(a), len(b)) < 2 else difference_of_means(a, b)


def is_faster(new: Measurement, old: Measurement) -> bool:
    """Say whether `new` is faster than `old` beyond noise."""
    if new.high_s is None or old.low_s is None or not old.median_s:
        return False
    if min(len(medians(new)), len(medians(old))) < LEAST_STARTS:
        return False
    saved = difference(new, old)
    apart = new.high_s < old.low_s
    return (
        saved is not None and apart and saved.low > 0 and saved.value > SAME_WITHIN * old.median_s
    )
