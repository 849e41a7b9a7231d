"""`moe_align` by FlashInfer's `moe_sort`, which orders the slots of an expert as atomics come.

It also writes where each slot went and how many rows each block has, and first fills two lists with
0; it takes the weights, and does not use them: hence `baseline-different-work`. `convert`, not
timed, makes a stable order of its own and names unused blocks -1.

Capability 10.x alone, for nothing else is built; its first call fetches headers, and fails where
there is no network and no cache of them. Refused: ids that are no expert's, which nobody has read
that it takes. No other function of the wheels sorts slots alone.

Source: Python and csrc/moe_utils_binding.cu in the wheel of FlashInfer 0.6.18.post1; Python of
0.7.4.
"""

from __future__ import annotations

import torch

from kernels import Case, Needs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.moe._align_layout import MOST_EXPERTS, NO_EXPERT, empty_outputs
from kernels.moe.moe_align import OP

_OUTPUTS = (
    "out_tile_idx_to_expert_idx",
    "out_tile_idx_to_mn_limit",
    "out_expanded_idx_to_permuted_idx",
    "out_permuted_idx_to_expanded_idx",
    "out_total_num_padded_tokens",
    "out_num_non_exiting_tiles",
)
_MODULE = "fused_moe.cute_dsl.moe_utils"
SORT = Call(
    function=f"{_MODULE}.moe_sort",
    needed=(
        "token_selected_experts",
        "token_final_scales",
        "num_experts",
        "top_k",
        "tile_tokens_dim",
        *_OUTPUTS,
    ),
)
ALLOCATE = Call(
    function=f"{_MODULE}.allocate_moe_sort_buffers",
    needed=("num_tokens", "num_experts", "top_k", "tile_tokens_dim", "device"),
)
CALLS = (SORT, ALLOCATE)


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot sort these ids."""
    if case.dims["routing"] == "holes":
        return "FlashInfer's moe_sort is not known to take ids that are no expert's"
    return _flashinfer.why_not(CALLS)


@OP.prepared_implementation(
    "flashinfer",
    kind="baseline-different-work",
    needs=Needs(capabilities=(100,), packages=("flashinfer",), refuses=refuses),
)
def flashinfer_align(*, ids: torch.Tensor, experts: int, block: int) -> Prepared:
    """Allocate as it asks to be for graphs; a call fills two lists and sorts."""
    outputs = empty_outputs(ids, experts=experts, block=block)
    library = _flashinfer.installed()
    tokens, top_k = ids.shape
    sizes = {"num_experts": experts, "top_k": top_k, "tile_tokens_dim": block}
    room = ALLOCATE.find(library)(
        **ALLOCATE.accepted(library, num_tokens=tokens, device=str(ids.device), **sizes).kwargs
    )
    weights = torch.ones_like(ids, dtype=torch.float32)
    sort = SORT.find(library)
    arguments = SORT.accepted(
        library, token_selected_experts=ids, token_final_scales=weights, **sizes, **room
    ).kwargs

    def call() -> Outputs:
        owners, _, places, _, count, _ = sort(**arguments)
        return {"owners": owners, "places": places, "padded_count": count}

    def convert(found: Outputs) -> Outputs:
        return _stable(found, outputs, block=block)

    return Prepared(call=call, convert=convert, facts={"flashinfer": _flashinfer.version(library)})


def _stable(found: Outputs, like: Outputs, *, block: int) -> Outputs:
    """Return the op's outputs of where each slot went: those of an expert in rising order."""
    capacity, device = len(like["sorted_slots"]), found["places"].device
    places, count = found["places"].flatten().long(), found["padded_count"]
    slots = places.numel()
    cell = torch.arange(capacity, device=device)
    owners = torch.full((capacity // block,), NO_EXPERT, dtype=torch.int32, device=device)
    known = min(len(owners), len(found["owners"]))
    owners[:known] = found["owners"][:known]
    owners = torch.where(cell[::block] < count, owners, NO_EXPERT)
    holds = torch.full((capacity,), slots, device=device)
    kept = places >= 0
    holds[places[kept]] = torch.arange(slots, device=device)[kept]
    # Blocks stand in the order of their experts, padding behind the slots, unused blocks last.
    owner = torch.where(owners == NO_EXPERT, MOST_EXPERTS, owners).long().repeat_interleave(block)
    by_expert = (owner * (slots + 1) + holds).sort().values % (slots + 1)
    return {"sorted_slots": by_expert.int(), "block_experts": owners, "padded_count": count}
