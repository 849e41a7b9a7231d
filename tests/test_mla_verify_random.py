"""Latent attention on drawn trees, lengths, pages and parts: kernels against float64.

Triton runs in its interpreter and CUDA C++ on the CPU where there is no GPU.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import _trees
from kernels.attention._forms import FORMS
from kernels.attention._paged import FP8
from tests.mla_verify_problems import DIMS, OWN, assert_matches, problem, with_split
from verifyscope.records import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A problem, and the form and number of parts in which it is computed."""

    lengths: list[int]
    parents: list[list[int]]
    heads: int
    page_size: int
    cache_dtype: torch.dtype
    dtype: torch.dtype
    mode: Mode
    parts: int

    def inputs(self) -> dict[str, Any]:
        """Draw its tensors."""
        return problem(
            self.lengths,
            [_trees.mask_words(one) for one in self.parents],
            heads=self.heads,
            page_size=self.page_size,
            dims=(32, 32) if self.cache_dtype == FP8 else DIMS,
            dtype=self.dtype,
            cache_dtype=self.cache_dtype,
        )


@st.composite
def problems(
    draw: st.DrawFn, *, tokens: int, keys: int, pages: tuple[int, ...], dtypes: int
) -> Drawn:
    """Draw 1 or 2 requests; `tokens`, `keys` and `pages` bound them."""
    requests, count = draw(st.integers(1, 2)), draw(st.integers(1, tokens))
    tree = st.tuples(*(st.integers(0, node - 1) for node in range(1, count)))
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float16][:dtypes]))
    return Drawn(
        lengths=draw(st.lists(st.integers(0, keys), min_size=requests, max_size=requests)),
        parents=[[-1, *draw(tree)] for _ in range(requests)],
        heads=draw(st.integers(1, 3)),
        page_size=draw(st.sampled_from(pages)),
        cache_dtype=draw(st.sampled_from([dtype, FP8][:dtypes])),
        dtype=dtype,
        mode=draw(st.sampled_from(FORMS)),
        parts=draw(st.integers(1, 4)),
    )


def assert_all_match(drawn: Drawn) -> None:
    inputs = drawn.inputs()
    suffix = "" if drawn.mode == "verify" else f"_{drawn.mode}"
    for name in OWN:
        assert_matches(name, inputs, with_split(name + suffix, inputs, count=drawn.parts))


@settings(max_examples=6, deadline=None, derandomize=True)
@given(problems(tokens=4, keys=24, pages=(4, 16), dtypes=1))
def test_random_trees_lengths_pages_and_parts_match_float64(drawn: Drawn) -> None:
    assert_all_match(drawn)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(problems(tokens=32, keys=300, pages=(1, 3, 4, 16, 64), dtypes=2))
def test_many_random_problems_of_every_dtype_match_float64(drawn: Drawn) -> None:
    assert_all_match(drawn)
