"""The points of the suites: every implementation of every op on every case, by name."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kernels import Case, Implementation, all_ops, find_op


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One implementation of an op on one of its cases, by name."""

    op: str
    implementation: str
    case: str

    @property
    def id(self) -> str:
        """Return the name in test ids: op/implementation-case."""
        return f"{self.op}/{self.implementation}-{self.case}"

    @property
    def group(self) -> tuple[str, str]:
        """Return what is measured together."""
        return self.op, self.case

    def resolve(self) -> tuple[Implementation, Case]:
        """Return the objects behind the names."""
        op = find_op(self.op)
        case = next(case for case in op.cases if case.name == self.case)
        return op.implementations[self.implementation], case


def points() -> Iterator[Point]:
    """Yield every point; those of a case stand together, since they are measured together."""
    for op in all_ops().values():
        for case in op.cases:
            for name in op.implementations:
                yield Point(op=op.name, implementation=name, case=case.name)


def why_not(point: Point, device: torch.device) -> str | None:
    """Say why `point` cannot be timed on `device`; None if it can."""
    implementation, case = point.resolve()
    if reason := implementation.why_not(device, case):
        return reason
    if device.type == "cpu" and not (case.cpu or case.tiny):
        return "too large to be timed on a CPU; needs a GPU"
    return None
