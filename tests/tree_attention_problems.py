"""Small problems of tree attention, and how each implementation that can run here solves them.

Without a GPU Triton's kernels run in its interpreter and CUDA C++ on the CPU (tests/conftest.py).
"""

from collections.abc import Sequence
from typing import Any

import torch

from kernels import Inputs, Outputs, _execute, _trees
from kernels._check import compare, poisoned
from kernels.attention import _tree_attention_plan as plans
from kernels.attention import tree_attention as op
from kernels.attention import tree_attention_cupy as in_cupy
from kernels.attention import tree_attention_cupy_fma as in_cupy_fma
from kernels.attention import tree_attention_sdpa as _sdpa  # noqa: F401  # adds an implementation
from kernels.attention import tree_attention_triton as in_triton
from kernels.attention._split_plan import Plan
from tests import op_runs

OWN = ("triton", "cupy")
ALL = ("torch", "sdpa", *OWN)
OTHER_FORMS = ("triton_decode", "triton_extend", "cupy_decode", "cupy_extend")
FEW_ROWS = "cupy_fma"  # refuses cases of more than 8 rows, and computes them in several tiles
DEVICE = _execute.device()


def problem(
    lengths: Sequence[int] = (11,),
    words: Sequence[Sequence[int]] | None = None,
    *,
    tree: str = "eagle4",
    tokens: int = 4,
    heads: tuple[int, int] = (2, 1),
    page_size: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
) -> dict[str, Any]:
    """Draw a small problem: by default one request, two heads of 16 dims, pages of 4."""
    if words is None:
        words = [_trees.mask_words(_trees.tree(tree, tokens))] * len(lengths)
    return dict(
        op.draw(
            lengths=lengths,
            words=words,
            page_size=page_size,
            heads=heads,
            head_dim=16,
            dtype=dtype,
            cache_dtype=cache_dtype,
            seed=seed,
            device=DEVICE,
        )
    )


def run(name: str, inputs: Inputs) -> Outputs:
    """Run on `inputs`; the outputs' memory is NaN before."""
    return op_runs.run(op.OP, name, inputs)


def skip_if_it_cannot_run(name: str) -> None:
    """Skip the test, with the reason, where nothing here can execute `name`."""
    op_runs.skip_if_it_cannot_run(op.OP, name)


def assert_matches(name: str, inputs: Inputs, got: Outputs | None = None) -> None:
    """Hold what `name` computes to the reference, within the op's tolerance."""
    got = run(name, inputs) if got is None else got
    omitted = op.OP.implementations[name].omits
    assert op_runs.problems(op.OP, got, inputs, omits=omitted) == {}


def wrong(got: Outputs, want: Outputs) -> dict[str, str]:
    """Return what is beyond the op's tolerance, by output."""
    errors = compare(got, want, tolerance=op.OP.tolerance)
    return {one.output: one.problem for one in errors if not one.passed}


def with_split(name: str, inputs: dict[str, Any], *, count: int) -> Outputs:
    """Run one of our own with this number of parts, each of at least one key."""
    skip_if_it_cannot_run(name)
    given = op.Given(**inputs)
    shape = given.shape
    form = shape.form(op.OP.implementations[name].mode or "verify")
    if name == FEW_ROWS:
        attend = in_cupy_fma.attend
        tile = in_cupy_fma.tile_for(shape, cache_bytes=given.k_cache.element_size())
    elif name.startswith("triton"):
        attend = in_triton.attend
        tile = plans.tile_for("triton", rows=form.rows, head_dim=shape.head_dim)
    else:
        attend = in_cupy.attend
        tile = plans.tile_for("cuda", rows=form.rows, head_dim=shape.head_dim)
    with poisoned():
        plan = Plan(form=form, tile=tile, splits=count, least_keys=1, key_heads=shape.kv_heads)
        return attend(given, plan)


def gathered(inputs: Inputs, name: str = "v_cache") -> torch.Tensor:
    """Return keys or values of request 0, in the order of its keys: [keys, kv_heads, head_dim]."""
    table, cache = inputs["page_table"], inputs[name]
    lengths, tokens = inputs["prefix_lens"], inputs["draft_tokens"]
    assert isinstance(table, torch.Tensor)
    assert isinstance(cache, torch.Tensor)
    assert isinstance(lengths, torch.Tensor)
    assert isinstance(tokens, int)
    key = torch.arange(int(lengths[0]) + tokens, device=cache.device)
    return cache[table[0].long()[key // cache.shape[1]], key % cache.shape[1]].float()
