"""What the tests of a layer's small ops share: running an implementation, and holding it."""

import pytest
import torch

from kernels import Case, Inputs, Op, Outputs, _execute, all_ops
from kernels._check import compare, poisoned

DEVICE = _execute.device()
ALL = ("torch", "triton", "cupy")
OWN = ("triton", "cupy")

all_ops()  # adds the implementations of every file


def run(op: Op, name: str, inputs: Inputs, *, like: Case | None = None) -> Outputs:
    """Run on `inputs`; the outputs' memory is NaN before. like: a tiny case that it must serve."""
    implementation = op.implementations[name]
    point = like or next(case for case in op.cases if case.tiny)
    if (chosen := _execute.way(implementation, point, device=DEVICE)).executed is None:
        pytest.skip(chosen.reason or "")
    with poisoned():
        return implementation.run(inputs)


def problems(op: Op, got: Outputs, inputs: Inputs) -> dict[str, str]:
    """Say what of `got` is not what the reference gives."""
    errors = compare(got, op.reference(**inputs), tolerance=op.tolerance)
    return {one.output: one.problem for one in errors if not one.passed}


def normal(*sizes: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Return the same normal numbers on every call."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(sizes, generator=generator, device=DEVICE, dtype=dtype)
