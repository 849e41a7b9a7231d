"""How `python -m verifyscope.diagnose` divides its minutes over its steps.

    limits = divide(("machine", "sweep", "prediction", "report"), budget_s=600)

Each step has what it needs at least, and of the rest a share by its weight: the limits add up to
the budget. Where the least of all is more than that, what is worth least is left out first;
machine, log, prediction and report are never left out. What a step leaves of its time is for those
after it (verifyscope/job.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from verifyscope.errors import UsageError

Name = Literal[
    "machine", "log", "host", "sweep", "stub", "compile", "suites", "prediction", "report"
]
NAMES: tuple[Name, ...] = get_args(Name)


@dataclass(frozen=True, slots=True)
class Share:
    """What a step needs to be worth starting, in seconds, and its part of what is left."""

    least_s: float
    weight: float


SHARES: Mapping[Name, Share] = MappingProxyType(
    {
        "machine": Share(6, 1),
        "log": Share(6, 2),
        "host": Share(20, 8),
        "sweep": Share(25, 30),
        "stub": Share(25, 25),
        "compile": Share(60, 35),
        "suites": Share(30, 35),
        "prediction": Share(8, 2),
        "report": Share(15, 8),
    }
)
_LEFT_OUT_FIRST: tuple[Name, ...] = ("compile", "suites", "stub", "sweep", "host")


def divide(wanted: Sequence[Name], *, budget_s: float) -> Mapping[Name, float]:
    """Return the limit of each step that there is time for, in seconds, which add up to the budget.

    `UsageError` if there is too little for anything.
    """
    kept = list(wanted)
    for name in _LEFT_OUT_FIRST:
        if _least_s(kept) > budget_s and name in kept:
            kept.remove(name)
    least_s = _least_s(kept)
    if least_s > budget_s:
        raise UsageError(
            f"--minutes {budget_s / 60:.3g} is too little for anything: to look at this machine, "
            f"to predict the pass and to write the report takes {least_s:.0f} s; give "
            f"{minutes_for(kept):g} or more"
        )
    weights = sum(SHARES[name].weight for name in kept)
    spare_s = budget_s - least_s
    return {name: SHARES[name].least_s + spare_s * SHARES[name].weight / weights for name in kept}


def minutes_for(wanted: Sequence[Name]) -> float:
    """Return the minutes that are enough for each of these steps, in tenths."""
    return math.ceil(_least_s(wanted) / 6) / 10


def _least_s(wanted: Sequence[Name]) -> float:
    return sum(SHARES[name].least_s for name in wanted)
