"""The answer: throughput, break-even, what a target needs, the best draft, break-even by load.

Each number is one function of `verifyscope.speculation` or `verifyscope.draft_length`. Where draft
and host are not known, a cycle is at least its verify: rates are "at most", break-evens "at least".
Where a plain step lacks a part, too, its ratio to the cycle may be off either way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from reports._calculator.asked import Asked
from verifyscope import draft_length, speculation
from verifyscope.draft_length import Costs, Draft
from verifyscope.errors import UsageError

_REQUESTS = (1, 2, 4, 8, 16, 32, 64)
_DRAFTED = (1, 2, 3, 4, 5, 7)

Extent = Literal["whole", "least", "partly"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a rate needs: accepted tokens at this cycle, or this cycle at these accepted tokens.

    plain_step_s: or so long a step without speculation.
    """

    tokens_per_s: float
    accepted: float | None
    chain_acceptance: float | None
    cycle_s: float | None
    plain_step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Break-even at one number of requests and drafted tokens; `pays` is of the known chance."""

    requests: int
    drafted: int
    cycle_s: float
    plain_step_s: float
    accepted: float
    pays: bool | None

    @property
    def never(self) -> bool:
        """Say whether not even a perfect drafter would pay."""
        return self.accepted > self.drafted + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the calculator says; None is what was not given and does not follow.

    extent: least where a cycle is its verify alone or lacks a part of the pass, partly where the
    plain step lacks one, too. is_predicted: a time of it is of a predicted line.
    """

    tokens_per_s: float | None
    plain_tokens_per_s: float | None
    break_even: float | None
    break_even_by_verify: float | None
    extent: Extent
    is_predicted: bool
    target: Target | None
    chains: tuple[Draft, ...]
    trees: tuple[Draft, ...]
    loads: tuple[Load, ...]
    missing: tuple[str, ...]

    @property
    def speedup(self) -> float | None:
        """Return the rate over that of plain decoding."""
        if self.tokens_per_s is None or self.plain_tokens_per_s is None:
            return None
        return self.tokens_per_s / self.plain_tokens_per_s

    @property
    def best(self) -> Draft | None:
        """Return the draft of the highest rate."""
        every = (*self.chains, *self.trees)
        return draft_length.best(every) if every else None


def answer(asked: Asked) -> Answer:
    """Return what follows from what was given."""
    cycle = asked.cycle or asked.verify
    plain_s = None if asked.plain is None else asked.plain.value
    rate = even = by_verify = None
    if cycle is not None and asked.accepted is not None:
        each = speculation.tokens_per_s(asked.accepted.value, cycle_s=cycle.value)
        rate = asked.requests * each
    if cycle is not None and plain_s is not None:
        even = speculation.break_even_accepted(cycle.value, plain_token_s=plain_s)
    if asked.verify is not None and plain_s is not None:
        by_verify = speculation.break_even_accepted_by_verify(
            asked.verify.value, plain_token_s=plain_s
        )
    costs = _costs(asked)
    chains, trees = _drafts(asked, costs)
    return Answer(
        tokens_per_s=rate,
        plain_tokens_per_s=None if plain_s is None else asked.requests / plain_s,
        break_even=even,
        break_even_by_verify=by_verify,
        extent=_extent(asked),
        is_predicted=_is_predicted(asked),
        target=_target(asked, None if cycle is None else cycle.value),
        chains=chains,
        trees=trees,
        loads=tuple(_loads(asked, costs)) if costs is not None else (),
        missing=tuple(_missing(asked, costs)),
    )


def _extent(asked: Asked) -> Extent:
    if asked.plain is not None and asked.plain.partly:
        return "partly"
    return "least" if asked.cycle is None or asked.cycle.partly else "whole"


def _is_predicted(asked: Asked) -> bool:
    line, times = asked.known, (asked.verify, asked.plain)
    from_line = any(one is not None and one.of_line for one in times)
    return from_line and line is not None and line.source == "predicted"


def _target(asked: Asked, cycle_s: float | None) -> Target | None:
    if asked.target is None:
        return None
    each = asked.target / asked.requests
    accepted = None if cycle_s is None else speculation.accepted_for(each, cycle_s=cycle_s)
    return Target(
        tokens_per_s=asked.target,
        accepted=accepted,
        chain_acceptance=speculation.chain_acceptance(accepted)
        if accepted is not None and accepted >= 1
        else None,
        cycle_s=None if asked.accepted is None else asked.accepted.value / each,
        plain_step_s=1 / each,
    )


def _costs(asked: Asked) -> Costs | None:
    """Return what a cycle of any length costs; None without a line."""
    known = asked.known
    if known is None or known.base_s is None:
        return None
    draft_step_s, rest_s = asked.draft_step_s or 0.0, 0.0
    if asked.cycle is not None and asked.verify is not None:
        # Two printed times may cross by what they were rounded; the question allows that much.
        rest_s = max(0.0, asked.cycle.value - asked.verify.value)
        if asked.draft_step_s is not None and asked.steps is not None:
            rest_s -= asked.steps * draft_step_s
    if rest_s < 0:
        beside_ms = (rest_s + (asked.steps or 0) * draft_step_s) * 1e3
        raise UsageError(
            f"{asked.steps} draft steps of {draft_step_s * 1e3:g} ms are more than the "
            f"{beside_ms:.3g} ms of a cycle beside its verify; give a shorter --draft-step-ms"
        )
    costs = Costs(
        line=known.line,
        draft_step_s=draft_step_s,
        rest_s=rest_s,
        plain_s=None if asked.plain is None else asked.plain.value,
        plain_requests=asked.requests,
    )
    if asked.plain is not None and costs.plain_step_s(1) <= 0:
        raise UsageError(
            f"a line of {known.slope_s * 1e3:.3g} ms a row leaves nothing of the plain step of "
            f"{asked.plain.value * 1e3:g} ms of {asked.requests} requests for a single one; give a "
            f"smaller slope, or the --step-ms of as many requests"
        )
    return costs


def _drafts(asked: Asked, costs: Costs | None) -> tuple[tuple[Draft, ...], tuple[Draft, ...]]:
    if costs is None or not asked.chances:
        return (), ()
    if not any(asked.chances):  # nothing that is drafted is ever right: no tree has a node
        return tuple(draft_length.chains(0.0, costs, requests=asked.requests)), ()
    first, *others = asked.chances
    chances = asked.chances if others else draft_length.equal_tries(first)
    chains = draft_length.chains(first, costs, requests=asked.requests)
    trees = draft_length.trees(chances, costs, requests=asked.requests)
    return tuple(chains), tuple(trees)


def _loads(asked: Asked, costs: Costs) -> Iterator[Load]:
    drafted = sorted({*_DRAFTED, *([asked.drafted] if asked.drafted else [])})
    for requests in sorted({*_REQUESTS, asked.requests}):
        for count in drafted:
            even = costs.break_even(requests, drafted=count)
            yield Load(
                requests=requests,
                drafted=count,
                cycle_s=costs.cycle_s(requests, drafted=count, steps=count),
                plain_step_s=costs.plain_step_s(requests),
                accepted=even,
                pays=speculation.chain_accepted(asked.chances[0], drafts=count) > even
                if asked.chances
                else None,
            )


def _missing(asked: Asked, costs: Costs | None) -> Iterator[str]:
    """Yield what is not known and what to give for it."""
    if asked.cycle is None and asked.verify is None:
        yield "cycle: give --cycle-ms, or --verify-ms and --share"
    elif asked.cycle is None:
        yield "draft and host: give --share or --cycle-ms; until then a cycle is its verify alone"
    if asked.plain is None:
        yield "plain decoding: give --step-ms, what a step takes without speculation"
    if asked.accepted is None:
        yield "acceptance: give --accept-length, or --accept-rate and its definition"
    lacking: Sequence[str] = [
        words
        for words, lacks in (
            ("--base-ms and --slope-ms, or --from RUN", costs is None),
            ("--step-acceptance, or --accept-length with --draft-tokens", not asked.chances),
        )
        if lacks
    ]
    if lacking:
        yield f"best draft length: give {'; and '.join(lacking)}"
    if costs is not None and asked.draft_step_s is None:
        yield "a draft step: give --draft-step-ms; until then drafting costs the same at any length"
    most = None if asked.known is None else asked.known.most_rows
    if costs is not None and most is not None:
        yield f"above {most} rows: the line goes on beyond what it was fitted to"
