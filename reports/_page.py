"""From sorted records to what report.md.j2 shows, and the plots beside it.

Everything here is Markdown already. What would make a page too long to read is counted, not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from reports import (
    _budget,
    _compiled,
    _environments,
    _findings,
    _kernels,
    _method,
    _not_run,
    _plots,
    _sweep,
    _text,
    _verify,
)
from reports._collected import Collected
from reports._kernels import Kernels
from reports._markdown import bullets, code, text
from reports._summary import summary
from reports._text import plural
from verifyscope import environment
from verifyscope.records import Measurement

TEMPLATE = "report.md.j2"
_MOST_CURVES = 12
_MOST_PASSES = 12
_MOST_PLOTS = 3
_MOST_OPEN_SERIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBy:
    """The command and the commit that made a page, and what from."""

    command: str
    commit: str | None
    records: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Where plots go; with `plots` False there are none."""

    path: Path
    plots: bool
    made: list[str]

    def plot(self, name: str) -> Path | None:
        """Return where to save a plot, and note its name; None if there are to be none."""
        if not self.plots:
            return None
        self.made.append(name)
        return self.path / name


def write(found: Collected, folder: Path, *, command: str, plots: bool) -> None:
    """Write report.md and its plots, made by `command`, into `folder`."""
    place = Folder(path=folder, plots=plots, made=[])
    kernels = _kernels.kernels(found)
    series = _sweep.all_series(found)
    passes = _budget.passes(found.predicted)
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the cells are escaped for Markdown, one by one
    )
    page = templates.get_template(TEMPLATE).render(
        made_by=_made_by(found, command),
        what=_what(found),
        summary=summary(found, kernels, series, passes),
        findings=_findings.shown(found.findings),
        findings_left_out=_left_out(_findings.left_out(found.findings), "finding"),
        environments=_environments_view(found),
        kernels=_kernels_view(found, kernels, place),
        sweep=_sweep_view(found, series, place),
        budget=_budget_view(passes, place),
        compiled=_compiled_view(found),
        not_run=_not_run_view(found),
        method=_method_view(found),
        warnings=[text(warning) for warning in found.warnings],
    )
    (folder / "report.md").write_text(_single_blank_lines(page), encoding="utf-8")


def _made_by(found: Collected, command: str) -> MadeBy:
    here = environment.current()
    changed = " with uncommitted changes" if here.dirty else ""
    names = (code("/".join(path.parts[-2:])) for path in found.paths)
    return MadeBy(
        command=command,
        commit=None if here.commit is None else f"{here.commit}{changed}",
        records=_text.listed(names),
    )


def _single_blank_lines(page: str) -> str:
    lines: list[str] = []
    for line in (line.rstrip() for line in page.splitlines()):
        if line or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).strip() + "\n"


def _what(found: Collected) -> str:
    """Return on which machines, from which files and for which GPUs there is something."""
    timed = (*found.kernels, *found.collectives)
    ids = dict.fromkeys(one.environment for one in timed if one.source == "measured")
    machines = [found.environments[name] for name in ids if name in found.environments]
    files = dict.fromkeys(one.origin.file for one in timed if one.origin is not None)
    gpus = dict.fromkeys(str(one.dims.get("gpu", "a GPU")) for one in found.predicted)
    lines = []
    if ids:
        names = dict.fromkeys(map(_environments.machine, machines))
        lines.append(f"Measured on {_text.listed(names) or 'a machine that no record describes'}.")
    if files:
        lines.append(f"Imported from {_text.listed(map(code, files))}.")
    if gpus:
        lines.append(f"Predicted for {_text.listed(map(text, gpus))}.")
    return " ".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentsView:
    """The section of machines."""

    shared: str
    differences: str
    unknown: str
    count: int
    letters: str


def _environments_view(found: Collected) -> EnvironmentsView:
    several = len(found.environments) > 1
    names = [found.letter(name) for name in found.environments]
    known = bool(found.environments)
    return EnvironmentsView(
        shared=_environments.shared_table(found) if known else "",
        differences=_environments.difference_table(found) if several else "",
        unknown=_text.listed(_environments.unknown_facts(found), most=12) if known else "",
        count=len(names),
        letters=_text.listed(names, most=26),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """One case of an op."""

    name: str
    facts: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpView:
    """One op."""

    name: str
    shared: str
    headline: str
    overview: str | None
    curves: str
    curves_left_out: str
    plot: str | None
    table: str | None
    cases: list[CaseView]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsView:
    """The section of kernels."""

    ops: list[OpView]
    ceilings: str
    by_interval: bool
    on_cpu: bool
    left_out: str


def _kernels_view(found: Collected, kernels: Kernels, place: Folder) -> KernelsView:
    return KernelsView(
        ops=[_op_view(op, found, place) for op in kernels.ops],
        ceilings=_kernels.ceilings_table(kernels, found) if kernels.ceilings else "",
        by_interval=_kernels.has_interval_verdicts(kernels),
        on_cpu=any(found.on_cpu(row.point.main) for op in kernels.ops for row in op.rows),
        left_out=plural(kernels.left_out, "case") if kernels.left_out else "",
    )


def _op_view(op: _kernels.Op, found: Collected, place: Folder) -> OpView:
    shared = _kernels.Shared.of(op, found)
    curves = _verify.curves(op)
    shown = curves[:_MOST_CURVES]
    headline = _kernels.headline(op, found)
    return OpView(
        name=code(op.name),
        shared=", ".join((*shared.notes, *_kernels.dim_words(shared.dims))),
        headline=bullets(headline) if len(headline) > 1 else "".join(headline),
        overview=_kernels.overview(op, found),
        curves=_verify.curves_table(shown, found) if shown else "",
        curves_left_out=_left_out(len(curves) - len(shown), "curve"),
        plot=_curves_plot(op, curves, found, place),
        table=_kernels.op_table(op, shared, found),
        cases=[
            CaseView(
                name=code(case.first.case),
                facts=_kernels.case_line(case, shared),
                table=_kernels.case_table(case, shared, found),
            )
            for case in op.cases
        ],
    )


def _curves_plot(
    op: _kernels.Op, curves: Sequence[_verify.Curve], found: Collected, place: Folder
) -> str | None:
    """Plot the curves of the point that has most T, one line an implementation."""
    alike = [curve for curve in curves if curve.fixed == curves[0].fixed][: _plots.MOST_LINES]
    if not alike or len(alike[0].by_tokens) < 3:
        return None
    name = f"time-{_file_name(op.name)}.png"
    path = place.plot(name)
    if path is None:
        return None
    several = len(found.environments) > 1
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
    point = ", ".join(f"{dim} {value}" for dim, value in alike[0].fixed)
    _plots.time_against_tokens(path, lines, title=f"{op.name}: {point}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesView:
    """One series of a sweep."""

    name: str
    method: str
    table: str
    folded: bool
    left_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotView:
    """A plot and the words that stand for it."""

    file: str
    alt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """The section of collectives."""

    series: list[SeriesView]
    plots: list[PlotView]
    passes: str
    on_cpu: bool
    left_out: str


def _sweep_view(found: Collected, series: Sequence[_sweep.Series], place: Folder) -> SweepView:
    shown = series[: _sweep.MOST_SERIES]
    passes = _sweep.passes(shown)
    return SweepView(
        series=[
            SeriesView(
                name=text(_sweep.name(one, found)),
                method=_sweep.facts(one),
                table=_sweep.series_table(one),
                folded=one.imported and len(shown) > _MOST_OPEN_SERIES,
                left_out=_left_out(_sweep.left_out(one), "size"),
            )
            for one in shown
        ],
        plots=_sweep_plots(found, shown, place),
        passes=_sweep.passes_table(passes, found) if passes else "",
        on_cpu=any(found.on_cpu(one.first) for one in shown),
        left_out=_left_out(len(series) - len(shown), "line"),
    )


def _sweep_plots(
    found: Collected, series: Sequence[_sweep.Series], place: Folder
) -> list[PlotView]:
    """Plot each collective; more lines than a plot holds go on to another."""
    plots = []
    for op in dict.fromkeys(one.first.op for one in series):
        lines = [one for one in series if one.first.op == op and len(one.points) > 1]
        chunks = [
            lines[at : at + _plots.MOST_LINES] for at in range(0, len(lines), _plots.MOST_LINES)
        ]
        for number, chunk in enumerate(chunks[:_MOST_PLOTS], 1):
            name = f"sweep-{_file_name(op)}{f'-{number}' if number > 1 else ''}.png"
            path = place.plot(name)
            if path is not None:
                _sweep_plot(path, chunk, op, found)
                plots.append(PlotView(file=name, alt=f"Time of {text(op)} against bytes"))
    return plots


def _sweep_plot(path: Path, series: Sequence[_sweep.Series], op: str, found: Collected) -> None:
    common, labels = _sweep.short_names(series, found)
    marks = {
        size: plural(tokens, "row")
        for one in series
        for size, measured in one.points
        if isinstance(tokens := measured.dims.get("tokens"), int)
    }
    _plots.time_against_bytes(
        path,
        [
            _plots.Line(
                label=label,
                x=[size for size, _ in one.points],
                y=[measured.median_s or 0.0 for _, measured in one.points],
                band=_band([measured for _, measured in one.points]),
                hollow=one.imported,
            )
            for one, label in zip(series, labels, strict=True)
        ],
        title=f"Time of {common or op}",
        marks=sorted(marks.items()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassView:
    """One predicted pass."""

    title: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    """The section of predictions."""

    passes: list[PassView]
    classes: str
    plot: str | None
    left_out: str


def _budget_view(passes: Sequence[_budget.Pass], place: Folder) -> BudgetView:
    shown = passes[:_MOST_PASSES]
    labels = _budget.labels(shown)
    return BudgetView(
        passes=[
            PassView(title=text(_budget.title(one)), table=_budget.parts_table(one))
            for one in shown
        ],
        classes=_budget.classes_table(shown, labels) if 1 < len(shown) <= 6 else "",
        plot=_budget_plot(shown, labels, place),
        left_out=_left_out(len(passes) - len(shown), "predicted pass"),
    )


def _budget_plot(
    passes: Sequence[_budget.Pass], labels: Sequence[str], place: Folder
) -> str | None:
    bars = []
    for one, label in zip(passes, labels, strict=True):
        whole = one.whole
        segments = [
            (name, total.seconds) for name, total in one.by_class().items() if total.seconds
        ]
        unknown = dict.fromkeys(record.part for record in whole.unknown)
        note = whole.time() + (f" ({', '.join(unknown)} not known)" if unknown else "")
        if segments:
            bars.append(
                _plots.Bar(label=label, segments=segments, floor_s=whole.floor_s, note=note)
            )
    path = place.plot("budget.png") if bars else None
    if path is None:
        return None
    _plots.budget(path, bars, title="Predicted, not measured: time of a pass by class")
    return "budget.png"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledView:
    """The section of the compile gate."""

    table: str
    failures: str
    left_out: str


def _compiled_view(found: Collected) -> CompiledView:
    builds = _compiled.latest(found.compiled)
    failed = _compiled.failures(builds)
    return CompiledView(
        table=_compiled.compiled_table(builds) if builds else "",
        failures=_compiled.failures_table(failed) if failed else "",
        left_out=_left_out(len(failed) - _compiled.MOST_FAILURES, "failure"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRunView:
    """The section of what has no time."""

    table: str
    left_out: str


def _not_run_view(found: Collected) -> NotRunView:
    groups = _not_run.grouped(found.not_run)
    return NotRunView(
        table=_not_run.not_run_table(groups) if groups else "",
        left_out=_left_out(len(groups) - _not_run.MOST_REASONS, "reason"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodView:
    """The section of how numbers were made."""

    commands: str
    kernels: str | None
    left_out: str


def _method_view(found: Collected) -> MethodView:
    return MethodView(
        commands=_method.commands_table(found),
        kernels=_method.method_table(found.kernels),
        left_out=_left_out(_method.left_out(found), "command"),
    )


def _band(measured: Sequence[Measurement]) -> tuple[list[float], list[float]] | None:
    """Return the ends of the intervals; None where one is not known."""
    low = [one.low_s for one in measured if one.low_s is not None]
    high = [one.high_s for one in measured if one.high_s is not None]
    return (low, high) if len(low) == len(high) == len(measured) else None


def _left_out(count: int, noun: str) -> str:
    return plural(count, noun) if count > 0 else ""


def _file_name(word: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in word)[:60]
