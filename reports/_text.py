"""Numbers as a report prints them; what is not known is a dash, never 0.

duration(2.34e-5) == "23.4 us"
interval(2.34e-5, low_s=2.31e-5, high_s=2.39e-5) == "23.4 us (23.1–23.9)"
"""

import math
from collections.abc import Iterable

from reports import _marks
from verifyscope import units
from verifyscope.records import Measurement, Value

NOT_KNOWN = "–"


def divided(numerator: float | None, denominator: float | None) -> float | None:
    """Return the quotient, None where a side is not known or the quotient is no finite number."""
    if numerator is None or not denominator:
        return None
    quotient = numerator / denominator
    return quotient if math.isfinite(quotient) else None


def duration(seconds: float | None) -> str:
    """Return a time with three digits and its unit; of a difference it may be below zero."""
    return NOT_KNOWN if seconds is None else units.seconds(seconds)


def change(seconds: float) -> str:
    """Return a change with its sign: "+1.20 ms", "-3.00 us", "0"."""
    return f"{'+' * (seconds > 0)}{units.seconds(seconds)}" if seconds else "0"


def interval(median_s: float | None, *, low_s: float | None, high_s: float | None) -> str:
    """Return a time, and behind it the ends of its interval in the same unit."""
    if median_s is None or low_s is None or high_s is None:
        return duration(median_s)
    return f"{duration(median_s)} ({span(median_s, low_s=low_s, high_s=high_s)})"


def median(record: Measurement | None) -> str:
    """Return the time of a record, marked as its."""
    if record is None or record.median_s is None:
        return NOT_KNOWN
    return _marks.of(record, duration(record.median_s))


def timed(record: Measurement | None) -> str:
    """Return the time of a record with its interval, marked as its."""
    if record is None or record.median_s is None:
        return NOT_KNOWN
    words = interval(record.median_s, low_s=record.low_s, high_s=record.high_s)
    return _marks.of(record, words)


def span(median_s: float, *, low_s: float, high_s: float) -> str:
    """Return the two ends, with three digits, in the unit that `median_s` prints in."""
    _, scale = units.unit_of(median_s)
    low, high = (_three_digits(end / scale) for end in (low_s, high_s))
    return f"{low}{NOT_KNOWN}{high}"


def size(count: float | None) -> str:
    """Return bytes in powers of 1000."""
    return NOT_KNOWN if count is None else units.bytes_(count)


def rate(bytes_per_s: float | None) -> str:
    """Return bytes a second."""
    return NOT_KNOWN if bytes_per_s is None else units.rate(bytes_per_s)


def bandwidth(measured: Measurement) -> str:
    """Return touched bytes over the median, marked as derived from the record."""
    words = rate(divided(measured.touched_bytes, measured.median_s))
    return _marks.derived(words, [measured], "touched bytes / time")


def of_floor(measured: Measurement) -> str:
    """Return the floor's share of the time, marked as derived from the record."""
    return _marks.derived(share(measured.floor_s, measured.median_s), [measured], "floor / time")


def floor(measured: Measurement) -> str:
    """Return the floor of a record, marked as what its bytes and flops give: nobody measured it."""
    words = duration(measured.floor_s)
    return _marks.derived(words, [measured], "floor_s of the record", predicted=True)


def quotient(one: Measurement, other: Measurement, formula: str) -> str:
    """Return the time of `one` over that of `other`, marked as derived from both."""
    return _marks.derived(ratio(divided(one.median_s, other.median_s)), [one, other], formula)


def share(part: float | None, whole: float | None) -> str:
    """Return `part` of `whole` in percent."""
    fraction = divided(part, whole)
    if fraction is None:
        return NOT_KNOWN
    if 0 < fraction < 0.0005:
        return "under 0.1 %"
    return f"{fraction * 100:.{1 if 0 < fraction < 0.1 else 0}f} %"


def ratio(value: float | None) -> str:
    """Return a ratio with two decimals, fewer where it is large."""
    if value is None:
        return NOT_KNOWN
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def whole(value: float | None) -> str:
    """Return a count with its thousands set off."""
    return NOT_KNOWN if value is None else f"{value:,.0f}"


def plural(count: int, noun: str) -> str:
    """Return "1 row" or "1,234 rows"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def value(given: Value) -> str:
    """Return a value of a record's `dims`, `method` or `conditions`."""
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, int):
        return f"{given:,}"
    return f"{given:.4g}" if isinstance(given, float) else given


def _three_digits(value: float) -> str:
    rounded = float(f"{value:.3g}")
    if not math.isfinite(rounded):
        return NOT_KNOWN
    decimals = max(0, 2 - math.floor(math.log10(rounded))) if rounded else 0
    return f"{rounded:.{decimals}f}"


def listed(words: Iterable[str], *, most: int = 6) -> str:
    """Return "a, b and 3 more"."""
    found = list(words)
    if len(found) <= most + 1:
        return ", ".join(found)
    return f"{', '.join(found[:most])} and {len(found) - most} more"
