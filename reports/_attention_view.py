"""What report.md.j2 shows of attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reports import _attention, _compiled, _growth, _kernels, _verify
from reports._collected import Collected
from reports._drawn import Folder
from reports._markdown import bullets
from reports._op_view import FoldedView, OpView, folded, op_view


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
    has_predicted: bool


def attention_view(
    found: Collected,
    attention: _attention.Attention,
    *,
    curves: Mapping[str, list[_verify.Curve]],
    folder: Folder,
) -> AttentionView:
    names = _attention.names(attention)
    verdicts = [line for op in attention.all_ops for line in _growth.verdicts(op)]
    verdicts += _attention.predicted_verdicts(attention)

    def view(op: _kernels.Op) -> OpView:
        return op_view(op, curves[op.name], found=found, folder=folder, in_attention=True)

    return AttentionView(
        is_there=attention.is_there,
        verdicts=bullets(verdicts) if verdicts else "",
        axes=folded({name: _attention.axis(attention, name, found) for name in names}),
        forms=folded({name: _attention.forms(attention, name, found) for name in names}),
        beside=_attention.beside_table(attention, found),
        compiled=_compiled.compiled_table(attention.builds) if attention.builds else "",
        ops=[view(op) for op in attention.ops],
        beside_ops=[view(op) for op in attention.beside],
        has_predicted=bool(attention.predicted),
    )
