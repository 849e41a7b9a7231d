"""The one place that turns seconds and bytes into text, and text such as "8G" into numbers.

Inside the project time is seconds and size is bytes, as plain numbers. Sizes and counts are read
in powers of 1024, as in nccl-tests: K, M, G, T, with or without "B" or "iB". Rates are read in
powers of 1000, as data sheets print them: "1.50T" is 1.5e12 B/s. What is printed is in powers of
1000 throughout ("10.3 GB", "1.50 TB/s"), with three digits, except by `binary_size`.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from verifyscope.errors import UsageError

_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,18})?)"
_SIZE = re.compile(rf"{_NUMBER}\s*(?:([KMGT])(?:I?B)?|B)?")
_COUNT = re.compile(rf"{_NUMBER}\s*([KM])?")
_RATE = re.compile(rf"{_NUMBER}\s*(?:([KMGT])(?:B(?:/S)?)?|B/S)?")
_POWER = {None: 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SLOWEST_RATE = 10**6

_SECONDS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_BYTES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_FLOPS = (("Tflop", 1e12), ("Gflop", 1e9), ("Mflop", 1e6), ("kflop", 1e3), ("flop", 1.0))


def parse_bytes(text: str) -> int:
    """Return the bytes that "8", "64K", "1.5M" or "8GiB" name; at least 1."""
    return _whole(text, "size", _SIZE, "57344, 64K, 8M or 8G")


def parse_count(text: str) -> int:
    """Return the count that "8", "1k" (1024) or "128k" names; at least 1."""
    return _whole(text, "count", _COUNT, "4, 8192 or 8k")


def parse_rate(text: str) -> float:
    """Return the bytes a second that "1.50T", "864G" or "1.5TB/s" names, in powers of 1000.

    `UsageError` for anything else, and below 1M.
    """
    value = _value(text, _RATE, 1000)
    if value is None or value < _SLOWEST_RATE:
        raise UsageError(
            f"rate {text!r} is not a number of bytes a second of at least 1M; "
            f"give one like 1.50T or 864G (powers of 1000)"
        )
    return float(value)


def parse_list(text: str, item: Callable[[str], int]) -> list[int]:
    """Return the numbers of a comma-separated list, in the order given, each once."""
    return list(dict.fromkeys(item(part) for part in text.split(",")))


def seconds(value: float) -> str:
    """Return a duration with three digits: "12.3 us", "4.56 ms", "7.89 s"."""
    return _scaled(value, _SECONDS)


def unit_of(value: float) -> tuple[str, float]:
    """Return the unit that `seconds` prints a duration in, and how long it is: "us", 1e-6."""
    return _unit(value, _SECONDS)


def bytes_(value: float) -> str:
    """Return a size in powers of 1000: "57.3 kB", "3.10 MB", "10.3 GB"; whole below 1 kB."""
    return f"{value:.0f} B" if abs(value) < 1000 and value % 1 == 0 else _scaled(value, _BYTES)


def rate(value: float) -> str:
    """Return bytes a second: "1.50 TB/s", "864 GB/s"."""
    return f"{bytes_(value)}/s"


def whole_rate(value: float) -> str:
    """Return bytes a second in whole GB/s, for what is known to four digits: "1,597 GB/s"."""
    return f"{value / 1e9:,.0f} GB/s"


def flops(value: float) -> str:
    """Return a count of floating-point operations: "1.23 Tflop", "456 Mflop"."""
    return _scaled(value, _FLOPS)


def percent(value: float) -> str:
    """Return a fraction as percent: 0.0874 -> "8.7 %"."""
    return f"{value * 100:.1f} %"


def binary_size(value: int) -> str:
    """Return a size in powers of 1024 where that is exact ("64K"), else the plain bytes."""
    for suffix, power in (("T", 4), ("G", 3), ("M", 2), ("K", 1)):
        if value >= 1024**power and value % 1024**power == 0:
            return f"{value // 1024**power}{suffix}"
    return str(value)


def _whole(text: str, what: str, pattern: re.Pattern[str], example: str) -> int:
    value = _value(text, pattern, 1024)
    if value is None or value < 1 or value.denominator != 1:
        raise UsageError(
            f"{what} {text!r} is not a whole number above zero; give one like {example}"
        )
    return int(value)


def _value(text: str, pattern: re.Pattern[str], base: int) -> Fraction | None:
    match = pattern.fullmatch(text.strip().upper())
    return Fraction(match[1]) * base ** _POWER[match[2]] if match else None


def _scaled(value: float, ladder: Sequence[tuple[str, float]]) -> str:
    unit, scale = _unit(value, ladder)
    return f"{three_digits(value / scale)} {unit}"


def _unit(value: float, ladder: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """Return the largest unit that leaves at least 1 after rounding to three digits."""
    rounded = abs(float(f"{value:.3g}"))
    fitting = (step for step in ladder if rounded >= step[1] or (not rounded and step[1] == 1))
    return next(fitting, ladder[-1])


def three_digits(value: float) -> str:
    """Return a number with three digits and no exponent: 1.234 -> "1.23", 1234.5 -> "1230"."""
    if value == 0:
        return "0"
    text = f"{value:#.3g}"
    return f"{float(text):.0f}" if "e+" in text else text.rstrip(".")
