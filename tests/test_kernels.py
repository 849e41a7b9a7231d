"""What every registered kernel must satisfy. Adding a kernel adds rows here, not code."""

import dataclasses

import pytest
import torch

from kernels import Case, Implementation, Op, _execute, all_ops, implementations
from kernels._check import changed, check

DEVICE = _execute.device()
POINTS = [
    pytest.param(implementation, case, id=f"{implementation.id}-{case.name}")
    for implementation in implementations()
    for case in implementation.op.cases
    if case.tiny or DEVICE.type == "cuda"
]


@pytest.mark.parametrize("op", all_ops().values(), ids=lambda op: op.name)
def test_op_is_complete(op: Op) -> None:
    tiny = [case for case in op.cases if case.tiny]
    assert tiny, "add a tiny case, for machines without a GPU"
    assert op.implementations
    assert op.tolerance.why, "say what justifies the tolerance"
    for case in tiny:
        inputs = op.inputs(case, torch.device("cpu"))
        cost = op.cost(inputs)
        assert min(cost.flops, cost.read_bytes, cost.written_bytes) >= 0
        assert cost.touched_bytes > 0
        want = op.reference(**inputs)
        assert set(op.tolerance.absolute) <= set(want)
        assert not any(value.isnan().any() for value in want.values())


@pytest.mark.parametrize("op", all_ops().values(), ids=lambda op: op.name)
def test_inputs_are_drawn_from_the_seed_of_the_case(op: Op) -> None:
    case = next(case for case in op.cases if case.tiny)
    one, same = (op.inputs(case, torch.device("cpu")) for _ in range(2))
    other = op.inputs(dataclasses.replace(case, seed=case.seed + 1), torch.device("cpu"))
    assert changed(one, same) == []
    assert changed(one, other) != []


@pytest.mark.parametrize(("implementation", "case"), POINTS)
def test_matches_its_reference_writes_all_and_leaves_its_inputs_alone(
    implementation: Implementation, case: Case
) -> None:
    way = _execute.way(implementation, case, device=DEVICE)
    if way.executed is None:
        pytest.skip(way.reason or "it cannot be executed here")
    assert check(implementation, case, device=DEVICE).failure is None
