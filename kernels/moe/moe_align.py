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
    """Draw distinct experts for each token; "absent" "some": a third is none of E.

    The last token has no expert at all then.
    """
    drawn = torch.Generator().manual_seed(case.seed)
    experts, sizes = case.number("experts"), (case.number("rows"), case.number("top_k"))
    keys = torch.rand(sizes[0], experts, generator=drawn)
    ids = keys.argsort(dim=1)[:, : sizes[1]].int()
    if case.dims["absent"] == "some":
        slot = torch.arange(ids.numel()).view(sizes)
        ids = torch.where(slot % 6 == 2, NO_EXPERT, torch.where(slot % 6 == 5, ids + experts, ids))
        ids[-1] = NO_EXPERT
    return {"ids": ids.to(device), "experts": experts, "block": case.number("block")}


def cost(given: Inputs) -> Cost:
    """Read the ids; write all cells, those past the last block as well."""
    ids, experts, block = given["ids"], given["experts"], given["block"]
    if not isinstance(ids, torch.Tensor):
        raise TypeError("ids is no tensor")
    if not isinstance(experts, int) or not isinstance(block, int):
        raise TypeError(f"experts {experts!r} and block {block!r} must be whole numbers")
    capacity = capacity_of(slots=ids.numel(), experts=experts, block=block)
    return Cost(
        flops=0, read_bytes=ids.nbytes, written_bytes=4 * (capacity + capacity // block + 1)
    )


def _case(
    rows: int, *, experts: int, block: int, top_k: int = 8, absent: str = "none", **more: bool
) -> Case:
    """Name a point: t (tokens), e (experts), k (experts a token), m (rows of a block)."""
    dims: dict[str, Value] = {
        "rows": rows,
        "experts": experts,
        "top_k": top_k,
        "block": block,
        "absent": absent,
    }
    some = "-absent" if absent == "some" else ""
    name = f"t{rows}-e{experts}-k{top_k}-m{block}{some}"
    return Case(name=name, dims=dims, dtype=torch.int32, mode="verify", **more)


def _measured_cases() -> tuple[Case, ...]:
    """Vary the tokens at Kimi-K2.5's 384 experts, then the experts, then the block."""
    return (
        *(_case(t, experts=384, block=16, cpu=t in (1, 8)) for t in (1, 2, 3, 4, 6, 8, 12, 16)),
        *(_case(t, experts=384, block=16) for t in (32, 64, 128, 256)),
        *(_case(t, experts=e, block=16) for e in (128, 256) for t in (1, 4, 16)),
        *(_case(t, experts=384, block=64) for t in (1, 16, 256)),
    )


OP = Op(
    name="moe_align",
    part="align",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(
        _case(1, experts=8, block=4, top_k=2, tiny=True),
        _case(7, experts=12, block=4, top_k=3, absent="some", tiny=True),
        _case(40, experts=384, block=16, tiny=True),
        *_measured_cases(),
    ),
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
