"""The activation between the products of a gated MLP: the first half of a row gates the second.

    y[r, i] = silu(gate_up[r, i]) * gate_up[r, width + i],   silu(g) = g / (1 + exp(-g))

gate_up [rows, 2 * width], y [rows, width]; contiguous, bfloat16 or float16; float32 inside, and
rounded once. The order is [gate, up], as checkpoints and engines merge the two weights; some expert
kernels take [up, gate], and the wrong order gives plausible numbers (tests/test_silu_mul.py).

A row is a token of a shared expert or of a dense MLP, or a (token, expert) pair of routed ones.

Errors: ValueError for shapes, dtypes or strides that are not those.
Source: SwiGLU (arXiv 2002.05202). FlashInfer rounds once, as here; torch's two calls and vLLM's
kernel round silu(gate) before it is multiplied.
"""

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance
from kernels._inputs import tensor
from kernels.layer import _ranks
from verifyscope.records import Value

_FLOPS = 5  # an element, as in graphs/ops.py: negate, exp, add, divide, multiply
_KIMI_TP8 = 256


def must_fit(gate_up: torch.Tensor) -> tuple[int, int]:
    """Return rows and width; ValueError for a tensor that is not what the op takes."""
    if gate_up.dim() != 2 or gate_up.dtype not in _ranks.DTYPES or not gate_up.numel():
        raise ValueError(
            f"gate_up is {gate_up.dtype} of {tuple(gate_up.shape)}: give bfloat16 or float16, "
            f"[rows, 2 * width]"
        )
    rows, both = gate_up.shape
    if both % 2:
        raise ValueError(f"gate_up has {both} columns: give an even number, gate and up alike")
    if not gate_up.is_contiguous():
        raise ValueError(f"gate_up has strides {gate_up.stride()}: copy it, to be contiguous")
    return rows, both // 2


def reference(*, gate_up: torch.Tensor) -> Outputs:
    """Compute in float64 from the rounded inputs, and do not round."""
    must_fit(gate_up)
    gate, up = gate_up.double().chunk(2, dim=-1)
    return {"y": torch.nn.functional.silu(gate) * up}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw both halves normal."""
    generator = torch.Generator(device).manual_seed(case.seed)
    sizes = case.number("rows"), 2 * case.number("width")
    return {"gate_up": torch.randn(sizes, generator=generator, device=device, dtype=case.dtype)}


def cost(given: Inputs) -> Cost:
    """Read both halves once, write one."""
    gate_up = tensor(given, "gate_up")
    written = gate_up.nbytes // 2
    return Cost(
        flops=_FLOPS * gate_up.numel() // 2, read_bytes=gate_up.nbytes, written_bytes=written
    )


def _case(
    rows: int,
    width: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    prefix: str = "",
    tiny: bool = False,
    cpu: bool = False,
) -> Case:
    """Name a point: t (rows), w (width)."""
    dims: dict[str, Value] = {"rows": rows, "width": width}
    name = f"{prefix}t{rows}-w{width}-{_ranks.DTYPES[dtype]}"
    return Case(name=name, dims=dims, dtype=dtype, tiny=tiny, cpu=cpu, mode="verify")


def _measured_cases() -> tuple[Case, ...]:
    """Vary the rows at Kimi-K2.5's width under TP 8, and the width over all models and ranks."""
    widths = [width for width in _ranks.mlp_widths() if width != _KIMI_TP8]
    return (
        *(_case(rows, _KIMI_TP8, cpu=rows in (1, 16)) for rows in _ranks.ROWS),
        *(_case(rows, width) for width in widths for rows in _ranks.FEW_AND_MANY),
        *(_case(rows, _KIMI_TP8, dtype=torch.float16) for rows in _ranks.FEW_AND_MANY),
    )


OP = Op(
    name="silu_mul",
    part="activation",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(
        _case(1, 8, tiny=True),
        _case(3, 200, tiny=True),
        _case(2, 1104, dtype=torch.float16, tiny=True),
        *_measured_cases(),
    ),
    gate_cases=(
        _case(1, 96, prefix="gate-"),
        _case(4, 2048, prefix="gate-"),
        _case(4, 2048, dtype=torch.float16, prefix="gate-"),
    ),
    tolerance=Tolerance(
        row=8e-3,
        why="rounded to bfloat16, 2**-8 of an element at most, once or, in torch, twice; all else "
        "is float32, off by 1e-6",
    ),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_silu_mul(*, gate_up: torch.Tensor) -> Outputs:
    """Use two calls of torch; what the first gives is rounded."""
    must_fit(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return {"y": torch.nn.functional.silu(gate) * up}
