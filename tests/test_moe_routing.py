"""Routing of logits to experts, on every implementation that runs here."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import Case, Outputs, _execute
from kernels._check import compare
from kernels.moe import moe_routing as op
from kernels.moe import moe_routing_cupy as _cupy  # noqa: F401  # adds an implementation
from kernels.moe import moe_routing_triton as _triton  # noqa: F401  # adds an implementation
from kernels.moe._routing_cases import routings
from tests import op_runs
from verifyscope.models import TABLE

ALL = ("torch", "triton", "cupy")
OWN = ("triton", "cupy")
DEVICE = _execute.device()
EXACT = dataclasses.replace(op.OP.tolerance, row=1e-5)
INFINITY, NAN = math.inf, math.nan


def run(name: str, logits: Any, **rest: Any) -> Outputs:
    """Run on these logits; the outputs' memory is poisoned before."""
    inputs = {"renormalise": True, **given_as_tensors(logits=logits, **rest)}
    return op_runs.run(op.OP, name, inputs)


def given_as_tensors(**inputs: Any) -> dict[str, Any]:
    """Make float32 tensors of lists, on the device of these tests."""
    return {
        name: torch.as_tensor(one, dtype=None if isinstance(one, torch.Tensor) else torch.float32)
        .to(DEVICE)
        .contiguous()
        if name in ("logits", "bias") and one is not None
        else one
        for name, one in inputs.items()
    }


def problems(got: Outputs, **inputs: Any) -> dict[str, str]:
    """Hold to the reference, weights to 1e-5 of a row."""
    want = op.reference(**{"renormalise": True, **given_as_tensors(**inputs)})
    return {
        one.output: one.problem for one in compare(got, want, tolerance=EXACT) if not one.passed
    }


def drawn(rows: int, experts: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    return torch.randn(rows, experts, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_hand(
    logits: Sequence[float], bias: Sequence[float], *, top_k: int, groups: int, top_groups: int
) -> list[int]:
    """Choose experts of one row as the text says, in plain Python."""
    key = [1 / (1 + math.exp(-x)) + b for x, b in zip(logits, bias, strict=True)]
    each = len(key) // groups
    parts = [range(g * each, (g + 1) * each) for g in range(groups)]
    score = [sum(sorted((key[e] for e in part), reverse=True)[:2]) for part in parts]
    best = sorted(range(groups), key=lambda g: (-score[g], g))[:top_groups]
    left = [e for g in best for e in parts[g]]
    return sorted(left, key=lambda e: (-key[e], e))[:top_k]


# What is computed.


@pytest.mark.parametrize("name", ALL)
def test_sigmoid_by_hand(name: str) -> None:
    """Scores 0.5, 0.75, 0.9, 0.2; the bias brings 3 to the top, and has no part in the weights."""
    logits = [[0.0, math.log(3), math.log(9), -math.log(4)]]
    got = run(name, logits, bias=[0.0, 0.0, 0.0, 1.0], top_k=3, scaling=2.0)
    assert got["ids"].tolist() == [[3, 2, 1]]
    assert got["weights"][0].tolist() == pytest.approx([0.4 / 1.85, 1.8 / 1.85, 1.5 / 1.85])
    raw = run(name, logits, bias=[0.0, 0.0, 0.0, 1.0], top_k=3, scaling=2.0, renormalise=False)
    assert raw["weights"][0].tolist() == pytest.approx([0.4, 1.8, 1.5])
    assert got["ids"].dtype == torch.int32
    assert got["weights"].dtype == torch.float32


@pytest.mark.parametrize("name", ALL)
def test_softmax_by_hand(name: str) -> None:
    """Probabilities 0.1, 0.4, 0.2, 0.3: without renormalisation they are the weights."""
    logits = [[math.log(p) + 5 for p in (0.1, 0.4, 0.2, 0.3)]]
    raw = run(name, logits, top_k=2, renormalise=False)
    assert raw["ids"].tolist() == [[1, 3]]
    assert raw["weights"][0].tolist() == pytest.approx([0.4, 0.3])
    assert run(name, logits, top_k=2)["weights"][0].tolist() == pytest.approx([4 / 7, 3 / 7])
    assert run(name, logits, top_k=2, scaling=0.5)["weights"].sum() == pytest.approx(0.5)


@pytest.mark.parametrize("name", ALL)
def test_a_group_is_chosen_by_its_two_best_keys_and_not_by_its_best(name: str) -> None:
    """The best expert of all is in a group of which no other is good."""
    logits = [[3.0, -9, -9, 1, 1, -9, 1.1, 0.95, -9]]
    got = run(name, logits, bias=[0.0] * 9, top_k=4, groups=3, top_groups=2)
    assert got["ids"].tolist() == [[6, 3, 4, 7]]
    assert 0 in run(name, logits, bias=[0.0] * 9, top_k=4)["ids"]


@pytest.mark.parametrize("name", ALL)
def test_groups_are_those_of_plain_python(name: str) -> None:
    logits, bias = drawn(6, 36), drawn(1, 36, seed=1)[0] / 10
    got = run(name, logits, bias=bias, top_k=5, groups=4, top_groups=2)
    want = [by_hand(row, bias.tolist(), top_k=5, groups=4, top_groups=2) for row in logits.tolist()]
    assert got["ids"].tolist() == want
    assert want != [by_hand(row, bias.tolist(), top_k=5, groups=1, top_groups=1) for row in logits]


def test_the_reference_is_kimis_routing() -> None:
    """Sigmoid and argsort in NumPy, as modeling_deepseek.py has it with one group."""
    case = next(case for case in op.OP.cases if case.name == "t16-kimi-k2-fp32")
    inputs = op.inputs(case, torch.device("cpu"))
    found = op.reference(**inputs)
    scores = 1 / (1 + np.exp(-np.asarray(inputs["logits"], dtype=np.float64)))
    ids = np.argsort(-(scores + np.asarray(inputs["bias"])), axis=1, kind="stable")[:, :8]
    chosen = np.take_along_axis(scores, ids, axis=1)
    assert (found["ids"].numpy() == ids).all()
    want = chosen / chosen.sum(1, keepdims=True) * 2.827
    assert found["weights"].numpy() == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    "case", [case for case in op.OP.cases if case.tiny], ids=lambda case: case.name
)
def test_our_weights_are_those_of_float32(name: str, case: Case) -> None:
    """The op's tolerance leaves room for the bfloat16 of a baseline; ours need none of it."""
    inputs = op.inputs(case, DEVICE)
    assert problems(run(name, **inputs), **inputs) == {}


@pytest.mark.parametrize("name", OWN)
def test_two_runs_give_the_same_bytes(name: str) -> None:
    inputs = {"logits": drawn(3, 64), "top_k": 6, "bias": drawn(1, 64, seed=5)[0]}
    one, other = run(name, **inputs), run(name, **inputs)
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", OWN)
def test_a_second_call_follows_other_logits(name: str) -> None:
    logits = drawn(2, 40).to(DEVICE)
    prepared = op.OP.implementations[name].prepare(
        {"logits": logits, "top_k": 4, "renormalise": True}
    )
    with _execute.stand_ins():
        prepared.call()
        logits.copy_(-logits)
        got = prepared.call()
    assert problems(got, logits=logits, top_k=4) == {}
    assert prepared.launches == 1


# Ties.


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("sigmoid", [True, False], ids=["sigmoid", "softmax"])
def test_of_384_equal_keys_the_lowest_ids_are_chosen(name: str, *, sigmoid: bool) -> None:
    logits = torch.full((2, 384), 0.25, dtype=torch.bfloat16)
    logits[1, [7, 200, 383]] = 0.5
    bias = torch.full((384,), 0.125) if sigmoid else None
    got = run(name, logits, bias=bias, top_k=8)
    assert got["ids"].tolist() == [[*range(8)], [7, 200, 383, 0, 1, 2, 3, 4]]
    assert got["weights"][0].tolist() == pytest.approx([1 / 8] * 8)


@pytest.mark.parametrize("name", ALL)
def test_the_two_zeros_are_equal(name: str) -> None:
    got = run(name, [[-1.0, -0.0, 0.0, -0.0, 0.0]], top_k=3)
    assert got["ids"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("name", ALL)
def test_of_equal_groups_the_lower_is_chosen(name: str) -> None:
    logits = torch.zeros(1, 36)
    logits[0, 35] = 1.0  # the last of four groups is the best one
    got = run(name, logits, bias=torch.zeros(36), top_k=5, groups=4, top_groups=2)
    assert got["ids"].tolist() == [[35, 0, 1, 2, 3]]


def test_cases_of_ties_have_them_where_it_matters() -> None:
    for case in (case for case in op.OP.cases if case.dims["drawn"] == "ties"):
        inputs: Any = op.inputs(case, torch.device("cpu"))
        found = op.reference(**inputs)
        # Backwards, the experts are others: the rule for ties decides.
        flipped = {
            key: one.flip(-1) if key in ("logits", "bias") else one for key, one in inputs.items()
        }
        other = case.number("experts") - 1 - op.reference(**{**inputs, **flipped})["ids"]
        assert not torch.equal(found["ids"].sort().values, other.sort().values), case.name


# Numbers that are none.


@pytest.mark.parametrize("name", ALL)
def test_an_expert_with_a_bias_of_minus_infinity_is_not_chosen_while_others_are_left(
    name: str,
) -> None:
    """vllm-omni#7175: such experts came twice in a row."""
    bias = torch.full((8,), -INFINITY)
    bias[[1, 4, 6]] = 0.0
    logits = torch.tensor([[9.0, 1, 9, 9, 2, 9, 3, 9]])
    assert run(name, logits, bias=bias, top_k=3)["ids"].tolist() == [[6, 4, 1]]
    short = run(name, logits, bias=bias, top_k=5)
    assert short["ids"].tolist() == [[6, 4, 1, 0, 2]]
    assert short["weights"][0, 3:].tolist() == [0, 0]
    assert short["weights"][0].sum() == pytest.approx(1)


@pytest.mark.parametrize("name", ALL)
def test_a_group_of_excluded_experts_is_behind_one_that_has_another(name: str) -> None:
    bias = torch.full((36,), -INFINITY)
    bias[[20, 30]] = 0.0  # one each in the last two of four groups
    got = run(name, torch.zeros(1, 36), bias=bias, top_k=3, groups=4, top_groups=2)
    assert got["ids"].tolist() == [[20, 30, 18]]
    assert got["weights"][0].tolist() == pytest.approx([0.5, 0.5, 0])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("sigmoid", [True, False], ids=["sigmoid", "softmax"])
def test_an_expert_whose_logit_is_nan_is_excluded(name: str, *, sigmoid: bool) -> None:
    logits = [[NAN, 1.0, NAN, 2.0], [NAN] * 4]
    got = run(name, logits, bias=[0.0] * 4 if sigmoid else None, top_k=3)
    assert got["ids"].tolist() == [[3, 1, 0], [0, 1, 2]]
    assert (got["weights"][0] > 0).tolist() == [True, True, False]
    assert got["weights"][1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ALL)
def test_an_expert_whose_bias_is_nan_is_excluded(name: str) -> None:
    got = run(name, [[5.0, 1, 2, 3]], bias=[NAN, 0, 0, 0], top_k=4)
    assert got["ids"].tolist() == [[3, 2, 1, 0]]
    assert got["weights"][0, 3] == 0


@pytest.mark.parametrize("name", ALL)
def test_a_logit_of_minus_infinity_is_a_score_of_0(name: str) -> None:
    """Sigmoid: the bias may still choose it. Softmax: a probability of 0, and excluded."""
    logits = [[-INFINITY, 0.0, 1.0, -INFINITY]]
    got = run(name, logits, bias=[2.0, 0, 0, 0], top_k=4)
    assert got["ids"].tolist() == [[0, 2, 1, 3]]
    assert got["weights"][0, [0, 3]].tolist() == [0, 0]
    got = run(name, logits, top_k=4, renormalise=False)
    assert got["ids"].tolist() == [[2, 1, 0, 3]]
    assert got["weights"][0].tolist() == pytest.approx(
        [math.e / (1 + math.e), 1 / (1 + math.e), 0, 0]
    )


@pytest.mark.parametrize("name", ALL)
def test_logits_of_infinity_share_the_weight(name: str) -> None:
    logits = [[INFINITY, 0.0, INFINITY, 1.0]]
    got = run(name, logits, top_k=3)
    assert got["ids"].tolist() == [[0, 2, 3]]
    assert got["weights"][0].tolist() == pytest.approx([0.5, 0.5, 0])
    got = run(name, logits, bias=[0.0] * 4, top_k=3)
    assert got["weights"][0].tolist() == pytest.approx(
        [w / (2 + 1 / (1 + math.exp(-1))) for w in (1, 1, 1 / (1 + math.exp(-1)))]
    )


@pytest.mark.parametrize("name", ALL)
def test_logits_of_hundreds_overflow_nothing(name: str) -> None:
    logits = [[-300.0, 300, -200, 200]]
    got = run(name, logits, bias=[0.0] * 4, top_k=4)
    assert got["ids"].tolist() == [[1, 3, 0, 2]]
    assert got["weights"][0].tolist() == pytest.approx([0.5, 0.5, 0, 0])
    got = run(name, logits, top_k=2, renormalise=False)
    assert got["weights"][0].tolist() == pytest.approx([1, 0])


@pytest.mark.parametrize("name", ALL)
def test_scores_that_are_all_0_are_not_divided_by_0(name: str) -> None:
    got = run(name, [[-INFINITY] * 4], bias=[0.0, 1, 0, 0], top_k=2)
    assert got["ids"].tolist() == [[1, 0]]
    assert got["weights"][0].tolist() == [0, 0]


_ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=20, deadline=None)
@given(
    rows=st.lists(st.lists(_ANY, min_size=12, max_size=12), min_size=1, max_size=3),
    bias=st.none() | st.lists(_ANY, min_size=12, max_size=12),
    top_k=st.integers(1, 6),
    groups=st.sampled_from([(1, 1), (3, 2), (6, 3)]),
    renormalise=st.booleans(),
)
@pytest.mark.parametrize("name", ALL)
def test_whatever_the_numbers_no_id_is_out_of_range_or_twice_in_a_row(
    name: str,
    rows: list[list[float]],
    bias: list[float] | None,
    top_k: int,
    groups: tuple[int, int],
    *,
    renormalise: bool,
) -> None:
    more = {} if bias is None else {"groups": groups[0], "top_groups": groups[1]}
    got = run(name, rows, bias=bias, top_k=top_k, renormalise=renormalise, **more)
    for ids in got["ids"].tolist():
        assert len(set(ids)) == top_k
        assert set(ids) <= set(range(12))
    assert (got["weights"] >= 0).all()
    assert (got["weights"] <= 1 + 1e-5).all()


# Any shape.


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 3),
    each=st.integers(2, 16),
    groups=st.integers(1, 8),
    data=st.data(),
    softmax=st.booleans(),
    renormalise=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("name", ALL)
def test_any_shape_matches_the_reference(
    name: str,
    rows: int,
    each: int,
    groups: int,
    data: st.DataObject,
    *,
    softmax: bool,
    renormalise: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    experts, groups = each * groups, 1 if softmax else groups
    top_groups = data.draw(st.integers(1, groups))
    top_k = data.draw(st.integers(1, min(16, experts * top_groups // groups)))
    point = Case(
        name="point",
        dims={
            "rows": rows,
            "experts": experts,
            "top_k": top_k,
            "groups": groups,
            "top_groups": top_groups,
            "scoring": "softmax" if softmax else "sigmoid",
            "renormalise": "yes" if renormalise else "no",
            "scaling": 1.5,
            "drawn": data.draw(st.sampled_from(["normal", "ties"])),
        },
        dtype=dtype,
        seed=seed,
    )
    inputs = op.inputs(point, DEVICE)
    assert problems(run(name, **inputs), **inputs) == {}


@pytest.mark.parametrize("name", OWN)
def test_keys_that_nearly_tie_give_another_expert_of_the_same_key_at_most(name: str) -> None:
    """What is drawn for cases has no such keys; here float32 cannot tell some of them apart."""
    logits = 1 + drawn(8, 128) * 1e-6
    inputs = {"logits": logits, "bias": torch.zeros(128), "top_k": 8}
    got, want = run(name, **inputs), op.reference(**inputs, renormalise=True)
    key = logits.double().sigmoid()
    near = key.gather(1, got["ids"].cpu().long()) - key.gather(1, want["ids"].long())
    assert near.abs().max() < 3e-7
    assert got["weights"].cpu() == pytest.approx(torch.full((8, 8), 1 / 8), rel=1e-5)


# Cases, cost, and what does not fit.


def test_every_model_with_experts_is_measured_with_its_routing() -> None:
    measured = [case.dims for case in op.OP.cases if not case.tiny]
    for model in TABLE.values():
        if (moe := model.moe) is None:
            continue
        sizes = {
            "experts": moe.experts,
            "top_k": moe.top_k,
            "groups": moe.groups,
            "top_groups": moe.top_groups,
            "scoring": moe.scoring,
            "renormalise": "yes" if moe.norm_top_k else "no",
            "scaling": moe.routed_scaling,
        }
        assert any(sizes.items() <= dims.items() for dims in measured), model.name
    assert [*routings()] == ["kimi-k2", "deepseek-v3", "qwen3-235b-a22b"]
    gated = {str(case.dims["model"]) for case in op.OP.gate_cases}
    assert gated == {*routings()}


def test_one_token_stands_beside_every_other_number_of_tokens() -> None:
    def rest(case: Case) -> tuple[object, ...]:
        dims = {name: dim for name, dim in case.dims.items() if name != "rows"}
        return (*dims.items(), case.dtype)

    measured = [case for case in op.OP.cases if not case.tiny]
    single = {rest(case) for case in measured if case.dims["rows"] == 1}
    assert [case.name for case in measured if rest(case) not in single] == []


def test_no_choice_of_a_measured_case_hangs_on_rounding() -> None:
    for case in (case for case in op.OP.cases if case.dims["drawn"] == "normal"):
        inputs: Any = op.inputs(case, torch.device("cpu"))
        want = op.reference(**inputs)["ids"]
        coarse = dict(inputs)
        if "bias" in inputs:
            # As far as float32 is off, and ten times more.
            coarse["bias"] = inputs["bias"] + drawn(1, len(inputs["bias"]))[0].sign() * 4e-6
        assert torch.equal(op.reference(**coarse)["ids"], want), case.name


def test_cost_is_a_pass_over_the_logits() -> None:
    found = op.cost(
        {
            "logits": torch.zeros(4, 384),
            "bias": torch.zeros(384),
            "top_k": 8,
            "renormalise": True,
        }
    )
    assert found.read_bytes == 4 * 384 * 4 + 384 * 4
    assert found.written_bytes == 4 * 8 * (4 + 4)
    assert found.flops == 5 * 4 * 384


def test_the_tolerance_takes_bfloat16_weights_and_no_other_order() -> None:
    case = op.OP.cases[0]
    want = op.reference(**op.inputs(case, torch.device("cpu")))
    rounded = {**want, "weights": want["weights"].bfloat16().float()}
    assert all(one.passed for one in compare(rounded, want, tolerance=op.OP.tolerance))
    assert not torch.equal(rounded["weights"].double(), want["weights"])
    turned = {key: one.flip(1) for key, one in want.items()}
    assert not any(one.passed for one in compare(turned, want, tolerance=op.OP.tolerance))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"logits": torch.zeros(2, 12).half()}, r"torch\.float16 of \(2, 12\)"),
        ({"logits": torch.zeros(12)}, r"\[tokens, experts\]"),
        ({"logits": torch.zeros(12, 2).T}, "contiguous"),
        ({"logits": torch.zeros(0, 12)}, "at least one token"),
        ({"logits": torch.zeros(2, 513)}, "1 to 512 experts"),
        ({"bias": torch.zeros(11)}, r"bias is torch\.float32 of \(11,\).*\[12\]"),
        ({"bias": torch.zeros(12).bfloat16()}, r"bias is torch\.bfloat16"),
        ({"bias": None}, "only sigmoid scores have groups"),
        ({"groups": 5}, "5 groups of 12 experts"),
        ({"groups": 12, "top_groups": 12}, "a group needs two best keys"),
        ({"top_groups": 4}, "top_groups is 4; give 1 to 3"),
        ({"top_groups": 0}, "top_groups is 0"),
        ({"top_k": 9}, "top_k is 9; give 1 to 8"),
        ({"top_k": 0}, "top_k is 0"),
    ],
)
@pytest.mark.parametrize("name", ALL)
def test_what_does_not_fit_is_named(name: str, changed: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "logits": torch.zeros(2, 12),
        "bias": torch.zeros(12),
        "top_k": 4,
        "groups": 3,
        "top_groups": 2,
        "renormalise": True,
    }
    with pytest.raises(ValueError, match=message):
        op.OP.implementations[name].run({**good, **changed})
