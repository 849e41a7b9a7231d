"""Which plots a report has, and from which numbers each is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reports import _budget, _kernels, _plots, _sweep, _text, _verify
from reports._collected import Collected
from reports._markdown import text
from reports._text import plural
from verifyscope.parts import class_of
from verifyscope.records import Measurement

_MOST_PLOTS = 3


@dataclass(frozen=True, slots=True)
class Folder:
    """Where plots go; None: there are to be none."""

    path: Path | None

    def file(self, name: str) -> Path | None:
        """Return where to save the plot `name`."""
        return None if self.path is None else self.path / name


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot and the words that stand for it."""

    file: str
    alt: str


def curves(
    op: _kernels.Op, every: Sequence[_verify.Curve], *, found: Collected, folder: Folder
) -> str | None:
    """Plot the curves of the point that has most T, one line an implementation."""
    alike = [curve for curve in every if curve.fixed == every[0].fixed][: _plots.MOST_LINES]
    if not alike or len(alike[0].by_tokens) < 3:
        return None
    name = f"time-{_file_name(op.name)}.png"
    path = folder.file(name)
    if path is None:
        return None
    several = len({curve.environment for curve in alike}) > 1
    lines = [
        _plots.Line(
            label=curve.implementation
            + (f" on {found.letter(curve.environment)}" if several else "")
            + (", CPU" if found.on_cpu(curve.by_tokens[1]) else ""),
            x=list(curve.by_tokens),
            y=[curve.seconds(tokens) for tokens in curve.by_tokens],
            band=_band(list(curve.by_tokens.values())),
        )
        for curve in alike
    ]
    floors = {tokens: one.floor_s for tokens, one in alike[0].by_tokens.items()}
    if all(floors.values()):
        floor_s = [seconds or 0.0 for seconds in floors.values()]
        floor = _plots.Line(
            label="floor of bytes and flops", x=list(floors), y=floor_s, hollow=True
        )
        lines.append(floor)
    point = ", ".join(f"{dim} {value}" for dim, value in alike[0].fixed)
    _plots.time_against_tokens(path, lines, title=f"{op.name}: {point}")
    return name


def sweeps(found: Collected, series: Sequence[_sweep.Series], *, folder: Folder) -> list[Plot]:
    """Plot each collective; more lines than a plot holds go on to another."""
    plots = []
    for op in dict.fromkeys(one.first.op for one in series):
        lines = [one for one in series if one.first.op == op and len(one.points) > 1]
        chunks = [
            lines[at : at + _plots.MOST_LINES] for at in range(0, len(lines), _plots.MOST_LINES)
        ]
        for number, chunk in enumerate(chunks[:_MOST_PLOTS], 1):
            name = f"sweep-{_file_name(op)}{f'-{number}' if number > 1 else ''}.png"
            path = folder.file(name)
            if path is not None:
                _sweep_plot(path, chunk, op=op, found=found)
                plots.append(Plot(file=name, alt=f"Time of {text(op)} against bytes"))
    return plots


def _sweep_plot(path: Path, series: Sequence[_sweep.Series], *, op: str, found: Collected) -> None:
    common, labels = _sweep.short_names(series, found)
    points = [[(size, one) for size, one in line.points if one.median_s] for line in series]
    marks = {
        size: plural(tokens, "row")
        for line in points
        for size, measured in line
        if isinstance(tokens := measured.dims.get("tokens"), int)
    }
    _plots.time_against_bytes(
        path,
        [
            _plots.Line(
                label=label,
                x=[size for size, _ in line],
                y=[one.median_s for _, one in line if one.median_s],
                band=_band([one for _, one in line]),
                hollow=one_series.imported,
            )
            for one_series, line, label in zip(series, points, labels, strict=True)
            if line
        ],
        title=f"Time of {common or op}",
        marks=sorted(marks.items()),
    )


def budget(passes: Sequence[_budget.Pass], labels: Sequence[str], *, folder: Folder) -> str | None:
    """Plot the predicted passes, one bar each."""
    bars = []
    for one, label in zip(passes, labels, strict=True):
        whole = one.whole
        segments = _budget.segments(one)
        unknown = dict.fromkeys(class_of(record.part) for record in whole.unknown)
        note = whole.time() + (f"\nnot known: {_text.listed(unknown, most=2)}" if unknown else "")
        if segments:
            bars.append(
                _plots.Bar(label=label, segments=segments, floor_s=whole.floor_s, note=note)
            )
    path = folder.file("budget.png") if bars else None
    if path is None:
        return None
    _plots.budget(path, bars, title="Predicted, not measured")
    return "budget.png"


def _band(measured: Sequence[Measurement]) -> tuple[list[float], list[float]] | None:
    """Return the ends of the intervals; None where one is not known."""
    low = [one.low_s for one in measured if one.low_s is not None]
    high = [one.high_s for one in measured if one.high_s is not None]
    return (low, high) if len(low) == len(high) == len(measured) else None


def _file_name(word: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in word)[:60]
