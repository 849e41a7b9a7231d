"""Random trees, lengths, pages and parts: Triton, CUDA C++ and the float64 reference agree."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import _trees
from kernels.attention._paged import FP8
from tests.tree_attention_problems import (
    FEW_ROWS,
    OTHER_FORMS,
    OWN,
    assert_matches,
    problem,
    run,
    with_split,
)

_HEADS = ((1, 1), (2, 1), (3, 1), (5, 1), (6, 2), (4, 4))


@st.composite
def trees(draw: st.DrawFn, *, tokens: int) -> list[int]:
    """Draw the parents of any tree."""
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, tokens))]


@st.composite
def problems(draw: st.DrawFn, *, most_tokens: int, pages: tuple[int, ...]) -> dict[str, Any]:
    """Draw requests of different lengths, each with its own tree."""
    tokens = draw(st.integers(1, most_tokens))
    lengths = draw(st.lists(st.integers(0, 150), min_size=1, max_size=2))
    return problem(
        lengths,
        [_trees.mask_words(draw(trees(tokens=tokens))) for _ in lengths],
        heads=draw(st.sampled_from(_HEADS)),
        page_size=draw(st.sampled_from(pages)),
        dtype=draw(st.sampled_from([torch.bfloat16, torch.float16])),
        cache_dtype=draw(st.sampled_from([None, FP8])),
        seed=draw(st.integers(0, 2**16)),
    )


def check(name: str, inputs: dict[str, Any], parts: int | None) -> None:
    got = run(name, inputs) if parts is None else with_split(name, inputs, count=parts)
    assert_matches(name, inputs, got)


# Each page size, dtype and tile is a kernel of its own to compile: few of them here.
@settings(max_examples=4, deadline=None, derandomize=True, database=None)
@given(problems(most_tokens=6, pages=(16,)), st.sampled_from([2, 5]))
def test_random_problems_have_one_solution(inputs: dict[str, Any], parts: int) -> None:
    for name in OWN:
        check(name, inputs, parts)


@pytest.mark.long
@pytest.mark.parametrize("name", [*OWN, FEW_ROWS, *OTHER_FORMS])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_many_random_problems_have_one_solution(name: str, data: st.DataObject) -> None:
    inputs = data.draw(problems(most_tokens=32, pages=(1, 4, 16, 64)))
    parts = None if name.endswith("extend") else data.draw(st.none() | st.integers(1, 9))
    check(name, inputs, parts)
