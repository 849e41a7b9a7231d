"""The section of attention: how time grows with T, its three forms, what a step does beside it.

A form is how a verify pass is computed: *verify* reads each key once, *decode* makes each draft
token a request of its own, *extend* lets one block a head walk the whole prefix. Rows that no GPU
has measured are predicted ones, in italics: what their bytes, flops and launches give.

Growth, bounds and who made a row are those of `_growth`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports import _growth, _moe, _text, _verify
from reports._collected import Collected
from reports._growth import Folded, marked, merged, predicted_ops, who
from reports._kernels import Case, Op, known_columns
from reports._markdown import code, text
from reports._text import NOT_KNOWN, plural
from verifyscope.records import Compiled, Measurement, Mode

MODES: tuple[Mode, ...] = ("verify", "decode", "extend")
ABOVE_ROOFLINE = 1.3
_PARTS = ("attention", "metadata", "sampling")


@dataclass(frozen=True, slots=True)
class Attention:
    """What the section shows.

    ops: the attention of a verify pass; beside: what a step does besides, merges and acceptance;
    predicted: ops whose own kernels nobody has timed on a GPU; builds: their compiled kernels.
    """

    ops: tuple[Op, ...]
    beside: tuple[Op, ...]
    predicted: tuple[Op, ...]
    builds: tuple[Compiled, ...]

    @property
    def all_ops(self) -> tuple[Op, ...]:
        """Return the measured ops."""
        return (*self.ops, *self.beside)

    @property
    def is_there(self) -> bool:
        """Say whether there is anything to show."""
        return bool(self.all_ops or self.predicted)


def attention(found: Collected, ops: Sequence[Op], builds: Iterable[Compiled]) -> Attention:
    """Sort out what belongs to attention; the rest of `ops` and `builds` is shown elsewhere."""
    mine = [op for op in ops if belongs(op)]
    predicted = predicted_ops(found, _PARTS)
    shown = {op.name for op in (*mine, *predicted)}
    return Attention(
        ops=tuple(op for op in mine if _has_forms(op)),
        beside=tuple(op for op in mine if not _has_forms(op)),
        predicted=predicted,
        builds=tuple(build for build in builds if build.op in shown),
    )


def belongs(op: Op) -> bool:
    """Say whether an op is attention or what a step does beside it, and is no imported event."""
    first = op.cases[0].first
    return first.part in _PARTS and first.source == "measured" and not _moe.belongs(op)


def names(attention: Attention) -> list[str]:
    """Return the ops that have forms, measured or predicted."""
    every = (*attention.ops, *attention.predicted)
    return list(dict.fromkeys(op.name for op in every if _has_forms(op)))


def axis(attention: Attention, name: str, found: Collected) -> Folded:
    """Return time(T) of an op, and its growth against the roofline's."""
    return _growth.axis(_of(attention, name), found, above=ABOVE_ROOFLINE)


def forms(attention: Attention, name: str, found: Collected) -> Folded:
    """Return the forms of an op side by side, those of the point of most T first."""
    ops = _of(attention, name)
    every = [curve for op in ops for curve in _verify.curves(op)]
    most = max(every, key=lambda curve: len(curve.by_tokens), default=None)
    shown = set() if most is None else {one.case for one in most.by_tokens.values()}
    lines = [line for op in ops for case in op.cases for line in _forms(case, found)]
    header = ("case", "kernels", "on", *MODES)

    def made(chosen: Sequence[tuple[str, ...]]) -> str:
        turned = [(kernels, where, case, *cells) for case, kernels, where, *cells in chosen]
        again = [(case, kernels, where, *cells) for kernels, where, case, *cells in merged(turned)]
        return (
            known_columns(header, again, always=2, align="lll" + "r" * len(MODES)) if again else ""
        )

    return Folded(
        made([line for line in lines if line[0] in {code(case) for case in shown}]),
        made([line for line in lines if line[0] not in {code(case) for case in shown}]),
    )


def _of(attention: Attention, name: str) -> list[Op]:
    return [op for op in (*attention.ops, *attention.predicted) if op.name == name]


def predicted_verdicts(attention: Attention) -> list[str]:
    """Return what limits the cases that are predicted, in their verify form."""
    lines = []
    for op in attention.predicted:
        if not _has_forms(op):
            continue
        limits: dict[str, str] = {}
        for row in op.rows:
            if row.point.main.mode in (None, "verify"):
                limits[row.point.main.case] = str(row.point.main.method.get("limited_by"))
        counts = ", ".join(
            f"{word} in {[*limits.values()].count(word)}" for word in dict.fromkeys(limits.values())
        )
        where = op.rows[0].point.main.method.get("gpu", "a GPU")
        lines.append(
            f"*{code(op.name)}, predicted for {text(str(where))}: of {plural(len(limits), 'case')} "
            f"limited by {counts}.*"
        )
    return lines


def beside_table(attention: Attention, found: Collected) -> str:
    """Return what each op beside attention takes, from its quickest to its slowest case."""
    predicted = (op for op in attention.predicted if not _has_forms(op))
    return _growth.beside_table([*attention.beside, *predicted], found)


def missing(attention: Attention) -> list[str]:
    """Return what is not in the records, and how to get it."""
    if not attention.is_there:
        command = code("pytest suites/ --benchmark-only -k attention")
        return [f"**Attention**: no kernel was timed, built or predicted: {command}."]
    lines = []
    gpu_rows = {
        op.name for op in attention.ops if any(row.point.main.kind == "own" for row in op.rows)
    }
    for name in names(attention):
        if name not in gpu_rows:
            lines.append(
                f"**Attention**: no own kernel of {code(name)} was timed: on a GPU, "
                f"{code(f'pytest suites/ --benchmark-only -k {name}')}."
            )
    if not attention.builds:
        lines.append(
            f"**Attention**: no kernel was built: "
            f"{code('python -m kernels --compile --records FILE')}; no GPU is needed."
        )
    if not attention.beside:
        lines.append(
            f"**Attention**: nothing of planning, masks, trees and acceptance: "
            f"{code('pytest suites/ --benchmark-only')} times them too."
        )
    return lines


def _has_forms(op: Op) -> bool:
    """Say whether the op is attention over a cache: its cases have a context and a tree of T."""
    first = op.cases[0].first
    return first.part == "attention" and "context" in first.dims


def _forms(case: Case, found: Collected) -> Iterable[tuple[str, ...]]:
    """Yield a line for each family of kernels that computes more than one form."""
    families: dict[tuple[str, object], dict[Mode, Measurement]] = {}
    for row in case.rows:
        main = row.point.main
        if main.kind != "own" or main.mode is None:
            continue
        family = main.implementation.removesuffix(f"_{main.mode}")
        families.setdefault((family, row.point.circumstances), {})[main.mode] = main
    for (family, _), by_mode in families.items():
        verify = by_mode.get("verify")
        if verify is None or len(by_mode) < 2:
            continue
        cells = [_form_cell(by_mode.get(mode), verify) for mode in MODES]
        _, where = who(verify, found)
        yield (code(verify.case), code(family), where, *cells)


def _form_cell(one: Measurement | None, verify: Measurement) -> str:
    if one is None:
        return NOT_KNOWN
    moved = one.method.get("moved_bytes", one.touched_bytes)
    size = _text.size(moved if isinstance(moved, int | float) else None)
    words = f"{_text.median(one)}, {size}"
    if one is not verify:
        words += f", {_text.quotient(one, verify, f'{one.mode} / verify')} x"
    return marked(one)(words)
