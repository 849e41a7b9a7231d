"""What a sweep says in the end: the best combination by size, what a verify pass gains, crossovers.

    for one in conclusions(records):
        one.contest.mode, one.recommended.ranges, one.savings, one.crossovers

One conclusion for each collective, rank count, dtype and environment. It rests on the timing mode
that is nearest to a server's (see `contests`); `modes` has what each other mode recommends.
"""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from verifyscope.contests import Contest, asked_for, contests
from verifyscope.crossovers import Crossover, crossovers
from verifyscope.fresh_starts import LEAST_STARTS, medians
from verifyscope.pass_savings import Saving, savings
from verifyscope.recommendation import Recommendation, recommend
from verifyscope.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConclusion:
    """The end of a sweep of one collective; `modes` begins with the one it rests on."""

    contest: Contest
    recommended: Recommendation
    savings: tuple[Saving, ...]
    crossovers: tuple[Crossover, ...]
    modes: tuple[tuple[Contest, Recommendation], ...]

    @property
    def silent_because(self) -> str | None:
        """Return why nothing is recommended, None where something is."""
        if self.recommended.ranges:
            return None
        if not self.contest.combinations:
            return "no combination was measured beside the default"
        rows = self.contest.times(self.contest.default).values()
        if not rows:
            return "the default has no time: there is nothing to beat"
        starts = max(len(medians(one)) for one in rows)
        if starts < LEAST_STARTS:
            return f"{starts} fresh starts say nothing of their spread; {LEAST_STARTS} are needed"
        return "no combination beats the default beyond noise over neighbouring sizes"


def conclusions(records: Iterable[Record]) -> tuple[SweepConclusion, ...]:
    """Return the conclusions on the rows of sweeps; all-reduces first."""
    groups: dict[tuple[object, ...], list[Contest]] = {}
    for one in contests(records):
        alike = (one.op, one.ranks, one.nodes, one.dtype, one.environment)
        groups.setdefault(alike, []).append(one)
    return tuple(_conclusion(found) for found in groups.values())


def export(found: SweepConclusion) -> tuple[str, ...]:
    """Return the lines that set one combination for every size; none where none gains.

    A variable is an `export`; what is no variable (the order of GPUs, a binding) is a comment.
    """
    single = found.recommended.single
    if single is None:
        return ()
    asked = asked_for(found.contest, single.implementation)
    lines = [
        f"export {name}={shlex.quote(value)}" if name.isupper() else f"# {name} {value}"
        for name, value in asked.items()
    ]
    if "NCCL_GRAPH_FILE" in asked:
        lines.append("# NCCL_GRAPH_FILE: put the folder of the file before its name")
    return tuple(lines)


def _conclusion(found: list[Contest]) -> SweepConclusion:
    """Conclude from the first mode in which combinations were timed, else from the first."""
    first = next((one for one in found if one.combinations and one.sizes), found[0])
    modes = [(one, recommend(one)) for one in found if one is first or one.combinations]
    recommended = next(known for one, known in modes if one is first)
    return SweepConclusion(
        contest=first,
        recommended=recommended,
        savings=savings(first, recommended),
        crossovers=crossovers(first, recommended),
        modes=tuple(sorted(modes, key=lambda mode: mode[0] is not first)),
    )
