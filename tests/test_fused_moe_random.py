"""Random ids, weights, sizes and formats: all implementations and the float64 reference agree."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.moe._formats import FORMATS
from tests.fused_moe_problems import DIRECT, FORMS, OWN, assert_matches, problem, run


@st.composite
def problems(
    draw: st.DrawFn, *, most_tokens: int, most_top_k: int, most_experts: int, most_multiples: int
) -> dict[str, Any]:
    """Draw ids that may repeat in a row or be no expert's, and sizes that the format holds."""
    form = draw(st.sampled_from(FORMS))
    experts = draw(st.integers(1, most_experts))
    tokens, top_k = draw(st.integers(1, most_tokens)), draw(st.integers(1, most_top_k))
    one = st.integers(-1, experts)
    ids = draw(
        st.lists(st.lists(one, min_size=top_k, max_size=top_k), min_size=tokens, max_size=tokens)
    )
    multiple, times = FORMATS[form].multiple, st.integers(1, most_multiples)
    return problem(
        torch.tensor(ids, dtype=torch.int32),
        form,
        experts=experts,
        sizes=(multiple * draw(times), multiple * draw(times)),
        shared=32 * draw(st.integers(0, 2)),
        seed=draw(st.integers(0, 2**16)),
    )


@settings(max_examples=4, deadline=None, derandomize=True, database=None)
@given(problems(most_tokens=3, most_top_k=2, most_experts=3, most_multiples=1))
def test_random_problems_have_one_solution(inputs: dict[str, Any]) -> None:
    for name in OWN:
        assert_matches(inputs, run(name, inputs))


@settings(max_examples=2, deadline=None, derandomize=True, database=None)
@given(problems(most_tokens=24, most_top_k=1, most_experts=2, most_multiples=1))
def test_random_problems_of_more_tokens_have_one_solution(inputs: dict[str, Any]) -> None:
    for name in OWN:
        if name not in DIRECT or len(inputs["x"]) <= 16:
            assert_matches(inputs, run(name, inputs))


@pytest.mark.long
@pytest.mark.parametrize("name", OWN)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_many_random_problems_have_one_solution(name: str, data: st.DataObject) -> None:
    most = 16 if name in DIRECT else 40
    inputs = data.draw(problems(most_tokens=most, most_top_k=5, most_experts=12, most_multiples=6))
    assert_matches(inputs, run(name, inputs))
