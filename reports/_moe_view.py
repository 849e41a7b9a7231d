"""What report.md.j2 shows of experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports import _compiled, _growth, _moe, _verify
from reports._collected import Collected
from reports._drawn import Folder
from reports._markdown import bullets, text
from reports._op_view import FoldedView, OpView, folded, left_out, op_view


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
    has_predicted: bool


def moe_view(
    found: Collected,
    moe: _moe.Moe,
    *,
    curves: Mapping[str, list[_verify.Curve]],
    folder: Folder,
) -> MoeView:
    held = _moe.claims(moe)
    verdicts = [line for op in moe.all_ops for line in _growth.verdicts(op)]
    return MoeView(
        is_there=moe.is_there,
        verdicts=bullets(verdicts) if verdicts else "",
        tables=[
            FoldedView(name=text(name), table=one.shown, others=one.others, left_out="")
            for name, one in _moe.tables(moe, found)
        ],
        axes=folded(_moe.axes(moe, found)),
        beside=_moe.beside_table(moe, found),
        unpacking=_moe.unpacking_table(moe),
        claims=_claims_view(held),
        claims_sentence=_moe.claims_sentence(held),
        compiled=_compiled.compiled_table(moe.builds) if moe.builds else "",
        ops=[
            op_view(op, curves[op.name], found=found, folder=folder, in_attention=True)
            for op in moe.all_ops
        ],
        has_predicted=bool(moe.predicted),
    )


def _claims_view(held: Sequence[_moe.Claim]) -> FoldedView | None:
    if not held:
        return None
    made = _moe.claims_table(held)
    return FoldedView(
        name="", table=made.shown, others=made.others, left_out=left_out(made.left_out, "row")
    )
