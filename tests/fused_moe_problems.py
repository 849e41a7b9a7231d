"""Small problems of experts, and how each implementation that can run here solves them.

Without a GPU Triton's kernels run in its interpreter (tests/conftest.py), and CUDA C++ on the host.
"""

from collections.abc import Sequence
from typing import Any

import torch

from kernels import Inputs, Outputs, _execute
from kernels._check import compare, poisoned
from kernels.moe import _formats, _routings
from kernels.moe import fused_moe as op
from kernels.moe import fused_moe_cupy as _cupy  # noqa: F401  # these two add implementations
from kernels.moe import fused_moe_triton as _triton  # noqa: F401
from tests import op_runs

DIRECT = ("triton_direct", "cupy_direct")
SORTED = ("triton_sorted", "cupy_sorted")
OWN = (*DIRECT, *SORTED)
FORMS = ("bf16", "fp8", "int4")
EXPERTS = 6
DEVICE = _execute.device()
# The smallest that a format takes, and no multiple of a kernel's step.
SIZES = {"bf16": (96, 32), "fp8": (128, 128), "int4": (96, 32)}


def problem(
    ids: Sequence[Sequence[int]] | torch.Tensor = ((0, 3), (3, 5)),
    form: str = "int4",
    *,
    experts: int = EXPERTS,
    sizes: tuple[int, int] | None = None,
    shared: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """Draw a small problem with these ids: by default two tokens, which share an expert."""
    chosen = torch.as_tensor(ids, dtype=torch.int32)
    generator = torch.Generator().manual_seed(seed)
    weights = _routings.routed_weights(chosen, generator=generator, scaling=2.5)
    hidden, intermediate = sizes or SIZES[form]
    return dict(
        op.draw(
            ids=chosen.to(DEVICE),
            weights=weights.to(DEVICE),
            name=form,
            experts=experts,
            hidden=hidden,
            intermediate=intermediate,
            shared=shared,
            seed=seed,
        )
    )


def uniform(tokens: int, top_k: int, *, experts: int = EXPERTS, seed: int = 0) -> torch.Tensor:
    """Draw different experts for each token."""
    generator = torch.Generator().manual_seed(seed)
    return _routings.routed_ids(
        "uniform", tokens=tokens, experts=experts, top_k=top_k, generator=generator
    )


def skip_if_it_cannot_run(name: str) -> None:
    """Skip the test, with the reason, where nothing here can execute `name`."""
    op_runs.skip_if_it_cannot_run(op.OP, name)


def run(name: str, inputs: Inputs) -> torch.Tensor:
    """Run on `inputs` and return y; memory that is allocated is NaN before."""
    skip_if_it_cannot_run(name)
    with poisoned(), _execute.stand_ins():
        outputs: Outputs = op.OP.implementations[name].run(inputs)
    assert list(outputs) == ["y"]
    return outputs["y"]


def assert_matches(inputs: Inputs, got: torch.Tensor) -> None:
    """Hold y to the reference, row by row, within the op's tolerance."""
    (error,) = compare({"y": got}, op.reference(**inputs), tolerance=op.OP.tolerance)
    assert error.passed, error.problem


def error_of(got: torch.Tensor, inputs: Inputs) -> float:
    """Return the largest relative error of a row against the reference of `inputs`."""
    want = op.reference(**inputs)["y"]
    return float(((got.double() - want).norm(dim=-1) / want.norm(dim=-1)).max())


def with_nan_experts(inputs: dict[str, Any], *experts: int) -> dict[str, Any]:
    """Return a copy in which these experts mean NaN: by their scales, or by their weights."""
    spoiled = dict(inputs)
    for name in ("gate_up", "down"):
        key = name if inputs[name].dtype == torch.bfloat16 else f"{name}_scales"
        spoiled[key] = inputs[key].clone()
        spoiled[key][list(experts)] = float("nan")
    return spoiled


def widened_expert(inputs: Inputs, name: str, expert: int) -> torch.Tensor:
    """Return what the weights `name` of one expert mean, float64."""
    weights, scales = inputs[name], inputs[f"{name}_scales"]
    assert isinstance(weights, torch.Tensor)
    assert isinstance(scales, torch.Tensor)
    return _formats.widened(weights[expert], scales[expert] if scales.numel() else scales)
