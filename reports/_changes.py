"""The section of changes: what was measured in more than one environment, and how it differs.

Each point of the first environment is the old time, the same point of a later one the new. All are
judged together, as two runs are (reports/_comparison/verdicts.py). The largest changes stand first;
those that are the same, or within the noise, are only counted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from reports import _marks, _text
from reports._collected import Collected, is_collective
from reports._comparison import runs, verdicts
from reports._markdown import code, table, text
from reports._points import Ratio, Samples
from verifyscope import records
from verifyscope.records import Measurement

MOST_CHANGES = 30
_MOST_COMPARED = 2000


@dataclass(frozen=True, slots=True)
class Change:
    """The same point in two environments; the ratio is new over old."""

    old: Measurement
    new: Measurement
    ratio: Ratio


def changes(found: Collected) -> list[Change]:
    """Return every point of two environments, the largest change first."""
    if len(found.environments) < 2:
        return []
    pairs = _pairs((*found.kernels, *found.collectives))[:_MOST_COMPARED]
    ids = {one.id for pair in pairs for one in pair}
    samples: Samples = records.samples(found.paths, ids, warnings=found.warnings)
    return sorted(_judged(pairs, samples), key=_size, reverse=True)


def _judged(pairs: Sequence[tuple[Measurement, Measurement]], samples: Samples) -> Iterator[Change]:
    known = [
        (old, new, before, after)
        for old, new in pairs
        for before, after in [[runs.level_of([one], samples) for one in (old, new)]]
        if before is not None and after is not None
    ]
    judged = verdicts.changes([(before, after) for *_, before, after in known])
    for (old, new, *_), one in zip(known, judged, strict=True):
        yield Change(old, new, Ratio(one.ratio, one.verdict, one.basis == "samples"))


def counts(several: Sequence[Change], found: Collected) -> list[str]:
    """Return a sentence for each two environments: how many points got faster or slower."""
    sentences = []
    for letters, of_two in _by_environments(several, found).items():
        verdicts = [one.ratio.verdict for one in of_two]
        words = [
            f"{verdicts.count(word)} {word}"
            for word in ("slower", "faster", "same", "unsure")
            if word in verdicts
        ]
        points = _text.plural(len(of_two), "point")
        sentences.append(f"From {letters[0]} to {letters[1]}, {points}: {', '.join(words)}.")
    return sentences


def moved(several: Sequence[Change]) -> list[Change]:
    """Return those that are faster or slower beyond noise."""
    return [one for one in several if one.ratio.verdict in ("faster", "slower")]


def changes_table(several: Sequence[Change], found: Collected) -> str:
    """Return a row for each change."""
    lines = [
        (
            code(f"{one.new.op}/{one.new.implementation}"),
            _point(one.new),
            f"{found.letter(one.old.environment)} to {found.letter(one.new.environment)}",
            _text.median(one.old),
            _text.median(one.new),
            f"{_marks.derived(_text.ratio(one.ratio.value), [one.new, one.old], 'new / old')} "
            f"{one.ratio.verdict}",
        )
        for one in several[:MOST_CHANGES]
    ]
    header = ("what", "point", "from", "old", "new", "new / old")
    return table(header, lines, align="lllrrr")


def _pairs(measured: Sequence[Measurement]) -> list[tuple[Measurement, Measurement]]:
    latest: dict[tuple[object, ...], dict[str, Measurement]] = {}
    for one in measured:
        if one.source == "measured":
            latest.setdefault(_identity(one), {})[one.environment] = one
    pairs = []
    for by_environment in latest.values():
        first, *later = by_environment.values()
        pairs += [(first, other) for other in later]
    return pairs


def _identity(one: Measurement) -> tuple[object, ...]:
    """Return what makes two measurements the same point; a sweep's ranks are part of it."""
    settings = tuple(sorted(one.requested.items()))
    return (one.op, one.implementation, one.case, one.launch, one.cache, one.ranks, settings)


def _size(change: Change) -> float:
    value = change.ratio.value
    return abs(math.log(value)) if value else 0.0


def _by_environments(
    several: Sequence[Change], found: Collected
) -> Mapping[tuple[str, str], list[Change]]:
    groups: dict[tuple[str, str], list[Change]] = {}
    for one in several:
        letters = (found.letter(one.old.environment), found.letter(one.new.environment))
        groups.setdefault(letters, []).append(one)
    return groups


def _point(one: Measurement) -> str:
    if not is_collective(one):
        return code(one.case)
    ranks = "" if one.ranks is None else f", {_text.plural(one.ranks, 'rank')}"
    return text(one.case) + ranks
