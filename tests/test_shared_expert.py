"""The MLP of every token at its edges, on every implementation that can be executed here."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.layer import shared_expert as op
from tests.layer_problems import ALL, OWN, normal
from tests.op_runs import DEVICE, problems, run


def mlp(
    rows: int,
    hidden: int,
    width: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    return {
        "x": normal(rows, hidden, dtype=dtype, seed=seed) / hidden**0.5,
        "gate_up": normal(2 * width, hidden, dtype=dtype, seed=seed + 1),
        "down": normal(hidden, width, dtype=dtype, seed=seed + 2),
    }


@pytest.mark.parametrize("name", ALL)
def test_known_values(name: str) -> None:
    # gate = x, up = 2 and down are identities: silu(x) * 2, of the first 56 dims.
    x, up = torch.zeros(2, 64), torch.zeros(56, 64)
    x[0, :3] = torch.tensor([1.0, -2.0, 8.0])
    x[:, 63], up[:, 63] = 1.0, 2.0
    inputs = {
        "x": x.bfloat16().to(DEVICE),
        "gate_up": torch.cat([torch.eye(56, 64), up]).bfloat16().to(DEVICE),
        "down": torch.eye(64, 56).bfloat16().to(DEVICE),
    }
    got = run(op.OP, name, inputs)["y"].float()
    assert got[0, :3].tolist() == pytest.approx([1.4621, -0.4768, 15.995], rel=0.008)
    assert (got[0, 3:] == 0).all()
    assert (got[1] == 0).all()


@pytest.mark.parametrize("name", ALL)
def test_up_gate_in_place_of_gate_up_fails_loudly(name: str) -> None:
    inputs = mlp(3, 64, 32)
    up_gate = torch.cat([inputs["gate_up"][32:], inputs["gate_up"][:32]])
    got = run(op.OP, name, inputs | {"gate_up": up_gate})
    assert "off by" in problems(op.OP, got, inputs)["y"]


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("rows", [1, 16, 17, 33, 65])
def test_rows_fill_tiles_partly_and_several(name: str, rows: int) -> None:
    inputs = mlp(rows, 72, 24)
    got = run(op.OP, name, inputs)
    assert problems(op.OP, got, inputs) == {}
    alone = run(op.OP, name, inputs | {"x": inputs["x"][-1:].clone()})
    torch.testing.assert_close(got["y"][-1:], alone["y"], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(("hidden", "width"), [(8, 8), (1032, 8), (40, 264)])
def test_sizes_that_no_tile_divides(name: str, hidden: int, width: int) -> None:
    inputs = mlp(2, hidden, width)
    assert problems(op.OP, run(op.OP, name, inputs), inputs) == {}


@pytest.mark.parametrize("name", ALL)
def test_a_row_of_zeros_gives_zeros_and_others_do_not_see_it(name: str) -> None:
    inputs = mlp(3, 64, 32)
    inputs["x"][1] = 0
    got = run(op.OP, name, inputs)
    assert (got["y"][1] == 0).all()
    assert problems(op.OP, got, inputs) == {}


@pytest.mark.parametrize("name", OWN)
def test_what_is_no_number_stays_in_its_row(name: str) -> None:
    inputs = mlp(3, 64, 32)
    clean = run(op.OP, name, inputs)["y"]
    inputs["x"][1] = torch.nan
    got = run(op.OP, name, inputs)["y"]
    assert got[1].isnan().all()
    assert torch.equal(got[::2], clean[::2])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("ignore:overflow encountered")  # in the interpreter, which is NumPy
def test_large_gates_close_or_pass(name: str) -> None:
    inputs = mlp(2, 64, 32)
    inputs["x"] *= 1000
    got = run(op.OP, name, inputs)
    assert got["y"].isfinite().all()
    assert problems(op.OP, got, inputs) == {}


@pytest.mark.parametrize("name", OWN)
def test_two_runs_give_the_same_bytes(name: str) -> None:
    inputs = mlp(5, 520, 40)
    implementation = op.OP.implementations[name]
    prepared = implementation.prepare(inputs)
    one = prepared.outputs()["y"].clone()
    assert torch.equal(prepared.outputs()["y"], one)
    assert torch.equal(implementation.run(inputs)["y"], one)


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 20),
    hidden=st.integers(1, 40),
    width=st.integers(1, 12),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("name", ["triton"])  # torch rounds five times, too often for short rows
def test_any_shape_matches_the_reference(
    name: str, rows: int, hidden: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    inputs = mlp(rows, 8 * hidden, 8 * width, dtype=dtype, seed=seed)
    assert problems(op.OP, run(op.OP, name, inputs), inputs) == {}


def test_cost_counts_each_weight_once_whatever_the_rows() -> None:
    case = next(case for case in op.OP.cases if case.name == "t16-h7168-w256-bf16")
    inputs = op.inputs(case, torch.device("cpu"))
    cost = op.cost(inputs)
    assert cost.read_bytes == 3 * 7168 * 256 * 2 + 16 * 7168 * 2  # 11.0 MB and 16 rows
    assert cost.written_bytes == 16 * 7168 * 2
    assert cost.flops == 16 * (6 * 7168 * 256 + 5 * 256)


def test_every_model_has_its_widths_under_every_tp() -> None:
    found = {
        (case.dims["hidden"], case.dims["width"], case.dims["layer"])
        for case in op.OP.cases
        if not case.tiny
    }
    assert found == {
        *((7168, width, "shared") for width in (2048, 1024, 512, 256)),
        *((7168, width, "dense") for width in (18432, 9216, 4608, 2304)),
        *((8192, width, "dense") for width in (28672, 14336, 7168, 3584)),
    }


def test_one_row_stands_beside_every_other_number_of_rows() -> None:
    measured = [case for case in op.OP.cases if not case.tiny]
    single = {
        (case.dims["hidden"], case.dims["width"], case.dtype)
        for case in measured
        if case.dims["rows"] == 1
    }
    assert all((c.dims["hidden"], c.dims["width"], c.dtype) in single for c in measured)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": torch.zeros(2, 64)}, r"x is torch\.float32 of \(2, 64\): give bfloat16"),
        ({"x": torch.zeros(64).bfloat16()}, r"x is .* of \(64,\)"),
        ({"x": torch.zeros(0, 64).bfloat16()}, r"x is .* of \(0, 64\)"),
        ({"x": torch.zeros(2, 72).bfloat16()}, r"down is .* of \(64, 32\): give .* of \(72, 32\)"),
        ({"down": torch.zeros(64, 40).bfloat16()}, r"gate_up is .* give .* of \(80, 64\)"),
        ({"down": torch.zeros(64, 32).half()}, r"down is torch\.float16"),
        ({"gate_up": torch.zeros(32, 64).bfloat16()}, r"gate_up is .* of \(32, 64\)"),
        ({"gate_up": torch.zeros(64, 64).bfloat16().T}, r"gate_up has strides \(1, 64\): copy it"),
        ({"x": torch.zeros(2, 128).bfloat16()[:, ::2]}, r"x has strides \(128, 2\): copy it"),
    ],
)
@pytest.mark.parametrize("name", ALL)
def test_what_does_not_fit_is_named(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op.OP.implementations[name].run(mlp(2, 64, 32) | changed)


@pytest.mark.parametrize(("hidden", "width", "odd"), [(20, 16, 20), (16, 12, 12)])
def test_what_16_byte_loads_cannot_read_is_refused_and_raised(
    hidden: int, width: int, odd: int
) -> None:
    first = op.OP.cases[0]
    point = dataclasses.replace(first, dims={**first.dims, "hidden": hidden, "width": width})
    reason = f"a width of {odd} is no multiple of 8, the 16 bytes of a load"
    assert op.OP.implementations["cupy"].needs.refuses(point) == reason
    with pytest.raises(ValueError, match=reason):
        op.OP.implementations["cupy"].run(mlp(2, hidden, width))
    inputs = mlp(2, hidden, width)
    assert problems(op.OP, run(op.OP, "triton", inputs), inputs) == {}
