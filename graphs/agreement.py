"""Whether the timeline says what a pass really took: predicted against measured, mode by mode.

    off = predicted / measured - 1

A measured pass is a record of part "forward" whose dims name model, tp, rows and context, and
whose `launch` says how it ran: of a stub all of it, and not what is left without a part. The
prediction is that of the same pass in the same mode. `agrees` where the prediction is within the
measured interval or within WITHIN of the median. A prediction that lacks a part is "at least" and
can only be refuted by a shorter measurement.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from graphs._predicted.played import Played
from graphs.layers import Pass
from verifyscope import passes
from verifyscope.records import Launch, Measurement

WITHIN = 0.10

Verdict = Literal["agrees", "too short", "too long", "unsure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One measured pass beside its prediction, in seconds; `left_out` are parts not predicted."""

    launch: Launch
    measured_s: float
    low_s: float | None
    high_s: float | None
    predicted_s: float
    left_out: tuple[str, ...]
    measured: Measurement

    @property
    def off(self) -> float:
        """Return how far the prediction is off, as a share of what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def verdict(self) -> Verdict:
        """Say whether the prediction holds; "too short" is a prediction below the measurement."""
        inside = self.low_s is not None and self.high_s is not None
        if inside and (self.low_s or 0) <= self.predicted_s <= (self.high_s or 0):
            return "agrees"
        if abs(self.off) <= WITHIN:
            return "agrees"
        if self.off > 0:
            return "too long"
        return "unsure" if self.left_out else "too short"


def compare(
    measured: Iterable[Measurement], played: Sequence[Played], asked: Pass
) -> list[Agreement]:
    """Return each measured pass of `asked` that was played in its mode, in their order."""
    by_launch = {one.launch: one for one in played}
    found = []
    for one in measured:
        mode = None if one.launch is None else by_launch.get(one.launch)
        if mode is None or not one.median_s or not _is_of(one, asked):
            continue
        if one.dims.get("all_reduce") == "none" and asked.tp > 1 and not _lacks_reduces(mode):
            continue  # a stub that reduces nothing is no pass with all-reduces
        found.append(
            Agreement(
                launch=mode.launch,
                measured_s=one.median_s,
                low_s=one.low_s,
                high_s=one.high_s,
                predicted_s=mode.pass_s,
                left_out=mode.left_out,
                measured=one,
            )
        )
    return found


def _lacks_reduces(mode: Played) -> bool:
    return "all_reduce" in mode.left_out


def _is_of(one: Measurement, asked: Pass) -> bool:
    if one.implementation == passes.STUB and one.op != passes.FORWARD:
        return False  # a pass with parts taken out
    if one.dims.get("outside") == passes.COLLECTIVES_OUTSIDE:
        return False  # pieces, and not those that are predicted
    dims = one.dims
    wanted = (asked.model.name, asked.tp, asked.rows, asked.context, asked.requests)
    told = (dims.get("model"), dims.get("tp"), dims.get("rows"), dims.get("context"))
    return (*told, dims.get("requests", 1)) == wanted
