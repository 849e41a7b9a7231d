"""The measurements of a report as one compressed text, which report.html unpacks for its table.

Columns of equal length; a column of words is its different words and a number for each record.
JSON, deflate (zlib), base64. Medians have nine digits, ends of intervals five.
"""

import base64
import itertools
import zlib
from collections.abc import Iterable, Sequence

import msgspec

from reports._collected import Collected
from verifyscope.records import Measurement

MOST_RECORDS = 100_000
_LEVEL = 5
_MOST_LETTERS = 3_600_000  # of a page of 6 MB


class _Words(msgspec.Struct, frozen=True):
    words: list[str]
    at: list[int]


class _Columns(msgspec.Struct, frozen=True):
    id: list[str]
    source: _Words
    op: _Words
    implementation: _Words
    case: _Words
    how: _Words
    status: _Words
    machine: _Words
    reason: _Words
    origin: _Words
    median_s: list[float | None]
    low_s: list[float | None]
    high_s: list[float | None]
    left_out: int


def every(found: Collected) -> list[Measurement]:
    """Return all measurements of a report."""
    return list(
        itertools.chain(
            found.kernels,
            found.collectives,
            found.traces,
            found.passes,
            found.predicted_passes,
            found.predicted,
            found.predicted_kernels,
            found.believed,
            found.sweeping,
            found.not_run,
        )
    )


def packed(records: Sequence[Measurement], found: Collected) -> str:
    """Return what the page unpacks, of the first MOST_RECORDS, of fewer if these are too long."""
    most = min(len(records), MOST_RECORDS)
    while len(letters := _letters(records[:most], len(records) - most, found)) > _MOST_LETTERS:
        most //= 2
    return letters


def _letters(shown: Sequence[Measurement], left_out: int, found: Collected) -> str:
    columns = _Columns(
        id=[one.id for one in shown],
        source=_words(one.source for one in shown),
        op=_words(one.op for one in shown),
        implementation=_words(one.implementation for one in shown),
        case=_words(one.case for one in shown),
        how=_words(_how(one) for one in shown),
        status=_words(one.status for one in shown),
        machine=_words(_machine(one, found) for one in shown),
        reason=_words(one.reason or "" for one in shown),
        origin=_words(_origin(one) for one in shown),
        median_s=[_digits(one.median_s, 9) for one in shown],
        low_s=[_digits(one.low_s, 5) for one in shown],
        high_s=[_digits(one.high_s, 5) for one in shown],
        left_out=left_out,
    )
    return base64.b64encode(zlib.compress(msgspec.json.encode(columns), _LEVEL)).decode("ascii")


def _words(values: Iterable[str]) -> _Words:
    numbers: dict[str, int] = {}
    at = [numbers.setdefault(value, len(numbers)) for value in values]
    return _Words(list(numbers), at)


def _how(one: Measurement) -> str:
    return " ".join(word for word in (one.mode, one.launch, one.cache, *one.flags) if word)


def _machine(one: Measurement, found: Collected) -> str:
    """Return where it was made: nothing but a measured time was made on a machine of the report."""
    if one.source != "measured":
        return ""
    return found.letter(one.environment) + (", CPU" if found.on_cpu(one) else "")


def _origin(one: Measurement) -> str:
    if one.origin is None:
        return one.command
    return one.origin.file + ("" if one.origin.line is None else f":{one.origin.line}")


def _digits(value: float | None, digits: int) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")
