"""How an implementation is held to its reference: what counts as an error, and how much of one."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels import Outputs, Tolerance, find_op
from kernels._check import check, compare, poisoned
from kernels._graph import poison, renew

CPU = torch.device("cpu")
BY_ROW = Tolerance(row=0.01, why="a test")
INF = math.inf


def only(got: Outputs, want: Outputs, tolerance: Tolerance = BY_ROW) -> tuple[float, str]:
    (error,) = compare(got, want, tolerance=tolerance)
    return error.error, error.problem


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_error_of_a_row_is_relative_to_its_norm() -> None:
    want = rows([3, 4], [6, 8])  # norms 5 and 10, RMS of the norms 7.9
    error, problem = only({"y": want + rows([0, 0], [0, 0.5])}, {"y": want})
    assert error == pytest.approx(0.05)
    assert problem == "row (1,) is off by 0.05, allowed 0.01"


def test_a_small_row_is_held_to_the_size_of_all() -> None:
    want = rows([0, 0], [6, 8])  # RMS of the norms: sqrt(50)
    error, _ = only({"y": rows([0.01, 0], [6, 8])}, {"y": want})
    assert error == pytest.approx(0.01 / math.sqrt(50))


def test_rows_lie_along_the_last_dimension() -> None:
    want = torch.ones(2, 3, 4)
    got = want.clone()
    got[1, 2] *= 1.5
    error, problem = only({"y": got}, {"y": want})
    assert error == pytest.approx(0.5)
    assert problem == "row (1, 2) is off by 0.5, allowed 0.01"


@pytest.mark.parametrize("shape", [(), (3,), (0, 4)])
def test_any_shape_has_an_error(shape: tuple[int, ...]) -> None:
    want = torch.full(shape, 2.0)
    assert only({"y": want}, {"y": want})[0] == 0
    if want.numel():
        assert only({"y": want * 1.5}, {"y": want})[0] == pytest.approx(0.5)


def test_an_output_named_absolute_is_compared_by_element() -> None:
    tolerance = Tolerance(row=0.01, absolute={"lse": 1e-3}, why="a test")
    want = torch.tensor([100.0, -INF, 1.0])
    error, problem = only({"lse": torch.tensor([100.0, -INF, 1.002])}, {"lse": want}, tolerance)
    assert error == pytest.approx(2e-3, rel=1e-3)
    assert problem == "element (2,) is off by 0.002, allowed 0.001"


def test_the_lse_of_an_empty_row_is_minus_infinity_and_nothing_else() -> None:
    tolerance = Tolerance(row=0.01, absolute={"lse": 1e-3}, why="a test")
    want = {"lse": torch.tensor([-INF, 0.0])}
    assert only({"lse": torch.tensor([-INF, 0.0])}, want, tolerance)[0] == 0
    for wrong in (0.0, -1e30, INF):
        assert only({"lse": torch.tensor([wrong, 0.0])}, want, tolerance)[0] == INF
    assert only({"lse": torch.tensor([-INF, -INF])}, want, tolerance)[0] == INF


@pytest.mark.parametrize(
    ("got", "problem"),
    [
        ({"y": rows([1, math.nan])}, "NaN at (0, 1): never written, or computed from such"),
        ({"y": rows([1, INF])}, "row (0,) is off by inf, allowed 0.01"),
        ({"y": rows([1, 2, 3])}, "has shape [1, 3], wanted [1, 2]"),
        ({}, "is missing, and not among what it `omits`"),
    ],
)
def test_what_is_no_number_in_its_place_is_an_infinite_error(got: Outputs, problem: str) -> None:
    assert only(got, {"y": rows([1, 2])}) == (INF, problem)


def test_an_output_too_many_is_an_error() -> None:
    errors = compare({"y": rows([1]), "z": rows([1])}, {"y": rows([1])}, tolerance=BY_ROW)
    assert [(one.output, one.passed) for one in errors] == [("y", True), ("z", False)]


def test_a_reference_that_is_nan_proves_nothing() -> None:
    want = {"y": rows([1, math.nan])}
    assert only(want, want) == (INF, "the reference is NaN at (0, 1)")


def test_integers_are_equal_or_wrong() -> None:
    want = {"id": torch.tensor([5, 700])}
    assert only({"id": torch.tensor([5, 700])}, want)[0] == 0
    assert only({"id": torch.tensor([5, 699])}, want) == (
        1,
        "element (1,) is off by 1, allowed 0",
    )


def test_a_narrow_output_is_compared_with_the_unrounded_reference() -> None:
    want = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    error, _ = only({"y": want.bfloat16()}, {"y": want})
    assert 1e-3 < error < 2**-8


def test_poison_is_nan_and_ends_with_the_block() -> None:
    mode = torch.get_deterministic_debug_mode()
    with poisoned():
        assert torch.empty(100).isnan().all()
        assert (torch.empty(10, dtype=torch.int32) == 2**31 - 1).all()
        # What has no deterministic form only warns, which would be an error in these tests.
        torch.zeros(2).put_(torch.tensor([0]), torch.tensor([1.0]))
    assert torch.get_deterministic_debug_mode() == mode


@pytest.mark.parametrize(
    ("implementation", "failure"),
    [
        ("right", None),
        ("no-sum", None),
        ("one-row-off", r"doubled/one-row-off on small: y: row \(1,\) is off by .*allowed 1e-06"),
        ("last-column-unwritten", r"on small: y: NaN at \(0, 7\): never written"),
        ("writes-its-input", r"doubled/writes-its-input on small: input 'x' was written to"),
    ],
)
def test_each_planted_fault_is_named_with_op_implementation_and_case(
    implementation: str, failure: str | None, more_ops: Callable[..., None]
) -> None:
    more_ops(Path(__file__).parent / "wrong_ops")
    op = find_op("doubled")
    found = check(op.implementations[implementation], op.cases[0], device=CPU)
    if failure is None:
        assert found.failure is None
        assert found.worst.error == 0
    else:
        assert found.failure is not None
        with pytest.raises(ValueError, match=failure):
            raise ValueError(found.failure)


def test_what_is_left_out_must_be_an_output(more_ops: Callable[..., None]) -> None:
    more_ops(Path(__file__).parent / "wrong_ops")
    op = find_op("doubled")
    wrong = dataclasses.replace(op.implementations["no-sum"], omits=("total",))
    with pytest.raises(ValueError, match=r"doubled/no-sum omits .'total'.; known: y, sum"):
        check(wrong, op.cases[0], device=CPU)


def test_renewing_changes_floats_in_place_and_leaves_integers() -> None:
    x, table = torch.zeros(2), torch.tensor([3, 1])
    renew({"x": x, "table": table, "n": 4}, {"x": torch.ones(2), "table": table * 0, "n": 5})
    assert x.tolist() == [1, 1]
    assert table.tolist() == [3, 1]


def test_renewing_keeps_the_cells_that_hold_no_value() -> None:
    nan = math.nan
    x = torch.tensor([1.0, nan, 3.0, nan])
    renew({"x": x}, {"x": torch.tensor([5.0, 6.0, nan, nan])})
    torch.testing.assert_close(x, torch.tensor([5.0, nan, 3.0, nan]), equal_nan=True)


def test_tree_attention_has_no_nan_to_see_after_its_inputs_are_renewed() -> None:
    op = find_op("tree_attention")
    for case in op.cases:
        if case.tiny:
            inputs = dict(op.inputs(case, CPU))
            renew(inputs, op.inputs(dataclasses.replace(case, seed=case.seed + 1), CPU))
            assert not op.reference(**inputs)["out"].isnan().any(), case.name


def test_poisoning_outputs_leaves_no_old_value() -> None:
    y, ids, mask = torch.zeros(2), torch.zeros(2, dtype=torch.int64), torch.tensor([False])
    poison({"y": y, "ids": ids, "mask": mask})
    assert y.isnan().all()
    assert (ids == 2**63 - 1).all()
    assert mask.all()
