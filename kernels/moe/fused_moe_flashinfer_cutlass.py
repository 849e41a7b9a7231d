"""`fused_moe` by FlashInfer's `cutlass_fused_moe` in bfloat16: direct, and on unpacked weights.

    flashinfer_cutlass           bf16 experts: the op itself
    flashinfer_cutlass_unpacked  int4 and fp8 experts, unpacked to bfloat16 by the plan: it reads
                                 3.6 or 2 times the bytes of weights and scales, other work

Its 4-bit weights with bfloat16 tokens are fp4, its int4 wants fp8 tokens. Its fp8 of 128 x 128
blocks, on capability 9.0 alone, rounds tokens and intermediates to e4m3 before each product: that
puts a row off by 4 to 5 percent (computed in float64 at H 7168, I 256, four experts a token), more
than the op allows. So both formats are unpacked.

The rows of up come first. Scratch memory is given, where the version takes it, for it is allocated
in each call otherwise. `use_fused_finalize` is False where the version has it: the fused form adds
up the choices of a token with atomics, and two runs differ; older versions have it alone.

Ids that name no expert are skipped. Of two equal ids in a row the second may be lost: its sort
looks for one match a token and expert where top_k is not 1, 2, 4, 6 or 8, or E above 510.

Errors: ValueError for inputs that `Given` or the baseline refuses.
Source: fused_moe/core.py, cutlass_fused_moe_kernels.cuh and fp8_blockscale_gemm_kernel.cuh in the
wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from kernels import Case, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.moe import _flashinfer_experts, _formats
from kernels.moe._baselines import Baseline
from kernels.moe._flashinfer_experts import AUTOTUNE
from kernels.moe._fused_moe_cases import MOST_TOKENS
from kernels.moe.fused_moe import OP, Given

_CAPABILITIES = (89, 90, 100, 103, 107, 110, 120, 121)
_WHAT = "FlashInfer's cutlass_fused_moe"

DIRECT = Baseline(
    name="flashinfer_cutlass",
    kind="baseline-direct",
    what=_WHAT,
    why="the same experts in the same format",
    formats=("bf16",),
    capabilities=_CAPABILITIES,
    repeated=False,
)
UNPACKED = Baseline(
    name="flashinfer_cutlass_unpacked",
    kind="baseline-different-work",
    what=f"{_WHAT} on unpacked weights",
    why="weights unpacked to bfloat16 before: it reads 3.6 (int4) or 2 (fp8) times their bytes",
    formats=("int4", "fp8"),
    capabilities=_CAPABILITIES,
    repeated=False,
)
EXPERTS = Call(
    function="fused_moe.cutlass_fused_moe",
    needed=(
        "input",
        "token_selected_experts",
        "token_final_scales",
        "fc1_expert_weights",
        "fc2_expert_weights",
        "output_dtype",
        "quant_scales",
        "output",
        "tune_max_num_tokens",
    ),
    offered=("use_fused_finalize", "workspace_buffer"),
)
WORKSPACE = Call(
    function="fused_moe.cutlass_fused_moe_workspace_size",
    needed=(
        "max_num_tokens",
        "hidden_size",
        "intermediate_size",
        "num_experts_total",
        "top_k",
        "x_dtype",
        "weight_dtype",
        "output_dtype",
        "use_fused_finalize",
        "device",
    ),
)


def calls(library: ModuleType) -> tuple[Call, ...]:
    """Return the calls that are made of this version."""
    sized = (WORKSPACE,) if WORKSPACE.why_not(library) is None else ()
    return (EXPERTS, AUTOTUNE, *sized)


def _refuses(case: Case) -> str | None:
    return _flashinfer.why_not((EXPERTS, AUTOTUNE))


@OP.prepared_implementation(
    DIRECT.name, kind=DIRECT.kind, needs=DIRECT.needs("flashinfer", more=_refuses)
)
def cutlass_experts(**inputs: Any) -> Prepared:
    """Put the rows of up first; bf16 experts are taken as they are."""
    given = Given(**inputs)
    DIRECT.check(given)
    gate_up = _flashinfer_experts.up_first(given.gate_up)
    return _planned(given, DIRECT, gate_up=gate_up, down=given.down)


@OP.prepared_implementation(
    UNPACKED.name, kind=UNPACKED.kind, needs=UNPACKED.needs("flashinfer", more=_refuses)
)
def unpacked_cutlass_experts(**inputs: Any) -> Prepared:
    """Unpack all experts to bfloat16, one after another, and put the rows of up first."""
    given = Given(**inputs)
    UNPACKED.check(given)
    shape = given.shape
    sizes = ((2 * shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate))
    gate_up, down = (
        torch.empty((shape.experts, *size), dtype=torch.bfloat16, device=given.x.device)
        for size in sizes
    )
    for expert in range(shape.experts):
        wide = _formats.unpacked(given.gate_up[expert], given.gate_up_scales[expert])
        gate_up[expert] = _flashinfer_experts.up_first(wide)
        down[expert] = _formats.unpacked(given.down[expert], given.down_scales[expert])
    return _planned(given, UNPACKED, gate_up=gate_up, down=down)


def _planned(
    given: Given, baseline: Baseline, *, gate_up: torch.Tensor, down: torch.Tensor
) -> Prepared:
    library = _flashinfer.installed()
    y, scratch = _flashinfer_experts.output(given.x), _scratch(library, given)
    accepted = EXPERTS.accepted(
        library,
        input=given.x,
        token_selected_experts=given.ids,
        token_final_scales=given.weights,
        fc1_expert_weights=gate_up,
        fc2_expert_weights=down,
        output_dtype=given.x.dtype,
        quant_scales=[],
        output=y,
        tune_max_num_tokens=MOST_TOKENS,
        use_fused_finalize=False,
        workspace_buffer=scratch,
    )
    experts = EXPERTS.find(library)

    def call() -> Outputs:
        experts(**accepted.kwargs)
        return {"y": y}

    _flashinfer_experts.tune(library, call)
    facts = _flashinfer_experts.facts_of(
        library, baseline, backend="cutlass", dropped=accepted.dropped
    )
    return Prepared(call=call, facts={**facts, **_resolved(accepted.kwargs)})


def _resolved(taken: Mapping[str, Any]) -> dict[str, str]:
    separate = "use_fused_finalize" in taken
    given = taken.get("workspace_buffer") is not None
    return {
        "finalize": "a kernel of its own, in order" if separate else "by atomics: runs differ",
        "workspace": "given" if given else "allocated in each call",
    }


def _scratch(library: ModuleType, given: Given) -> torch.Tensor | None:
    """Return scratch memory, that of all of FlashInfer's wrappers where it suffices."""
    if WORKSPACE.why_not(library) is not None:
        return None
    shape, device = given.shape, given.x.device
    size = WORKSPACE.find(library)(
        **WORKSPACE.accepted(
            library,
            max_num_tokens=shape.tokens,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_experts_total=shape.experts,
            top_k=shape.top_k,
            x_dtype=given.x.dtype,
            weight_dtype=torch.bfloat16,
            output_dtype=given.x.dtype,
            use_fused_finalize=False,
            device=device,
        ).kwargs
    )
    shared = _flashinfer.workspace(device)
    return shared if size <= len(shared) else shared.new_empty(size)
