"""The compile gate over many units, in processes of their own.

Units go to a worker in batches, which read their machine code at once. A batch that is lost is
built again a unit at a time: what crashes or hangs costs one unit, and says which.
"""

import itertools
from collections.abc import Generator, Iterator, Sequence

from kernels._compile import BuiltUnit
from kernels._points import Unit
from kernels._workers import Conditions, Lost, work
from verifyscope.hardware import SHARED_BYTES_PER_BLOCK
from verifyscope.records import Compiled


def built(
    units: Sequence[Unit], *, conditions: Conditions, most_at_once: int
) -> Generator[BuiltUnit, None, None]:
    """Yield what became of each unit, in their order.

    most_at_once: units that one worker builds before it reads what came out; neighbours of one
    capability are built together.
    """
    batches = [*_batches(units, most_at_once)]
    with work("kernels._compile:build_batch", batches, conditions=conditions) as results:
        for batch, result in zip(batches, results, strict=True):
            if not isinstance(result, Lost):
                yield from result
            elif len(batch) == 1:
                yield BuiltUnit(rows=(_lost(batch[0], result),))
            else:
                yield from built(batch, conditions=conditions, most_at_once=1)


def _batches(units: Sequence[Unit], most: int) -> Iterator[tuple[Unit, ...]]:
    for _, group in itertools.groupby(units, lambda unit: unit.capability):
        several = [*group]
        for start in range(0, len(several), most):
            yield tuple(several[start : start + most])


def _lost(unit: Unit, lost: Lost) -> Compiled:
    return Compiled(
        op=unit.op,
        implementation=unit.implementation,
        kernel="-",
        case=lost.during or "*",
        capability=unit.capability,
        registers=None,
        spilled_bytes=None,
        shared_bytes=None,
        shared_limit_bytes=SHARED_BYTES_PER_BLOCK[unit.capability],
        declared=(),
        found=(),
        failure=lost.reason,
        environment="",
        command="",
        commit=None,
    )
