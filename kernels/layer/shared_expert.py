"""The MLP that every token passes: the shared expert beside routed ones, or that of a dense layer.

    y[r] = W2 (silu(W1 x[r]) * (W3 x[r]))

x, y [rows, hidden]; gate_up [2 * width, hidden] (W1, then W3), down [hidden, width] (W2), as
checkpoints and engines hold a linear layer's weight: a row an output. All bfloat16, or all float16,
contiguous. Sums are float32; what lies between the products is rounded once, after the gate, and y
once. width is a rank's share of the intermediate size; the sum over ranks is an all-reduce behind.

For few rows its time is that of the weights: 11 MB for Kimi-K2.5 under TP 8, 99 MB for its dense
layer. `cost` counts them once, and nothing for what lies between the products.

Errors: ValueError for shapes, dtypes or strides that are not those.
Source: modeling_deepseek.py of DeepSeek-V3 (DeepseekV3MLP); vLLM and SGLang merge W1 and W3 alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance
from kernels.layer import _ranks
from verifyscope.models import TABLE
from verifyscope.records import Value

_ACTIVATION_FLOPS = 5  # an element, as in graphs/ops.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The inputs of one call, checked: `Given(**inputs)` raises ValueError if they do not fit."""

    x: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor

    def __post_init__(self) -> None:
        x = self.x
        if x.dim() != 2 or x.dtype not in _ranks.DTYPES or not x.numel():
            raise ValueError(
                f"x is {x.dtype} of {tuple(x.shape)}: give bfloat16 or float16, [rows, hidden]"
            )
        hidden, width = x.shape[1], self.down.shape[-1]
        for name, tensor, sizes in (
            ("down", self.down, (hidden, width)),
            ("gate_up", self.gate_up, (2 * width, hidden)),
        ):
            if tensor.shape != sizes or tensor.dtype != x.dtype or not tensor.numel():
                raise ValueError(
                    f"{name} is {tensor.dtype} of {tuple(tensor.shape)}: give {x.dtype} of {sizes} "
                    f"for a hidden size of {hidden} and a width of {width}"
                )
        for name, tensor in (("x", x), ("gate_up", self.gate_up), ("down", self.down)):
            if not tensor.is_contiguous():
                raise ValueError(f"{name} has strides {tensor.stride()}: copy it to be contiguous")

    @property
    def rows(self) -> int:
        """Return how many tokens there are."""
        return len(self.x)

    @property
    def hidden(self) -> int:
        """Return the width of the residual stream."""
        return self.x.shape[1]

    @property
    def width(self) -> int:
        """Return the width between the products."""
        return self.down.shape[1]


def reference(**inputs: Any) -> Outputs:
    """Compute in float64 from the rounded inputs, and do not round; in float32 on a GPU."""
    given = Given(**inputs)
    wide = torch.float32 if given.x.is_cuda else torch.float64  # a GPU's float64 is slow and large
    gate, up = (given.x.to(wide) @ given.gate_up.to(wide).T).chunk(2, dim=-1)
    return {"y": (torch.nn.functional.silu(gate) * up) @ given.down.to(wide).T}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw weights normal, and x so that gate and up are about 1, where silu bends."""
    generator = torch.Generator(device).manual_seed(case.seed)
    rows, hidden, width = (case.number(dim) for dim in ("rows", "hidden", "width"))

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device=device, dtype=case.dtype)

    return {
        "x": normal(rows, hidden) / math.sqrt(hidden),
        "gate_up": normal(2 * width, hidden),
        "down": normal(hidden, width),
    }


def cost(inputs: Inputs) -> Cost:
    """Read each weight and x once, write y once; three products, and the activation between."""
    unchecked: Any = inputs
    given = Given(**unchecked)
    products = 3 * 2 * given.rows * given.hidden * given.width
    return Cost(
        flops=products + _ACTIVATION_FLOPS * given.rows * given.width,
        read_bytes=given.x.nbytes + given.gate_up.nbytes + given.down.nbytes,
        written_bytes=given.x.nbytes,
    )


def _case(
    rows: int,
    hidden: int,
    width: int,
    *,
    layer: str = "shared",
    dtype: torch.dtype = torch.bfloat16,
    prefix: str = "",
    tiny: bool = False,
    cpu: bool = False,
) -> Case:
    """Name a point: t (rows), h (hidden), w (width)."""
    dims: dict[str, Value] = {"rows": rows, "hidden": hidden, "width": width, "layer": layer}
    name = f"{prefix}t{rows}-h{hidden}-w{width}-{_ranks.DTYPES[dtype]}"
    return Case(name=name, dims=dims, dtype=dtype, tiny=tiny, cpu=cpu, mode="verify")


def _shapes() -> dict[tuple[int, int], str]:
    """Return hidden size and width that a rank can have, each once, and in which layer."""
    found: dict[tuple[int, int], str] = {}
    for model in TABLE.values():
        for tp in _ranks.TP:
            if model.moe is not None and model.moe.shared_experts:
                shared = model.moe.intermediate * model.moe.shared_experts
                found.setdefault((model.hidden, shared // tp), "shared")
            if model.dense_layers:
                found.setdefault((model.hidden, model.dense_intermediate // tp), "dense")
    return found


_KIMI_TP8 = (7168, 256)


def _measured_cases() -> tuple[Case, ...]:
    """Vary the rows for Kimi-K2.5 under TP 8, then all shapes that ranks have; T = 1 beside each.

    Kimi-K2 and DeepSeek-V3 have the same ones; their checkpoints' fp8 is not this op's.
    """
    shapes, few = _shapes(), _ranks.FEW_AND_MANY
    shapes.pop(_KIMI_TP8)
    return (
        *(_case(t, *_KIMI_TP8, cpu=t in (1, 4)) for t in (1, 2, 3, 4, 6, 8, 12, 16)),
        *(_case(t, *_KIMI_TP8) for t in _ranks.ROWS if t > 16),
        *(_case(t, *shape, layer=layer) for shape, layer in shapes.items() for t in few),
        *(_case(t, *_KIMI_TP8, dtype=torch.float16) for t in few),
    )


OP = Op(
    name="shared_expert",
    part="shared_expert",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(
        _case(1, 64, 32, tiny=True),
        _case(5, 136, 40, dtype=torch.float16, tiny=True),
        _case(3, 1032, 24, tiny=True),
        _case(17, 72, 16, tiny=True),
        _case(70, 40, 24, tiny=True),
        *_measured_cases(),
    ),
    # Tiles of 16, 32 and 64 rows, with parts and, where the width is large, without.
    gate_cases=(
        _case(1, *_KIMI_TP8, prefix="gate-"),
        _case(32, *_KIMI_TP8, prefix="gate-"),
        _case(64, *_KIMI_TP8, dtype=torch.float16, prefix="gate-"),
        _case(4, 256, 28_672, layer="dense", prefix="gate-"),
        _case(64, 256, 28_672, layer="dense", prefix="gate-"),
        _case(32, 256, 14_336, layer="dense", prefix="gate-"),
    ),
    tolerance=Tolerance(
        row=1e-2,
        why="what lies between the products, and the result, are each rounded to bfloat16 once: "
        "1.7e-3 of a long row, 3.9e-3 of the tiny cases' short ones; torch rounds gate, up and "
        "silu before that, too: 7.7e-3 of a short row",
    ),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_mlp(**inputs: Any) -> Outputs:
    """Use the vendor's library twice, and torch's activation in two calls between."""
    given = Given(**inputs)
    gate, up = torch.nn.functional.linear(given.x, given.gate_up).chunk(2, dim=-1)
    between = torch.nn.functional.silu(gate) * up
    return {"y": torch.nn.functional.linear(between, given.down)}
