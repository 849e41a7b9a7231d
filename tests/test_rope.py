"""Rotary positions at their edges, on every implementation that can be executed here."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import _trees
from kernels.layer import _rope_tables as tables
from kernels.layer import rope as op
from tests.layer_problems import ALL, OWN, normal
from tests.op_runs import DEVICE, problems, run
from verifyscope.models import TABLE, Rope

PLAIN = Rope(theta=10_000)


def given_at(
    positions: list[int],
    *,
    heads: tuple[int, int] = (2, 1),
    dim: int = 32,
    rotated: int = 0,
    interleaved: bool = False,
    rope: Rope = PLAIN,
    table: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    index: torch.dtype = torch.int64,
    seed: int = 0,
) -> dict[str, Any]:
    tokens = len(positions)
    return {
        "q": normal(tokens, heads[0], dim, dtype=dtype, seed=seed),
        "k": normal(tokens, heads[1], dim, dtype=dtype, seed=seed + 1),
        "cos_sin": tables.cos_sin_table(
            rope, dims=rotated or dim, positions=table or max(positions) + 1, device=DEVICE
        ),
        "positions": torch.tensor(positions, dtype=index, device=DEVICE),
        "interleaved": interleaved,
    }


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_a_quarter_turn_takes_each_pair_to_its_perpendicular(name: str, interleaved: bool) -> None:
    inputs = given_at([0], interleaved=interleaved)
    inputs["cos_sin"] = torch.tensor([[0.0] * 16 + [1.0] * 16], device=DEVICE)
    got = run(op.OP, name, inputs)["q_out"]
    q = inputs["q"]
    if interleaved:
        want = torch.stack([-q[..., 1::2], q[..., ::2]], dim=-1).flatten(-2)
    else:
        want = torch.cat([-q[..., 16:], q[..., :16]], dim=-1)
    assert torch.equal(got, want)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_at_position_0_nothing_turns(name: str, interleaved: bool) -> None:
    inputs = given_at([0, 0], interleaved=interleaved)
    got = run(op.OP, name, inputs)
    assert torch.equal(got["q_out"], inputs["q"])
    assert torch.equal(got["k_out"], inputs["k"])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_a_score_depends_on_the_distance_alone(name: str, interleaved: bool) -> None:
    near = given_at([7, 3], heads=(1, 1), interleaved=interleaved, dtype=torch.float16)
    far = {**near, **_table_at([2007, 2003], near)}

    def score(inputs: dict[str, Any]) -> float:
        got = run(op.OP, name, inputs)
        return float(got["q_out"][0, 0].double() @ got["k_out"][1, 0].double())

    assert score(near) == pytest.approx(score(far), abs=0.02)
    other = {**near, **_table_at([2008, 2003], near)}
    assert abs(score(near) - score(other)) > 0.1


def _table_at(positions: list[int], like: dict[str, Any]) -> dict[str, Any]:
    table = tables.cos_sin_table(PLAIN, dims=like["cos_sin"].shape[1], positions=4096)
    return {"cos_sin": table.to(DEVICE), "positions": torch.tensor(positions, device=DEVICE)}


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", ALL)
def test_drafts_of_a_tree_turn_by_their_depth_and_siblings_alike(
    name: str, index: torch.dtype
) -> None:
    positions = _trees.positions([-1, 0, 0, 1, 1, 2, 3], 7)
    assert positions == [7, 8, 8, 9, 9, 9, 10]
    inputs = given_at(positions, interleaved=True, index=index)
    inputs["q"] = inputs["q"][:1].expand(7, -1, -1).contiguous()
    got = run(op.OP, name, inputs)
    assert problems(op.OP, got, inputs) == {}
    q = got["q_out"]
    assert torch.equal(q[1], q[2])
    assert torch.equal(q[3], q[5])
    assert not torch.equal(q[5], q[6])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("model", ["kimi-k2.5", "deepseek-v3", "llama-3.1-70b"])
def test_the_last_position_of_a_model_is_looked_up(name: str, model: str) -> None:
    found = TABLE[model]
    last = found.max_positions - 1
    inputs = given_at([last, 0, last - 1], rope=found.rope, table=last + 1, interleaved=True)
    assert problems(op.OP, run(op.OP, name, inputs), inputs) == {}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_dims_behind_the_rotated_ones_are_copied(name: str, interleaved: bool) -> None:
    inputs = given_at([5, 9], dim=48, rotated=16, interleaved=interleaved)
    got = run(op.OP, name, inputs)
    assert torch.equal(got["q_out"][..., 16:], inputs["q"][..., 16:])
    assert not torch.equal(got["q_out"][..., :16], inputs["q"][..., :16])
    assert problems(op.OP, got, inputs) == {}


@pytest.mark.parametrize("name", ALL)
def test_slices_of_a_projection_are_read_where_they_lie(name: str) -> None:
    inputs = given_at([3, 4, 5], dim=64, interleaved=True)
    wide_q, wide_k = normal(3, 2, 192), normal(3, 1, 576)
    wide_q[..., :128] = wide_k[..., :512] = torch.nan
    inputs |= {"q": wide_q[..., 128:], "k": wide_k[..., 512:]}
    got = run(op.OP, name, inputs)
    assert got["q_out"].is_contiguous()
    assert problems(op.OP, got, inputs) == {}


@pytest.mark.parametrize("name", OWN)
def test_many_heads_and_one_of_each(name: str) -> None:
    for heads in ((1, 1), (17, 3)):
        inputs = given_at([2, 11], heads=heads, dim=64, interleaved=heads == (1, 1))
        assert problems(op.OP, run(op.OP, name, inputs), inputs) == {}


@settings(max_examples=15, deadline=None)
@given(
    positions=st.lists(st.integers(0, 99), min_size=1, max_size=4),
    heads=st.tuples(st.integers(1, 9), st.integers(1, 3)),
    half=st.integers(1, 24),
    rest=st.integers(0, 9),
    interleaved=st.booleans(),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_any_shape_matches_the_reference(
    name: str,
    positions: list[int],
    heads: tuple[int, int],
    half: int,
    rest: int,
    interleaved: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    inputs = given_at(
        positions,
        heads=heads,
        dim=2 * half + rest,
        rotated=2 * half,
        interleaved=interleaved,
        dtype=dtype,
        seed=seed,
    )
    assert problems(op.OP, run(op.OP, name, inputs), inputs) == {}


def test_lengths_of_pairs_stay() -> None:
    inputs = given_at([77], dtype=torch.float16)
    got = op.reference(**inputs)["q_out"]
    torch.testing.assert_close(got.norm(dim=-1), inputs["q"].double().norm(dim=-1))


# --- tables ---


def test_a_plain_table_is_cosines_then_sines() -> None:
    table = tables.cos_sin_table(PLAIN, dims=4, positions=3)
    want = [[math.cos(p), math.cos(p / 100), math.sin(p), math.sin(p / 100)] for p in range(3)]
    assert table.dtype == torch.float32
    torch.testing.assert_close(table, torch.tensor(want), rtol=0, atol=1e-7)


def test_yarn_keeps_what_turns_often_and_slows_what_turns_seldom() -> None:
    rope = TABLE["deepseek-v3"].rope
    plain = tables.frequencies(Rope(theta=10_000), 64)
    got = tables.frequencies(rope, 64) / plain
    # 64 ln(4096 / (2 pi 32)) / (2 ln 10000) = 10.47 and, for one turn, 22.5: dims 10 and 23.
    assert got[:11].tolist() == pytest.approx([1.0] * 11)
    assert got[23:].tolist() == pytest.approx([1 / 40] * 9)
    # Linear between: dim 16 is 6 of 13 steps on the way.
    assert got[16].item() == pytest.approx(1 - 6 / 13 + 6 / 13 / 40)


def test_yarn_with_both_betas_1_is_a_step() -> None:
    rope = TABLE["kimi-k2"].rope
    got = tables.frequencies(rope, 64) / tables.frequencies(Rope(theta=50_000), 64)
    # 64 ln(4096 / (2 pi)) / (2 ln 50000) = 19.2: from dim 19 on one step to 20.
    assert got[:20].tolist() == pytest.approx([1.0] * 20)
    assert got[20:].tolist() == pytest.approx([1 / 32] * 12)


def test_yarn_without_mscale_all_dim_has_its_factor_in_the_table() -> None:
    rope = dataclasses.replace(TABLE["deepseek-v3"].rope, mscale_all_dim=None)
    scaled, plain = (
        tables.cos_sin_table(one, dims=8, positions=5) for one in (rope, TABLE["deepseek-v3"].rope)
    )
    torch.testing.assert_close(scaled, plain * (1 + 0.1 * math.log(40)))


def test_llama3_slows_long_wavelengths_by_8_and_mixes_between() -> None:
    rope = TABLE["llama-3.1-70b"].rope
    plain = tables.frequencies(Rope(theta=500_000), 128)
    got = tables.frequencies(rope, 128) / plain
    turns = 8192 * plain / (2 * math.pi)
    assert (got[turns > 4] == 1).all()
    torch.testing.assert_close(got[turns < 1], torch.full_like(got[turns < 1], 1 / 8))
    between = (turns >= 1) & (turns <= 4)
    assert between.sum() >= 5
    share = (turns[between] - 1) / 3
    torch.testing.assert_close(got[between], share + (1 - share) / 8)


def test_a_table_of_engines_differs_by_the_rounding_of_angles_alone() -> None:
    rope = TABLE["kimi-k2.5"].rope
    exact = tables.cos_sin_table(rope, dims=64, positions=262_144)[-1]
    angle = torch.tensor(262_143.0) * tables.frequencies(rope, 64).float()
    rounded = torch.cat([angle.cos(), angle.sin()])
    assert (exact - rounded).abs().max() < 0.02
    assert (exact[16:32] - rounded[16:32]).abs().max() < 1e-3


@pytest.mark.parametrize("dims", [0, 1, 7])
def test_dims_that_make_no_pairs_are_named(dims: int) -> None:
    with pytest.raises(ValueError, match=f"{dims} rotated dims: give an even number"):
        tables.frequencies(PLAIN, dims)


def test_scaling_without_original_positions_is_named() -> None:
    with pytest.raises(ValueError, match="yarn scaling needs the original positions"):
        tables.frequencies(Rope(theta=1e4, scaling="yarn", factor=4), 64)


# --- what does not fit ---


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": torch.zeros(2, 2, 32)}, r"q is torch\.float32 of \(2, 2, 32\): give bfloat16"),
        ({"q": torch.zeros(2, 64).bfloat16()}, r"q is .* of \(2, 64\)"),
        ({"k": torch.zeros(2, 0, 32).bfloat16()}, r"k is .* of \(2, 0, 32\)"),
        ({"k": torch.zeros(3, 1, 32).bfloat16()}, "as many tokens and the same dim"),
        ({"k": torch.zeros(2, 1, 32).half()}, "give one dtype"),
        ({"q": torch.zeros(2, 32, 2).bfloat16().mT}, "copy it, to be 1 along the last dim"),
        ({"cos_sin": torch.zeros(9, 32).bfloat16()}, r"cos_sin is torch\.bfloat16"),
        ({"cos_sin": torch.zeros(32, 9).T}, "give a contiguous float32"),
        ({"cos_sin": torch.zeros(9, 34)}, "rotates 34 dims of 32: give an even number"),
        ({"cos_sin": torch.zeros(9, 15)}, "rotates 15 dims of 32"),
        ({"positions": torch.zeros(3).long()}, r"of \(3,\): give contiguous int32 or int64, one"),
        ({"positions": torch.zeros(2)}, r"positions are torch\.float32"),
        ({"positions": torch.zeros(4).long()[::2]}, "positions are"),
    ],
)
@pytest.mark.parametrize("name", ALL)
def test_what_does_not_fit_is_named(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op.OP.implementations[name].run(given_at([0, 8]) | changed)


@pytest.mark.parametrize(
    ("dim", "rotated", "interleaved"), [(32, 24, False), (36, 32, True), (32, 20, True)]
)
def test_what_16_byte_loads_cannot_read_is_refused_and_raised(
    dim: int, rotated: int, interleaved: bool
) -> None:
    style = "interleaved" if interleaved else "halves"
    dims = {**op.OP.cases[0].dims, "head_dim": dim, "rotated": rotated, "style": style}
    point = dataclasses.replace(op.OP.cases[0], dims=dims)
    assert f"{rotated} of {dim} dims turn" in str(
        op.OP.implementations["cupy"].needs.refuses(point)
    )
    with pytest.raises(ValueError, match=f"{rotated} of {dim} dims turn"):
        op.OP.implementations["cupy"].run(
            given_at([1], dim=dim, rotated=rotated, interleaved=interleaved)
        )


def test_cost_counts_a_row_of_the_table_for_each_position_that_differs() -> None:
    inputs = given_at([5, 6, 6], heads=(4, 1), dim=64)
    cost = op.cost(inputs)
    each = 3 * 5 * 64 * 2
    assert cost.written_bytes == each
    assert cost.read_bytes == each + 3 * 8 + 2 * 64 * 4
    assert cost.flops == 3 * 3 * 5 * 64


def test_every_model_has_its_heads_under_every_tp() -> None:
    found = {
        (case.dims["q_heads"], case.dims["k_heads"], case.dims["head_dim"], case.dims["style"])
        for case in op.OP.cases
        if not case.tiny
    }
    assert {(heads, 1, 64, "interleaved") for heads in (8, 16, 32, 64, 128)} <= found
    assert {(64, 4, 128, "halves"), (16, 1, 128, "halves"), (4, 1, 128, "halves")} <= found
    assert {(64, 8, 128, "halves"), (32, 4, 128, "halves"), (8, 1, 128, "halves")} <= found
    rows = {case.dims["rows"] for case in op.OP.cases if case.dims["head_dim"] == 64}
    assert {1, 2, 4, 8, 16, 32, 64, 128, 256} <= rows


def test_positions_of_measured_cases_follow_trees_of_ragged_requests() -> None:
    case = next(case for case in op.OP.cases if case.name.startswith("t32-h8x1-d64"))
    positions = op.inputs(case, torch.device("cpu"))["positions"]
    assert isinstance(positions, torch.Tensor)
    tree = _trees.tree("eagle4", 16)
    assert positions.tolist() == [*_trees.positions(tree, 8192), *_trees.positions(tree, 4096)]
