"""Latent attention on drawn trees, lengths, pages and parts: kernels against float64.

Triton runs in its interpreter and CUDA C++ on the CPU where there is no GPU.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import Outputs, _execute, _trees
from kernels import mla_verify as op
from kernels import mla_verify_cupy as in_cupy
from kernels import mla_verify_triton as in_triton
from kernels._check import compare, poisoned
from kernels._forms import FORMS
from kernels._mla_verify_tiles import Plan, tile_for
from kernels._paged import FP8
from verifyscope.records import Mode

DEVICE = _execute.device()
DIMS = (32, 32)


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
        drawn = op.draw(
            lengths=self.lengths,
            words=[_trees.mask_words(one) for one in self.parents],
            page_size=self.page_size,
            heads=self.heads,
            dims=DIMS,
            dtype=self.dtype,
            cache_dtype=self.cache_dtype,
            device=DEVICE,
        )
        return dict(drawn)


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


def in_triton_of(drawn: Drawn, given_: op.Given) -> Outputs:
    form, width = given_.shape.form(drawn.mode), given_.ckv_cache.element_size()
    tile = tile_for(rows=form.rows, element_bytes=width, capability=120)
    return in_triton.attend(given_, Plan(form=form, tile=tile, splits=drawn.parts, least_keys=1))


def in_cupy_of(drawn: Drawn, given_: op.Given) -> Outputs:
    tile = in_cupy.tile_for(16, dims=sum(DIMS), capability=120)
    plan = in_cupy.Plan(tile=tile, splits=drawn.parts, least_keys=1)
    return in_cupy.attend(given_, form=given_.shape.form(drawn.mode), plan=plan)


def assert_both_match(drawn: Drawn) -> None:
    inputs = drawn.inputs()
    want = op.reference(**inputs)
    point = next(case for case in op.OP.cases if case.tiny)
    for name, attend in (("triton", in_triton_of), ("cupy", in_cupy_of)):
        implementation = op.OP.implementations[name]
        if _execute.way(implementation, point, device=DEVICE).executed is None:
            continue
        with poisoned():
            got = attend(drawn, op.Given(**inputs))
        errors = compare(got, want, tolerance=op.OP.tolerance)
        assert {f"{name} {one.output}": one.problem for one in errors if not one.passed} == {}


@settings(max_examples=8, deadline=None, derandomize=True)
@given(problems(tokens=4, keys=24, pages=(4, 16), dtypes=1))
def test_random_trees_lengths_pages_and_parts_match_float64(drawn: Drawn) -> None:
    assert_both_match(drawn)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(problems(tokens=32, keys=300, pages=(1, 3, 4, 16, 64), dtypes=2))
def test_many_random_problems_of_every_dtype_match_float64(drawn: Drawn) -> None:
    assert_both_match(drawn)
