"""The combinations of a sweep side by side: what to take, four timing modes, what took effect.

Everything rests on `verifyscope.sweep_conclusion`, as the end of the sweep itself does.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from reports import _marks, _text
from reports._collected import Collected, is_collective
from reports._markdown import code, table, text
from reports._text import NOT_KNOWN
from verifyscope.contests import Contest
from verifyscope.crossovers import Crossover
from verifyscope.pass_savings import Saving
from verifyscope.records import Measurement
from verifyscope.sweep_conclusion import SweepConclusion, conclusions

MOST_SIZES = 64
MOST_COLUMNS = 10


def concluded(found: Collected) -> list[SweepConclusion]:
    """Return the sweeps in which there is something to compare."""
    rows = [*found.collectives, *filter(is_collective, found.not_run)]
    return [one for one in conclusions(rows) if one.contest.combinations or one.contest.others]


def name(one: SweepConclusion, found: Collected) -> str:
    """Return what sets a sweep apart, as plain text."""
    contest = one.contest
    words = [contest.op]
    if contest.ranks is not None:
        words.append(_text.plural(contest.ranks, "rank"))
    if contest.nodes > 1:
        words.append(f"{contest.nodes} nodes")
    words += [contest.dtype] if contest.dtype else []
    words += ["CPU"] if _on_cpu(one, found) else []
    if len(found.environments) > 1:
        words.append(f"on {found.letter(contest.environment)}")
    return ", ".join(words)


def mode(contest: Contest) -> str:
    """Return the timing mode and the direction of a contest."""
    return f"{contest.mode}, {'in place' if contest.in_place else 'out of place'}"


def belongs(row: Measurement, one: SweepConclusion) -> bool:
    """Say whether a row is one of the sweep that was concluded; one without a size may be, too."""
    contest = one.contest
    if (row.op, row.ranks, row.environment) != (contest.op, contest.ranks, contest.environment):
        return False
    if "bytes" not in row.dims:
        return row.implementation.startswith(f"{contest.default} ")
    return row.dims.get("dtype") == contest.dtype and row.implementation in _implementations(one)


def is_swept(row: Measurement, sweeps: Iterable[SweepConclusion]) -> bool:
    """Say whether a row is shown with one of the sweeps."""
    return row.source == "measured" and any(belongs(row, one) for one in sweeps)


def verdicts(one: SweepConclusion) -> list[str]:
    """Return what to take where, as Markdown, or why nothing is recommended."""
    contest, default = one.contest, code(one.contest.default or "the default")
    lines = [
        f"From {low:,} to {high:,} bytes take **{code(known.implementation)}**: "
        f"{_against(contest, known.implementation, low)} at {low:,}, "
        f"{_against(contest, known.implementation, high)} at {high:,}."
        for known in one.recommended.ranges
        for low, high in [(known.low_bytes, known.high_bytes)]
    ]
    if one.silent_because is not None:
        lines.append(f"Nothing is recommended: {text(one.silent_because)}.")
    elif len(lines) and {size for known in one.recommended.ranges for size in known.sizes} != set(
        contest.times(contest.default)
    ):
        lines.append(f"At the other sizes {default} is no worse, beyond noise.")
    lines += [_mode_line(known, recommended_text) for known, recommended_text in _others(one)]
    lines += [
        f"**Unsafe**: {code(known.implementation)} is faster from {known.low_bytes:,} to "
        f"{known.high_bytes:,} bytes and may give wrong values; it is not recommended."
        for known in one.recommended.unsafe
    ]
    return [*lines, *map(_crossover, one.crossovers)]


def times_table(one: SweepConclusion) -> str:
    """Return a row a size and a column an implementation; what is recommended is bold.

    A size without a bold time is the default's.
    """
    contest = one.contest
    names = columns(one)
    shared = {each: _shared_flags(contest.rows[each]) for each in names}
    lines = []
    for size in _all_sizes(contest)[:MOST_SIZES]:
        rows = {each: contest.rows[each].get(size) for each in names}
        taken = one.recommended.at(size)
        cells = [_cell(row, bold=each == taken) for each, row in rows.items()]
        lines.append((f"{size:,}", _tokens(rows.values()), *cells, _flags(rows, shared)))
    heads = (" ".join((code(each), *shared[each])) for each in names)
    header = ("bytes", "rows", *heads, "flags")
    return _without_empty(header, lines, align="rr" + "r" * len(names) + "l")


def left_out(one: SweepConclusion) -> int:
    """Return how many sizes the tables leave out."""
    return max(0, len(_all_sizes(one.contest)) - MOST_SIZES)


def columns(one: SweepConclusion) -> list[str]:
    """Return the implementations that get a column: what is recommended, then the fastest."""
    contest = one.contest
    every = implementations(one)
    taken = [known.implementation for known in one.recommended.ranges]
    wanted = dict.fromkeys(
        [*every[:1], *taken, *sorted(every, key=lambda each: _rank(contest, each))]
    )
    kept = list(wanted)[:MOST_COLUMNS]
    return [each for each in every if each in kept]


def columns_left_out(one: SweepConclusion) -> int:
    """Return how many implementations have no column."""
    return len(implementations(one)) - len(columns(one))


def _rank(contest: Contest, implementation: str) -> float:
    """Return the mean place of an implementation among the times of each size; 1 is fastest."""
    places = []
    for size in contest.sizes:
        times = sorted(
            (row.median_s or 0.0, name)
            for name in contest.rows
            if (row := contest.times(name).get(size)) is not None
        )
        places += [at for at, (_, name) in enumerate(times, 1) if name == implementation]
    return sum(places) / len(places) if places else float("inf")


def implementations(one: SweepConclusion) -> list[str]:
    """Return what has rows in the mode that counts: the default, its combinations, others."""
    contest = one.contest
    default = [] if contest.default is None else [contest.default]
    return [*default, *contest.combinations, *contest.others]


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """One implementation in each timing mode, in one direction: rows by mode and bytes."""

    implementation: str
    by_mode: Mapping[str, Mapping[int, Measurement]]


def modes(one: SweepConclusion) -> list[Modes]:
    """Return the default and what is best for all sizes, in each timing mode, eager first."""
    contest, single = one.contest, one.recommended.single
    alike = [known for known, _ in one.modes if known.in_place == contest.in_place]
    ordered = sorted(alike, key=lambda known: (known.launch != "eager", known.depth))
    names = [contest.default] if contest.default else []
    names += [single.implementation] if single is not None else list(contest.combinations[:1])
    return [
        Modes(
            implementation=each,
            by_mode={known.mode: known.times(each) for known in ordered if known.times(each)},
        )
        for each in names
    ]


def modes_table(one: SweepConclusion) -> str:
    """Return times in each timing mode: sizes of a model where there are any, else all."""
    found = modes(one)
    names = list(dict.fromkeys(name for known in found for name in known.by_mode))
    sizes = _model_sizes(one.contest) or _all_sizes(one.contest)
    lines = [
        (
            f"{size:,}",
            _tokens(rows.get(size) for rows in known.by_mode.values()),
            code(known.implementation),
            *(_time(known.by_mode.get(each, {}).get(size)) for each in names),
        )
        for size in sizes[:MOST_SIZES]
        for known in found
    ]
    header = ("bytes", "rows", "combination", *names)
    return _without_empty(header, lines, align="rrl" + "r" * len(names)) if len(names) > 1 else ""


def losses(one: SweepConclusion) -> str:
    """Return where the combination for all sizes is slower than the default; empty if nowhere."""
    single = one.recommended.single
    if single is None or not single.losses:
        return ""
    where = _text.listed(f"{run[0]:,} to {run[-1]:,} bytes" for run in single.losses)
    return f"It is slower than {code(one.contest.default or '')} at {where}: a prefill may lose."


def savings_table(one: SweepConclusion) -> str:
    """Return what a pass spends in all-reduces and what it would save; nothing without a model."""
    header = ("model", "rows", "bytes a call", "calls", "now", "with", "saves (95 %)", "of it")
    lines = [
        (
            text(saving.model),
            f"{saving.tokens:,}",
            f"{saving.size_bytes:,}",
            f"{saving.calls:,}",
            now(one.contest, saving),
            NOT_KNOWN if saving.implementation is None else code(saving.implementation),
            saved(one.contest, saving),
            NOT_KNOWN
            if saving.saved is None
            else _of_saving(
                one.contest, saving, _text.share(saving.saved.value, saving.now_s), "saves / now"
            ),
        )
        for saving in one.savings
    ]
    return table(header, lines, align="lrrrrlrr") if lines else ""


def _implementations(one: SweepConclusion) -> set[str]:
    return {each for contest, _ in one.modes for each in contest.rows}


def _on_cpu(one: SweepConclusion, found: Collected) -> bool:
    rows = (row for by_size in one.contest.rows.values() for row in by_size.values())
    return any(found.on_cpu(row) for row in rows)


def _against(contest: Contest, implementation: str, size: int) -> str:
    new, old = contest.rows[implementation][size], contest.times(contest.default)[size]
    return f"{_text.median(new)} instead of {_text.median(old)}"


def _others(one: SweepConclusion) -> Iterator[tuple[Contest, str]]:
    """Yield the modes that recommend something else, with what."""

    def taken(ranges: Iterable[object]) -> list[object]:
        return list(ranges)

    ours = taken(one.recommended.ranges)
    for contest, recommended in one.modes[1:]:
        if taken(recommended.ranges) != ours:
            words = [
                f"{code(known.implementation)} from {known.low_bytes:,} to {known.high_bytes:,}"
                for known in recommended.ranges
            ]
            yield contest, _text.listed(words) or "nothing beats the default beyond noise"


def _mode_line(contest: Contest, taken: str) -> str:
    return f"Timed as {text(mode(contest))}: {taken}."


def _crossover(one: Crossover) -> str:
    who = code(one.implementation)
    if one.between is not None:
        near = "" if one.near_bytes is None else f", near {one.near_bytes:,}"
        low, high = one.between
        return f"{who} is faster up to {low:,} bytes and slower from {high:,} on{near}."
    for runs, word, other in ((one.wins, "faster", "slower"), (one.losses, "slower", "faster")):
        if runs:
            where = _text.listed(f"{run[0]:,} to {run[-1]:,} bytes" for run in runs)
            return f"{who} is {word} at {where}, and nowhere {other} beyond noise."
    return f"{who} is neither faster nor slower beyond noise."


def _all_sizes(contest: Contest) -> list[int]:
    """Return every size at which there is a row, with a time or with a reason."""
    return sorted({size for rows in contest.rows.values() for size in rows})


def _model_sizes(contest: Contest) -> list[int]:
    rows = contest.rows.get(contest.default or "", {})
    return [size for size in sorted(rows) if "tokens" in rows[size].dims]


def _cell(row: Measurement | None, *, bold: bool) -> str:
    if row is None:
        return NOT_KNOWN
    if row.median_s is None:
        return f"**{row.status}**"
    return f"**{_text.median(row)}**" if bold else _text.median(row)


def _time(row: Measurement | None) -> str:
    return _text.median(row)


def _tokens(rows: Iterable[Measurement | None]) -> str:
    found = (row.dims.get("tokens") for row in rows if row is not None)
    tokens = next((one for one in found if one is not None), None)
    return NOT_KNOWN if tokens is None else text(_text.value(tokens))


def _shared_flags(rows: Mapping[int, Measurement]) -> tuple[str, ...]:
    """Return the flags that every row of an implementation has, so that they are said once."""
    first = next(iter(rows.values()))
    return tuple(flag for flag in first.flags if all(flag in row.flags for row in rows.values()))


def _flags(rows: Mapping[str, Measurement | None], shared: Mapping[str, Sequence[str]]) -> str:
    """Return the flags of a size, each with who has it."""
    who: dict[str, list[str]] = {}
    for each, row in rows.items():
        for flag in () if row is None else row.flags:
            if flag not in shared[each]:
                who.setdefault(flag, []).append(code(each))
    return "; ".join(f"**{text(flag)}**: {_text.listed(names)}" for flag, names in who.items())


def now(contest: Contest, saving: Saving) -> str:
    """Return what all-reduces of a pass take with the default, marked as derived from a call."""
    row = contest.times(contest.default).get(saving.size_bytes)
    formula = f"{saving.calls:,} calls x the time of one"
    return _marks.derived(_text.duration(saving.now_s), [row], formula)


def saved(contest: Contest, saving: Saving) -> str:
    """Return what would be saved, with its interval, marked as derived from both calls."""
    if saving.saved is None:
        return "nothing beyond noise"
    found = saving.saved
    words = _text.interval(found.value, low_s=found.low, high_s=found.high)
    return _of_saving(contest, saving, words, f"{saving.calls:,} calls x (default - this)")


def _of_saving(contest: Contest, saving: Saving, words: str, formula: str) -> str:
    names = (contest.default, saving.implementation)
    rows = (contest.times(name).get(saving.size_bytes) for name in names if name)
    return _marks.derived(words, rows, formula)


def _without_empty(header: Sequence[str], lines: Sequence[Sequence[str]], *, align: str) -> str:
    """Return a table without the columns in which nothing stands."""
    kept = [
        at
        for at, column in enumerate(zip(*lines, strict=True))
        if at == 0 or any(cell not in ("", NOT_KNOWN) for cell in column)
    ]
    return table(
        [header[at] for at in kept],
        [[line[at] for at in kept] for line in lines],
        align="".join(align[at] for at in kept),
    )
