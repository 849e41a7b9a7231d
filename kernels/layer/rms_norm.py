"""Rows of root mean square 1, scaled by a weight; the residual is added before, where there is one.

    s[r] = x[r] + residual[r]                  new_residual[r] = s[r], rounded once
    y[r, i] = s[r, i] / sqrt(mean_i(s[r, i]^2) + eps) * weight[i], rounded once

x [tokens, width] or, of heads, [tokens, heads, width], with any strides but 1 along the last dim:
queries are a slice of what the projection gave, a latent is the front of its 576. residual [tokens,
width] contiguous, or absent: then s = x, and there is no new_residual. weight [width], y as x but
contiguous; all bfloat16, or all float16; width at most 16,384; float32 inside, so that squares of a
row must add up to less than 3e38. eps above 0: a row of zeros gives zeros.

What is rounded: y is made of the sum before it is rounded, as in FlashInfer's fused_add_rmsnorm,
which SGLang calls. vLLM's kernel rounds the sum first, and s / rms again before the weight; torch's
two calls round the sum. All of them return new_residual rounded once. They overwrite x and the
residual; here both stay, and as many bytes are moved.

Errors: ValueError for shapes, dtypes or strides that are not those.
Source: RMSNorm (arXiv 1910.07467); flashinfer/norm.cuh and norm/kernels of FlashInfer 0.6.18.post1
and 0.7.4, csrc/layernorm_kernels.cu of vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance
from kernels.layer import _ranks
from verifyscope.models import TABLE, Gqa, Mla
from verifyscope.records import Value

MOST_WIDTH = 16_384
_FLOPS = 4  # an element, as in graphs/ops.py
_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The inputs of one call, checked: `Given(**inputs)` raises ValueError if they do not fit."""

    x: torch.Tensor
    weight: torch.Tensor
    eps: float
    residual: torch.Tensor | None = None

    def __post_init__(self) -> None:
        x, width = self.x, self.x.shape[-1] if self.x.dim() else 0
        if x.dim() not in (2, 3) or x.dtype not in _ranks.DTYPES or not x.numel():
            raise ValueError(
                f"x is {x.dtype} of {tuple(x.shape)}: give bfloat16 or float16, [tokens, width] "
                f"or [tokens, heads, width]"
            )
        if width > MOST_WIDTH:
            raise ValueError(f"x is {width} wide: give at most {MOST_WIDTH}")
        if x.stride(-1) != 1:
            raise ValueError(f"x has strides {x.stride()}: copy it, to be 1 along the last dim")
        self._must_be("weight", self.weight, (width,))
        if self.residual is not None:
            if x.dim() != 2:
                raise ValueError("a residual is added to [tokens, width], and x has heads")
            self._must_be("residual", self.residual, tuple(x.shape))
        if not self.eps > 0:
            raise ValueError(f"eps is {self.eps}: give a number above 0, for rows of zeros")

    def _must_be(self, name: str, tensor: torch.Tensor, sizes: tuple[int, ...]) -> None:
        if tensor.shape != sizes or tensor.dtype != self.x.dtype or not tensor.is_contiguous():
            raise ValueError(
                f"{name} is {tensor.dtype} of {tuple(tensor.shape)}, strides {tensor.stride()}: "
                f"give a contiguous {self.x.dtype} of {sizes}"
            )

    @property
    def rows(self) -> int:
        """Return how many rows are normalised."""
        return self.x.numel() // self.width

    @property
    def width(self) -> int:
        """Return the elements of a row."""
        return self.x.shape[-1]

    @property
    def heads(self) -> int:
        """Return the rows that a token has."""
        return 1 if self.x.dim() == 2 else self.x.shape[1]

    @property
    def strides(self) -> tuple[int, int]:
        """Return how far tokens and heads lie apart in x."""
        return self.x.stride(0), 0 if self.x.dim() == 2 else self.x.stride(1)

    def empty_outputs(self) -> dict[str, torch.Tensor]:
        """Allocate what a call returns."""
        outputs = {"y": self.x.new_empty(self.x.shape)}
        if self.residual is not None:
            outputs["new_residual"] = self.x.new_empty(self.x.shape)
        return outputs


def reference(**inputs: Any) -> Outputs:
    """Compute in float64 from the rounded inputs, and do not round."""
    given = Given(**inputs)
    total = given.x.double()
    if given.residual is not None:
        total = total + given.residual.double()
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + given.eps)
    y = total * scale * given.weight.double()
    return {"y": y} if given.residual is None else {"y": y, "new_residual": total}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw x and residual normal, weights around 1; x is the front of rows that are `step` long."""
    generator = torch.Generator(device).manual_seed(case.seed)
    tokens, heads, width = (case.number(dim) for dim in ("rows", "heads", "width"))

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device=device, dtype=case.dtype)

    x = normal(tokens, case.number("step"))[:, : heads * width]
    weight = 1 + normal(width) / 4
    given: dict[str, torch.Tensor | float] = {
        "x": x if heads == 1 else x.view(tokens, heads, width),
        "weight": weight,
        "eps": _EPS,
    }
    if case.dims["residual"] == "added":
        given["residual"] = normal(tokens, width)
    return given


def cost(inputs: Inputs) -> Cost:
    """Read x, residual and weight once, write y and the new residual."""
    unchecked: Any = inputs
    given = Given(**unchecked)
    each = given.x.numel() * given.x.element_size()
    some = given.residual is not None
    return Cost(
        flops=(_FLOPS + some) * given.x.numel(),
        read_bytes=each * (1 + some) + given.weight.nbytes,
        written_bytes=each * (1 + some),
    )


def _case(
    rows: int,
    width: int,
    *,
    heads: int = 1,
    step: int = 0,
    residual: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    prefix: str = "",
    tiny: bool = False,
    cpu: bool = False,
) -> Case:
    """Name a point: t (tokens), h (heads), w (width), s (step between rows), add (the residual)."""
    dims: dict[str, Value] = {
        "rows": rows,
        "heads": heads,
        "width": width,
        "step": step or heads * width,
        "residual": "added" if residual else "none",
    }
    name = f"{prefix}t{rows}" + (f"-h{heads}" if heads > 1 else "") + f"-w{width}"
    name += (f"-s{step}" if step else "") + ("-add" if residual else "")
    name += f"-{_ranks.DTYPES[dtype]}"
    return Case(name=name, dims=dims, dtype=dtype, tiny=tiny, cpu=cpu, mode="verify")


def _head_norms() -> list[tuple[int, int, int]]:
    """Return heads, width and step of the query and key norms that a rank can have, each once."""
    found = set()
    for model in TABLE.values():
        attention = model.attention
        if not isinstance(attention, Gqa) or not attention.head_norm:
            continue
        for tp in _ranks.TP:
            queries, keys = model.heads // tp, max(1, attention.kv_heads // tp)
            step = (queries + 2 * keys) * attention.head_dim
            found |= {(heads, attention.head_dim, step) for heads in (queries, keys)}
    return sorted(found)


def _latents() -> list[tuple[int, int]]:
    """Return width and step of the norms within latent attention, whole on every rank."""
    found = set()
    for model in TABLE.values():
        attention = model.attention
        if isinstance(attention, Mla):
            found.add((attention.kv_lora_rank, attention.latent_dim))
            if attention.q_lora_rank is not None:
                found.add((attention.q_lora_rank, attention.q_lora_rank))
    return sorted(found)


def _measured_cases() -> tuple[Case, ...]:
    """Vary the tokens at Kimi-K2.5's width, then all widths that the models have."""
    hidden, few = TABLE["kimi-k2.5"].hidden, _ranks.FEW_AND_MANY
    others = [width for width in _ranks.hidden_widths() if width != hidden]
    return (
        *(_case(t, hidden, residual=True, cpu=t in (1, 16)) for t in _ranks.ROWS),
        *(_case(t, hidden) for t in few),
        *(_case(t, width, residual=True) for width in others for t in few),
        *(_case(t, w, step=s if s != w else 0) for w, s in _latents() for t in (*few, 256)),
        *(_case(t, w, heads=h, step=s) for h, w, s in _head_norms() for t in few),
        *(_case(t, hidden, residual=True, dtype=torch.float16) for t in few),
    )


OP = Op(
    name="rms_norm",
    part="norms",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(
        _case(3, 200, residual=True, tiny=True),
        _case(2, 3, dtype=torch.float16, tiny=True),
        _case(2, 512, step=576, tiny=True),
        _case(3, 128, heads=5, step=896, tiny=True),
        _case(1, 1536, residual=True, dtype=torch.float16, tiny=True),
        *_measured_cases(),
    ),
    # A head, a latent, a query, the residual stream, and the widest row there may be.
    gate_cases=(
        _case(2, 128, heads=8, step=1280, prefix="gate-"),
        _case(2, 512, step=576, prefix="gate-"),
        _case(2, 1536, prefix="gate-"),
        _case(1, 7168, residual=True, prefix="gate-"),
        _case(2, MOST_WIDTH, residual=True, dtype=torch.float16, prefix="gate-"),
    ),
    tolerance=Tolerance(
        row=8e-3,
        why="y is rounded to bfloat16, 2**-8 of an element at most, and where a library rounds the "
        "sum before it, that twice; sums of float32 are off by 1e-6",
    ),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_norm(**inputs: Any) -> Outputs:
    """Use torch's own norm, behind a sum that is rounded."""
    given = Given(**inputs)
    total = given.x if given.residual is None else given.x + given.residual
    y = torch.nn.functional.rms_norm(total, (given.width,), given.weight, given.eps)
    return {"y": y} if given.residual is None else {"y": y, "new_residual": total}
