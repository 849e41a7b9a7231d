"""Which points of the registry a command line means, as names."""

from collections.abc import Iterator
from typing import get_args

import msgspec

from kernels import _execute
from kernels._compile import cases_to_build, is_compiled
from kernels._points import Asked, Point, Selection, Unit
from kernels._registry import Absent, Case, Implementation, Op, Reason, absent, all_ops, find_op
from verifyscope.errors import UsageError, choose
from verifyscope.records import Kind

_MOST_NAMED = 8  # in one line


def selected_points(selection: Selection) -> list[Point]:
    """Return each implementation and case, with the reason why it cannot be measured here."""
    device = _execute.device()
    return [
        *(
            _point(implementation, case, implementation.why_not(device, case))
            for implementation in _implementations(selection)
            for case in implementation.op.cases
        ),
        *_absent_points(selection, tiny=False),
    ]


def checkable(selection: Selection, *, tiny: bool) -> list[Point]:
    """Return each point that could be checked, with the reason why it cannot be here.

    tiny: only the tiny cases, which are all that is checked without a GPU.
    """
    device = _execute.device()
    tiny = tiny or device.type == "cpu"
    return [
        *(
            _point(implementation, case, _execute.way(implementation, case, device=device).reason)
            for implementation in _implementations(selection)
            for case in implementation.op.cases
            if case.tiny or not tiny
        ),
        *_absent_points(selection, tiny=tiny),
    ]


def units(selection: Selection, capabilities: list[int], *, long: bool) -> list[Unit]:
    """Return what the gate builds: each implementation made of kernels, for each capability.

    Those that may share kernels are neighbours: of one op, for one capability, by one compiler.
    """
    related: dict[str, list[Implementation]] = {}
    for one in _implementations(selection):
        if is_compiled(one) and cases_to_build(one, long=long):
            related.setdefault(one.op.name, []).append(one)
    return [
        Unit(op=one.op.name, implementation=one.name, capability=capability, long=long)
        for several in related.values()
        for capability in capabilities
        for one in sorted(several, key=lambda one: one.needs.packages, reverse=True)
        if one.serves(capability)
    ]


def asked(selection: Selection, *, gpu: str, node_s: float | None) -> list[Asked]:
    """Return what is predicted: each measured case, of our own where no kind is chosen."""
    chosen = selection
    if not selection.kinds and not selection.implementations:
        chosen = msgspec.structs.replace(selection, kinds=("own",))
    return [
        Asked(op=one.op.name, implementation=one.name, case=case.name, gpu=gpu, node_s=node_s)
        for one in _implementations(chosen)
        for case in one.op.cases
        if not case.tiny
    ]


def _implementations(selection: Selection) -> list[Implementation]:
    """Return what is chosen; UsageError for unknown names, and for names that exclude each other.

    It may be none: of an op whose files cannot be imported.
    """
    chosen: list[Op] = [find_op(name) for name in selection.ops] or [*all_ops().values()]
    names = [name for op in chosen for name in op.implementations]
    names += [missing.name for missing in _absent(selection)]
    for name in selection.implementations:
        choose("implementation", name, sorted(set(names)))
    for kind in selection.kinds:
        choose("kind", kind, [*get_args(Kind)])
    named = [
        implementation
        for op in chosen
        for name, implementation in op.implementations.items()
        if name in (selection.implementations or (name,))
    ]
    of_kind = [one for one in named if one.kind in (selection.kinds or (one.kind,))]
    if named and not of_kind:
        there = ", ".join(f"{one.op.name}/{one.name} is {one.kind}" for one in named[:_MOST_NAMED])
        more = f", and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        raise UsageError(f"nothing is of --kind {' or '.join(selection.kinds)}: {there}{more}")
    return of_kind


def _absent(selection: Selection) -> Iterator[Absent]:
    for missing in absent():
        if not selection.ops or missing.op in selection.ops:
            yield missing


def _absent_points(selection: Selection, *, tiny: bool) -> Iterator[Point]:
    """Yield a point for each case of a file that cannot be imported, whose kind is not known."""
    for missing in _absent(selection):
        if selection.kinds or missing.name not in (selection.implementations or (missing.name,)):
            continue
        op = all_ops().get(missing.op)
        cases = [case.name for case in op.cases if case.tiny or not tiny] if op else ["*"]
        for case in cases:
            yield Point(
                part=op.part if op else "unclassified",
                op=missing.op,
                implementation=missing.name,
                kind=None,
                case=case,
                reason=missing.reason,
            )


def _point(implementation: Implementation, case: Case, reason: Reason | None) -> Point:
    return Point(
        part=implementation.op.part,
        op=implementation.op.name,
        implementation=implementation.name,
        kind=implementation.kind,
        case=case.name,
        reason=reason,
    )
