"""The activation of a gated MLP at its edges, on every implementation that can be executed here."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.layer import silu_mul as op
from tests.layer_problems import ALL, normal
from tests.op_runs import DEVICE, problems, run
from verifyscope.models import TABLE


def halves(gate: list[float], up: list[float], dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.tensor([gate + up], device=DEVICE, dtype=dtype)


@pytest.mark.parametrize("name", ALL)
def test_known_values_and_the_order_gate_up(name: str) -> None:
    gate_up = halves([0, 1, -1, 20, -20, 0, 0, 2], [5, 1, 1, 3, 3, -7, 0, 1])
    got = run(op.OP, name, {"gate_up": gate_up})["y"][0].float().tolist()
    silu_1, silu_2 = 1 / (1 + math.exp(-1)), 2 / (1 + math.exp(-2))
    want = [0, silu_1, silu_1 - 1, 60, -60 / (1 + math.exp(20)), 0, 0, silu_2]
    assert got == pytest.approx(want, rel=0.008)


@pytest.mark.parametrize("name", ALL)
def test_up_gate_in_place_of_gate_up_fails_loudly(name: str) -> None:
    gate_up = normal(3, 64)
    swapped = torch.cat([gate_up[:, 32:], gate_up[:, :32]], dim=-1)
    assert problems(op.OP, run(op.OP, name, {"gate_up": gate_up}), {"gate_up": gate_up}) == {}
    assert (
        "off by"
        in problems(op.OP, run(op.OP, name, {"gate_up": swapped}), {"gate_up": gate_up})["y"]
    )


@pytest.mark.filterwarnings("ignore:overflow encountered")  # in the interpreter, which is NumPy
@pytest.mark.parametrize("name", ALL)
def test_large_gates_neither_overflow_nor_become_nan(name: str) -> None:
    most = [100.0, 1e4, 3e38, -100.0, -1e4, -3e38, 0.0, 1.0]
    got = run(op.OP, name, {"gate_up": halves(most, [1.0] * 8)})["y"][0].float()
    assert got[:3].tolist() == pytest.approx(most[:3], rel=0.004)
    # Below what bfloat16 holds, or silu's own -1e-42.
    assert (got[3:6].abs() < 1e-38).all()
    assert got[6] == 0


@pytest.mark.parametrize("name", ["triton", "cupy"])
def test_float16_is_computed_in_float32(name: str) -> None:
    # 300 x 200 fits float16; exp(300) and exp(-300) fit neither.
    gate_up = halves([300.0] * 8, [200.0] * 8, torch.float16)
    assert (run(op.OP, name, {"gate_up": gate_up})["y"] == 60_000).all()


@pytest.mark.parametrize("name", ["triton", "cupy"])
def test_it_is_rounded_once(name: str) -> None:
    gate_up = normal(4, 512)
    got = run(op.OP, name, {"gate_up": gate_up})["y"]
    exact = op.reference(gate_up=gate_up)["y"]
    assert ((got.double() - exact).abs() <= exact.abs() * 2**-8).all()
    nearest = exact.to(torch.bfloat16)
    assert (got == nearest).float().mean() > 0.99  # the rest lie between two, to 1e-7


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 5),
    vectors=st.integers(1, 40),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_any_shape_matches_the_reference(
    name: str, rows: int, vectors: int, dtype: torch.dtype, seed: int
) -> None:
    gate_up = normal(rows, 16 * vectors, dtype=dtype, seed=seed)
    assert problems(op.OP, run(op.OP, name, {"gate_up": gate_up}), {"gate_up": gate_up}) == {}


def test_a_width_that_no_vector_divides_is_right_in_triton_and_refused_in_cuda() -> None:
    gate_up = normal(2, 2 * 13)
    assert problems(op.OP, run(op.OP, "triton", {"gate_up": gate_up}), {"gate_up": gate_up}) == {}
    point = dataclasses.replace(op.OP.cases[0], dims={"rows": 2, "width": 13})
    reason = "a width of 13 is no multiple of 8, the 16 bytes of a load"
    assert op.OP.implementations["cupy"].needs.refuses(point) == reason
    with pytest.raises(ValueError, match=reason):
        op.OP.implementations["cupy"].run({"gate_up": gate_up})


@pytest.mark.parametrize(
    ("gate_up", "message"),
    [
        (torch.zeros(2, 16), r"torch\.float32 of \(2, 16\): give bfloat16 or float16"),
        (torch.zeros(2, 2, 16).bfloat16(), r"of \(2, 2, 16\): give"),
        (torch.zeros(0, 16).bfloat16(), r"of \(0, 16\): give"),
        (torch.zeros(2, 15).bfloat16(), "15 columns: give an even number"),
        (torch.zeros(16, 2).bfloat16().T, r"strides \(1, 2\): copy it"),
        (torch.zeros(2, 32).bfloat16()[:, :16], r"strides \(32, 1\): copy it"),
    ],
)
@pytest.mark.parametrize("name", ALL)
def test_what_does_not_fit_is_named(name: str, gate_up: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op.OP.implementations[name].run({"gate_up": gate_up})


def test_a_misaligned_tensor_is_named() -> None:
    shifted = torch.zeros(2 * 16 + 1).bfloat16()[1:].view(2, 16)
    with pytest.raises(ValueError, match="no multiples of 16 bytes"):
        op.OP.implementations["cupy"].run({"gate_up": shifted})


def test_cost_counts_each_element_once() -> None:
    cost = op.cost({"gate_up": normal(3, 40)})
    assert (cost.read_bytes, cost.written_bytes, cost.flops) == (3 * 40 * 2, 3 * 20 * 2, 5 * 60)


def test_every_model_has_its_widths_under_every_tp() -> None:
    widths = {case.dims["width"] for case in op.OP.cases if not case.tiny}
    assert {2048, 1024, 512, 256} <= widths  # Kimi and DeepSeek: experts
    assert {18432, 9216, 4608, 2304} <= widths  # their dense layers
    assert {1536, 768, 384, 192, 96} <= widths  # Qwen3
    assert {28672, 14336, 7168, 3584} <= widths  # Llama
    assert len(TABLE) == 6, "a model more: are its widths here?"
    rows = {case.dims["rows"] for case in op.OP.cases if case.dims["width"] == 256}
    assert {1, 2, 4, 8, 16, 32, 64, 128, 256} <= rows
