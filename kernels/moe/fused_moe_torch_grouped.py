"""`fused_moe` by torch's grouped product: bf16 experts, choices sorted by expert on the device.

`torch.nn.functional.grouped_mm` (`torch._grouped_mm` before it) multiplies rows that are sorted by
expert with a matrix each, in one kernel, told by int32 ends on the device. Around it torch sorts
the choices, gathers their rows, and adds up a token's choices in float32, all of it in each call,
for the ids change with each step. Rows behind the last end (ids that name no expert) are not
written, and are taken for zero.

Only capabilities 9.x and 10.x have that kernel; on others torch asks the host for the ends and
loops over the experts, as `torch` does, which no graph can hold: not served.

Errors: ValueError for inputs that `Given` or the baseline refuses.
Source: torch.nn.functional.grouped_mm's documentation (2.13); aten/src/ATen/native/cuda/
GroupedBlas.cpp and GroupMM.cu of PyTorch.
"""

from collections.abc import Callable
from typing import Any, cast

import torch

from kernels import Case, Outputs, Prepared
from kernels.moe._baselines import Baseline
from kernels.moe.fused_moe import OP, Given, Shape

Product = Callable[..., torch.Tensor]
_NONE = f"torch {torch.__version__} has no grouped_mm; it came with 2.8"

GROUPED = Baseline(
    name="torch_grouped",
    kind="baseline-composed",
    what="torch's grouped_mm",
    why="two grouped products, and torch's kernels for sorting, gathering, silu and the sum",
    formats=("bf16",),
    capabilities=(90, 100, 103, 107),
)


def product() -> Product | None:
    """Return torch's grouped product, by the name that this version has for it."""
    found = getattr(torch.nn.functional, "grouped_mm", getattr(torch, "_grouped_mm", None))
    return cast("Product | None", found)


def _refuses(case: Case) -> str | None:
    return None if product() else _NONE


@OP.prepared_implementation(
    GROUPED.name, kind=GROUPED.kind, needs=GROUPED.needs("torch", more=_refuses)
)
def grouped_experts(**inputs: Any) -> Prepared:
    """Prepare nothing but the names of the experts: all else depends on the ids of the step."""
    given = Given(**inputs)
    GROUPED.check(given)
    multiply = product()
    if multiply is None:
        raise RuntimeError(_NONE)
    every = torch.arange(given.shape.experts, dtype=torch.int32, device=given.x.device)
    name = "torch.nn.functional.grouped_mm"
    if not hasattr(torch.nn.functional, "grouped_mm"):
        name = "torch._grouped_mm"

    def call() -> Outputs:
        return {"y": _computed(given, multiply, every)}

    facts = {"torch": torch.__version__, "backend": name, "work": GROUPED.why}
    return Prepared(call=call, facts=facts)


def _computed(given: Given, multiply: Product, every: torch.Tensor) -> torch.Tensor:
    shape = given.shape
    experts, order, ends = sorted_choices(given.ids, shape=shape, every=every)
    rows = given.x[order // shape.top_k]  # [T top_k, H]
    gate, up = multiply(rows, given.gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    middle = torch.nn.functional.silu(gate) * up
    out = multiply(middle, given.down.transpose(1, 2), offs=ends)  # [T top_k, H]
    weighted = out.float() * given.weights.flatten()[order, None]
    weighted = torch.where((experts < shape.experts)[:, None], weighted, 0.0)
    choices = torch.empty_like(weighted)
    choices[order] = weighted
    return choices.view(shape.tokens, shape.top_k, shape.hidden).sum(1).to(given.x.dtype)


def sorted_choices(
    ids: torch.Tensor, *, shape: Shape, every: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort the choices by expert; nothing waits for the device.

    Returns the experts in order (E for those that are none), which choice is where, and the int32
    ends of each expert of `every`.
    """
    flat = ids.flatten()
    named = torch.where((flat >= 0) & (flat < shape.experts), flat, shape.experts)
    experts, order = named.sort(stable=True)
    ends = torch.searchsorted(experts, every, right=True, out_int32=True)
    return experts, order, ends
