"""The MLP of `shared_expert` as two products of few rows by a large weight, by any backend."""

from __future__ import annotations

from typing import Protocol

import torch

from kernels import Outputs, Prepared
from kernels.layer._skinny_plan import Plan, Tile
from kernels.layer.shared_expert import Given


class PlanFor(Protocol):
    """Choose tile and parts by the shape of a product."""

    def __call__(
        self, *, rows: int, inputs: int, outputs: int, device: torch.device
    ) -> tuple[Tile, Plan]: ...


class Product(Protocol):
    """Return x times the weight's rows, or silu of the first half of them times the second."""

    def __call__(
        self, *, x: torch.Tensor, weight: torch.Tensor, gated: bool, tile: Tile, plan: Plan
    ) -> torch.Tensor: ...


def prepared(given: Given, *, plan_for: PlanFor, product: Product) -> Prepared:
    """Choose tiles and parts by the shapes; a call allocates what it writes and launches twice."""
    rows, hidden, width, device = given.rows, given.hidden, given.width, given.x.device
    tile, plan = plan_for(rows=rows, inputs=hidden, outputs=width, device=device)
    down_tile, down_plan = plan_for(rows=rows, inputs=width, outputs=hidden, device=device)

    def call() -> Outputs:
        between = product(x=given.x, weight=given.gate_up, gated=True, tile=tile, plan=plan)
        y = product(x=between, weight=given.down, gated=False, tile=down_tile, plan=down_plan)
        return {"y": y}

    facts = {
        "parts": f"{plan.parts} + {down_plan.parts}",
        "tile": f"{tile.rows}x{tile.outputs} + {down_tile.rows}x{down_tile.outputs}",
        "warps": str(tile.warps),
    }
    if tile.stages > 1:
        facts["stages"] = str(tile.stages)
    return Prepared(call=call, facts=facts, launches=2)
