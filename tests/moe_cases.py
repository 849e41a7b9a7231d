"""What the tests of the baselines of `fused_moe` share: small points, and an error by row."""

from typing import Any

import torch

from kernels import Case, Inputs, Outputs
from kernels.moe.fused_moe import OP
from verifyscope.records import Value

CPU = torch.device("cpu")


def point(
    rows: int,
    form: str,
    *,
    sizes: tuple[int, int] = (96, 32),
    experts: int = 6,
    top_k: int = 2,
    routing: str = "uniform",
    shared: int = 0,
) -> Case:
    """Return a point of `fused_moe`; sizes: hidden, and intermediate a rank."""
    dims: dict[str, Value] = {
        "rows": rows,
        "experts": experts,
        "top_k": top_k,
        "hidden": sizes[0],
        "intermediate": sizes[1],
        "format": form,
        "routing": routing,
        "shared": shared,
    }
    return Case(name=f"t{rows}-{form}-{routing}", dims=dims, mode="verify")


def drawn(case: Case) -> dict[str, Any]:
    """Draw the inputs of a point."""
    return dict(OP.inputs(case, CPU))


def error_of(outputs: Outputs, inputs: Inputs) -> float:
    """Return the largest relative error of a row against the reference; a row of zeros must be."""
    want = OP.reference(**inputs)["y"]
    assert set(outputs) == {"y"}
    got = outputs["y"].double()
    assert not got[want.norm(dim=-1) == 0].any()
    return float(((got - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-30)).max())
