"""Does speculation pay? Cycle, acceptance and plain step of one file or of several together.

    break-even acceptance = cycle / plain step        rate with halved verify = acceptance / (cycle
    - verify / 2)

The plain step is, in this order: what the command line gives; plain steps of an engine at the same
number of running requests; a line that states it; runs without speculation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ingest.conclusions import Conclusion, Seen, ms, percent
from ingest.facts import Component, Facts, Runs, Steps
from ingest.number import short
from verifyscope import speculation

BOUND_FROM = 0.6
MUCH_SLOWER = 2.0
CONSTANT_WITHIN = 0.02
SWINGS_FROM = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A plain step: seconds a token at one load; `running` None where it is not said."""

    seconds: float
    seen: Seen
    running: int | None = None
    bound: bool = False
    settled: bool = True
    given: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One speculative cycle, and which parts of it are known."""

    file: str
    line: int
    seconds: float
    running: int | None
    rows: int | None = None
    acceptance: float | None = None
    verify_s: float | None = None
    draft_s: float | None = None
    share: float | None = None
    windows: int = 1
    flags: tuple[str, ...] = ()


def conclusions(all_facts: Sequence[Facts], given_plain_s: float | None) -> Iterator[Conclusion]:
    """Yield what is to be said about cycles. given_plain_s: of the command line."""
    plains = list(plain_steps(all_facts, given_plain_s))
    for facts in all_facts:
        found = cycles(facts)
        for cycle in found:
            plain = plain_for(cycle, plains)
            if plain is not None or cycle is _main(found):
                yield _break_even(cycle, plain, facts=facts)
            yield from _share_bound(cycle)
        yield from _much_slower(facts, plains)
        for steps in facts.steps:
            yield from _acceptance_drives(steps, facts.file)


def _main(found: Sequence[Cycle]) -> Cycle:
    """Return the cycle that a file shows longest."""
    return max(found, key=lambda cycle: cycle.windows)


def cycles(facts: Facts) -> list[Cycle]:
    """Return the cycles of a file: of its component table, else of its windows by load."""
    table = _table_cycle(facts)
    if table is not None:
        return [table]
    return [
        Cycle(
            file=facts.file,
            line=steps.line,
            seconds=steps.cycle_s,
            running=steps.running,
            rows=steps.rows,
            acceptance=steps.acceptance,
            windows=steps.windows,
            flags=steps.flags,
        )
        for steps in facts.steps
        if steps.mode == "verify"
    ]


def plain_steps(all_facts: Sequence[Facts], given_s: float | None) -> Iterator[Plain]:
    """Yield the plain steps that are known, the surest first."""
    if given_s is not None:
        seen = Seen("command line", None, f"--plain-ms {given_s * 1e3:g}")
        yield Plain(seconds=given_s, seen=seen, given=True)
    for facts in all_facts:
        for steps in facts.all_steps:
            if steps.mode == "decode":
                value = f"{ms(steps.cycle_s)} a plain step at {steps.running} running"
                seen = Seen(facts.file, steps.line, value)
                yield Plain(
                    seconds=steps.cycle_s,
                    seen=seen,
                    running=steps.running,
                    settled=not steps.flags,
                )
    for facts in all_facts:
        for one in facts.components:
            if one.role == "plain":
                value = f"{one.label} {'under ' if one.bound else ''}{ms(one.summary.median)}"
                seen = Seen(facts.file, one.line, value)
                yield Plain(seconds=one.summary.median, seen=seen, bound=one.bound)
    speculates = [bool(cycles(facts)) for facts in all_facts]
    for facts, speculative in zip(all_facts, speculates, strict=True):
        for runs in facts.runs:
            if runs.plain or (runs.plain is None and not speculative and any(speculates)):
                rate = speculation.average_by_token(runs.tokens, runs.seconds)
                seen = Seen(
                    facts.file, runs.line, f"{rate:.1f} tokens/s over {len(runs.runs)} runs"
                )
                yield Plain(seconds=1 / rate, seen=seen)


def plain_for(cycle: Cycle, plains: Sequence[Plain]) -> Plain | None:
    """Return the plain step to hold a cycle against: given, of its own file, of its load, else
    none.

    A table without a load is held against one that names none, else against a single request.
    """
    loads: tuple[int | None, ...] = (None, 1) if cycle.running is None else (cycle.running,)
    if cycle.running == 1:
        loads = (1, None)
    usable = [one for one in plains if not one.bound and (one.given or one.running in loads)]
    return min(
        usable,
        key=lambda one: (
            not one.given,
            one.seen.file != cycle.file,
            loads.index(one.running) if one.running in loads else 0,
        ),
        default=None,
    )


def implied_acceptance(cycle: Cycle, facts: Facts) -> tuple[float, Runs] | None:
    """Return the tokens a cycle that the runs of a speculative file imply, prompts included."""
    of_cycle = [runs for runs in facts.runs if not runs.plain]
    if not of_cycle:
        return None
    runs = max(of_cycle, key=lambda one: len(one.runs))
    rate = speculation.average_by_token(runs.tokens, runs.seconds)
    return rate * cycle.seconds, runs


def _table_cycle(facts: Facts) -> Cycle | None:
    """Return the cycle of a component table: its own line, else verify / share."""
    verify = _of(facts, "forward")
    if verify is None or verify.bound:
        return None
    verify_s = verify.summary.median
    whole, draft = _of(facts, "cycle"), _of(facts, "draft")
    if whole is not None and whole.summary.median >= verify_s:
        seconds, share = whole.summary.median, verify_s / whole.summary.median
    elif verify.share is not None:
        seconds, share = speculation.cycle_s(verify_s, share=verify.share), verify.share
    else:
        return None
    windows = max((one for one in facts.steps if one.mode == "verify"), key=_windows, default=None)
    stated = facts.stated_acceptance[1] if facts.stated_acceptance else None
    return Cycle(
        file=facts.file,
        line=verify.line,
        seconds=seconds,
        running=windows.running if windows else None,
        rows=windows.rows if windows else None,
        acceptance=windows.acceptance if windows else stated,
        verify_s=verify_s,
        draft_s=draft.summary.median if draft else None,
        share=share,
    )


def _windows(steps: Steps) -> int:
    return steps.windows


def _of(facts: Facts, role: str) -> Component | None:
    """Return the component of a role that is printed most often, the larger of several."""
    found = [one for one in facts.components if one.role == role]
    return max(found, key=lambda one: (one.printed, one.summary.median), default=None)


def _break_even(cycle: Cycle, plain: Plain | None, *, facts: Facts) -> Conclusion:
    """Return the sentence to decide by."""
    seen = [Seen(cycle.file, cycle.line, _cycle_words(cycle))]
    words = [_cycle_words(cycle)]
    needed = None
    if plain is not None:
        needed = speculation.break_even_accepted(cycle.seconds, plain_token_s=plain.seconds)
        seen.append(plain.seen)
        words.append(
            f"against {ms(plain.seconds, digits=4)} plain, acceptance must exceed {needed:.2f} to "
            f"pay"
        )
    words.append(_accepted_words(cycle, needed, facts))
    if plain is None:
        load = "" if cycle.running is None else f" at {cycle.running} running"
        words.append(f"what a plain step takes{load} is not in these files")
    unsettled = bool(cycle.flags) or (plain is not None and not plain.settled)
    return Conclusion(
        name="break-even" if plain is not None else "cycle",
        sentence="; ".join(words),
        seen=tuple(seen),
        next_action=_next(cycle, needed, plain),
        confidence="likely" if unsettled else "sure",
    )


def _cycle_words(cycle: Cycle) -> str:
    if cycle.verify_s is not None and cycle.share is not None:
        verify, whole = ms(cycle.verify_s, digits=4), ms(cycle.seconds)
        return f"verify {verify}, {percent(cycle.share)} of a {whole} cycle"
    rows = "" if cycle.rows is None else f", {cycle.rows} verify rows"
    load = "" if cycle.running is None else f" at {cycle.running} running{rows}"
    return f"a cycle takes {ms(cycle.seconds)}{load}"


def _accepted_words(cycle: Cycle, needed: float | None, facts: Facts) -> str:
    if cycle.acceptance is None:
        implied = implied_acceptance(cycle, facts)
        more = f"; its runs imply {implied[0]:.2f}" if implied else ""
        return f"acceptance is not in this file{more}"
    if needed is None:
        return f"acceptance is {cycle.acceptance:.2f}"
    gain = cycle.acceptance / needed
    verdict = "pays" if gain > 1 else "does not pay"
    return f"it is {cycle.acceptance:.2f}: speculation {verdict}, {gain:.2f} x the plain rate"


def _next(cycle: Cycle, needed: float | None, plain: Plain | None) -> str | None:
    if plain is None:
        return "give a log without speculation at the same load beside this one, or --plain-ms"
    if cycle.acceptance is None:
        return "give the server's log of the same run (accept len, or SpecDecoding metrics) as well"
    if needed is not None and cycle.acceptance < needed:
        return (
            "shorten the cycle (see what each part is worth) or turn speculation off at this load"
        )
    return None


def _share_bound(cycle: Cycle) -> Iterator[Conclusion]:
    """Say what halving verify, drafting or acceptance would each give."""
    if cycle.verify_s is None or cycle.share is None:
        return
    rest_s = cycle.seconds - cycle.verify_s
    draft_s = cycle.draft_s if cycle.draft_s is not None and cycle.draft_s <= rest_s else None
    largest, name = max(
        (cycle.verify_s, "verify"), (rest_s if draft_s is None else draft_s, "drafting")
    )
    if largest < BOUND_FROM * cycle.seconds:
        return
    verify = speculation.worth(cycle.verify_s / 2, cycle_s=cycle.seconds, accepted=1.0)
    other = speculation.worth((draft_s or rest_s) / 2, cycle_s=cycle.seconds, accepted=1.0)
    what = "halving drafting" if draft_s is not None else "halving all that is not verify"
    yield Conclusion(
        name="share-bound",
        sentence=f"{name} bounds the cycle ({percent(largest / cycle.seconds)}): halving verify "
        f"gives "
        f"{1 + verify.gain:.2f} x the tokens/s, {what} {1 + other.gain:.2f} x, "
        f"halving acceptance 0.50 x",
        seen=(Seen(cycle.file, cycle.line, _cycle_words(cycle)),),
        next_action=f"look into {name} first: by kernel class with a trace, by part with "
        f"graphs.replay",
        worth_s=largest / 2,
        verdict=False,
    )


def _much_slower(facts: Facts, plains: Sequence[Plain]) -> Iterator[Conclusion]:
    """Hold the slowest verify of a table against a plain step, and against its other variants."""
    verifies = [one for one in facts.components if one.role == "forward"]
    plain = next((one for one in plains if one.bound or one.running in (None, 1)), None)
    if not verifies or plain is None:
        return
    slowest = max(verifies, key=lambda one: one.summary.median)
    ratio = slowest.summary.median / plain.seconds
    if ratio < MUCH_SLOWER:
        return
    others = [one for one in verifies if one is not slowest]
    better = min(others, key=lambda one: one.summary.median, default=None)
    more = f", and {better.label} takes {ms(better.summary.median)}" if better else ""
    yield Conclusion(
        name="verify-slower-than-plain",
        sentence=f"{slowest.label} takes {ms(slowest.summary.median)}, {'at least ' * plain.bound}"
        f"{short(ratio)} x a plain step{more}; rows are not matched",
        seen=(
            Seen(facts.file, slowest.line, f"{slowest.label} {ms(slowest.summary.median)}"),
            plain.seen,
            *(
                Seen(facts.file, one.line, f"{one.label} {ms(one.summary.median)}")
                for one in others[:4]
            ),
        ),
        next_action="a verify costs about a plain step of as many rows: measure that, and see "
        "whether "
        "verify runs another attention kernel than decode",
        worth_s=slowest.summary.median - plain.seconds,
        confidence="likely",
    )


def _acceptance_drives(steps: Steps, file: str) -> Iterator[Conclusion]:
    """Say that the rate swings by acceptance alone: a constant cycle under varying acceptance."""
    if len(steps.acceptances) < 3 or steps.mode != "verify":
        return
    middle = median(steps.seconds)
    spread = (max(steps.seconds) - min(steps.seconds)) / middle
    low, high = min(steps.acceptances), max(steps.acceptances)
    if spread > CONSTANT_WITHIN or high / low - 1 < SWINGS_FROM:
        return
    yield Conclusion(
        name="acceptance-drives-rate",
        sentence=f"the cycle is constant ({ms(middle)}, spread {spread * 100:.1f} %) at "
        f"{steps.running} "
        f"running: tokens/s swing with acceptance alone, {low:.2f} to {high:.2f}",
        seen=(Seen(file, steps.line, f"{ms(middle)} a cycle over {steps.windows} windows"),),
        next_action="work on the drafter or its data, not on kernels, where the rate is what "
        "disturbs",
    )
