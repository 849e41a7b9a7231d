"""The merge of split attention at its edges, on every implementation that can be executed here."""

import dataclasses
import math
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import Case, Inputs, Outputs, _execute
from kernels._check import compare
from kernels.attention import lse_merge as op
from kernels.attention import lse_merge_cupy as _cupy  # noqa: F401  # adds an implementation
from kernels.attention import lse_merge_flashinfer as adapter
from kernels.attention import lse_merge_triton as _triton  # noqa: F401  # adds an implementation
from tests import flashinfer_stand_in as stand_in
from tests import op_runs
from tests.flashinfer_cases import use

ALL = ("torch", "triton", "cupy")
DEVICE = _execute.device()
MINUS_INFINITY = -math.inf


def parts(rows: int, splits: int, dim: int = 16, *, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return {
        "part_out": torch.randn(rows, splits, dim, generator=generator, device=DEVICE),
        "part_lse": torch.randn(rows, splits, generator=generator, device=DEVICE),
    }


def run(name: str, inputs: Inputs) -> Outputs:
    """Run on `inputs`; the outputs' memory is NaN before."""
    return op_runs.run(op.OP, name, inputs)


def problems(got: Outputs, inputs: Inputs) -> dict[str, str]:
    return op_runs.problems(op.OP, got, inputs)


def attention_in_parts(keys: int, splits: int, *, dim: int = 16) -> tuple[Any, dict[str, Any]]:
    """Attend to unit-normal keys whole and in parts: the whole (float64), and the parts."""
    generator = torch.Generator(DEVICE).manual_seed(keys)
    q, k, v = (
        torch.randn(rows, dim, generator=generator, device=DEVICE, dtype=torch.float64)
        for rows in (5, keys, keys)
    )
    score = q @ k.T / math.sqrt(dim)
    whole = {"out": score.softmax(-1) @ v, "lse": score.logsumexp(-1)}
    size = -(-keys // splits)
    outs, lses = [], []
    for part in range(splits):
        mine = slice(min(keys, part * size), min(keys, (part + 1) * size))
        some = mine.stop > mine.start
        outs.append(score[:, mine].softmax(-1) @ v[mine] if some else torch.full_like(q, math.nan))
        lses.append(score[:, mine].logsumexp(-1))
    return whole, {
        "part_out": torch.stack(outs, 1).float(),
        "part_lse": torch.stack(lses, 1).float(),
    }


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("splits", [1, 2, 7, 30, 64])
def test_any_number_of_parts_gives_the_whole_even_more_than_keys(name: str, splits: int) -> None:
    whole, inputs = attention_in_parts(30, splits)
    # 30 keys in parts of 5 leave the last of 7 empty.
    assert inputs["part_out"].isnan().any() == (splits in (7, 64))
    errors = compare(run(name, inputs), whole, tolerance=op.OP.tolerance)
    assert {one.output: one.problem for one in errors if not one.passed} == {}


def test_an_lse_to_base_2_fails_the_check_of_the_natural_one() -> None:
    whole, inputs = attention_in_parts(30, 2)
    wrong = op.reference(part_out=inputs["part_out"], part_lse=inputs["part_lse"] / math.log(2))
    errors = {one.output: one for one in compare(wrong, whole, tolerance=op.OP.tolerance)}
    assert not errors["out"].passed
    assert errors["out"].error > 10 * op.OP.tolerance.row
    assert not errors["lse"].passed
    assert errors["lse"].error > 0.1


@pytest.mark.parametrize("name", ALL)
def test_the_lse_is_natural(name: str) -> None:
    inputs = parts(1, 3)
    inputs["part_lse"] = torch.tensor([[1.0, 2.0, 4.0]], device=DEVICE).log()
    inputs["part_out"][0, :, :] = torch.tensor([1.0, 2.0, 4.0], device=DEVICE)[:, None]
    got = run(name, inputs)
    assert got["lse"].tolist() == pytest.approx([math.log(7)], abs=1e-6)
    assert got["out"].float()[0].tolist() == pytest.approx([3.0] * 16)  # (1 + 4 + 16) / 7
    assert got["lse"].dtype == torch.float32


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("splits", [1, 2, 33])
def test_a_row_of_empty_parts_gives_zero_and_minus_infinity(name: str, splits: int) -> None:
    inputs = parts(3, splits)
    inputs["part_lse"][1] = MINUS_INFINITY
    inputs["part_out"][1] = math.nan
    got = run(name, inputs)
    assert (got["out"][1] == 0).all()
    assert got["lse"][1] == MINUS_INFINITY
    assert problems(got, inputs) == {}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_lies_in_an_empty_part_does_not_matter(name: str, poison: float) -> None:
    inputs = parts(2, 5)
    inputs["part_lse"][:, [0, 3]] = MINUS_INFINITY
    clean = run(name, inputs)
    inputs["part_out"][:, [0, 3]] = poison
    got = run(name, inputs)
    assert all(torch.equal(got[key], clean[key]) for key in clean)


@pytest.mark.parametrize("name", ALL)
def test_a_part_that_was_never_written_does_not_pass_for_an_empty_one(name: str) -> None:
    inputs = parts(2, 5)
    inputs["part_lse"][1, 2] = math.nan
    got = run(name, inputs)
    assert got["lse"][1].isnan()
    assert got["out"][1].isnan().all()
    assert not got["out"][0].isnan().any()


@pytest.mark.parametrize("name", ALL)
def test_lses_near_minus_100000_are_no_empty_parts(name: str) -> None:
    inputs = parts(2, 5)
    inputs["part_lse"] = torch.full_like(inputs["part_lse"], -131072.0)
    got = run(name, inputs)
    mean = inputs["part_out"].mean(1)
    torch.testing.assert_close(got["out"].float(), mean, rtol=0.01, atol=2e-3)
    # A float32 of this size has steps of 1/64.
    assert (got["lse"] - (-131072.0 + math.log(5))).abs().max() < 0.05


@pytest.mark.parametrize("name", ALL)
def test_a_part_that_outweighs_all_before_it_is_alone(name: str) -> None:
    inputs = parts(1, 130)
    inputs["part_lse"][0, 129] = 200.0
    got = run(name, inputs)
    assert torch.equal(got["out"][0], inputs["part_out"][0, 129].bfloat16())
    assert got["lse"].item() == 200.0


@pytest.mark.parametrize("name", ALL)
def test_one_part_comes_out_as_it_went_in(name: str) -> None:
    inputs = parts(3, 1)
    got = run(name, inputs)
    assert torch.equal(got["out"], inputs["part_out"][:, 0].bfloat16())
    torch.testing.assert_close(got["lse"], inputs["part_lse"][:, 0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["triton", "cupy"])
def test_two_runs_give_the_same_bytes(name: str) -> None:
    inputs = parts(2, 70, 40)
    one, other = run(name, inputs), run(name, inputs)
    assert all(torch.equal(one[key], other[key]) for key in one)


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 3),
    splits=st.integers(1, 70),
    dim=st.sampled_from([8, 16, 24, 72]),
    empty=st.sets(st.integers(0, 209)),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_any_shape_and_any_empty_parts_match_the_reference(
    name: str, rows: int, splits: int, dim: int, empty: set[int], seed: int
) -> None:
    inputs = parts(rows, splits, dim, seed=seed)
    gone = torch.tensor([n in empty for n in range(rows * splits)], device=DEVICE)
    inputs["part_lse"].view(-1)[gone] = MINUS_INFINITY
    inputs["part_out"].view(-1, dim)[gone] = math.nan
    assert problems(run(name, inputs), inputs) == {}


def test_cost_counts_no_empty_part() -> None:
    inputs = parts(2, 5)
    full = op.cost(inputs)
    assert full.read_bytes == 10 * 16 * 4 + 10 * 4
    assert full.written_bytes == 2 * (16 * 2 + 4)
    assert full.flops == 2 * 10 * 16
    inputs["part_lse"][0, :3] = MINUS_INFINITY
    assert op.cost(inputs).read_bytes == 7 * 16 * 4 + 10 * 4


def test_one_token_stands_beside_every_other_number_of_tokens() -> None:
    def rest(case: Case) -> tuple[object, ...]:
        dims = {name: dim for name, dim in case.dims.items() if name != "rows"}
        return (*dims.items(), case.dtype)

    measured = [case for case in op.OP.cases if not case.tiny]
    single = {rest(case) for case in measured if case.dims["rows"] == 1}
    assert [case.name for case in measured if rest(case) not in single] == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"part_out": torch.zeros(2, 3)}, r"torch\.float32 of \(2, 3\): give float32 or bfloat16"),
        ({"part_out": torch.zeros(2, 5, 16).double()}, r"torch\.float64 of"),
        ({"part_out": torch.zeros(2, 0, 16)}, "give at least one of each"),
        ({"part_lse": torch.zeros(2, 4)}, r"of \(2, 4\): give float32, natural logarithm, of \(2,"),
        ({"part_lse": torch.zeros(2, 5).half()}, r"torch\.float16"),
        ({"part_lse": torch.zeros(5, 2).T}, "must be contiguous"),
    ],
)
@pytest.mark.parametrize("name", ALL)
def test_parts_that_do_not_fit_are_named(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op.OP.implementations[name].run(parts(2, 5) | changed)


def test_a_width_that_16_byte_loads_do_not_divide_is_refused_and_raised() -> None:
    point = op.OP.cases[0]
    odd = dataclasses.replace(point, dims={**point.dims, "head_dim": 6})
    refuses = op.OP.implementations["cupy"].needs.refuses
    assert refuses(point) is None
    assert refuses(odd) == "parts of 6 torch.float32 are no multiple of 4, the 16 bytes of a load"
    with pytest.raises(ValueError, match="parts of 6"):
        op.OP.implementations["cupy"].run(parts(2, 5, 6))


# --- FlashInfer ---


@pytest.fixture(params=["0.6.18", "0.7.4"])
def library(request: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return use(monkeypatch, stand_in.made(request.param))


@pytest.mark.parametrize(("rows", "splits"), [(3, 1), (3, 2), (2, 40)])
def test_flashinfer_gets_base_2_and_gives_natural(
    library: ModuleType, rows: int, splits: int
) -> None:
    inputs = parts(rows, splits, 64)
    inputs["part_out"] = inputs["part_out"].bfloat16()
    got = op.OP.implementations["flashinfer"].run(inputs)
    assert problems(got, inputs) == {}


def test_what_flashinfer_cannot_merge_is_refused_with_a_reason(library: ModuleType) -> None:
    def reason(**dims: Any) -> str | None:
        dtype = dims.pop("dtype", torch.bfloat16)
        point = op.OP.cases[0]
        some = {**point.dims, "head_dim": 128, **dims}
        return adapter.refuses(dataclasses.replace(point, dims=some, dtype=dtype))

    assert reason() is None
    assert "float32" in str(reason(dtype=torch.float32))
    assert "head_dim" in str(reason(head_dim=96))
    assert "0 x NaN" in str(reason(empty="some"))
