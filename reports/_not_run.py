"""The section of what has no time: each reason once, with who it kept from running and how often.

Reasons that differ only in their numbers are one kind; the first of them is shown.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from reports import _text
from reports._markdown import code, table, text
from verifyscope.records import Measurement, Status

MOST_REASONS = 40
# What is wrong comes first, what could not run here last.
_ORDER: tuple[Status, ...] = (
    "failed",
    "corrupt",
    "hang",
    "error",
    "void",
    "ignored",
    "unsupported",
    "skipped",
    "ok",
)
WRONG: tuple[Status, ...] = ("failed", "corrupt", "hang", "error")
_NUMBER = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one status and one kind of reason; `who` counts them by op/implementation."""

    status: Status
    reason: str
    kinds: set[str] = field(default_factory=set)
    who: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Return how many rows there are."""
        return self.who.total()


def grouped(not_run: Iterable[Measurement]) -> list[Group]:
    """Return the groups, what is wrong first, then the most frequent first."""
    groups: dict[tuple[Status, str], Group] = {}
    for one in not_run:
        reason = one.reason or "no reason was given"
        kind = (one.status, _NUMBER.sub("0", reason))
        group = groups.get(kind)
        if group is None:
            group = groups[kind] = Group(one.status, reason)
        group.kinds.add(reason)
        group.who[f"{one.op}/{one.implementation}"] += 1
    return sorted(groups.values(), key=lambda group: (_ORDER.index(group.status), -group.count))


def not_run_table(groups: list[Group]) -> str:
    """Return a row for each group."""
    lines = []
    for group in groups[:MOST_REASONS]:
        status = f"**{group.status}**" if group.status in WRONG else group.status
        others = len(group.kinds) - 1
        alike = f" (and {_text.plural(others, 'reason')} like it)" if others else ""
        who = (f"{code(name)} {count:,}" for name, count in group.who.most_common())
        lines.append((status, f"{group.count:,}", text(group.reason) + alike, _text.listed(who)))
    return table(("status", "rows", "reason", "which"), lines, align="lrll")
