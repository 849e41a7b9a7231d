"""What report.md.j2 shows of collectives: sweeps of combinations first, then plain series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reports import _believed, _combinations, _drawn, _effect, _sweep, _sweep_overview, _text
from reports._collected import Collected, is_collective
from reports._drawn import Folder, Plot
from reports._markdown import bullets, text
from reports._text import plural
from verifyscope.records import Measurement
from verifyscope.sweep_conclusion import SweepConclusion, export

_MOST_OPEN_SERIES = 3
_MOST_DRAWN = 24
_MOST_WHOLE_SWEEPS = 3  # each has up to four plots, and a table for each combination

_SHORTENED = (
    f"A page has the plots, the intervals and the bandwidths of {_MOST_WHOLE_SWEEPS} sweeps, the "
    "first; of this one it has the tables below, and all records."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesView:
    """One series of a sweep."""

    name: str
    method: str
    table: str
    left_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationsView:
    """One sweep of combinations; values are Markdown, empty where there is nothing to show."""

    name: str
    mode: str
    verdicts: str
    plots: list[Plot]
    shortened: str
    times: str
    left_out: str
    savings: str
    export: str
    losses: str
    modes: str
    effect: str
    effect_left_out: str
    believed: str
    believed_facts: str
    believed_combinations: str
    details: list[SeriesView]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """The section of collectives."""

    is_there: bool
    combinations: list[CombinationsView]
    overview: str
    series: list[SeriesView]
    files: list[_sweep_overview.FileView]
    files_left_out: str
    plots: list[Plot]
    passes: str
    sweeping: str
    on_cpu: bool
    left_out: str


def view(
    found: Collected,
    series: Sequence[_sweep.Series],
    sweeps: Sequence[SweepConclusion],
    *,
    folder: Folder,
) -> SweepView:
    """Return the section: what was swept, and every series that is no part of a sweep."""
    plain = _sweep_overview.ordered(
        [one for one in series if not _combinations.is_swept(one.first, sweeps)], found
    )
    theirs = [one for one in plain if one.imported]
    if len(theirs) <= _MOST_OPEN_SERIES:
        theirs = []
    shown = [one for one in plain if one not in theirs][: _sweep.MOST_SERIES]
    files = _sweep_overview.files(theirs, found)
    passes = _sweep.passes(plain)
    return SweepView(
        is_there=bool(sweeps or plain),
        combinations=[
            _combinations_view(one, series, found, folder, is_whole=at < _MOST_WHOLE_SWEEPS)
            for at, one in enumerate(sweeps)
        ],
        overview=_sweep_overview.overview(plain, found) if len(plain) > 1 else "",
        series=[_series_view(one, found) for one in shown],
        files=files[: _sweep_overview.MOST_FILES],
        files_left_out=_left_out(len(files) - _sweep_overview.MOST_FILES, "file"),
        plots=_drawn.sweeps(found, plain[:_MOST_DRAWN], folder=folder),
        passes=_sweep.passes_table(passes, found) if passes else "",
        sweeping=" ".join(_sweeping(found)),
        on_cpu=any(found.on_cpu(one.first) for one in series),
        left_out=_left_out(len(plain) - len(theirs) - len(shown), "line"),
    )


def _series_view(one: _sweep.Series, found: Collected) -> SeriesView:
    return SeriesView(
        name=text(_sweep.name(one, found)),
        method=_sweep.facts(one),
        table=_sweep.series_table(one),
        left_out=_left_out(_sweep.left_out(one), "size"),
    )


def _combinations_view(
    one: SweepConclusion,
    series: Sequence[_sweep.Series],
    found: Collected,
    folder: Folder,
    *,
    is_whole: bool,
) -> CombinationsView:
    rows = [row for row in _rows(found) if _combinations.belongs(row, one)]
    effect, effect_left_out = _effect.effect_table(one, rows)
    known = _believed.believed(one, found)
    swept = [each for each in series if _combinations.is_swept(each.first, [one])]
    return CombinationsView(
        name=text(_combinations.name(one, found)),
        mode=text(_combinations.mode(one.contest)),
        verdicts=bullets(_combinations.verdicts(one)),
        plots=_drawn.combinations(one, found, folder=folder) if is_whole else [],
        shortened="" if is_whole else _SHORTENED,
        times=_combinations.times_table(one),
        left_out=_together(
            _left_out(_combinations.left_out(one), "size"),
            _left_out(_combinations.columns_left_out(one), "combination"),
        ),
        savings=_combinations.savings_table(one),
        export="\n".join(export(one)),
        losses=_combinations.losses(one),
        modes=_combinations.modes_table(one),
        effect=effect,
        effect_left_out=_left_out(effect_left_out, "kind of row"),
        believed=_believed.believed_table(one, known) if known.rows else "",
        believed_facts=_believed.facts(known) if known.rows else "",
        believed_combinations=_believed.combinations_table(one, known) if known.rows else "",
        details=[
            _series_view(each, found) for each in swept if is_whole and _is_headline(each, one)
        ][: _sweep.MOST_SERIES],
    )


def _rows(found: Collected) -> Iterator[Measurement]:
    rows = (*found.collectives, *filter(is_collective, found.not_run))
    yield from (row for row in rows if row.source == "measured")


def _is_headline(series: _sweep.Series, one: SweepConclusion) -> bool:
    first, contest = series.first, one.contest
    return (first.launch, first.depth or 1) == (contest.launch, contest.depth)


def _sweeping(found: Collected) -> Iterator[str]:
    """Yield what sweeps themselves took: starts, which are in no time, and the share of samples."""
    for one in found.sweeping:
        median = _text.duration(one.median_s)
        where = f" on {found.letter(one.environment)}" if len(found.environments) > 1 else ""
        if one.op == "sweep":
            share = one.method.get("measured_share")
            part = (
                f", {_text.share(share, 1.0)} of it in samples" if isinstance(share, float) else ""
            )
            yield f"The sweep{where} took {median} without process starts{part}."
        elif one.case == "imports":
            yield f"Importing torch{where} took {median}, once."
    starts = [one.median_s for one in found.sweeping if one.case == "process-start"]
    known = [seconds for seconds in starts if seconds is not None]
    if known:
        low, high = _text.duration(min(known)), _text.duration(max(known))
        yield f"Joining the ranks took {low} to {high}, by combination: in no time above."


def _together(*words: str) -> str:
    return " and ".join(word for word in words if word)


def _left_out(count: int, noun: str) -> str:
    return plural(count, noun) if count > 0 else ""
