"""`fused_moe` in CUDA C++ through CuPy, on tensor cores by mma.sync (sm_80 and later).

Both paths stream weights as they are stored (`_expert_product_cuda`), and choose by shapes alone:

    direct   2 launches: gate_up (`_gate_up_cuda`) and down (`_down_cuda`), which also adds up the
             choices of each token. Up to 16 tokens.
    sorted   4 launches: align (`_align_cupy`), gate_up, down, combine.

The shared expert is part of the same launches. Tiles: `_fused_moe_cuda_tiles`. All memory that a
call needs is allocated before it: calls of one `Prepared` must not overlap, and each overwrites the
outputs of the one before. Facts: path, tile (rows of weights x tokens, of a warp) and splits, the
parts of K, of the first product and of the second.

Tokens, weights and scales must start at multiples of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from kernels import Case, Needs, Outputs, Prepared
from kernels._raw import Argument, RawKernel, must_be_aligned
from kernels._splits import sm_count
from kernels._target import capability
from kernels.moe._align_cupy import align
from kernels.moe._align_layout import MOST_TOP_K, empty_outputs
from kernels.moe._down_cuda import COMBINE, DOWN_DIRECT, DOWN_SORTED
from kernels.moe._formats import FormatName
from kernels.moe._fused_moe_cuda_tiles import RUN, WARP, Plan, Product, plan_for
from kernels.moe._gate_up_cuda import GATE_UP
from kernels.moe._paths import MOST_DIRECT_TOKENS, Path, path_for, why_not
from kernels.moe.fused_moe import OP, Given, refuses

Call = Callable[[], Outputs]
_SOURCES = {"gate_up": GATE_UP, "down_direct": DOWN_DIRECT, "down_sorted": DOWN_SORTED}
_MOST_SLOTS = MOST_DIRECT_TOKENS * MOST_TOP_K
_COMBINE_THREADS, _COMBINE_COLUMNS = 128, 4
_LAUNCHES: Mapping[Path, int] = {"direct": 2, "sorted": 4}


def kernel_of(product: Product, path: Path) -> RawKernel:
    """Return the kernel of a product; it is compiled when it is called."""
    tile, gate_up = product.tile, product.kernel == "gate_up"
    # int4 wants the k of tokens in another order, in which gate_up leaves them for down.
    routed: dict[FormatName, str] = {
        "bf16": "Bf16",
        "fp8": "Fp8",
        "int4": f"Int4<{_word(not gate_up)}>",
    }
    constants = {
        "MOST_THREADS": WARP * tile.warps,
        "TILES": tile.tiles,
        "COLUMN_TILES": tile.columns // 8,
        "STAGES": tile.stages,
        "BLOCKS": tile.blocks_per_sm,
        "RING_BYTES": product.ring_bytes,
        "PAIRED": int(gate_up),
        "ROUTED": routed[product.form],
        "WHOLE_STEPS": _word(product.whole_steps),
        "ORDERED_ACT": _word(product.form == "int4"),
        "SHARED": int(product.shared),
        "SORTED": int(path == "sorted"),
        "MOST_SLOTS": _MOST_SLOTS,
        "PART_BITS": product.part_bits,
        "RUN": RUN,
    }
    return _kernel(product.kernel, _defined(constants) + _SOURCES[product.kernel])


def _combine_kernel(*, shared: bool) -> RawKernel:
    constants = {"THREADS": _COMBINE_THREADS, "SHARED": int(shared)}
    return _kernel("combine", _defined(constants) + COMBINE)


_kernel = cache(RawKernel)  # products that differ in nothing that is compiled in share one


def _word(value: bool) -> str:
    return str(value).lower()


def _defined(constants: Mapping[str, object]) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in constants.items())


def _launch(given: Given, plan: Plan, product: Product, grid: tuple[int, int], *args: Any) -> None:
    """Launch a product on what `args` name: its tokens, then what is its own, then the shared one.

    An argument None is one that a kernel has only with a shared expert.
    """
    tokens, *own = (one for one in args if one is not None)
    first = product is plan.gate_up
    weights, scales = (
        (given.gate_up, given.gate_up_scales) if first else (given.down, given.down_scales)
    )
    shape = given.shape
    sizes = (shape.tokens, shape.top_k, shape.experts, shape.hidden, shape.intermediate)
    kernel_of(product, plan.path)(
        grid, (WARP * product.warps,),
        tokens, weights, scales if scales.numel() else weights, *own, *map(np.int32, sizes),
        np.uint32(weights.nbytes // shape.experts), np.uint32(scales.nbytes // shape.experts),
        shared_bytes=product.shared_bytes(shape.choices),
    )  # fmt: skip


def direct_call(given: Given, plan: Plan) -> Call:
    """Allocate; return what launches the direct path by this plan."""
    shape, x = given.shape, given.x
    act, y = x.new_empty(shape.choices, shape.intermediate), torch.empty_like(x)
    leaders = given.ids.new_empty(shape.choices)
    members = given.ids.new_empty(shape.choices, plan.gate_up.tile.columns)
    shared_act = x.new_empty(shape.tokens, shape.shared) if shape.shared else None
    shared_size, one_block = _sizes(shape.shared, 1) if shape.shared else (None, None)
    slices = -(-max(shape.intermediate, shape.shared) // (plan.gate_up.tile.rows // 2))

    def call() -> Outputs:
        _launch(
            given, plan, plan.gate_up, (slices, shape.choices + (shape.shared > 0)),
            x, act, given.ids, leaders, members,
            given.shared_gate_up, shared_act, shared_size, one_block,
        )  # fmt: skip
        _launch(
            given, plan, plan.down, (shape.hidden // plan.down.tile.rows, 1),
            act, given.ids, given.weights, leaders, members, y,
            shared_act, given.shared_down, shared_size,
        )  # fmt: skip
        return {"y": y}

    return call


def sorted_call(given: Given, plan: Plan) -> Call:
    """Allocate; return what launches the sorted path by this plan."""
    shape, x, block = given.shape, given.x, plan.gate_up.tile.columns
    act, y = x.new_empty(shape.choices, shape.intermediate), torch.empty_like(x)
    out = x.new_empty(shape.choices, shape.hidden, dtype=torch.float32)
    order = empty_outputs(given.ids, experts=shape.experts, block=block)
    slots, experts = order["sorted_slots"], order["block_experts"]
    shared_act = shared_out = shared_size = shared_blocks = None
    if shape.shared:
        shared_act = x.new_empty(shape.tokens, shape.shared)
        shared_out = x.new_empty(shape.tokens, shape.hidden, dtype=torch.float32)
        shared_size, shared_blocks = _sizes(shape.shared, -(-shape.tokens // block))
    blocks = len(experts) + int(shared_blocks or 0)
    slices = -(-max(shape.intermediate, shape.shared) // (plan.gate_up.tile.rows // 2))
    ranges = -(-shape.hidden // (RUN * plan.down.warps * plan.down.tile.rows))

    def call() -> Outputs:
        align(given.ids, experts=shape.experts, block=block, **order)
        _launch(
            given, plan, plan.gate_up, (slices, blocks),
            x, act, slots, experts,
            given.shared_gate_up, shared_act, shared_size, shared_blocks,
        )  # fmt: skip
        _launch(
            given, plan, plan.down, (ranges, blocks),
            act, slots, experts, out,
            shared_act, given.shared_down, shared_out, shared_size, shared_blocks,
        )  # fmt: skip
        _combine(given, out, shared_out, y)
        return {"y": y}

    return call


def _combine(
    given: Given, out: torch.Tensor, shared_out: torch.Tensor | None, y: torch.Tensor
) -> None:
    shape = given.shape
    shared: tuple[Argument, ...] = () if shared_out is None else (shared_out,)
    _combine_kernel(shared=bool(shared))(
        (-(-shape.hidden // (_COMBINE_THREADS * _COMBINE_COLUMNS)), shape.tokens),
        (_COMBINE_THREADS,),
        given.ids, given.weights, out, *shared, y,
        *_sizes(shape.top_k, shape.experts, shape.hidden),
    )  # fmt: skip


def _sizes(*sizes: int) -> tuple[np.int32, ...]:
    return tuple(map(np.int32, sizes))


def _prepared(inputs: Mapping[str, Any], *, path: Path | None) -> Prepared:
    """Check, choose and allocate; None takes the path of the written rule."""
    given = Given(**inputs)
    shape, name = given.shape, given.format.name
    path = path or path_for(shape.tokens)
    if reason := why_not(path, tokens=shape.tokens, experts=shape.experts, top_k=shape.top_k):
        raise ValueError(reason)
    for tensor in ("x", "gate_up", "gate_up_scales", "down", "down_scales", "shared_gate_up",
                   "shared_down"):  # fmt: skip
        if (value := getattr(given, tensor)) is not None:
            must_be_aligned(tensor, value.view(-1), to_bytes=16)  # rows follow one another
    plan = plan_for(shape, name, path, capability=capability(), sms=sm_count(given.x.device))
    call = (direct_call if path == "direct" else sorted_call)(given, plan)
    return Prepared(call=call, facts=plan.facts, launches=_LAUNCHES[path])


def _refuses(case: Case, *, path: Path | None) -> str | None:
    sizes = {name: case.number(name) for name in ("experts", "top_k")}
    tokens = case.number("rows")
    return refuses(case) or why_not(path or path_for(tokens), tokens=tokens, **sizes)


def _needs(path: Path | None) -> Needs:
    return Needs(
        capabilities=(80, 89, 90, 100, 120),
        packages=("cupy",),
        refuses=partial(_refuses, path=path),
    )


_own = partial(OP.prepared_implementation, declares=("tensor_core", "wide_load"))


@_own("cupy", needs=_needs(None))
def cupy_experts(**inputs: Any) -> Prepared:
    """Take the path of the written rule (`_paths`)."""
    return _prepared(inputs, path=None)


@_own("cupy_direct", needs=_needs("direct"))
def cupy_direct(**inputs: Any) -> Prepared:
    """Sort nothing, whatever the rule says."""
    return _prepared(inputs, path="direct")


@_own("cupy_sorted", needs=_needs("sorted"))
def cupy_sorted(**inputs: Any) -> Prepared:
    """Sort, whatever the rule says."""
    return _prepared(inputs, path="sorted")
