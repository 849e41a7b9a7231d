"""Which row of A is which row of B.

First what is the same in everything that makes a row; then, of what is left, what differs in the
name of an imported file, in what was requested, or, for a whole cycle or pass, in its launch. Such
a match counts only where it is the only one on both sides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reports._comparison import runs, verdicts
from reports._comparison.runs import Key, Row, Run
from reports._comparison.verdicts import Change
from verifyscope.records import Measurement
from verifyscope.stats import SAME_WITHIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One row in both runs; `change` is None where one of the two has no time."""

    old: Row
    new: Row
    change: Change | None

    @property
    def is_timed(self) -> bool:
        """Say whether both rows have a time."""
        return self.change is not None

    @property
    def moved(self) -> bool:
        """Say whether it is faster or slower beyond noise."""
        return self.change is not None and self.change.verdict in ("faster", "slower")

    @property
    def change_s(self) -> float:
        """Return the seconds that the new median is longer; 0 where one has no time."""
        if self.old.median_s is None or self.new.median_s is None:
            return 0.0
        return self.new.median_s - self.old.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The rows of both runs, and those of one alone."""

    pairs: Sequence[Pair]
    only_old: Sequence[Row]
    only_new: Sequence[Row]

    @property
    def timed(self) -> list[Pair]:
        """Return the pairs that have a time in both runs."""
        return [pair for pair in self.pairs if pair.is_timed]

    @property
    def lost(self) -> list[Pair]:
        """Return the pairs that have a time in the old run and none in the new."""
        return [one for one in self.pairs if one.old.level is not None and one.new.level is None]

    @property
    def gained(self) -> list[Pair]:
        """Return the pairs that have a time in the new run alone."""
        return [one for one in self.pairs if one.old.level is None and one.new.level is not None]


def match(old: Run, new: Run, *, same_within: float = SAME_WITHIN) -> Matched:
    """Match the rows of two runs and judge all of them together."""
    found, left_old, left_new = _by(runs.identity, old.rows, new.rows)
    for looser in runs.LOOSER:
        more, left_old, left_new = _by(looser, left_old, left_new)
        found += more
    levels = [(a.level, b.level) for a, b in found if a.level is not None and b.level is not None]
    judged = iter(verdicts.changes(levels, same_within=same_within))
    pairs = [
        Pair(old=a, new=b, change=next(judged) if a.level and b.level else None) for a, b in found
    ]
    return Matched(pairs=pairs, only_old=left_old, only_new=left_new)


def _by(
    key: Callable[[Measurement], Key | None], old: Sequence[Row], new: Sequence[Row]
) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    """Return the pairs that one key joins, and the rows that are left on each side."""
    olds, news = _single(key, old), _single(key, new)
    both = [name for name in olds if name in news]
    taken = {id(one) for name in both for one in (olds[name], news[name])}
    return (
        [(olds[name], news[name]) for name in both],
        [one for one in old if id(one) not in taken],
        [one for one in new if id(one) not in taken],
    )


def _single(key: Callable[[Measurement], Key | None], rows: Sequence[Row]) -> Mapping[Key, Row]:
    """Return the rows whose key no other has."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        name = key(row.last)
        if name is not None:
            groups.setdefault(name, []).append(row)
    return {name: group[0] for name, group in groups.items() if len(group) == 1}
