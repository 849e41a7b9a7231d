"""`fused_moe` by FlashInfer's trtllm-gen experts: int4 as it is, on the 10.x capabilities.

`trtllm_mxint4_block_scale_moe` routes inside, from logits: softmax or sigmoid of all experts and
top-k, which is the work of `moe_routing` and can give back neither any ids nor any weights.
`trtllm_mxint4_block_scale_routed_moe`, in the wheels read, has the same kernels behind given
routing: that is the op, and is called here; a version without it is refused.

    packed[t, j] = ids[t, j] << 16 | bits of weights[t, j] as bfloat16     (int32)

So the weights of the choices are rounded to bfloat16. Packing is what an engine repeats for each
step: a stage. Sorting the choices by expert is part of the call.

Weights: nibbles in two's complement, and up before gate; then rows of up and gate alternate, rows
are shuffled for a tile of 128, and K is cut into blocks of 128 bytes; scales are shuffled alike and
interleaved by 128 x 4. All of it by FlashInfer's own functions, in the plan. The sizes must be
multiples of 256. Ids that name no expert are skipped; of two equal ids in a row one is lost.

Its kernels are binaries that FlashInfer loads at first use, from flashinfer-cubin if that is
installed, else from the network.

Errors: ValueError for inputs that `Given` or the baseline refuses.
Source: fused_moe/core.py, prepare.py, trtllm_fused_moe_kernel_launcher.cu and the kernels of its
routing in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from types import ModuleType
from typing import Any

import torch

from kernels import Case, Outputs, Prepared, Stage, _flashinfer
from kernels._flashinfer import Call
from kernels.moe import _flashinfer_experts, _formats
from kernels.moe._baselines import Baseline
from kernels.moe._flashinfer_experts import AUTOTUNE
from kernels.moe._fused_moe_cases import MOST_TOKENS
from kernels.moe.fused_moe import OP, Given

_TILE, _BLOCK_BYTES = 128, 128

DIRECT = Baseline(
    name="flashinfer_mxint4",
    kind="baseline-direct",
    what="FlashInfer's trtllm_mxint4 experts",
    why="the same experts in the same format, the weights of choices rounded to bfloat16",
    formats=("int4",),
    capabilities=(100, 103, 107),
    multiples=(256, 256),
    most_top_k=32,
    repeated=False,
)
EXPERTS = Call(
    function="fused_moe.trtllm_mxint4_block_scale_routed_moe",
    needed=(
        "topk_ids",
        "hidden_states",
        "gemm1_weights",
        "gemm1_weights_scale",
        "gemm1_alpha",
        "gemm1_beta",
        "gemm1_clamp_limit",
        "gemm2_weights",
        "gemm2_weights_scale",
        "num_experts",
        "top_k",
        "n_group",
        "topk_group",
        "intermediate_size",
        "local_expert_offset",
        "local_num_experts",
        "routed_scaling_factor",
        "output",
        "tune_max_num_tokens",
    ),
)
ALTERNATED = Call(function="reorder_rows_for_gated_act_gemm", needed=("x",))
SHUFFLED = Call(function="shuffle_matrix_a", needed=("input_tensor", "epilogue_tile_m"))
SCALES_SHUFFLED = Call(function="shuffle_matrix_sf_a", needed=("input_tensor", "epilogue_tile_m"))
CUT = Call(function="fused_moe.convert_to_block_layout", needed=("input_tensor", "blockK"))
CALLS = (EXPERTS, ALTERNATED, SHUFFLED, SCALES_SHUFFLED, CUT, AUTOTUNE)


def _refuses(case: Case) -> str | None:
    return _flashinfer.why_not(CALLS)


@OP.prepared_implementation(
    DIRECT.name, kind=DIRECT.kind, needs=DIRECT.needs("flashinfer", more=_refuses)
)
def mxint4_experts(**inputs: Any) -> Prepared:
    """Lay the weights out, one expert after another, and tune for these tokens."""
    given = Given(**inputs)
    DIRECT.check(given)
    shape, library = given.shape, _flashinfer.installed()
    y, packed = _flashinfer_experts.output(given.x), torch.empty_like(given.ids)

    def pack() -> torch.Tensor:
        return packed.copy_(packed_routing(given.ids, given.weights))

    pack()
    gate_up, gate_up_scales = _laid_out(
        library,
        _flashinfer_experts.up_first(given.gate_up),
        _flashinfer_experts.up_first(given.gate_up_scales),
        gated=True,
    )
    down, down_scales = _laid_out(library, given.down, given.down_scales, gated=False)
    accepted = EXPERTS.accepted(
        library,
        topk_ids=packed,
        hidden_states=given.x,
        gemm1_weights=gate_up,
        gemm1_weights_scale=gate_up_scales,
        gemm1_alpha=None,
        gemm1_beta=None,
        gemm1_clamp_limit=None,
        gemm2_weights=down,
        gemm2_weights_scale=down_scales,
        num_experts=shape.experts,
        top_k=shape.top_k,
        n_group=None,
        topk_group=None,
        intermediate_size=shape.intermediate,
        local_expert_offset=0,
        local_num_experts=shape.experts,
        routed_scaling_factor=None,
        output=y,
        tune_max_num_tokens=MOST_TOKENS,
    )
    experts = EXPERTS.find(library)

    def call() -> Outputs:
        experts(**accepted.kwargs)
        return {"y": y}

    _flashinfer_experts.tune(library, call)
    facts = _flashinfer_experts.facts_of(library, DIRECT, backend="trtllm-gen")
    return Prepared(call=call, facts=facts, stages=(Stage(name="pack", run=pack),))


def packed_routing(ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return ids and weights in one int32 each: the id above, the bits of bfloat16 below."""
    bits = weights.bfloat16().view(torch.int16).to(torch.int32)
    return (ids << 16) | (bits & 0xFFFF)


def _laid_out(
    library: ModuleType, packed: torch.Tensor, scales: torch.Tensor, *, gated: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return biased nibbles [E, N, K / 2] and scales [E, N, K / 32] as the kernels read them."""
    weights, laid_scales = [], []
    for nibbles, own_scales in zip(_formats.flipped(packed), scales, strict=True):
        rows, scale_rows = nibbles, own_scales
        if gated:
            rows = _applied(library, ALTERNATED, x=rows)
            scale_rows = _applied(library, ALTERNATED, x=scale_rows)
        rows = _applied(library, SHUFFLED, input_tensor=rows, epilogue_tile_m=_TILE)
        weights.append(_applied(library, CUT, input_tensor=rows, blockK=_BLOCK_BYTES))
        laid_scales.append(
            _applied(library, SCALES_SHUFFLED, input_tensor=scale_rows, epilogue_tile_m=_TILE)
        )
    return torch.stack(weights), torch.stack(laid_scales).view(torch.bfloat16)


def _applied(library: ModuleType, call: Call, **given: object) -> torch.Tensor:
    result: torch.Tensor = call.find(library)(**call.accepted(library, **given).kwargs)
    return result
