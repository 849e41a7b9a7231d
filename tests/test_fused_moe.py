"""Experts at their edges, each on every implementation that this machine can execute."""

import math
from typing import Any

import pytest
import torch

from kernels import _execute
from kernels.moe import _formats
from kernels.moe import fused_moe as op
from tests.fused_moe_problems import (
    DEVICE,
    DIRECT,
    FORMS,
    OWN,
    SIZES,
    SORTED,
    assert_matches,
    error_of,
    problem,
    run,
    skip_if_it_cannot_run,
    uniform,
    widened_expert,
    with_nan_experts,
)

# ---- Which experts are computed ----


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("form", FORMS)
def test_experts_without_a_token_are_never_read(name: str, form: str) -> None:
    inputs = problem([[3], [5]], form)
    got = run(name, with_nan_experts(inputs, 0, 1, 2, 4))
    assert_matches(inputs, got)


@pytest.mark.parametrize("name", DIRECT)
@pytest.mark.parametrize("tokens", [8, 9, 16])  # the smaller tile is full, and the larger one
def test_all_tokens_on_one_expert_are_rows_of_one_tile(name: str, tokens: int) -> None:
    inputs = problem([[4]] * tokens)
    assert_matches(inputs, run(name, with_nan_experts(inputs, 0, 1, 2, 3, 5)))


@pytest.mark.parametrize("name", SORTED)
@pytest.mark.parametrize(("form", "tokens"), [("bf16", 17), ("fp8", 18), ("int4", 40)])
def test_all_tokens_on_one_expert_are_several_blocks(name: str, form: str, tokens: int) -> None:
    inputs = problem([[2]] * tokens, form)
    assert_matches(inputs, run(name, with_nan_experts(inputs, 0, 1, 3, 4, 5)))


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    ("ids", "empty"),
    [
        pytest.param([[0, -1], [-1, 5]], [], id="one"),
        pytest.param([[0, 3], [-1, -1]], [1], id="a-row"),
        pytest.param([[-1, -1]] * 2, [0, 1], id="all"),
        pytest.param([[-7, 3], [6, 2**31 - 1], [1, -(2**31)]], [1], id="far-below-and-beyond"),
    ],
)
def test_ids_that_are_no_experts_add_nothing(name: str, ids: Any, empty: list[int]) -> None:
    inputs = problem(ids)
    got = run(name, inputs)
    assert_matches(inputs, got)
    assert (got[empty] == 0).all()
    assert got[[row for row in range(len(ids)) if row not in empty]].any(dim=-1).all()


@pytest.mark.parametrize("name", OWN)
def test_a_duplicate_in_a_row_counts_twice(name: str) -> None:
    inputs = problem([[3, 0, 3], [1, 5, 1]])
    got = run(name, inputs)
    assert_matches(inputs, got)
    once = {**inputs, "ids": inputs["ids"].clone()}
    once["ids"][:, 2] = -1
    assert error_of(got, once) > 0.05


@pytest.mark.parametrize("name", OWN)
def test_a_token_may_have_one_expert_in_all_places(name: str) -> None:
    inputs = problem([[3, 3, 3]])
    assert_matches(inputs, run(name, inputs))


@pytest.mark.parametrize("name", OWN)
def test_16_of_512_experts_a_token(name: str) -> None:
    inputs = problem([[511, 300] * 8], experts=512, sizes=(32, 32))
    assert_matches(inputs, run(name, inputs))


@pytest.mark.parametrize("name", OWN)
def test_rows_do_not_touch_one_another(name: str) -> None:
    inputs = problem([[0], [0], [3]])
    clean = run(name, inputs)
    inputs["x"][1] = math.nan
    got = run(name, inputs)
    assert got[1].isnan().all()
    assert torch.equal(got[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("tokens", [2, 18])
def test_a_shared_expert_adds_its_output_to_every_row(name: str, tokens: int) -> None:
    if name in DIRECT and tokens > 16:
        pytest.skip("more tokens than the direct path takes")
    # Its size is not that of the others, and the last token has no other.
    inputs = problem([[1]] * (tokens - 1) + [[-1]], shared=64)
    got = run(name, inputs)
    assert_matches(inputs, got)
    assert got[-1].any()
    alone = {key: value for key, value in inputs.items() if not key.startswith("shared")}
    assert not run(name, alone)[-1].any()


# ---- What the weights mean ----


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", ["whole", "several", "no"])
def test_each_format_agrees_with_float64_by_row(name: str, form: str, steps: str) -> None:
    # A step of the kernels is at most 512 columns of the first product, 128 of the second.
    several = (640, 256 if form == "fp8" else 160)
    sizes = {"whole": (512, 128), "several": several, "no": SIZES[form]}[steps]
    inputs = problem([[1]], form, experts=2, sizes=sizes)
    assert_matches(inputs, run(name, inputs))


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("form", ["fp8", "int4"])
def test_scales_that_vary_100_fold_from_group_to_group(name: str, form: str) -> None:
    inputs = problem([[3]], form, sizes=(256, 128))
    for key in ("gate_up_scales", "down_scales"):
        groups = inputs[key].shape[-1]
        factor = 100.0 ** (torch.arange(groups, device=DEVICE) % 2 - 1)
        inputs[key] = (inputs[key].float() * factor).to(inputs[key].dtype)
    got = run(name, inputs)
    assert_matches(inputs, got)
    permuted = {**inputs, "gate_up_scales": inputs["gate_up_scales"].roll(1, -1).contiguous()}
    assert error_of(got, permuted) > 10 * op.OP.tolerance.row


@pytest.mark.parametrize("name", OWN)
def test_nibbles_0_and_15_are_minus_8_and_7_even_columns_in_the_low_one(name: str) -> None:
    inputs = problem([[0], [0]], experts=1, sizes=(32, 32))
    inputs["gate_up"].fill_(0xF0)  # even columns -8, odd ones 7
    inputs["down"].fill_(0x0F)  # even ones 7, odd ones -8
    for key in ("gate_up_scales", "down_scales"):
        inputs[key].fill_(0.25)
    inputs["x"].zero_()
    inputs["x"][0, 4], inputs["x"][1, 5] = 1.0, 1.0
    inputs["weights"].fill_(1.0)
    got = run(name, inputs).float()
    for row, meant in enumerate((-8 * 0.25, 7 * 0.25)):
        gate = up = torch.tensor(meant)
        h = (gate * gate.sigmoid() * up).bfloat16().float()
        want = (16 * h * 7 + 16 * h * -8) * 0.25
        torch.testing.assert_close(got[row], want.expand(32), rtol=2**-8, atol=0.0)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_stored_in_another_order_fails_loudly(name: str, form: str) -> None:
    inputs = problem([[3]], form)
    swapped = dict(inputs)
    for key in ("gate_up", "gate_up_scales"):
        if inputs[key].numel():
            raw = inputs[key].view(torch.uint8)  # a view of whole elements, whatever they are
            swapped[key] = _formats.halves_swapped(raw).view(inputs[key].dtype)
    wrong = {"gate before up": swapped}
    if form == "int4":
        flipped = inputs["gate_up_scales"].flip(-1).contiguous()
        wrong["permuted groups"] = {**inputs, "gate_up_scales": flipped}
        wrong["signed nibbles"] = {**inputs, "gate_up": _formats.flipped(inputs["gate_up"])}
    for what, given in wrong.items():
        got = run(name, given)
        assert_matches(given, got)
        assert error_of(got, inputs) > 10 * op.OP.tolerance.row, what


@pytest.mark.parametrize("name", OWN)
def test_h_is_silu_of_gate_times_up_where_gate_is_large(name: str) -> None:
    # Beyond 88 the exponential of float32 is infinite: silu is gate there, and 0 at the other end.
    inputs = problem([[0], [0]], "bf16", experts=1)
    inputs["gate_up"][:, :32], inputs["gate_up"][:, 32:] = 1.0, 0.5
    inputs["x"].zero_()
    inputs["x"][0, 0], inputs["x"][1, 0] = 256.0, -256.0
    inputs["weights"].fill_(1.0)
    got = run(name, inputs).double()
    want = 256 * 128 * widened_expert(inputs, "down", 0).sum(-1)
    torch.testing.assert_close(got[0], want, rtol=2**-7, atol=50.0)
    assert (got[1] == 0).all()


# ---- Both paths, run after run ----


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("paths", [*zip(DIRECT, SORTED, strict=True)], ids=" ".join)
def test_direct_and_sorted_agree(paths: tuple[str, str], form: str) -> None:
    inputs = problem([[0, 3], [3, -1], [3, 3]], form)
    direct, ordered = (run(name, inputs).double() for name in paths)
    torch.testing.assert_close(ordered, direct, rtol=0.01, atol=0.01 * float(direct.std()))


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("form", ["bf16", "int4"])
def test_two_runs_give_the_same_bytes(name: str, form: str) -> None:
    inputs = problem([[3], [3]], form)
    assert torch.equal(run(name, inputs), run(name, inputs))


@pytest.mark.parametrize("name", OWN)
def test_ids_weights_and_tokens_that_change_between_calls_are_followed(name: str) -> None:
    skip_if_it_cannot_run(name)
    inputs = problem([[0, 3], [3, 5]])
    prepared = op.OP.implementations[name].prepare(inputs)
    with _execute.stand_ins():
        prepared.call()
    other = problem([[2, -1], [2, 4]], seed=1)
    for key in ("x", "ids", "weights"):
        inputs[key].copy_(other[key])
    with _execute.stand_ins():
        assert_matches(inputs, prepared.call()["y"])


# ---- What is refused ----


@pytest.mark.parametrize("name", OWN)
def test_a_hidden_size_that_the_format_cannot_hold_is_refused_with_the_reason(name: str) -> None:
    inputs = problem()
    inputs["x"] = torch.zeros(2, 100, dtype=torch.bfloat16, device=DEVICE)
    with pytest.raises(ValueError, match=r"int4 needs a hidden size that 32 divides, .*; got 100"):
        run(name, inputs)


@pytest.mark.parametrize("name", DIRECT)
def test_more_tokens_than_one_tile_of_rows_are_refused_by_the_direct_path(name: str) -> None:
    with pytest.raises(ValueError, match="17 tokens; the direct path takes 1 to 16"):
        run(name, problem([[0]] * 17))


@pytest.mark.parametrize("name", OWN)
def test_more_choices_or_experts_than_the_kernels_hold_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"top_k is 17; .* 1 to 16"):
        run(name, problem([list(range(17))], experts=17, sizes=(32, 32)))
    with pytest.raises(ValueError, match=r"513 experts; .* 1 to 512"):
        run(name, problem([[0]], experts=513, sizes=(32, 32)))


# ---- CUDA graphs ----


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="a CUDA graph needs an NVIDIA GPU")
@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("form", FORMS)
def test_a_replay_follows_ids_weights_and_tokens(name: str, form: str) -> None:
    from kernels._capture import capture
    from kernels._graph import poison

    def drawn(ids: torch.Tensor, seed: int = 0) -> dict[str, Any]:
        return problem(ids, form, experts=32, sizes=(1024, 256), seed=seed)

    inputs = drawn(uniform(8, 4, experts=32))
    captured = capture(op.OP.implementations[name].prepare(inputs).call)
    for ids in (torch.full((8, 4), 7), torch.full((8, 4), -1), uniform(8, 4, experts=32, seed=1)):
        other = drawn(ids.int(), seed=1)
        for key in ("x", "ids", "weights"):
            inputs[key].copy_(other[key])
        poison(captured.outputs)
        captured.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured.outputs["y"], run(name, inputs))
        assert_matches(inputs, captured.outputs["y"])
