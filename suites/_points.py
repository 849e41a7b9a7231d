"""The points of the suites: every implementation of every op on every case, by name."""

from collections import Counter
from collections.abc import Mapping
from functools import cache

import msgspec
import torch

from kernels import (
    Case,
    Implementation,
    Point,
    Selection,
    find_case,
    find_op,
    selected_points,
)

Name = tuple[str, str, str]


def name_of(point: Point) -> Name:
    """Return (op, implementation, case)."""
    return point.op, point.implementation, point.case


def id_of(point: Point) -> str:
    """Return the name in test ids: op/implementation-case."""
    return f"{point.op}/{point.implementation}-{point.case}"


@cache
def points() -> tuple[Point, ...]:
    """Return every point, those of a case together; `reason` says why it cannot be timed here.

    The first case of each op comes first, then the second of each: whoever has time for a part has
    something of everything, and of each op what its author put first. Tiny cases come last.
    """
    found = [_for_this_machine(point) for point in selected_points(Selection())]
    rank: dict[tuple[str, str], tuple[bool, int, int]] = {}
    seen: Counter[tuple[str, bool]] = Counter()
    for point in found:
        if (point.op, point.case) not in rank:
            tiny = _is_tiny(point)
            rank[point.op, point.case] = (tiny, seen[point.op, tiny], len(rank))
            seen[point.op, tiny] += 1
    return tuple(sorted(found, key=lambda point: rank[point.op, point.case]))


def _is_tiny(point: Point) -> bool:
    return point.kind is not None and resolve(point)[1].tiny


@cache
def by_name() -> Mapping[Name, Point]:
    """Return the points by (op, implementation, case)."""
    return {name_of(point): point for point in points()}


def resolve(point: Point) -> tuple[Implementation, Case]:
    """Return the objects behind the names of a point that can be timed here."""
    op = find_op(point.op)
    return op.implementations[point.implementation], find_case(op, point.case)


def _for_this_machine(point: Point) -> Point:
    if point.reason is not None or torch.cuda.is_available():
        return point
    case = find_case(find_op(point.op), point.case)
    if case.cpu or case.tiny:
        return point
    return msgspec.structs.replace(point, reason="too large to be timed on a CPU; needs a GPU")
