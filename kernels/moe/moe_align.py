"""Routed ids to the order in which a grouped GEMM reads them: sorted by expert, padded to blocks.

ids int32 [T, k], T at least 1, k 1 to 16; experts: E, 1 to 512; block: a power of two from 1 to
256. Outputs `sorted_slots`, `block_experts` and `padded_count`, int32: see `_align_layout`. Slots
of one expert stand in rising order, duplicates in a row included: the sort is stable.

An id below 0 or from E on is skipped: padded tokens carry -1 (vllm-xpu-kernels#571, aiter#4636 and
vllm-gguf-plugin#130 used it as an index), and under expert parallelism other ranks' experts lie
beyond. With no id left, padded_count is 0, every slot N and every block -1.

Errors: ValueError for shapes, dtypes and numbers that are not those.
Source: moe_align_block_size of SGLang 0.5.23 and vLLM 0.33; edge cases from their threads.
"""

from __future__ import annotations

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Tolerance
from kernels._inputs import number, tensor
from kernels.moe import _routings
from kernels.moe._align_layout import NO_EXPERT, capacity_of, must_fit
from verifyscope.records import Value


def reference(*, ids: torch.Tensor, experts: int, block: int) -> Outputs:
    """Go through the experts in plain Python."""
    flat = ids.flatten().tolist()
    sorted_slots: list[int] = []
    block_experts: list[int] = []
    for expert in range(experts):
        mine = [slot for slot, one in enumerate(flat) if one == expert]
        sorted_slots += mine + [len(flat)] * (-len(mine) % block)
        block_experts += [expert] * -(-len(mine) // block)
    padded_count = len(sorted_slots)
    capacity = capacity_of(slots=len(flat), experts=experts, block=block)
    sorted_slots += [len(flat)] * (capacity - padded_count)
    block_experts += [NO_EXPERT] * (capacity // block - len(block_experts))
    found = {
        "sorted_slots": sorted_slots,
        "block_experts": block_experts,
        "padded_count": [padded_count],
    }
    return {name: torch.tensor(cells).int().to(ids.device) for name, cells in found.items()}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw the experts of each token as `_routings` does."""
    ids = _routings.routed_ids(
        str(case.dims["routing"]),
        tokens=case.number("rows"),
        experts=case.number("experts"),
        top_k=case.number("top_k"),
        generator=torch.Generator().manual_seed(case.seed),
    )
    given = {"experts": case.number("experts"), "block": case.number("block")}
    return {"ids": ids.to(device), **given}


def cost(given: Inputs) -> Cost:
    """Read the ids; write all cells, those past the last block as well."""
    ids, experts, block = _checked(given)
    capacity = capacity_of(slots=ids.numel(), experts=experts, block=block)
    cells = capacity + capacity // block + 1
    return Cost(flops=0, read_bytes=ids.nbytes, written_bytes=4 * cells)


def counts(given: Inputs) -> dict[str, Value]:
    """Return how many experts and blocks are in use; waits for the device."""
    ids, experts, block = _checked(given)
    tokens_of = torch.unique(ids[(ids >= 0) & (ids < experts)], return_counts=True)[1]
    return {
        "distinct_experts": len(tokens_of),
        "blocks": int(((tokens_of + block - 1) // block).sum()),
    }


def _checked(given: Inputs) -> tuple[torch.Tensor, int, int]:
    return tensor(given, "ids"), number(given, "experts"), number(given, "block")


def _case(
    rows: int,
    *,
    experts: int,
    block: int,
    top_k: int = 8,
    routing: str = "uniform",
    prefix: str = "",
    **more: bool,
) -> Case:
    """Name a point: t (tokens), e (experts), k (experts a token), m (rows a block), the routing."""
    dims: dict[str, Value] = {
        "rows": rows,
        "experts": experts,
        "top_k": top_k,
        "block": block,
        "routing": routing,
    }
    name = f"{prefix}t{rows}-e{experts}-k{top_k}-m{block}-{routing}"
    return Case(name=name, dims=dims, dtype=torch.int32, mode="verify", **more)


def _measured_cases() -> tuple[Case, ...]:
    """Vary one axis at a time around the 384 experts of Kimi-K2.5, blocks of 16, uniform routing.

    Then DeepSeek-V3's 256 experts and Qwen3's 128, the overlap, and the block.
    """
    return (
        *(_case(t, experts=384, block=16, cpu=t in (1, 8)) for t in (1, 2, 3, 4, 6, 8, 12, 16)),
        *(_case(t, experts=384, block=16) for t in (32, 64, 128, 256)),
        *(_case(t, experts=e, block=16) for e in (128, 256) for t in (1, 4, 16)),
        *(_case(t, experts=384, block=16, routing=r) for r in ("zipf", "tree80") for t in (1, 16)),
        *(_case(t, experts=384, block=64) for t in (1, 16, 256)),
    )


OP = Op(
    name="moe_align",
    part="align",
    reference=reference,
    inputs=inputs,
    cost=cost,
    counts=counts,
    cases=(
        _case(1, experts=8, block=4, top_k=2, tiny=True),
        _case(7, experts=12, block=4, top_k=3, routing="holes", tiny=True),
        _case(5, experts=12, block=8, top_k=3, routing="twice", tiny=True),
        _case(40, experts=384, block=16, tiny=True),
        *_measured_cases(),
    ),
    # Qwen3's experts, DeepSeek-V3's and Kimi-K2.5's; few and many ids.
    gate_cases=(
        _case(1, experts=128, block=16, prefix="gate-"),
        _case(16, experts=256, block=64, prefix="gate-"),
        _case(256, experts=384, block=128, prefix="gate-"),
    ),
    long_gate_cases=(_case(256, experts=512, block=256, top_k=16, prefix="long-"),),
    tolerance=Tolerance(row=0.0, why="whole numbers, which have no rounding"),
)


@OP.implementation("torch", kind="baseline-composed")
def torch_align(*, ids: torch.Tensor, experts: int, block: int) -> Outputs:
    """Sort by expert, stable, and scatter; a dozen small kernels, none waits for the device."""
    must_fit(ids, experts=experts, block=block)
    slots, flat = ids.numel(), ids.flatten().long()
    capacity = capacity_of(slots=slots, experts=experts, block=block)
    # What is skipped goes to an expert too many, and from there to a cell too many.
    expert, slot = torch.where((flat < 0) | (flat >= experts), experts, flat).sort(stable=True)
    one = torch.ones_like(expert)
    counts = torch.zeros(experts + 1, dtype=torch.long, device=ids.device)
    counts.scatter_add_(0, expert, one)
    padded = (counts[:-1] + block - 1) // block * block
    ends, before = padded.cumsum(0), counts.cumsum(0) - counts
    begins = torch.nn.functional.pad(ends - padded, (0, 1))
    place = begins[expert] + torch.arange(slots, device=ids.device) - before[expert]
    place = torch.where(expert < experts, place, capacity)
    sorted_slots = torch.full((capacity + 1,), slots, dtype=torch.int32, device=ids.device)
    sorted_slots.scatter_(0, place, slot.int())
    first = torch.arange(0, capacity, block, device=ids.device)
    owner = torch.searchsorted(ends, first, right=True, out_int32=True)
    return {
        "sorted_slots": sorted_slots[:-1],
        "block_experts": torch.where(owner < experts, owner, NO_EXPERT),
        "padded_count": ends[-1:].int(),
    }
