"""The norm at its edges, on every implementation that can be executed here."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.layer import rms_norm as op
from tests.layer_problems import ALL, OWN, normal
from tests.op_runs import DEVICE, problems, run


def rows(
    tokens: int, width: int, *, residual: bool = False, seed: int = 0, dtype: Any = torch.bfloat16
) -> dict[str, Any]:
    given: dict[str, Any] = {
        "x": normal(tokens, width, seed=seed, dtype=dtype),
        "weight": 1 + normal(width, seed=seed + 1, dtype=dtype) / 4,
        "eps": 1e-6,
    }
    if residual:
        given["residual"] = normal(tokens, width, seed=seed + 2, dtype=dtype)
    return given


@pytest.mark.parametrize("name", ALL)
def test_known_values(name: str) -> None:
    inputs = rows(1, 8)
    inputs["x"] = torch.tensor([[3.0, 4.0] * 4], device=DEVICE).bfloat16()
    inputs["weight"] = torch.tensor([1.0, 2.0] * 4, device=DEVICE).bfloat16()
    got = run(op.OP, name, inputs)
    rms = 12.5**0.5
    assert got["y"][0].float().tolist() == pytest.approx([3 / rms, 8 / rms] * 4, rel=0.004)
    assert set(got) == {"y"}


@pytest.mark.parametrize("name", ALL)
def test_the_residual_is_added_and_rounded_once(name: str) -> None:
    inputs = rows(3, 264, residual=True)
    got = run(op.OP, name, inputs)
    exact = inputs["x"].float() + inputs["residual"].float()
    assert torch.equal(got["new_residual"], exact.bfloat16())
    assert problems(op.OP, got, inputs) == {}


@pytest.mark.parametrize("name", OWN)
def test_y_is_made_of_the_sum_before_it_is_rounded(name: str) -> None:
    # 256 + 0.75 rounds to 256 in bfloat16, and 256 + 1.25 to 258: a mean square of 256.75 ...
    inputs = rows(1, 8, residual=True)
    inputs["x"] = torch.tensor([[256.0] * 8], device=DEVICE).bfloat16()
    inputs["residual"] = torch.tensor([[0.75] * 7 + [-256.0]], device=DEVICE).bfloat16()
    inputs["weight"] = torch.full((8,), 2.0**-4, device=DEVICE).bfloat16()
    total = torch.tensor([256.75] * 7 + [0.0]).double()
    want = total / (total.square().mean() + 1e-6).sqrt() / 16
    got = run(op.OP, name, inputs)
    assert torch.equal(got["y"][0].cpu(), want.bfloat16())
    assert got["new_residual"][0].tolist() == [256.0] * 7 + [0.0]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.5])
def test_rows_of_zeros_give_zeros_and_eps_counts_for_small_ones(name: str, eps: float) -> None:
    inputs = rows(2, 128) | {"eps": eps}
    inputs["x"][0] = 0
    inputs["x"][1] = 2.0**-10
    got = run(op.OP, name, inputs)
    assert (got["y"][0] == 0).all()
    want = 2.0**-10 / (2.0**-20 + eps) ** 0.5 * inputs["weight"].double()
    torch.testing.assert_close(got["y"][1].double(), want, rtol=2**-8, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_large_values_stay_finite(name: str) -> None:
    bf16, fp16 = rows(2, 512), rows(2, 512, dtype=torch.float16)
    bf16["x"] *= 2.0**55  # squares of 1e33 each
    fp16["x"] = torch.full_like(fp16["x"], 65_504.0)  # squares that float16 does not hold
    for inputs in (bf16, fp16):
        assert problems(op.OP, run(op.OP, name, inputs), inputs) == {}


@pytest.mark.parametrize("name", ALL)
def test_one_row_does_not_touch_another(name: str) -> None:
    inputs = rows(3, 256)
    alone = run(op.OP, name, inputs | {"x": inputs["x"][1:2].clone()})
    inputs["x"][0] *= 1000
    inputs["x"][2] = torch.nan
    assert torch.equal(run(op.OP, name, inputs)["y"][1:2], alone["y"])


@pytest.mark.parametrize("name", ALL)
def test_the_front_of_a_latent_and_heads_of_a_projection_are_read_in_place(name: str) -> None:
    latent = normal(3, 576)
    latent[:, 512:] = torch.nan
    inputs = rows(3, 512) | {"x": latent[:, :512]}
    got = run(op.OP, name, inputs)
    assert problems(op.OP, got, inputs) == {}
    assert got["y"].is_contiguous()
    qkv = normal(3, 7, 128)
    qkv[:, 5:] = torch.nan
    inputs = rows(1, 128) | {"x": qkv[:, :5]}
    got = run(op.OP, name, inputs)
    assert got["y"].shape == (3, 5, 128)
    assert problems(op.OP, got, inputs) == {}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("width", [8, 248, 264, 1000, 4104, 16_384])
def test_widths_that_are_no_powers_of_two_and_the_widest(name: str, width: int) -> None:
    inputs = rows(2, width, residual=True)
    assert problems(op.OP, run(op.OP, name, inputs), inputs) == {}


@settings(max_examples=15, deadline=None)
@given(
    tokens=st.integers(1, 4),
    heads=st.integers(1, 5),
    vectors=st.integers(1, 70),
    residual=st.booleans(),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_any_shape_matches_the_reference(
    name: str, tokens: int, heads: int, vectors: int, residual: bool, dtype: Any, seed: int
) -> None:
    width = 8 * vectors
    inputs = rows(tokens, width, residual=residual and heads == 1, seed=seed, dtype=dtype)
    if heads > 1:
        inputs["x"] = normal(tokens, heads + 2, width, seed=seed, dtype=dtype)[:, 1 : heads + 1]
    assert problems(op.OP, run(op.OP, name, inputs), inputs) == {}


def test_a_scale_does_not_change_what_comes_out() -> None:
    inputs = rows(2, 512) | {"eps": 1e-30}
    one = run(op.OP, "triton", inputs)["y"]
    other = run(op.OP, "triton", inputs | {"x": inputs["x"] * 2.0**20})["y"]
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": torch.zeros(2, 16)}, r"x is torch\.float32 of \(2, 16\): give bfloat16"),
        ({"x": torch.zeros(16).bfloat16()}, r"of \(16,\): give"),
        ({"x": torch.zeros(0, 16).bfloat16()}, r"of \(0, 16\): give"),
        ({"x": torch.zeros(2, 16_392).bfloat16()}, "16392 wide: give at most 16384"),
        ({"x": torch.zeros(16, 2).bfloat16().T}, r"strides \(1, 2\): copy it"),
        ({"weight": torch.zeros(8).bfloat16()}, r"weight is .* of \(8,\).*of \(16,\)"),
        ({"weight": torch.zeros(16)}, r"weight is torch\.float32"),
        ({"weight": torch.zeros(32).bfloat16()[::2]}, r"strides \(2,\)"),
        ({"residual": torch.zeros(2, 8).bfloat16()}, r"residual is .* of \(2, 8\)"),
        ({"residual": torch.zeros(2, 32).bfloat16()[:, :16]}, r"residual .* strides \(32, 1\)"),
        ({"eps": 0.0}, "eps is 0.0: give a number above 0"),
        ({"eps": float("nan")}, "eps is nan"),
    ],
)
@pytest.mark.parametrize("name", ALL)
def test_what_does_not_fit_is_named(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op.OP.implementations[name].run(rows(2, 16, residual="residual" in changed) | changed)


def test_heads_take_no_residual() -> None:
    with pytest.raises(ValueError, match="a residual is added to"):
        op.Given(**(rows(2, 16, residual=True) | {"x": normal(2, 1, 16)}))


def test_what_16_byte_loads_cannot_read_is_refused_and_raised() -> None:
    point = dataclasses.replace(op.OP.cases[0], dims={**op.OP.cases[0].dims, "width": 20})
    assert op.OP.implementations["cupy"].needs.refuses(point) is not None
    with pytest.raises(ValueError, match="a width of 20 is no multiple of 8"):
        op.OP.implementations["cupy"].run(rows(2, 20))
    shifted = rows(2, 16) | {"x": normal(2, 17)[:, 1:]}
    with pytest.raises(ValueError, match="x starts at an address"):
        op.OP.implementations["cupy"].run(shifted)


def test_cost_counts_what_is_touched() -> None:
    plain, added = op.cost(rows(3, 40)), op.cost(rows(3, 40, residual=True))
    assert (plain.read_bytes, plain.written_bytes) == (240 + 80, 240)
    assert (added.read_bytes, added.written_bytes) == (480 + 80, 480)
    assert (plain.flops, added.flops) == (4 * 120, 5 * 120)
    latent = op.cost(rows(3, 512) | {"x": normal(3, 576)[:, :512]})
    assert latent.read_bytes == 3 * 1024 + 1024  # the rotated 64 are not read


def test_every_norm_of_every_model_is_measured() -> None:
    found = {
        (case.dims["width"], case.dims["residual"], case.dims["step"])
        for case in op.OP.cases
        if not case.tiny and case.dims["heads"] == 1
    }
    assert {(width, "added", width) for width in (2048, 4096, 7168, 8192)} <= found
    assert {(512, "none", 576), (1536, "none", 1536)} <= found
    heads = {case.dims["heads"] for case in op.OP.cases if case.dims["width"] == 128}
    assert {64, 32, 16, 8, 4, 2, 1} <= heads
