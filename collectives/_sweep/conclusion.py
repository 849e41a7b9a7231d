"""The end of a sweep, in words and as findings: what to take, what it saves, what to export.

    found = conclude(records)
    for line in lines(found): print(line)          each begins with #
    for one in findings(found, environment): run.append(one)
    found.tuner_csv                                a file's text, or None, and `no_csv` says why

Pure functions of the records of a run: a report that reads them comes to the same conclusion.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from collectives._sweep import tuner_csv
from verifyscope import units
from verifyscope.contests import Contest
from verifyscope.crossovers import Crossover
from verifyscope.pass_savings import Saving
from verifyscope.recommendation import Range, Recommendation
from verifyscope.records import Environment, Evidence, Finding, Measurement, Record
from verifyscope.sweep_conclusion import SweepConclusion, conclusions, export

USUAL_TOKENS = 4
_MOST_EVIDENCE = 10
_ATTEST = "export it for the server, and prove with python -m collectives.attest that it arrives"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """All conclusions of a sweep; `tuner_csv` is a file's text, or `no_csv` why there is none."""

    ops: tuple[SweepConclusion, ...]
    tuner_csv: str | None
    no_csv: str | None


def conclude(records: Iterable[Record]) -> Conclusion:
    """Return what the rows of a run say."""
    found = conclusions(records)
    try:
        return Conclusion(ops=found, tuner_csv=tuner_csv.text(found), no_csv=None)
    except tuner_csv.NoRules as reason:
        return Conclusion(ops=found, tuner_csv=None, no_csv=str(reason))


def lines(found: Conclusion) -> Iterator[str]:
    """Yield the conclusion as a person reads it."""
    for one in found.ops:
        if not one.contest.combinations and not one.contest.others:
            continue
        yield "#"
        yield f"# {_title(one.contest)}"
        for line in (*_ranges(one), *_savings(one.savings), *_export(one), *_beside(one)):
            yield f"#   {line}"
    if found.tuner_csv is None and any(one.recommended.ranges for one in found.ops):
        yield f"# no file for a tuner plugin: {found.no_csv}"


def findings(found: Conclusion, environment: Environment) -> Iterator[Finding]:
    """Yield the findings, each with the rows that it rests on."""
    for one in found.ops:
        for made in (*_about_best(one), *_about_unsafe(one), *_about_crossovers(one)):
            yield msgspec.structs.replace(
                made,
                evidence=made.evidence[:_MOST_EVIDENCE],
                environment=environment.id,
                command=environment.command,
            )


def _title(contest: Contest) -> str:
    words = [contest.op, f"{contest.ranks} ranks" if contest.ranks else "", contest.dtype or ""]
    words += ["in place" if contest.in_place else "out of place", contest.mode]
    return ", ".join(word for word in words if word)


def _ranges(found: SweepConclusion) -> Iterator[str]:
    """Yield what to take where, in the mode that counts; then where other modes differ."""
    if found.silent_because is not None:
        yield found.silent_because
    for one in found.recommended.ranges:
        yield f"{_span(one.sizes)}: {one.implementation}, {_gain(found.contest, one)}"
    for contest, recommended in found.modes[1:]:
        if _taken(recommended) != _taken(found.recommended):
            direction = "in place" if contest.in_place else "out of place"
            taken = [f"{_span(one.sizes)} {one.implementation}" for one in recommended.ranges]
            yield f"{contest.mode}, {direction}: {'; '.join(taken) or 'nothing beyond noise'}"
    for one in found.recommended.unsafe:
        yield f"{_span(one.sizes)}: {one.implementation} is faster, and unsafe: not recommended"


def _taken(recommended: Recommendation) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.implementation, one.sizes) for one in recommended.ranges]


def _span(sizes: Sequence[int]) -> str:
    return f"{sizes[0]} to {sizes[-1]} B"


def _gain(contest: Contest, one: Range) -> str:
    """Return the times at both ends of a range, against the default."""
    ends = (one.low_bytes, one.high_bytes)
    return ", ".join(f"{_against(contest, one.implementation, size)} at {size} B" for size in ends)


def _against(contest: Contest, name: str, size: int) -> str:
    new, old = contest.rows[name][size], contest.times(contest.default)[size]
    return f"{_time(new)} instead of {_time(old)}"


def _time(row: Measurement) -> str:
    return "no time" if row.median_s is None else units.seconds(row.median_s)


def _savings(saved: Sequence[Saving]) -> Iterator[str]:
    for one in saved:
        rows = "1 row" if one.tokens == 1 else f"{one.tokens} rows"
        head = f"a pass of {one.model}, {rows}: {one.calls} x {one.size_bytes} B take "
        yield f"{head}{units.seconds(one.now_s)}; {_saved(one)}"


def _saved(one: Saving) -> str:
    if one.saved is None:
        return "nothing saves any of it beyond noise"
    low, high = units.seconds(one.saved.low), units.seconds(one.saved.high)
    return f"{one.implementation} saves {units.seconds(one.saved.value)} ({low} to {high})"


def _export(found: SweepConclusion) -> Iterator[str]:
    single = found.recommended.single
    if single is None:
        return
    yield f"for all sizes at once, {single.implementation}:"
    yield from (f"  {line}" for line in export(found))
    if single.losses:
        where = ", ".join(map(_span, single.losses))
        yield f"  it is slower than NCCL's own choice at {where}: a prefill may lose"


def _beside(found: SweepConclusion) -> Iterator[str]:
    for one in found.crossovers:
        yield _crossover(one)


def _crossover(one: Crossover) -> str:
    if one.between is not None:
        near = "" if one.near_bytes is None else f", near {one.near_bytes} B"
        return (
            f"{one.implementation} is faster up to {one.between[0]} B and slower from "
            f"{one.between[1]} B on{near}"
        )
    if one.wins:
        where = ", ".join(map(_span, one.wins))
        return f"{one.implementation} is faster at {where}, and nowhere slower beyond noise"
    if one.losses:
        where = ", ".join(map(_span, one.losses))
        return f"{one.implementation} is slower at {where}, and nowhere faster beyond noise"
    return f"{one.implementation} is neither faster nor slower beyond noise"


def _about_best(found: SweepConclusion) -> Iterator[Finding]:
    contest, ranges = found.contest, found.recommended.ranges
    if not ranges:
        if contest.combinations:
            yield Finding(
                name="no-better-combination",
                sentence=f"{_title(contest)}: {found.silent_because}",
                evidence=tuple(_row(one) for one in contest.times(contest.default).values()),
                confidence="sure",
            )
        return
    usual = min(
        (one for one in found.savings if one.saved is not None),
        key=lambda one: abs(one.tokens - USUAL_TOKENS),
        default=None,
    )
    taken = [f"{one.implementation} at {_span(one.sizes)}" for one in ranges]
    words = f"{_title(contest)}: beyond noise NCCL's own choice is beaten by {', '.join(taken)}"
    if usual is not None:
        words += f"; a pass of {usual.model} with {usual.tokens} rows: {_saved(usual)}"
    settings = [line.removeprefix("export ") for line in export(found) if "export " in line]
    yield Finding(
        name="best-combination",
        sentence=words,
        evidence=tuple(
            Evidence(one.implementation, contest.rows[one.implementation][size].case, against)
            for one in ranges
            for size in (one.low_bytes, one.high_bytes)
            for against in [_against(contest, one.implementation, size)]
        ),
        next_action=f"{' '.join(settings)}: {_ATTEST}" if settings else "take the tuner file",
        worth_s=None if usual is None or usual.saved is None else usual.saved.value,
        confidence="sure",
    )


def _about_unsafe(found: SweepConclusion) -> Iterator[Finding]:
    for one in found.recommended.unsafe:
        yield Finding(
            name="unsafe-is-faster",
            sentence=f"{one.implementation} is faster at {_span(one.sizes)}, and may give wrong "
            "values: a stress that it passes is no proof",
            evidence=tuple(
                _row(found.contest.rows[one.implementation][size])
                for size in (one.low_bytes, one.high_bytes)
            ),
            next_action="leave it, unless wrong values would be noticed at once",
            confidence="hint",
        )


def _about_crossovers(found: SweepConclusion) -> Iterator[Finding]:
    for one in found.crossovers:
        if not one.wins:
            continue
        rows = found.contest.rows[one.implementation]
        yield Finding(
            name="other-implementation-is-faster",
            sentence=f"{_title(found.contest)}: {_crossover(one)}",
            evidence=tuple(_row(rows[size]) for run in one.wins for size in (run[0], run[-1])),
            next_action="see whether the engine can use it there, and up to which size it does",
            confidence="sure",
        )


def _row(row: Measurement) -> Evidence:
    return Evidence(row.implementation, row.case, _time(row))
