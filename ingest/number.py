"""Numbers as logs print them: plain decimals of at most 15 digits, never NaN, infinity or a sign.

number("29.47") == 29.47        number("nan") is None        number("1" * 40) is None
"""

import re

NUMBER = r"\d{1,15}(?:\.\d{1,12})?"
_WHOLE = re.compile(NUMBER)
_COUNT = re.compile(r"\d{1,12}")


def number(text: str) -> float | None:
    """Return the number that `text` is, or None."""
    return float(text) if _WHOLE.fullmatch(text) else None


def count(text: str) -> int | None:
    """Return the whole number that `text` is, or None."""
    return int(text) if _COUNT.fullmatch(text) else None


def short(value: float, *, digits: int = 3) -> str:
    """Return `value` with `digits` digits and no exponent: 1234.5 -> "1234", 0.98 -> "0.980"."""
    text = f"{value:#.{digits}g}"
    return f"{float(text):.0f}" if "e" in text and abs(value) >= 1 else text.rstrip(".")
