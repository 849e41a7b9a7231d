"""The points of the suites: every implementation of every op on every case, by name."""

from collections.abc import Mapping
from functools import cache

import msgspec

from kernels import _execute, _select
from kernels._points import Point, Selection
from kernels._registry import Case, Implementation, find_case, find_op

Name = tuple[str, str, str]


def name_of(point: Point) -> Name:
    """Return (op, implementation, case)."""
    return point.op, point.implementation, point.case


def id_of(point: Point) -> str:
    """Return the name in test ids: op/implementation-case."""
    return f"{point.op}/{point.implementation}-{point.case}"


@cache
def points() -> tuple[Point, ...]:
    """Return every point, those of a case together; `reason` says why it cannot be timed here."""
    found = [_for_this_machine(point) for point in _select.points(Selection())]
    groups = dict.fromkeys((point.op, point.case) for point in found)
    order = {group: number for number, group in enumerate(groups)}
    return tuple(sorted(found, key=lambda point: order[point.op, point.case]))


@cache
def by_name() -> Mapping[Name, Point]:
    """Return the points by (op, implementation, case)."""
    return {name_of(point): point for point in points()}


def resolve(point: Point) -> tuple[Implementation, Case]:
    """Return the objects behind the names of a point that can be timed here."""
    op = find_op(point.op)
    return op.implementations[point.implementation], find_case(op, point.case)


def _for_this_machine(point: Point) -> Point:
    if point.reason is not None or _execute.device().type != "cpu":
        return point
    case = find_case(find_op(point.op), point.case)
    if case.cpu or case.tiny:
        return point
    return msgspec.structs.replace(point, reason="too large to be timed on a CPU; needs a GPU")
