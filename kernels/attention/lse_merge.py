"""The merge of attention over disjoint sets of keys, any number of them, some of them empty.

    top = max_s part_lse[r, s],  w_s = exp(part_lse[r, s] - top)
    out[r] = sum_s w_s part_out[r, s] / sum_s w_s,  lse[r] = top + ln sum_s w_s

part_out [rows, splits, dim] float32 (what a split kernel leaves) or bfloat16 (what separate calls
of a library return), contiguous; part_lse [rows, splits] float32, natural logarithm; out [rows,
dim] bfloat16, lse [rows] float32, natural. A row is one token of one head. A part of no keys has an
LSE of -inf: its part_out may hold anything, NaN included, and is never read. A row of such parts
alone gives out 0 and lse -inf.

The base is part of the op: an LSE to base 2, as FlashInfer's, gives about 12 % too much weight to
whatever part is larger, and that is far above the tolerance (tests/test_lse_merge.py).

Errors: ValueError for shapes, dtypes or strides that are not those.
Source: the log-sum-exp identity of split attention (FlashDecoding); empty parts: FlashInfer 0.7.
"""

from __future__ import annotations

import math

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance
from kernels._inputs import tensor
from verifyscope.records import Value

MINUS_INFINITY = -math.inf
PART_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def must_fit(*, part_out: torch.Tensor, part_lse: torch.Tensor) -> None:
    """Raise ValueError for parts that are not what the op takes."""
    if part_out.dim() != 3 or part_out.dtype not in PART_DTYPES:
        raise ValueError(
            f"part_out is {part_out.dtype} of {tuple(part_out.shape)}: give float32 or bfloat16, "
            f"[rows, splits, dim]"
        )
    if not part_out.numel():
        raise ValueError(f"part_out is {tuple(part_out.shape)}: give at least one of each")
    if part_lse.dtype != torch.float32 or part_lse.shape != part_out.shape[:2]:
        raise ValueError(
            f"part_lse is {part_lse.dtype} of {tuple(part_lse.shape)}: give float32, natural "
            f"logarithm, of {tuple(part_out.shape[:2])}"
        )
    if not part_out.is_contiguous() or not part_lse.is_contiguous():
        raise ValueError("part_out and part_lse must be contiguous: copy them")


def empty_outputs(part_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate `out` and `lse` for these parts."""
    rows, _, dim = part_out.shape
    out = torch.empty(rows, dim, dtype=torch.bfloat16, device=part_out.device)
    return out, torch.empty(rows, dtype=torch.float32, device=part_out.device)


def reference(*, part_out: torch.Tensor, part_lse: torch.Tensor) -> Outputs:
    """Compute in float64 and do not round."""
    natural = part_lse.double()
    some = natural != MINUS_INFINITY
    lse = natural.logsumexp(-1)
    weight = torch.where(some, torch.exp(natural - lse[:, None]), 0.0)
    parts = torch.where(some[..., None], part_out.double(), 0.0)
    return {"out": torch.einsum("rs,rsd->rd", weight, parts), "lse": lse}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw normal parts and LSEs; where "empty" is "some", every third part has no keys, and NaN.

    The first row has no keys at all then.
    """
    generator = torch.Generator(device).manual_seed(case.seed)
    tokens = case.number("requests") * case.number("rows")
    sizes = tokens * case.number("heads"), case.number("splits"), case.number("head_dim")
    part_out = torch.randn(sizes, generator=generator, device=device).to(case.dtype)
    part_lse = torch.randn(sizes[:2], generator=generator, device=device)
    if case.dims["empty"] == "some":
        part = torch.arange(part_lse.numel(), device=device).view(sizes[:2])
        empty = (part % 3 == 2) | (part < sizes[1])
        part_out[empty] = float("nan")
        part_lse[empty] = MINUS_INFINITY
    return {"part_out": part_out, "part_lse": part_lse}


def cost(given: Inputs) -> Cost:
    """Read every LSE and the parts that have keys, write a row each; waits for the device."""
    part_out, part_lse = tensor(given, "part_out"), tensor(given, "part_lse")
    rows, _, dim = part_out.shape
    some = int((part_lse != MINUS_INFINITY).sum())
    return Cost(
        flops=2 * some * dim,
        read_bytes=some * dim * part_out.element_size() + part_lse.nbytes,
        written_bytes=rows * (2 * dim + 4),
    )


def _case(
    rows: int,
    splits: int,
    *,
    requests: int = 1,
    heads: int = 8,
    dim: int = 128,
    empty: str = "none",
    dtype: torch.dtype = torch.float32,
    prefix: str = "",
    **more: bool,
) -> Case:
    """Name a point: t (tokens a request), b (requests), h (heads), s (splits), d (head dim)."""
    dims: dict[str, Value] = {
        "rows": rows,
        "requests": requests,
        "heads": heads,
        "splits": splits,
        "head_dim": dim,
        "empty": empty,
    }
    some = "-empty" if empty == "some" else ""
    name = f"{prefix}t{rows}-b{requests}-h{heads}-s{splits}-d{dim}-{PART_DTYPES[dtype]}{some}"
    return Case(name=name, dims=dims, dtype=dtype, mode="verify", **more)


def _measured_cases() -> tuple[Case, ...]:
    """Vary one axis at a time: tokens, splits, batch, then MLA's width and two bfloat16 parts.

    Eight heads are one rank of 64 under TP 8. 64 splits are what 8k keys are cut into at least.
    """
    bf16 = torch.bfloat16
    return (
        *(_case(t, 64, cpu=t in (1, 8)) for t in (1, 2, 3, 4, 6, 8, 12, 16)),
        *(_case(t, splits) for splits in (2, 8, 32, 128, 376) for t in (1, 4)),
        # The batch fills the GPU by itself: fewer splits, and of ragged requests some are empty.
        *(_case(t, s, requests=b, empty="some") for b, s in ((4, 32), (16, 16)) for t in (1, 4)),
        *(_case(t, 4, requests=64, empty="some") for t in (1, 4)),
        *(_case(t, 94, dim=512, cpu=t == 1) for t in (1, 2, 4, 8, 16)),
        # The prefix by one call of a library, the drafts by another.
        *(_case(t, 2, dim=512, dtype=bf16) for t in (1, 2, 4, 8, 16)),
        *(_case(t, 64, dtype=bf16) for t in (1, 4)),
    )


OP = Op(
    name="lse_merge",
    part="attention",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(
        _case(1, 1, heads=2, dim=16, tiny=True),
        _case(3, 7, requests=2, heads=2, dim=40, empty="some", tiny=True),
        _case(2, 70, heads=1, dim=80, empty="some", dtype=torch.bfloat16, tiny=True),
        *_measured_cases(),
    ),
    # One for each width of a block in CUDA C++, and each width of a tile in Triton.
    gate_cases=tuple(
        _case(1, splits, dim=dim, dtype=dtype, prefix="gate-")
        for splits, dim, dtype in (
            (2, 128, torch.float32),
            (8, 64, torch.float32),
            (16, 512, torch.float32),
            (24, 256, torch.float32),
            (376, 128, torch.float32),
            (188, 512, torch.float32),
            (2, 512, torch.bfloat16),
            (64, 128, torch.bfloat16),
        )
    ),
    tolerance=Tolerance(
        row=3e-3,
        absolute={"lse": 1e-5},
        why="the result is rounded to bfloat16 once, 2**-8 of an element at most: measured 1.7e-3 "
        "of a row; sums of float32 round by 1e-7. LSEs near 5 have steps of 5e-7",
    ),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_merge(*, part_out: torch.Tensor, part_lse: torch.Tensor) -> Outputs:
    """Weigh and add in float32; what lies in an empty part is replaced, since 0 x NaN is NaN."""
    must_fit(part_out=part_out, part_lse=part_lse)
    lse = part_lse.logsumexp(-1)
    empty = part_lse == MINUS_INFINITY
    weight = torch.exp(part_lse - lse[:, None]).masked_fill_(empty, 0.0)
    parts = part_out.masked_fill(empty[..., None], 0.0).float()
    out = torch.bmm(weight[:, None], parts)[:, 0]
    return {"out": out.to(torch.bfloat16), "lse": lse}
