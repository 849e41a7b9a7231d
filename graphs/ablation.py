"""What each part of a pass costs: taken out alone, kept in alone, and where it stands.

    marginal(p)   = whole - without(p)      paired: both of the same round
    isolated(p)   = only(p)                 nothing is subtracted from it
    in context(p) = the time between p's beginnings and ends within a whole pass
    unexplained   = whole - sum over p      of each of the three, round by round

All passes are measured in turn, round after round (verifyscope/alternate.py), so that what drifts
meets all of them; medians and their 95 % intervals are of the rounds. `nothing` is a pass of which
everything is taken out: on a CPU the loop itself, which every isolated time holds, too. A marginal
time may be below zero: then the pass was no faster without the part.

Seconds throughout. What the names of `passes` mean is in `graphs.stub`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from verifyscope.alternate import Alternation
from verifyscope.stats import Summary, summarise

WHOLE, NOTHING = "whole", "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCost:
    """The cost of one part in the three senses; None where it was not measured, `why_not` says why.

    without, only: the times of the passes themselves.
    """

    part: str
    without: Summary | None
    only: Summary | None
    marginal: Summary | None
    in_context: Summary | None
    why_not: str | None = None

    @property
    def isolated(self) -> Summary | None:
        """Return the time of the pass that has nothing else."""
        return self.only


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """Parts added up against the whole: `sum` and `unexplained` of rounds; None: a part lacks."""

    sum: Summary
    unexplained: Summary
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A pass and its parts. `nothing` is None where a pass of nothing cannot be run."""

    whole: Summary
    nothing: Summary | None
    parts: tuple[PartCost, ...]
    marginal: Closure | None
    isolated: Closure | None
    in_context: Closure | None


def name_without(part: str) -> str:
    """Return the name of the pass without `part`."""
    return f"without {part}"


def name_only(part: str) -> str:
    """Return the name of the pass with `part` alone."""
    return f"only {part}"


def account(
    rounds: Alternation,
    parts: Sequence[str],
    *,
    in_context: Mapping[str, Sequence[float]] | None = None,
) -> Account:
    """Return the account of `rounds`, whose timers have the names above.

    in_context: by part, what it took where it stands, in as many passes for each part. If these are
    as many as there are rounds, they are taken as of the same rounds.
    """
    if WHOLE not in rounds.samples:
        raise ValueError(f"the whole pass has no time: {rounds.failures.get(WHOLE, 'no rounds')}")
    whole = rounds.samples[WHOLE]
    given = in_context or {}
    costs = tuple(_cost(part, rounds, whole, given.get(part)) for part in parts)
    differences = {
        one.part: _less(whole, rounds.samples[name_without(one.part)])
        for one in costs
        if one.without is not None
    }
    alone = {one.part: rounds.samples[name_only(one.part)] for one in costs if one.only is not None}
    return Account(
        whole=summarise(whole),
        nothing=summarise(rounds.samples[NOTHING]) if NOTHING in rounds.samples else None,
        parts=costs,
        marginal=_closure(whole, differences, parts),
        isolated=_closure(whole, alone, parts),
        in_context=_closure(whole, given, parts) if given else None,
    )


def _cost(
    part: str, rounds: Alternation, whole: Sequence[float], context: Sequence[float] | None
) -> PartCost:
    without, only = (rounds.samples.get(name) for name in (name_without(part), name_only(part)))
    reasons = [
        f"{name}: {rounds.failures[name]}"
        for name in (name_without(part), name_only(part))
        if name in rounds.failures
    ]
    return PartCost(
        part=part,
        without=summarise(without) if without else None,
        only=summarise(only) if only else None,
        marginal=summarise(_less(whole, without)) if without else None,
        in_context=summarise(context) if context else None,
        why_not="; ".join(reasons) or None,
    )


def _less(whole: Sequence[float], without: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(whole, without, strict=True)]


def _closure(
    whole: Sequence[float], by_part: Mapping[str, Sequence[float]], parts: Sequence[str]
) -> Closure | None:
    if any(part not in by_part for part in parts):
        return None
    sums = [sum(times) for times in zip(*(by_part[part] for part in parts), strict=True)]
    total, added = summarise(whole), summarise(sums)
    if len(sums) == len(whole):
        left = summarise(_less(whole, sums))
        return Closure(sum=added, unexplained=left, share=left.median / total.median)
    left = replace(
        total,
        median=total.median - added.median,
        low=total.low - added.high,
        high=total.high - added.low,
        count=min(total.count, added.count),
    )
    return Closure(sum=added, unexplained=left, share=left.median / total.median)
