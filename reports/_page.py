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
    _drawn,
    _environments,
    _findings,
    _growth,
    _kernels,
    _method,
    _moe,
    _not_run,
    _sweep,
    _sweep_view,
    _text,
    _traces,
    _verify,
    _where,
)
from reports._collected import Collected
from reports._drawn import Folder
from reports._kernels import Kernels
from reports._markdown import bullets, code, text
from reports._summary import summary
from reports._text import plural
from verifyscope import environment
from verifyscope.records import Compiled

_MOST_CURVES = 12
_MOST_OPEN_CASES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBy:
    """The command and the commit that made a page, and what from."""

    command: str
    commit: str | None
    records: str


def write(found: Collected, folder: Path, *, command: str, plots: bool) -> None:
    """Write report.md and its plots, made by `command`, into `folder`."""
    drawn = Folder(path=folder if plots else None)
    kernels = _kernels.kernels(found)
    series, sweeps = _sweep.all_series(found), _combinations.concluded(found)
    changes = _changes.changes(found)
    curves = {op.name: _verify.curves(op) for op in kernels.ops}
    builds = _compiled.latest(found.compiled)
    attention = _attention.attention(found, kernels.ops, builds)
    moe = _moe.moe(found, kernels.ops, builds)
    passes = _budget.passes(found.predicted)
    not_run = _not_run.grouped(found.not_run)
    found.warnings[:] = dict.fromkeys(found.warnings)
    page = _template().render(
        made_by=_made_by(found, command),
        what=_what(found),
        summary=summary(
            found,
            not_run,
            kernels=kernels,
            curves=curves,
            series=series,
            sweeps=sweeps,
            passes=passes,
            changes=changes,
        ),
        findings=_findings.shown(found.findings),
        findings_left_out=_left_out(_findings.left_out(found.findings), "finding"),
        environments=_environments_view(found),
        kernels=_kernels_view(found, kernels, curves=curves, folder=drawn),
        attention=_attention_view(found, attention, curves=curves, folder=drawn),
        moe=_moe_view(found, moe, curves=curves, folder=drawn),
        changes=_changes_view(found, changes),
        sweep=_sweep_view.view(found, series, sweeps, folder=drawn),
        traces=_traces_view(found),
        where=_where.view(found, passes, drawn),
        compiled=_compiled_view(builds, (*attention.builds, *moe.builds)),
        not_run=_not_run_view(not_run),
        method=_method_view(found, kernels),
        warnings=[text(warning) for warning in found.warnings],
    )
    (folder / "report.md").write_text(_single_blank_lines(page), encoding="utf-8")


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


def _what(found: Collected) -> str:
    """Return on which machines, from which files and for which GPUs there is something."""
    ids: dict[str, None] = {}
    files: dict[str, None] = {}
    for one in (*found.kernels, *found.collectives, *found.traces):
        if one.source == "measured":
            ids[one.environment] = None
        elif one.origin is not None:
            files[one.origin.file] = None
    machines = [found.environments[name] for name in ids if name in found.environments]
    gpus = dict.fromkeys(
        str(one.dims.get("gpu") or one.method.get("gpu", "a GPU"))
        for one in (*found.predicted, *found.predicted_passes, *found.predicted_kernels)
    )
    lines = []
    if ids:
        several = len(found.environments) > 1
        names = (
            (f"{found.letter(one.id)}: " if several else "") + _environments.machine(one)
            for one in machines
        )
        shown = "; ".join(names) or "a machine that no record describes"
        lines.append(f"Measured on {shown}.")
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
        left_out=_left_out(len(moved) - _changes.MOST_CHANGES, "change"),
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
    folded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsView:
    """The section of kernels."""

    ops: list[OpView]
    ceilings: str
    by_interval: bool
    on_cpu: bool
    left_out: str


def _kernels_view(
    found: Collected,
    kernels: Kernels,
    *,
    curves: Mapping[str, list[_verify.Curve]],
    folder: Folder,
) -> KernelsView:
    return KernelsView(
        ops=[
            _op_view(op, curves[op.name], found=found, folder=folder)
            for op in kernels.ops
            if not _attention.belongs(op) and not _moe.belongs(op)
        ],
        ceilings=_kernels.ceilings_table(kernels, found) if kernels.ceilings else "",
        by_interval=_kernels.has_interval_verdicts(kernels),
        on_cpu=any(found.on_cpu(row.point.main) for op in kernels.ops for row in op.rows),
        left_out=plural(kernels.left_out, "case") if kernels.left_out else "",
    )


def _op_view(
    op: _kernels.Op,
    curves: list[_verify.Curve],
    *,
    found: Collected,
    folder: Folder,
    in_attention: bool = False,
) -> OpView:
    """Return what is shown of `op`; the T axis of attention stands in a table of its own."""
    shared = _kernels.Shared.of(op, found)
    shown = [] if in_attention else curves[:_MOST_CURVES]
    headline = _kernels.headline(op, found)
    overview = _kernels.overview(op, found)
    return OpView(
        name=code(op.name),
        shared=", ".join((*shared.notes, *_kernels.dim_words(shared.dims))),
        headline=bullets(headline) if len(headline) > 1 else "".join(headline),
        overview=overview,
        folded=overview is not None or len(op.cases) > _MOST_OPEN_CASES,
        curves=_verify.curves_table(shown, found) if shown else "",
        curves_left_out=_left_out(len(curves) - len(shown), "curve") if shown else "",
        plot=None if op.is_plan else _drawn.curves(op, curves, found=found, folder=folder),
        table=_kernels.op_table(op, shared, found=found),
        cases=[
            CaseView(
                name=code(case.first.case),
                facts=_kernels.case_line(case, shared),
                table=_kernels.case_table(case, shared, found=found),
            )
            for case in op.cases
        ],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedView:
    """Two tables of one op: `others` are folded away, and some of them left out."""

    name: str
    table: str
    others: str
    left_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionView:
    """The section of attention."""

    is_there: bool
    verdicts: str
    axes: list[FoldedView]
    forms: list[FoldedView]
    beside: str
    compiled: str
    ops: list[OpView]
    beside_ops: list[OpView]
    missing: str
    has_predicted: bool


def _attention_view(
    found: Collected,
    attention: _attention.Attention,
    *,
    curves: Mapping[str, list[_verify.Curve]],
    folder: Folder,
) -> AttentionView:
    names = _attention.names(attention)
    verdicts = [line for op in attention.all_ops for line in _growth.verdicts(op)]
    verdicts += _attention.predicted_verdicts(attention)
    missing = _attention.missing(attention)

    def view(op: _kernels.Op) -> OpView:
        return _op_view(op, curves[op.name], found=found, folder=folder, in_attention=True)

    return AttentionView(
        is_there=attention.is_there,
        verdicts=bullets(verdicts) if verdicts else "",
        axes=_folded({name: _attention.axis(attention, name, found) for name in names}),
        forms=_folded({name: _attention.forms(attention, name, found) for name in names}),
        beside=_attention.beside_table(attention, found),
        compiled=_compiled.compiled_table(attention.builds) if attention.builds else "",
        ops=[view(op) for op in attention.ops],
        beside_ops=[view(op) for op in attention.beside],
        missing=bullets(missing) if missing and attention.is_there else "",
        has_predicted=bool(attention.predicted),
    )


def _folded(tables: Mapping[str, _growth.Folded]) -> list[FoldedView]:
    return [
        FoldedView(
            name=code(name),
            table=one.shown or one.others,
            others=one.others if one.shown else "",
            left_out=_left_out(one.left_out, "curve"),
        )
        for name, one in tables.items()
        if one.shown or one.others
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeView:
    """The section of experts."""

    is_there: bool
    verdicts: str
    tables: list[FoldedView]
    axes: list[FoldedView]
    beside: str
    unpacking: str
    claims: FoldedView | None
    claims_sentence: str
    compiled: str
    ops: list[OpView]
    missing: str
    has_predicted: bool


def _moe_view(
    found: Collected,
    moe: _moe.Moe,
    *,
    curves: Mapping[str, list[_verify.Curve]],
    folder: Folder,
) -> MoeView:
    held = _moe.claims(moe)
    missing = _moe.missing(moe)
    verdicts = [line for op in moe.all_ops for line in _growth.verdicts(op)]
    return MoeView(
        is_there=moe.is_there,
        verdicts=bullets(verdicts) if verdicts else "",
        tables=[
            FoldedView(name=text(name), table=one.shown, others=one.others, left_out="")
            for name, one in _moe.tables(moe, found)
        ],
        axes=_folded(_moe.axes(moe, found)),
        beside=_moe.beside_table(moe, found),
        unpacking=_moe.unpacking_table(moe),
        claims=_claims_view(held),
        claims_sentence=_moe.claims_sentence(held),
        compiled=_compiled.compiled_table(moe.builds) if moe.builds else "",
        ops=[
            _op_view(op, curves[op.name], found=found, folder=folder, in_attention=True)
            for op in moe.all_ops
        ],
        missing=bullets(missing) if missing and moe.is_there else "",
        has_predicted=bool(moe.predicted),
    )


def _claims_view(held: Sequence[_moe.Claim]) -> FoldedView | None:
    if not held:
        return None
    made = _moe.claims_table(held)
    return FoldedView(
        name="", table=made.shown, others=made.others, left_out=_left_out(made.left_out, "row")
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
        left_out=_left_out(len(failed) - _compiled.MOST_FAILURES, "failure"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRunView:
    """The section of what has no time."""

    table: str
    left_out: str


def _not_run_view(groups: list[_not_run.Group]) -> NotRunView:
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


def _method_view(found: Collected, kernels: Kernels) -> MethodView:
    return MethodView(
        commands=_method.commands_table(found),
        kernels=_method.method_table(kernels.measured),
        left_out=_left_out(_method.left_out(found), "command"),
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

    shown: list[TraceView]
    left_out: str


def _traces_view(found: Collected) -> TracesView:
    every = _traces.traces(found.traces)
    return TracesView(
        shown=[
            TraceView(
                name=_traces.heading(one),
                facts=_traces.facts(one),
                classes=_traces.classes_table(one),
                kernels=_traces.kernels_table(one),
            )
            for one in every[: _traces.MOST_TRACES]
        ],
        left_out=_left_out(len(every) - _traces.MOST_TRACES, "trace"),
    )


def _left_out(count: int, noun: str) -> str:
    return plural(count, noun) if count > 0 else ""
