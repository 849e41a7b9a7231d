"""All records of a report as one compressed text, which report.html unpacks for its table.

A row is a measurement, a finding or a kernel build; what has no time says why. Columns of equal
length; a column of words is its different words and a number for each row. JSON, deflate (zlib),
base64. Medians have nine digits, ends of intervals five, ids as many letters as tell them apart.
"""

import base64
import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from reports import _text
from reports._collected import Collected
from reports._plain import one_line
from verifyscope.records import Compiled, Finding, Measurement

MOST_RECORDS = 100_000
_LEVEL = 5
_SHORTEST_ID = 8


class _Words(msgspec.Struct, frozen=True):
    words: list[str]
    at: list[int]


class _Columns(msgspec.Struct, frozen=True):
    id: list[str]
    kind: _Words
    op: _Words
    implementation: _Words
    case: _Words
    how: _Words
    status: _Words
    machine: _Words
    says: _Words
    origin: _Words
    median_s: list[float | None]
    low_s: list[float | None]
    high_s: list[float | None]
    left_out: int


class Row(NamedTuple):
    """One record as the table shows it; `kind` is its source, or what else it is."""

    id: str
    kind: str
    op: str
    implementation: str = ""
    case: str = ""
    how: str = ""
    status: str = ""
    machine: str = ""
    says: str = ""
    origin: str = ""
    median_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None


_WORDS = Row._fields[1:-3]


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


def short_ids(records: Iterable[Measurement]) -> dict[str, str]:
    """Return the shortest beginnings of ids that tell all apart, by id."""
    ids = [one.id for one in records]
    for length in range(_SHORTEST_ID, max(map(len, ids), default=0)):
        short = {name: name[:length] for name in ids}
        if len(set(short.values())) == len(short):
            return short
    return {name: name for name in ids}


def packed(
    records: Sequence[Measurement], found: Collected, *, names: Mapping[str, str], room: int
) -> str:
    """Return what the page unpacks in at most `room` letters: of the first records that fit.

    names: what the page calls each record by its id.
    """
    rows = [
        *(_of_finding(number, one) for number, one in enumerate(found.findings, 1)),
        *(_of_measurement(one, found, names[one.id]) for one in records[:MOST_RECORDS]),
        *(_of_build(number, one, found) for number, one in enumerate(found.compiled, 1)),
    ]
    there = len(found.findings) + len(records) + len(found.compiled)
    most = min(len(rows), MOST_RECORDS)
    while len(letters := _letters(rows[:most], there - most)) > room and most:
        most = int(most * min(0.9, 0.97 * room / len(letters)))
    return letters


def _letters(shown: Sequence[Row], left_out: int) -> str:
    ids, *words, medians, lows, highs = (
        zip(*shown, strict=True) if shown else [()] * len(Row._fields)
    )
    columns = _Columns(
        id=list(ids),
        **{name: _words(column) for name, column in zip(_WORDS, words, strict=True)},
        median_s=[_digits(value, 9) for value in medians],
        low_s=[_digits(value, 5) for value in lows],
        high_s=[_digits(value, 5) for value in highs],
        left_out=left_out,
    )
    return base64.b64encode(zlib.compress(msgspec.json.encode(columns), _LEVEL)).decode("ascii")


def _words(values: Sequence[str]) -> _Words:
    """Return a column, its words on one line each."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return _Words([one_line(word) for word in numbers], list(map(numbers.__getitem__, values)))


def _of_measurement(one: Measurement, found: Collected, name: str) -> Row:
    return Row(
        id=name,
        kind=one.source if one.median_s is not None else "no time",
        op=one.op,
        implementation=one.implementation,
        case=one.case,
        how=_how(one),
        status=one.status,
        machine=_machine(one, found),
        says=one.reason or "",
        origin=_origin(one),
        median_s=one.median_s,
        low_s=one.low_s,
        high_s=one.high_s,
    )


def _of_finding(number: int, one: Finding) -> Row:
    worth = "" if one.worth_s is None else f" Worth {_text.duration(one.worth_s)}."
    action = "" if one.next_action is None else f" Next: {one.next_action}."
    places = (each.file + ("" if each.at is None else f":{each.at}") for each in one.evidence)
    return Row(
        id=f"finding-{number}",
        kind="finding",
        op=one.name,
        how=one.confidence,
        says=f"{one.sentence}.{worth}{action}".replace("..", "."),
        origin=", ".join(dict.fromkeys(places)),
    )


def _of_build(number: int, one: Compiled, found: Collected) -> Row:
    return Row(
        id=f"build-{number}",
        kind="build",
        op=one.op,
        implementation=one.implementation,
        case=f"{one.kernel}, {one.case}",
        how=f"sm_{one.capability}",
        status="ok" if one.failure is None else "refused",
        machine=found.letter(one.environment),
        says=one.failure or _takes(one),
        origin=one.command,
    )


def _takes(one: Compiled) -> str:
    words = [
        f"{one.registers} registers" if one.registers is not None else "",
        f"{one.spilled_bytes} B spilled" if one.spilled_bytes is not None else "",
        f"{one.shared_bytes:,} of {one.shared_limit_bytes:,} B shared memory"
        if one.shared_bytes is not None
        else "",
        f"occupancy {_text.share(one.occupancy, 1.0)}" if one.occupancy is not None else "",
        *one.found,
    ]
    return ", ".join(word for word in words if word)


def _how(one: Measurement) -> str:
    """Return how it was timed, on how many ranks, and which settings it asked for."""
    asked = tuple(one.requested.items())
    return _how_words(
        one.mode, one.launch, one.cache, ranks=one.ranks, flags=one.flags, asked=asked
    )


@cache  # few differ of many
def _how_words(
    *timed: str | None,
    ranks: int | None,
    flags: tuple[str, ...],
    asked: tuple[tuple[str, str], ...],
) -> str:
    counted = None if ranks is None else _text.plural(ranks, "rank")
    settings = (f"{name}={value}" for name, value in asked)
    return " ".join(word for word in (*timed, counted, *flags, *settings) if word)


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
