"""How tests run an implementation of an op that this machine can execute, and hold what it gives.

Without a GPU Triton's kernels run in its interpreter and CUDA C++ on the CPU (tests/conftest.py).
"""

import dataclasses
from collections.abc import Collection

import pytest

from kernels import Case, Inputs, Op, Outputs, _execute
from kernels._check import compare, poisoned

DEVICE = _execute.device()


def skip_if_it_cannot_run(op: Op, name: str, *, like: Case | None = None) -> None:
    """Skip the test, with the reason, where nothing here can execute `name` on a tiny case."""
    point = like or dataclasses.replace(op.cases[0], tiny=True)
    chosen = _execute.way(op.implementations[name], point, device=DEVICE)
    if chosen.executed is None:
        pytest.skip(chosen.reason or "")


def run(op: Op, name: str, inputs: Inputs, *, like: Case | None = None) -> Outputs:
    """Run on `inputs`; the outputs' memory is poisoned before. like: a case that it must serve."""
    skip_if_it_cannot_run(op, name, like=like)
    with poisoned():
        return op.implementations[name].run(inputs)


def problems(
    op: Op, got: Outputs, inputs: Inputs, *, omits: Collection[str] = ()
) -> dict[str, str]:
    """Say what of `got` is not what the reference gives, within the op's tolerance, by output."""
    want = {name: one for name, one in op.reference(**inputs).items() if name not in omits}
    errors = compare(got, want, tolerance=op.tolerance)
    return {one.output: one.problem for one in errors if not one.passed}
