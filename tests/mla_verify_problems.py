"""Small problems of latent attention, and how each implementation that can run here solves them.

Without a GPU Triton's kernels run in its interpreter and CUDA C++ on the CPU (tests/conftest.py).
"""

from collections.abc import Sequence
from typing import Any

import torch

from kernels import Inputs, Outputs, _execute, _trees, all_ops
from kernels._check import poisoned
from kernels._target import capability
from kernels.attention import mla_verify as op
from kernels.attention import mla_verify_cupy as in_cupy
from kernels.attention import mla_verify_triton as in_triton
from kernels.attention._mla_verify_tiles import tile_for
from kernels.attention._split_plan import Plan
from tests import op_runs

all_ops()  # adds the implementations of every file
OWN = ("triton", "cupy")
ALL = ("torch", "sdpa", *OWN)
OTHER_FORMS = ("triton_decode", "triton_extend", "cupy_decode", "cupy_extend")
DEVICE = _execute.device()
DIMS = (32, 16)


def problem(
    lengths: Sequence[int] = (11,),
    words: Sequence[Sequence[int]] | None = None,
    *,
    tree: str = "eagle4",
    tokens: int = 4,
    heads: int = 2,
    page_size: int = 4,
    dims: tuple[int, int] = DIMS,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Draw a small problem: by default one request, two heads, dims of 32 + 16, pages of 4."""
    if words is None:
        words = [_trees.mask_words(_trees.tree(tree, tokens))] * len(lengths)
    return dict(
        op.draw(
            lengths=lengths,
            words=words,
            page_size=page_size,
            heads=heads,
            dims=dims,
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


def with_split(name: str, inputs: dict[str, Any], *, count: int) -> Outputs:
    """Run one of our own with this number of parts, each of at least one key."""
    skip_if_it_cannot_run(name)
    given = op.Given(**inputs)
    shape, form = given.shape, given.shape.form(op.OP.implementations[name].mode or "verify")
    if name.startswith("cupy"):
        # One tile for all, since each is compiled for the host of its own.
        tile = in_cupy.tile_for(16, dims=shape.latent + shape.rope, capability=capability())
        attend = in_cupy.attend
    else:
        width = given.ckv_cache.element_size()
        tile = tile_for(rows=form.rows, element_bytes=width, capability=capability())
        attend = in_triton.attend
    with poisoned():
        return attend(given, Plan(form=form, tile=tile, splits=count, least_keys=1))


def gathered(inputs: Inputs, cache: str = "ckv_cache") -> torch.Tensor:
    """Return the latents of request 0 in the order of its keys: [keys, latent]."""
    table, stored = inputs["page_table"], inputs[cache]
    lengths, tokens = inputs["prefix_lens"], inputs["draft_tokens"]
    assert isinstance(table, torch.Tensor)
    assert isinstance(stored, torch.Tensor)
    assert isinstance(lengths, torch.Tensor)
    assert isinstance(tokens, int)
    key = torch.arange(int(lengths[0]) + tokens, device=stored.device)
    return stored[table[0].long()[key // stored.shape[1]], key % stored.shape[1]].float()
