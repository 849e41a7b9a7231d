"""The steps of a waterfall: each begins where the one before ended, and the last is the whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from verifyscope.records import Measurement, Source

_SMALL = 0.01  # of the whole: a step of less has no line of its own
Kind = Literal["floor", "above", "collective", "idle", "unexplained", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of `seconds` from where the one before ended; the last one is the whole.

    part: a class of kernels, idle or unexplained, for its colour; name and how are plain text.
    """

    name: str
    seconds: float
    kind: Kind
    part: str
    records: tuple[Measurement, ...]
    source: Source
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """The steps in their order, and what they are of as plain text."""

    title: str
    steps: tuple[Step, ...]
    notes: tuple[str, ...]

    def ends(self) -> Iterator[tuple[Step, float, float]]:
        """Yield each step with where it begins and ends, in seconds."""
        at = 0.0
        for step in self.steps:
            if step.kind == "whole":
                yield step, 0.0, step.seconds
            else:
                yield step, at, at + step.seconds
                at += step.seconds


def merged(steps: Sequence[Step], whole_s: float) -> list[Step]:
    """Return the steps; those too small to see are one with those of their kind."""
    kept: list[Step] = []
    for step in steps:
        small = abs(step.seconds) < _SMALL * whole_s
        if not (small and step.kind in ("floor", "above", "collective")):
            kept.append(step)
            continue
        at = next((at for at, one in enumerate(kept) if _takes(one, step, whole_s)), None)
        if at is None:
            kept.append(step)
        else:
            kept[at] = _together(kept[at], step)
    return kept


def _takes(one: Step, small: Step, whole_s: float) -> bool:
    """Say whether a small step becomes part of `one`: another small one, or the all-reduces."""
    if one.kind != small.kind:
        return False
    return one.kind == "collective" or abs(one.seconds) < _SMALL * whole_s


def _together(one: Step, small: Step) -> Step:
    name = f"{one.name} and others" if one.kind == "collective" else _others(small)
    return replace(
        one,
        name=one.name if one.name.endswith("and others") else name,
        seconds=one.seconds + small.seconds,
        records=(*one.records, *small.records),
    )


def _others(small: Step) -> str:
    return "other classes: bytes and flops" if small.kind == "floor" else "other classes"
