"""Which plots a report has, and from which numbers each is drawn."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from reports import (
    _believed,
    _budget,
    _combinations,
    _forecast,
    _kernels,
    _plots,
    _sweep,
    _text,
    _verify,
)
from reports._collected import Collected
from reports._forecast import Forecast
from reports._markdown import text
from reports._text import plural
from verifyscope.contests import Contest
from verifyscope.parts import IDLE, class_of
from verifyscope.predictions import EAGER, GRAPH
from verifyscope.records import Measurement
from verifyscope.sweep_conclusion import SweepConclusion

_MOST_PLOTS = 3
_MOST_CURVES = 12  # ops whose T axis is drawn: each plot takes a tenth of a second
_LEAST_T = 3
_FIRST = ("attention", "moe")


@dataclass(frozen=True, slots=True)
class Folder:
    """Where plots go; None: there are to be none. curves_of: the ops whose T axis is drawn."""

    path: Path | None
    curves_of: frozenset[str] = frozenset()

    def file(self, name: str) -> Path | None:
        """Return where to save the plot `name`."""
        return None if self.path is None else self.path / name

    def with_curves(
        self, ops: Iterable[_kernels.Op], curves: Mapping[str, Sequence[_verify.Curve]]
    ) -> "Folder":
        """Return the folder that draws those T axes that are worth most: attention and experts."""
        worth = [op for op in ops if not op.is_plan and is_worth_a_plot(curves[op.name])]
        first = sorted(worth, key=lambda op: class_of(op.cases[0].first.part) not in _FIRST)
        return replace(self, curves_of=frozenset(op.name for op in first[:_MOST_CURVES]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot and the words that stand for it."""

    file: str
    alt: str


def curves(
    op: _kernels.Op, every: Sequence[_verify.Curve], *, found: Collected, folder: Folder
) -> str | None:
    """Plot the curves of the point that has most T, one line an implementation."""
    alike = [curve for curve in every if curve.fixed == every[0].fixed]
    name = f"time-{_file_name(op.name)}.png"
    path = folder.file(name) if op.name in folder.curves_of else None
    if path is None:
        return None
    shown = alike[: _plots.MOST_LINES]
    several = len({curve.environment for curve in shown}) > 1
    lines = [_curve(curve, found, several=several) for curve in shown]
    floors = {tokens: one.floor_s for tokens, one in shown[0].by_tokens.items()}
    if all(floors.values()):
        floor = _plots.Line(
            label="floor of bytes and flops",
            x=list(floors),
            y=[seconds or 0.0 for seconds in floors.values()],
            source="predicted",
            is_floor=True,
        )
        lines.append(floor)
    point = ", ".join(f"{dim} {value}" for dim, value in shown[0].fixed)
    rest = _rest(len(alike) - len(shown))
    _plots.time_against_tokens(path, lines, title=f"{op.name}: {point}{rest}")
    return name


def _curve(curve: _verify.Curve, found: Collected, *, several: bool) -> _plots.Line:
    first = curve.by_tokens[1]
    label = curve.implementation
    label += f" on {found.letter(curve.environment)}" if several else ""
    label += ", CPU" if found.on_cpu(first) else ""
    fit = curve.fit()
    if fit is not None:
        label += f"; thin: fit of {_verify.fit_words(curve)}"
    return _plots.Line(
        label=label,
        x=list(curve.by_tokens),
        y=[curve.seconds(tokens) for tokens in curve.by_tokens],
        band=_band(list(curve.by_tokens.values())),
        source=first.source,
        fit=fit,
    )


def not_drawn(op: _kernels.Op, every: Sequence[_verify.Curve], *, folder: Folder) -> str:
    """Return why a T axis has no plot; "" where it has one or there is none."""
    if folder.path is None or op.is_plan or op.name in folder.curves_of:
        return ""
    if not is_worth_a_plot(every):
        return ""
    return (
        f"Not drawn: a page has the plots of {_MOST_CURVES} ops, attention and experts first; "
        "the figures are in the table."
    )


def is_worth_a_plot(every: Sequence[_verify.Curve]) -> bool:
    """Say whether an op has a T axis: with two T a line is no more than its table."""
    return bool(every) and len(every[0].by_tokens) >= _LEAST_T


def _rest(count: int) -> str:
    return f"; {plural(count, 'more line')} in the tables" if count > 0 else ""


def sweeps(found: Collected, series: Sequence[_sweep.Series], *, folder: Folder) -> list[Plot]:
    """Plot each collective; more lines than a plot holds go on to another."""
    plots = []
    for op in dict.fromkeys(one.first.op for one in series):
        lines = [one for one in series if one.first.op == op and len(one.points) > 1]
        chunks = [
            lines[at : at + _plots.MOST_LINES] for at in range(0, len(lines), _plots.MOST_LINES)
        ]
        rest = sum(map(len, chunks[_MOST_PLOTS:]))
        for number, chunk in enumerate(chunks[:_MOST_PLOTS], 1):
            name = f"sweep-{_file_name(op)}{f'-{number}' if number > 1 else ''}.png"
            path = folder.file(name)
            if path is not None:
                last = _rest(rest if number == _MOST_PLOTS else 0)
                _sweep_plot(path, chunk, op=op, found=found, rest=last)
                plots.append(Plot(file=name, alt=f"Time of {text(op)} against bytes"))
    return plots


def _sweep_plot(
    path: Path, series: Sequence[_sweep.Series], *, op: str, found: Collected, rest: str
) -> None:
    common, labels = _sweep.short_names(series, found)
    marks = {
        size: plural(tokens, "row")
        for one in series
        for size, measured in one.points
        if isinstance(tokens := measured.dims.get("tokens"), int)
    }
    _plots.time_against_bytes(
        path,
        [_sweep_line(one, label) for one, label in zip(series, labels, strict=True)],
        title=f"Time of {common or op}{rest}",
        marks=sorted(marks.items()),
    )


def _sweep_line(one: _sweep.Series, label: str) -> _plots.Line:
    """Return a line that breaks at the sizes that were tried and have no time."""
    rows = [size.timed for size in one.sizes]
    is_band = _band([row for row in rows if row is not None]) is not None
    low, high = ([_seconds(row, end) for row in rows] for end in ("low_s", "high_s"))
    return _plots.Line(
        label=label,
        x=[size.size_bytes for size in one.sizes],
        y=[_seconds(row, "median_s") for row in rows],
        band=(low, high) if is_band else None,
        source=one.first.source,
    )


def _seconds(row: Measurement | None, name: Literal["median_s", "low_s", "high_s"]) -> float:
    known: float | None = None if row is None else getattr(row, name)
    return math.nan if known is None else known


def combinations(one: SweepConclusion, found: Collected, *, folder: Folder) -> list[Plot]:
    """Plot the combinations of a sweep in the mode that counts, then the timing modes."""
    contest = one.contest
    title = f"{_combinations.name(one, found)}, {_combinations.mode(contest)}"
    words = [contest.op, contest.dtype or "", str(contest.ranks or "")]
    words += [found.letter(contest.environment)] if len(found.environments) > 1 else []
    stem = f"combinations-{_file_name('-'.join(words))}"
    lines = [
        _line(each, contest.times(each))
        for each in _combinations.implementations(one)
        if len(contest.times(each)) > 1
    ]
    lines += _believed_line(one, found)
    plots = []
    chunks = _chunks(lines)
    rest = _rest(len(lines) - 1 - sum(len(chunk) - 1 for chunk in chunks))
    for number, chunk in enumerate(chunks, 1):
        name = f"{stem}{f'-{number}' if number > 1 else ''}.png"
        if (path := folder.file(name)) is not None:
            said = f"Time of a call: {title}{rest if number == len(chunks) else ''}"
            _plots.time_against_bytes(path, chunk, title=said, marks=_row_marks(contest))
            plots.append(Plot(file=name, alt=f"Time by combination: {text(title)}"))
    modes = list(_mode_lines(one))
    path = folder.file(f"{stem}-modes.png")
    if path is not None and len(modes) > 1:
        _plots.time_against_bytes(
            path,
            modes,
            title=f"The same calls, timed in different ways: {_combinations.name(one, found)}",
            marks=_row_marks(contest),
        )
        plots.append(Plot(file=path.name, alt=f"Time by timing mode: {text(title)}"))
    return plots


def _mode_lines(one: SweepConclusion) -> Iterator[_plots.Line]:
    """Yield a line for each timing mode: one colour a mode, the second combination dash-dotted."""
    known = _combinations.modes(one)
    names = list(dict.fromkeys(name for each in known for name in each.by_mode))
    for at, each in enumerate(known[:2]):
        for name, rows in each.by_mode.items():
            if len(rows) > 1:
                label = f"{each.implementation}, {name}"
                yield _line(label, rows, colour=names.index(name), second=at > 0)


def _line(
    label: str, rows: Mapping[int, Measurement], *, colour: int | None = None, second: bool = False
) -> _plots.Line:
    known = {size: row for size, row in rows.items() if row.median_s}
    return _plots.Line(
        label=label,
        x=list(known),
        y=[row.median_s or 0.0 for row in known.values()],
        band=_band(list(known.values())),
        colour=colour,
        second=second,
    )


def _believed_line(one: SweepConclusion, found: Collected) -> list[_plots.Line]:
    """Return NCCL's own belief of its own choice, nobody measured it."""
    rows = _believed.chosen(_believed.believed(one, found))
    if len(rows) < 2:
        return []
    label = "predicted: NCCL's own model of its own choice"
    times = [row.median_s or 0.0 for row in rows.values()]
    return [_plots.Line(label=label, x=list(rows), y=times, source="predicted")]


def _row_marks(contest: Contest) -> list[tuple[float, str]]:
    rows = contest.rows.get(contest.default or "", {})
    return [
        (size, plural(tokens, "row"))
        for size, row in sorted(rows.items())
        if isinstance(tokens := row.dims.get("tokens"), int)
    ]


def _chunks(lines: Sequence[_plots.Line]) -> list[Sequence[_plots.Line]]:
    """Return the lines of each plot; each begins with the first line, the default."""
    if len(lines) < 2:
        return [lines] if lines else []
    room = _plots.MOST_LINES - 1
    rest = lines[1:]
    chunks = [[lines[0], *rest[at : at + room]] for at in range(0, len(rest), room)]
    return [*chunks[:_MOST_PLOTS]]


def budget(
    passes: Sequence[_budget.Pass],
    labels: Sequence[str],
    *,
    wholes: Mapping[str, Forecast],
    folder: Folder,
) -> str | None:
    """Plot the predicted passes: floors, with components where there are some, and played."""
    bars = []
    for one, label in zip(passes, labels, strict=True):
        floor_s = one.whole.floor_s
        if not one.components:
            bars += _bar(one, label, floor_s=floor_s)
            continue
        several, other = len(passes) > 1, one.with_components
        bars += _bar(one, label if several else "bytes and flops alone", floor_s=floor_s)
        named = f"{label}, with components" if several else "with components"
        bars += _bar(other, named, floor_s=floor_s)
        if not several and one.made_by in wholes:
            bars += _played(other, wholes[one.made_by], floor_s=floor_s)
    path = folder.file("budget.png") if bars else None
    if path is None:
        return None
    named = f": {labels[0]}" if len(passes) == 1 and len(bars) > 1 else ""
    _plots.budget(path, bars, title=f"Predicted, not measured{named}")
    return "budget.png"


def _bar(one: _budget.Pass, label: str, *, floor_s: float | None) -> list[_plots.Bar]:
    whole, segments = one.whole, _budget.segments(one)
    unknown = dict.fromkeys(class_of(record.part) for record in whole.unknown)
    note = whole.time() + (f"\nnot known: {_text.listed(unknown, most=2)}" if unknown else "")
    if not segments:
        return []
    return [_plots.Bar(label=label, segments=segments, floor_s=floor_s, note=note)]


def _played(one: _budget.Pass, whole: Forecast, *, floor_s: float | None) -> list[_plots.Bar]:
    """Return the pass as the timeline plays it: the same kernels, and the device's idle time."""
    bars = []
    for mode, label in ((EAGER, "eager"), (GRAPH, "as one graph")):
        played = whole.mode(mode)
        idle = None if played is None else played.dims.get("idle_s")
        if played is None or not isinstance(idle, int | float):
            continue
        least = "at least " if played.flags else ""
        bars.append(
            _plots.Bar(
                label=label,
                segments=[*_budget.segments(one), (IDLE, float(idle))],
                floor_s=floor_s,
                note=f"{least}{_text.duration(played.median_s)}",
            )
        )
    return bars


def what_if(one: _budget.Pass, whole: Forecast, *, folder: Folder) -> str | None:
    """Plot what each lever takes off the pass, on top of those above it."""
    steps = _forecast.steps(whole)
    path = folder.file("what-if.png") if len(steps) > 1 else None
    if path is None:
        return None
    _plots.what_if(
        path,
        steps,
        floor_s=one.whole.floor_s,
        title=f"Predicted, not measured: levers one on top of the other, {_budget.title(one)}",
    )
    return "what-if.png"


def _band(measured: Sequence[Measurement]) -> tuple[list[float], list[float]] | None:
    """Return the ends of the intervals; None where one is not known."""
    low = [one.low_s for one in measured if one.low_s is not None]
    high = [one.high_s for one in measured if one.high_s is not None]
    return (low, high) if len(low) == len(high) == len(measured) else None


def _file_name(word: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in word)[:60]
