"""Routing with a controlled overlap, the formats of experts, and what `fused_moe` refuses."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from kernels import find_op
from kernels._registry import find_case
from kernels._undrawn import sizes_suffice, undrawn
from kernels.moe import _formats, _routings, fused_moe
from kernels.moe._fused_moe_cases import of_model

CPU = torch.device("cpu")


def ids_of(
    pattern: str, *, tokens: int, experts: int = 384, top_k: int = 8, seed: int = 0
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return _routings.routed_ids(
        pattern, tokens=tokens, experts=experts, top_k=top_k, generator=generator
    )


@pytest.mark.parametrize("pattern", ["uniform", "zipf", "tree50", "tree80"])
@pytest.mark.parametrize(("experts", "top_k"), [(8, 8), (8, 1), (384, 8), (512, 16)])
def test_no_token_draws_an_expert_twice(pattern: str, experts: int, top_k: int) -> None:
    ids = ids_of(pattern, tokens=40, experts=experts, top_k=top_k)
    assert ids.shape == (40, top_k)
    assert ids.dtype == torch.int32
    assert all(len(set(row)) == top_k for row in ids.tolist())
    assert 0 <= int(ids.min()) <= int(ids.max()) < experts


@pytest.mark.parametrize(
    ("tokens", "want"), [(1, 8.0), (2, 15.8), (4, 31.0), (8, 59.5), (16, 109.8)]
)
def test_uniform_routing_touches_as_many_experts_as_chance_says(tokens: int, want: float) -> None:
    drawn = [_routings.distinct(ids_of("uniform", tokens=tokens, seed=s), 384) for s in range(200)]
    assert math.isclose(want, 384 * (1 - (1 - 8 / 384) ** tokens), abs_tol=0.05)
    assert sum(drawn) / len(drawn) == pytest.approx(want, abs=1.0)


@pytest.mark.parametrize(("pattern", "kept"), [("tree50", 4), ("tree80", 6)])
def test_a_child_keeps_the_share_of_its_parents_experts(pattern: str, kept: int) -> None:
    from kernels import _trees

    parents = _trees.tree("eagle4", 16)
    rows = [set(row) for row in ids_of(pattern, tokens=16).tolist()]
    assert [len(rows[n] & rows[parents[n]]) for n in range(1, 16)] == [kept] * 15


def test_overlap_and_a_skewed_choice_touch_fewer_experts() -> None:
    found = {
        pattern: sum(
            _routings.distinct(ids_of(pattern, tokens=16, seed=seed), 384) for seed in range(20)
        )
        for pattern in ("uniform", "zipf", "tree50", "tree80")
    }
    assert found["tree80"] < found["tree50"] < found["zipf"] < found["uniform"]


def test_weights_are_renormalised_and_descend() -> None:
    generator = torch.Generator().manual_seed(1)
    weights = _routings.routed_weights(torch.zeros(5, 8), generator=generator, scaling=2.5)
    assert weights.sum(-1).tolist() == pytest.approx([2.5] * 5)
    assert (weights.diff(dim=-1) <= 0).all()


def test_what_is_no_routing_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="unknown routing 'random'; known: uniform, zipf, tree50"):
        ids_of("random", tokens=1)
    with pytest.raises(ValueError, match="top_k is 9; give 1 to the number of experts, 8"):
        ids_of("uniform", tokens=1, experts=8, top_k=9)


# ---- Formats ----


def test_int4_means_nibble_minus_8_times_the_scale_of_its_group() -> None:
    packed = torch.tensor([[0x10, 0xF8] * 16], dtype=torch.uint8)  # nibbles 0, 1, 8, 15
    scales = torch.tensor([[2.0, 0.5]], dtype=torch.bfloat16)
    want = [-16.0, -14.0, 0.0, 14.0] * 8 + [-4.0, -3.5, 0.0, 3.5] * 8
    assert _formats.widened(packed, scales).tolist() == [want]
    values = torch.tensor([[-8, -7, 0, 7] * 16])
    assert torch.equal(_formats.packed_int4(values), packed)
    with pytest.raises(ValueError, match="whole numbers from -8 to 7"):
        _formats.packed_int4(torch.tensor([[8, 0]]))


def test_signed_nibbles_are_biased_ones_with_their_upper_bits_flipped() -> None:
    values = torch.arange(-8, 8).repeat(2)[None]
    packed = _formats.packed_int4(values)
    signed = _formats.flipped(packed)
    low, high = (signed & 0xF).to(torch.int8), (signed >> 4).to(torch.int8)
    meant = torch.stack([low, high], -1).flatten(-2)
    assert torch.equal(torch.where(meant > 7, meant - 16, meant).long(), values)
    assert torch.equal(_formats.flipped(signed), packed)


def test_fp8_scales_are_those_of_128_by_128_blocks() -> None:
    weights = torch.ones(256, 384).to(torch.float8_e4m3fn)
    scales = torch.arange(6.0).view(2, 3)
    wide = _formats.widened(weights, scales)
    assert wide[127, 127] == 0
    assert wide[127, 128] == 1
    assert wide[128, 383] == 5


@pytest.mark.parametrize("form", ["bf16", "fp8", "int4"])
def test_unpacked_weights_are_what_they_mean_rounded_to_bfloat16(form: str) -> None:
    generator = torch.Generator().manual_seed(3)
    weights, scales = _formats.drawn(form, (3, 256, 384), generator=generator, device=CPU)
    got, exact = _formats.unpacked(weights, scales), _formats.widened(weights, scales)
    assert got.dtype == torch.bfloat16
    assert got.shape == exact.shape
    assert ((got.double() - exact).abs() <= exact.abs() * 2**-8).all()
    if form != "fp8":  # whose product is rounded to float32 on the way
        assert torch.equal(got, exact.bfloat16())


@pytest.mark.parametrize("form", ["bf16", "fp8", "int4"])
def test_a_swapped_order_of_gate_and_up_fails_loudly(form: str) -> None:
    case = next(c for c in fused_moe.OP.cases if c.tiny and c.dims["format"] == form)
    right = dict(fused_moe.inputs(case, CPU))
    swapped = {**right}
    for name in ("gate_up", "gate_up_scales"):
        tensor = right[name]
        assert isinstance(tensor, torch.Tensor)
        if tensor.numel():
            raw = tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
            swapped[name] = _formats.halves_swapped(raw).view(tensor.dtype)
    assert error_of(swapped, right) > 10 * fused_moe.OP.tolerance.row


def test_unflipped_nibbles_and_permuted_groups_fail_loudly() -> None:
    case = next(c for c in fused_moe.OP.cases if c.tiny and c.dims["format"] == "int4")
    right = dict(fused_moe.inputs(case, CPU))
    packed, scales = right["gate_up"], right["gate_up_scales"]
    assert isinstance(packed, torch.Tensor)
    assert isinstance(scales, torch.Tensor)
    assert error_of({**right, "gate_up": _formats.flipped(packed)}, right) > 0.1
    assert error_of({**right, "gate_up_scales": scales.flip(-1).contiguous()}, right) > 0.1


def error_of(given: Mapping[str, Any], right: Mapping[str, Any]) -> float:
    got, want = (fused_moe.reference(**one)["y"] for one in (given, right))
    return float(((got - want).norm(dim=-1) / want.norm(dim=-1)).max())


# ---- What is refused, and what is counted ----


def test_sizes_that_a_format_cannot_hold_are_refused_with_the_reason() -> None:
    case = find_case(fused_moe.OP, "t1-qwen3-235b-a22b-tp8-fp8-uniform")
    assert fused_moe.refuses(case) == (
        "fp8 needs an intermediate size a rank that 128 divides, the side of a block of one scale; "
        "got 192"
    )
    assert fused_moe.refuses(of_model(1, "qwen3-235b-a22b", 8, form="int4")) is None
    given: dict[str, Any] = dict(fused_moe.inputs(fused_moe.OP.cases[0], CPU))
    given["x"] = torch.zeros(1, 100, dtype=torch.bfloat16)
    with pytest.raises(
        ValueError, match="a hidden size that 32 divides, two of its loads; got 100"
    ):
        fused_moe.Given(**given)


@pytest.mark.parametrize("size", ["experts", "intermediate", "hidden"])
def test_experts_of_no_size_are_refused(size: str) -> None:
    # Every multiple divides 0, CuPy turns a grid of 0 into 1, and no expert has no share of bytes.
    sizes = {"experts": 2, "intermediate": 32, "hidden": 64, size: 0}
    experts, wide, hidden = sizes["experts"], sizes["intermediate"], sizes["hidden"]
    x = torch.zeros(1, hidden, dtype=torch.bfloat16)
    with pytest.raises(
        ValueError, match=f"{experts} experts, {wide} wide, of {hidden} .* at least one of each"
    ):
        fused_moe.Given(
            x=x,
            ids=torch.zeros(1, 1, dtype=torch.int32),
            weights=torch.ones(1, 1),
            gate_up=x.new_zeros(experts, 2 * wide, hidden),
            gate_up_scales=torch.empty(0),
            down=x.new_zeros(experts, hidden, wide),
            down_scales=torch.empty(0),
        )


def test_a_shared_expert_of_no_size_is_refused() -> None:
    given: dict[str, Any] = dict(fused_moe.inputs(fused_moe.OP.cases[0], CPU))
    hidden = given["x"].shape[1]
    given["shared_gate_up"] = given["x"].new_zeros(0, hidden)
    given["shared_down"] = given["x"].new_zeros(hidden, 0)
    with pytest.raises(ValueError, match="intermediate size a rank is 0; give one that 32 divides"):
        fused_moe.Given(**given)


@pytest.mark.parametrize("name", ["gate_up", "down"])
def test_scales_of_weights_that_have_none_are_refused(name: str) -> None:
    # They would be counted as bytes of the experts, and looked up by expert.
    case = next(c for c in fused_moe.OP.cases if c.tiny and c.dims["format"] == "bf16")
    given: dict[str, Any] = dict(fused_moe.inputs(case, CPU))
    given[f"{name}_scales"] = torch.ones(5)
    with pytest.raises(ValueError, match=rf"{name}_scales is \(5,\), and bf16 has no scales"):
        fused_moe.Given(**given)


def test_bytes_are_those_of_the_experts_that_were_chosen() -> None:
    case = find_case(fused_moe.OP, "t4-kimi-k2.5-tp8-int4-uniform")
    given = undrawn(find_op("fused_moe"), case)
    assert fused_moe.counts(given) == {"distinct_experts": 31}
    # An expert of a rank: 2.753 MB of nibbles and 0.344 MB of scales.
    an_expert = 3 * 7168 * 256 // 2 + 3 * 7168 * 256 // 32 * 2
    assert an_expert == 3_096_576
    small = 2 * 4 * 7168 + 4 * 8 * (4 + 4)
    assert fused_moe.cost(given).read_bytes == 31 * an_expert + small
    assert fused_moe.cost(given).written_bytes == 2 * 4 * 7168
    assert fused_moe.cost(given).flops == 6 * 4 * 8 * 7168 * 256
    assert sizes_suffice(fused_moe.OP)


def test_ids_that_are_no_experts_cost_nothing() -> None:
    case = next(c for c in fused_moe.OP.cases if c.tiny and c.dims["routing"] == "holes")
    given = dict(fused_moe.inputs(case, CPU))
    ids = given["ids"]
    assert isinstance(ids, torch.Tensor)
    assert -1 in ids
    assert case.dims["experts"] in ids
    none = {**given, "ids": torch.full_like(ids, -1)}
    assert fused_moe.counts(none) == {"distinct_experts": 0}
    assert fused_moe.cost(none).flops == 0
    assert not fused_moe.reference(**none)["y"].any()
