"""PLACEHOLDER"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from kernels import Case, Needs, Outputs, Prepared
from kernels._raw import RawKernel, must_be_aligned
from kernels._target import capability
from kernels.moe._align_cupy import align
from kernels.moe._align_layout import MOST_TOP_K, empty_outputs
from kernels.moe._fused_moe_cuda import COMBINE, DOWN_DIRECT, DOWN_SORTED, GATE_UP
from kernels.moe._fused_moe_cuda_tiles import Tile, tile_for
from kernels.moe._paths import MOST_DIRECT_TOKENS, Path, path_for
from kernels.moe.fused_moe import OP, Given, refuses

_STEP = {"bf16": 32, "fp8": 64, "int4": 128}
_MOST_SLOTS = MOST_DIRECT_TOKENS * MOST_TOP_K
_RUN = 4
_COMBINE_THREADS = 128


def _scale_bytes(name, whole):
    return {"bf16": 0, "fp8": 16, "int4": 128 if whole else 256}[name]


@cache
def _kernel(name, text, *, form, shared, tile, whole, paired, sorted_, part_bits=0):
    routed = {"bf16": "Bf16", "fp8": "Fp8", "int4": f"Int4<{str(not paired).lower()}>"}[form]
    constants = {
        "WARPS": tile.warps, "COLUMN_TILES": tile.columns // 8, "TILES": tile.tiles,
        "STAGES": tile.stages, "BLOCKS": tile.blocks_per_sm, "PAIRED": int(paired),
        "WHOLE_STEPS": int(whole), "ROUTED": routed, "SHARED": int(shared), "SORTED": int(sorted_),
        "RING_BYTES": tile.ring_bytes(_scale_bytes(form, whole)), "MOST_SLOTS": _MOST_SLOTS,
        "ORDERED_ACT": int(form == "int4"), "RUN": _RUN, "PART_BITS": part_bits,
    }
    head = "".join(f"#define {n} {v}\n" for n, v in constants.items())
    return RawKernel(name, head + text)


def _ints(*v):
    return [np.int32(x) for x in v]


def direct(given: Given):
    s = given.shape
    tile = tile_for(s.tokens, capability=capability())
    form = given.format.name
    step = _STEP[form]
    shared = s.shared > 0
    new = given.x.new_empty
    act = new(s.choices, s.intermediate)
    leaders = new(s.choices, dtype=torch.int32)
    members = new(s.choices, tile.columns, dtype=torch.int32)
    y = torch.empty_like(given.x)
    shared_act = new(s.tokens, s.shared) if shared else None

    def most(n):
        return min(tile.warps, 1 << max(0, n.bit_length() - 1))

    def call():
        def kernel(name, text, paired, columns, t):
            whole = columns % step == 0
            return _kernel(name, text, form=form, shared=shared, tile=t, whole=whole, paired=paired, sorted_=False, part_bits=bits), t.warps * t.ring_bytes(_scale_bytes(form, whole))
        def scales(w, sc):
            return sc if sc.numel() else w
        bits = 0
        t = replace(tile, warps=most(max(-(-s.hidden // step), s.hidden // 32 if shared else 0)))
        k, ring = kernel("gate_up", GATE_UP, True, s.hidden, t)
        slices = max(s.intermediate, s.shared) // (8 * tile.tiles)
        args = [given.x, given.gate_up, scales(given.gate_up, given.gate_up_scales), act, given.ids, leaders, members]
        if shared:
            args += [given.shared_gate_up, shared_act, *_ints(s.shared, 1)]
        args += _ints(s.tokens, s.top_k, s.experts, s.hidden, s.intermediate)
        args += [given.gate_up[0].nbytes, given.gate_up_scales.nbytes // s.experts]
        k((slices, s.choices + shared), (32 * t.warps,), *args, shared_bytes=ring + 4 * t.warps * t.columns)
        steps = -(-s.intermediate // step)
        parts = most(min(steps, max(1, tile.warps // s.choices)))
        bits = parts.bit_length() - 1
        t = replace(tile, warps=max(most(s.choices * parts), min(tile.warps, 8 if s.choices > 32 else 1)))
        k, ring = kernel("down_direct", DOWN_DIRECT, False, s.intermediate, t)
        args = [act, given.down, scales(given.down, given.down_scales), given.ids, given.weights, leaders, members, y]
        if shared:
            args += [shared_act, given.shared_down, *_ints(s.shared)]
        args += _ints(s.tokens, s.top_k, s.experts, s.hidden, s.intermediate)
        args += [given.down[0].nbytes, given.down_scales.nbytes // s.experts]
        width = 16 * tile.tiles
        k((s.hidden // width,), (32 * t.warps,), *args, shared_bytes=ring + 4 * t.warps * t.stages * (t.columns + 4) + 4 * s.choices * (parts * width + 1))
        return {"y": y}
    return call
