"""The one place that turns seconds and bytes into text, and text such as "8G" into numbers.

Inside the project time is seconds and size is bytes, as plain numbers. Suffixes are powers of
1024, as in nccl-tests: K, M, G, T, with or without "B" or "iB". Only here, 1 MB is 10**6 bytes.
"""

import math
import re
from collections.abc import Callable

from verifyscope.errors import UsageError

_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_COUNT_SUFFIXES = {"": 1, "K": 1024, "M": 1024**2}


def parse_bytes(text: str) -> int:
    """Return the bytes that "8", "64K", "1.5M" or "8GiB" name; at least 1."""
    return _parse(text, "size", r"(?:I?B)?", _SUFFIXES)


def parse_count(text: str) -> int:
    """Return the count that "8", "1k" (1024) or "128k" names; at least 1."""
    return _parse(text, "count", "", _COUNT_SUFFIXES)


def parse_list(text: str, item: Callable[[str], int]) -> list[int]:
    """Return the numbers of a comma-separated list, in the order given, each once."""
    return list(dict.fromkeys(item(part) for part in text.split(",")))


def _parse(text: str, what: str, tail: str, suffixes: dict[str, int]) -> int:
    letters = "".join(suffixes)
    pattern = rf"(\d+(?:\.\d+)?)\s*([{letters}]?){tail}"
    match = re.fullmatch(pattern, text.strip().upper())
    value = float(match[1]) * suffixes[match[2]] if match else math.nan
    if match is None or value < 1 or value != int(value):
        example = "57344, 64K, 8M or 8G" if what == "size" else "4, 8192 or 8k"
        raise UsageError(
            f"{what} {text!r} is not a whole number above zero; give one like {example}"
        )
    return int(value)


def seconds(value: float) -> str:
    """Return a duration with three digits: "12.3 us", "4.56 ms", "7.89 s"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= scale:
            return f"{_three_digits(value / scale)} {unit}"
    return "0 s" if value == 0 else f"{_three_digits(value * 1e9)} ns"


def bytes_(value: float) -> str:
    """Return a size in powers of 1000: "57.3 kB", "3.10 MB", "10.3 GB"."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{value:.0f} B"


def rate(value: float) -> str:
    """Return bytes a second: "1.50 TB/s", "864 GB/s"."""
    return f"{bytes_(value)}/s"


def percent(value: float) -> str:
    """Return a fraction as percent: 0.0874 -> "8.7 %"."""
    return f"{value * 100:.1f} %"


def binary_size(value: int) -> str:
    """Return a size in powers of 1024 where that is exact ("64K"), else the plain bytes."""
    for suffix, scale in reversed(_SUFFIXES.items()):
        if value >= scale and value % scale == 0:
            return f"{value // scale}{suffix}"
    return str(value)


def _three_digits(value: float) -> str:
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    rounded = round(value, digits)
    digits = 2 - math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{rounded:.{max(digits, 0)}f}"
