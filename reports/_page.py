"""From sorted records to what report.md.j2 shows, and the plots beside it.

Everything here is Markdown already. What would make a page too long to read is counted, not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from reports import (
    _attention,
    _budget,
    _changes,
    _combinations,
    _compiled,
    _environments,
    _findings,
    _first_screen,
    _html,
    _kernels,
    _leading,
    _marks,
    _method,
    _missing,
    _moe,
    _not_run,
    _others,
    _packed,
    _pass_drawing,
    _provenance,
    _speculation,
    _stub_passes,
    _sweep,
    _sweep_view,
    _text,
    _traces,
    _verify,
    _where,
)
from reports._attention_view import attention_view
from reports._collected import Collected
from reports._drawn import Folder
from reports._first_screen import FirstScreen
from reports._kernels import Kernels
from reports._markdown import bullets, code, text
from reports._moe_view import moe_view
from reports._op_view import OpView, left_out, op_view
from reports._text import plural
from verifyscope import environment
from verifyscope.records import Compiled
from verifyscope.sweep_conclusion import SweepConclusion

_MOST_SAID = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBy:
    """The command and the commit that made a page, and what from."""

    command: str
    commit: str | None
    records: str


def write(found: Collected, folder: Path, *, command: str, plots: bool) -> None:
    """Write report.md, its plots and report.html, made by `command`, into `folder`."""
    every = _packed.every(found)
    by_id, names = {one.id: one for one in every}, _packed.short_ids(every)
    drawn = Folder(path=folder if plots else None)
    series, sweeps = _sweep.all_series(found), _combinations.concluded(found)
    not_run = _not_run.grouped(found.not_run)
    first = _first_screen.first_screen(found, series=series, sweeps=sweeps, not_run=not_run)
    marked = _marked(
        found, drawn, command, first=first, series=series, sweeps=sweeps, not_run=not_run
    )
    page = _provenance.said(_single_blank_lines(marked), by_id, found)
    shown = _first_screen.in_markdown(page, first, found, drawn)
    (folder / "report.md").write_text(_marks.removed(shown), encoding="utf-8")
    html = _html.page(
        _first_screen.before_html(page, first),
        plots=folder if plots else None,
        records=by_id,
        names=names,
        packed=lambda room: _packed.packed(every, found, names=names, room=room),
        drawing=_pass_drawing.drawing(first.subject, found),
        places=_first_screen.places(first, found),
    )
    (folder / _html.PAGE).write_text(html, encoding="utf-8")


def _marked(
    found: Collected,
    drawn: Folder,
    command: str,
    *,
    first: FirstScreen,
    series: Sequence[_sweep.Series],
    sweeps: Sequence[SweepConclusion],
    not_run: list[_not_run.Group],
) -> str:
    """Return the Markdown, in which numbers are marked with their records (reports/_marks.py)."""
    kernels = _kernels.kernels(found)
    stub = _stub_passes.cases(found)
    changes = _changes.changes(found)
    curves = {op.name: _verify.curves(op) for op in kernels.ops}
    drawn = drawn.with_curves(kernels.ops, curves)
    builds = _compiled.latest(found.compiled)
    attention = _attention.attention(found, kernels.ops, builds)
    moe = _moe.moe(found, kernels.ops, builds)
    passes = _budget.passes(found.predicted)
    found.warnings[:] = dict.fromkeys(found.warnings)
    return _template().render(
        made_by=_made_by(found, command),
        first=first,
        findings=_findings.shown(found),
        findings_first=bool(_leading.leading(first.subject, found)),
        findings_left_out=left_out(_findings.left_out(found.findings), "finding"),
        environments=_environments_view(found),
        kernels=_kernels_view(found, kernels, curves=curves, folder=drawn),
        attention=attention_view(found, attention, curves=curves, folder=drawn),
        moe=moe_view(found, moe, curves=curves, folder=drawn),
        changes=_changes_view(found, changes),
        sweep=_sweep_view.view(found, series, sweeps, folder=drawn),
        traces=_traces_view(found),
        where=_where.view(found, passes, drawn),
        stub=_stub_view(found, stub),
        speculation=_speculation.section(first.points, drawn),
        compiled=_compiled_view(builds, (*attention.builds, *moe.builds)),
        not_run=_not_run_view(not_run),
        missing=bullets(
            _missing.missing(
                found,
                of_the_pass=_where.missing(found, passes),
                of_attention=_attention.missing(attention),
                of_experts=_moe.missing(moe),
            )
        ),
        method=_method_view(found, kernels),
        warnings=[text(warning) for warning in found.warnings],
    )


@cache
def _template() -> jinja2.Template:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the cells are escaped for Markdown, one by one
    )
    return templates.get_template("report.md.j2")


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
    facts = _environments.all_facts(found)
    return EnvironmentsView(
        shared=_environments.shared_table(facts) if facts else "",
        differences=_environments.difference_table(facts) if several else "",
        unknown=_text.listed(_environments.unknown_facts(facts), most=12) if facts else "",
        count=len(names),
        letters=_text.listed(names, most=26),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesView:
    """The section of what differs between environments."""

    counts: str
    table: str
    left_out: str


def _changes_view(found: Collected, changes: Sequence[_changes.Change]) -> ChangesView:
    moved = _changes.moved(changes)
    return ChangesView(
        counts=" ".join(_changes.counts(changes, found)),
        table=_changes.changes_table(moved, found) if moved else "",
        left_out=left_out(len(moved) - _changes.MOST_CHANGES, "change"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsView:
    """The section of kernels."""

    ops: list[OpView]
    ceilings: str
    by_interval: bool
    on_cpu: bool
    others: str
    others_said: str
    other_files: list[_others.FileView]
    others_left_out: str
    left_out: str


def _kernels_view(
    found: Collected,
    kernels: Kernels,
    *,
    curves: Mapping[str, list[_verify.Curve]],
    folder: Folder,
) -> KernelsView:
    others = _others.series(kernels.others)
    return KernelsView(
        ops=[
            op_view(op, curves[op.name], found=found, folder=folder)
            for op in kernels.ops
            if not _attention.belongs(op) and not _moe.belongs(op)
        ],
        ceilings=_kernels.ceilings_table(kernels, found) if kernels.ceilings else "",
        by_interval=_kernels.has_interval_verdicts(kernels),
        on_cpu=any(found.on_cpu(row.point.main) for op in kernels.ops for row in op.rows),
        others=_others.overview(others) if others else "",
        others_said=bullets(_others.sentences(others)[:_MOST_SAID]),
        other_files=_others.files(others[: _others.MOST_SERIES]),
        others_left_out=left_out(len(others) - _others.MOST_SERIES, "line"),
        left_out=plural(kernels.left_out, "case") if kernels.left_out else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StubView:
    """What was measured of passes."""

    headline: str
    cases: list[_stub_passes.CaseView]
    growth: str
    on_cpu: bool
    left_out: str


def _stub_view(found: Collected, cases: Sequence[_stub_passes.Case]) -> StubView:
    shown = cases[: _stub_passes.MOST_CASES]
    headline = _stub_passes.headline(shown)
    return StubView(
        headline=bullets(headline) if headline else "",
        cases=_stub_passes.view(found, shown),
        on_cpu=any(found.on_cpu(case.first) for case in shown),
        growth=_stub_passes.growth_table(found),
        left_out=left_out(len(cases) - len(shown), "pass"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledView:
    """The section of the compile gate."""

    table: str
    failures: str
    left_out: str


def _compiled_view(builds: Sequence[Compiled], elsewhere: Sequence[Compiled]) -> CompiledView:
    """Show what no other section does; `elsewhere` are the builds that another shows."""
    failed = _compiled.failures(builds)
    shown = {build.op for build in elsewhere}
    others = [build for build in builds if build.op not in shown]
    return CompiledView(
        table=_compiled.compiled_table(others) if others else "",
        failures=_compiled.failures_table(failed) if failed else "",
        left_out=left_out(len(failed) - _compiled.MOST_FAILURES, "failure"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRunView:
    """The section of what has no time."""

    table: str
    left_out: str


def _not_run_view(groups: list[_not_run.Group]) -> NotRunView:
    return NotRunView(
        table=_not_run.not_run_table(groups) if groups else "",
        left_out=left_out(len(groups) - _not_run.MOST_REASONS, "reason"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodView:
    """The section of how numbers were made."""

    commands: str
    kernels: str | None
    left_out: str


def _method_view(found: Collected, kernels: Kernels) -> MethodView:
    return MethodView(
        commands=_method.commands_table(found),
        kernels=_method.method_table(kernels.measured),
        left_out=left_out(_method.left_out(found), "command"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceView:
    """One GPU of a trace; values are Markdown."""

    name: str
    facts: str
    classes: str
    kernels: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesView:
    """The section of traces."""

    overview: str
    shown: list[TraceView]
    left_out: str


def _traces_view(found: Collected) -> TracesView:
    every = _traces.traces(found.traces)
    return TracesView(
        overview=_traces.overview(every) if len(every) > 1 else "",
        shown=[
            TraceView(
                name=_traces.heading(one),
                facts=_traces.facts(one),
                classes=_traces.classes_table(one),
                kernels=_traces.kernels_table(one),
            )
            for one in every[: _traces.MOST_TRACES]
        ],
        left_out=left_out(len(every) - _traces.MOST_TRACES, "trace"),
    )
