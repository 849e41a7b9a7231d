"""What report.md.j2 shows of one op of kernels, in whichever section it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reports import _drawn, _growth, _kernels, _verify
from reports._collected import Collected
from reports._drawn import Folder
from reports._markdown import bullets, code
from reports._text import plural

_MOST_CURVES = 12
_MOST_OPEN_CASES = 4


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
    not_drawn: str
    table: str | None
    cases: list[CaseView]
    folded: bool


def op_view(
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
        curves_left_out=left_out(len(curves) - len(shown), "curve") if shown else "",
        plot=None if op.is_plan else _drawn.curves(op, curves, found=found, folder=folder),
        not_drawn=_drawn.not_drawn(op, curves, folder=folder),
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


def folded(tables: Mapping[str, _growth.Folded]) -> list[FoldedView]:
    return [
        FoldedView(
            name=code(name),
            table=one.shown or one.others,
            others=one.others if one.shown else "",
            left_out=left_out(one.left_out, "curve"),
        )
        for name, one in tables.items()
        if one.shown or one.others
    ]


def left_out(count: int, noun: str) -> str:
    return plural(count, noun) if count > 0 else ""
