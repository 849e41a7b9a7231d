"""`fused_moe` in Triton: gate and up, down, combine; sorted or not, in any format.

    h[slot]   = silu(W1_e x[t]) * (W3_e x[t])   rounded to bfloat16 once     `_gate_up_triton`
    out[slot] = W2_e h[slot]                    float32                      `_down_triton`
    y[t]      = sum_j weights[t, j] out[slot]   in the order of j            `_combine_triton`

The direct path is these three kernels; before the sorted one goes `moe_align`, whose blocks are the
units of the same two products (`_experts_triton`). The shared expert's tiles are programs of the
same launches. Where a grid is too small for the SMs its columns are parts: `splits`. Those of the
first product are added by a kernel of its own, those of the second by `combine`. No number of the
ids reaches the host; a captured graph follows them.

An expert of more than 16 rows, which only the sorted path has, is several blocks: they run side by
side and find the weights in L2, but unpack them again for each. Tiles, and what they keep in
flight: `_fused_moe_tiles`; how weights are unpacked: `_unpack_triton`.

Three implementations: `triton` takes the path that `_paths` names, the others the one they name.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton

from kernels import Case, Needs, Outputs, Prepared
from kernels._splits import sm_count
from kernels._target import capability
from kernels.moe._align_layout import empty_outputs
from kernels.moe._align_triton import align
from kernels.moe._combine_triton import combine
from kernels.moe._down_triton import down
from kernels.moe._experts_triton import ROWS
from kernels.moe._fused_moe_tiles import Plan, plan_for
from kernels.moe._gate_up_triton import activate, gate_up
from kernels.moe._paths import Path, path_for, why_not
from kernels.moe.fused_moe import OP, Given, refuses

_COMBINED = 512  # columns of a token, by one program: 16 bytes a thread of four warps
_ACTIVATED = 128


def _needs(path: Path | None) -> Needs:
    def refused(case: Case) -> str | None:
        tokens = case.number("rows")
        return refuses(case) or why_not(
            path or path_for(tokens),
            tokens=tokens,
            top_k=case.number("top_k"),
            experts=case.number("experts"),
        )

    return Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",), refuses=refused)


_own = partial(OP.prepared_implementation, declares=("tensor_core", "wide_load"))


@_own("triton", needs=_needs(None))
def triton_moe(**inputs: Any) -> Prepared:
    """Take the path that the number of tokens asks for."""
    given = Given(**inputs)
    return _prepared(given, path_for(given.shape.tokens))


@_own("triton_direct", needs=_needs("direct"))
def triton_direct(**inputs: Any) -> Prepared:
    """Sort nothing: each choice looks for the others of its expert."""
    return _prepared(Given(**inputs), "direct")


@_own("triton_sorted", needs=_needs("sorted"))
def triton_sorted(**inputs: Any) -> Prepared:
    """Sort the choices by expert first, however few they are."""
    return _prepared(Given(**inputs), "sorted")


def _prepared(given: Given, path: Path) -> Prepared:
    """Choose tiles and parts by the shapes; a call allocates what it writes and launches."""
    shape = given.shape
    if why := why_not(path, tokens=shape.tokens, top_k=shape.top_k, experts=shape.experts):
        raise ValueError(why)
    plan = plan_for(
        shape,
        path,
        name=given.format.name,
        expert_bytes=given.expert_bytes,
        capability=capability(),
        sms=sm_count(given.x.device),
    )
    facts = {
        "path": path,
        "tile": f"{plan.gate_up.rows}x{plan.gate_up.columns}, {plan.down.rows}x{plan.down.columns}",
        "splits": f"{plan.parts}, {plan.down_parts}",
        "stages": f"{plan.gate_up.stages}, {plan.down.stages}",
        "blocks_per_sm": f"{plan.gate_up.blocks}, {plan.down.blocks}",
    }
    return Prepared(call=lambda: compute(given, plan), facts=facts, launches=plan.launches)


def compute(given: Given, plan: Plan) -> Outputs:
    """Launch by this plan, whatever the shape would choose.

    What lies between the kernels is allocated in the call: inside a capture torch then hands the
    same memory to every layer, as an engine does, and it stays in L2.
    """
    shape, x = given.shape, given.x
    blocks = _blocks(given, plan)
    h = x.new_empty(shape.choices, shape.intermediate)
    shared_h = x.new_empty(shape.tokens, shape.shared)
    _gate_up(given, plan, blocks=blocks, h=h, shared_h=shared_h)
    rows = shape.choices + (shape.tokens if shape.shared else 0)
    out = x.new_empty(plan.down_parts, rows, shape.hidden, dtype=torch.float32)
    _down(given, plan, blocks=blocks, h=h, shared_h=shared_h, out=out)
    y = torch.empty_like(x)
    combine[(shape.tokens, triton.cdiv(shape.hidden, _COMBINED))](
        given.ids, given.weights, out, y, shape.tokens, shape.experts, shape.hidden,
        TOP_K=shape.top_k, PARTS=plan.down_parts, SHARED=shape.shared > 0, BLOCK=_COMBINED,
        num_warps=4,
    )  # fmt: skip
    return {"y": y}


def _blocks(given: Given, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sorted slots and the experts of their blocks; the direct path reads neither."""
    if plan.path == "direct":
        return given.ids, given.ids
    found = empty_outputs(given.ids, experts=given.shape.experts, block=ROWS)
    align(given.ids, experts=given.shape.experts, block=ROWS, **found)
    return found["sorted_slots"], found["block_experts"]


def _gate_up(
    given: Given,
    plan: Plan,
    *,
    blocks: tuple[torch.Tensor, torch.Tensor],
    h: torch.Tensor,
    shared_h: torch.Tensor,
) -> None:
    """Fill h, and that of the shared expert, with one launch, or two if the columns are parts."""
    shape, form, tile, shared = (
        given.shape,
        given.format.name,
        plan.gate_up,
        plan.shared.gate_up[-1],
    )
    steps, shared_w = -(-shape.hidden // tile.columns), given.shared_gate_up
    token_blocks = -(-shape.tokens // ROWS)
    programs = plan.units * (2 * shape.intermediate // tile.rows)
    programs += token_blocks * (2 * shape.shared // shared.rows)
    # No part, no sums: but their type is part of the kernel's.
    split = plan.parts if plan.parts > 1 else 0
    sums = h.new_empty(split, shape.choices, 2 * shape.intermediate, dtype=torch.float32)
    gate_up[(programs, plan.parts)](
        _pairs(given.x) if form == "int4" else given.x, given.ids, *blocks,
        _bytes(given.gate_up), given.gate_up_scales, h, sums,
        given.x, given.x if shared_w is None else shared_w, shared_h,
        shape.tokens, shape.top_k, shape.experts, plan.units, int(plan.path == "sorted"),
        shape.hidden, steps, -(-steps // plan.parts), plan.parts, shape.intermediate,
        shape.shared, token_blocks,
        FORM=form, WARPS=tile.warps, COLUMNS=tile.columns // tile.warps, ROWS=tile.rows,
        WHOLE=shape.hidden % tile.columns == 0, STAGES=tile.stages,
        FULL_COLUMNS=tile.full_columns // tile.warps, FULL_STAGES=tile.full_stages,
        SHARED=shape.shared > 0, SHARED_ROWS=shared.rows,
        SHARED_STAGES=shared.full_stages,
        num_warps=tile.warps, maxnreg=tile.registers,
    )  # fmt: skip
    if plan.parts > 1:
        activate[(shape.choices, triton.cdiv(shape.intermediate, _ACTIVATED))](
            given.ids, sums, h, shape.choices, plan.parts, shape.experts, shape.intermediate,
            BLOCK=_ACTIVATED, num_warps=1,
        )  # fmt: skip


def _down(
    given: Given,
    plan: Plan,
    *,
    blocks: tuple[torch.Tensor, torch.Tensor],
    h: torch.Tensor,
    shared_h: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Fill out: in each part a row a slot, and behind them a row a token of the shared expert."""
    shape, form, tile, shared = given.shape, given.format.name, plan.down, plan.shared.down
    token_blocks, shared_w = -(-shape.tokens // ROWS), given.shared_down
    programs = plan.units * triton.cdiv(triton.cdiv(shape.hidden, tile.rows), plan.each)
    if shape.shared:
        shared_tiles = triton.cdiv(shape.hidden, shared.rows)
        programs += token_blocks * triton.cdiv(shared_tiles, plan.each)
    steps = triton.cdiv(shape.intermediate, tile.columns)
    down[(programs, plan.down_parts)](
        _pairs(h) if form == "int4" else h, given.ids, *blocks,
        _bytes(given.down), given.down_scales, out,
        shared_h, given.x if shared_w is None else shared_w,
        shape.tokens, shape.top_k, shape.experts, plan.units, int(plan.path == "sorted"),
        shape.intermediate, steps, triton.cdiv(steps, plan.down_parts), plan.each, shape.hidden,
        shape.shared, triton.cdiv(shape.shared, tile.columns), token_blocks, plan.each,
        FORM=form, WARPS=tile.warps, COLUMNS=tile.columns, ROWS=tile.rows // tile.warps,
        WHOLE=shape.intermediate % tile.columns == 0 and shape.shared % tile.columns == 0,
        STAGES=tile.stages, FULL_COLUMNS=tile.full_columns, FULL_STAGES=tile.full_stages,
        SHARED=shape.shared > 0, SHARED_ROWS=shared.rows // shared.warps,
        SHARED_STAGES=shared.full_stages,
        num_warps=tile.warps, maxnreg=tile.registers,
    )  # fmt: skip


def _pairs(rows: torch.Tensor) -> torch.Tensor:
    """Return two neighbouring bfloat16 as one int32: int4 has an even and an odd weight a byte."""
    if rows.data_ptr() % 4:
        raise ValueError("x starts at an address that 4 does not divide: copy it")
    return rows.view(torch.int32)


def _bytes(weights: torch.Tensor) -> torch.Tensor:
    """Return fp8 as bytes: before sm_89 there is no such type."""
    return weights.view(torch.uint8) if weights.dtype == torch.float8_e4m3fn else weights
