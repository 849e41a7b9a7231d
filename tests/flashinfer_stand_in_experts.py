"""FlashInfer's experts as 0.6.18 and 0.7.4 declare them, computed in torch.

They are added to the module at `flashinfer.fused_moe`, which keeps their calls in `calls`. What
they compute is `flashinfer_experts`, traps included: cutlass loses the second of two equal ids in a
row where its fused sort does not serve, trtllm-gen always.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

from tests import flashinfer_stand_in_frost as frost
from tests.flashinfer_experts import experts, interleaved, shuffled_rows, signed, trtllm_rows
from tests.flashinfer_signatures import Given, Method
from tests.flashinfer_signatures import method as signed_method

_SWIGLU = 3
_BYTES_A_ROW = 256  # of scratch memory, in this stand-in
_SORTED_TOP_K = (1, 2, 4, 6, 8)
_MOST_SORTED_EXPERTS = 510
_PARALLEL = {"tp_size": 1, "tp_rank": 0, "ep_size": 1, "ep_rank": 0}
_CUTLASS_NEEDS = (
    "input",
    "token_selected_experts",
    "token_final_scales",
    "fc1_expert_weights",
    "fc2_expert_weights",
    "output_dtype",
    "quant_scales",
)
_CUTLASS: Given = {
    "fc1_expert_biases": None,
    "fc2_expert_biases": None,
    "input_sf": None,
    "swiglu_alpha": None,
    "swiglu_beta": None,
    "swiglu_limit": None,
    **_PARALLEL,
    "cluster_size": 1,
    "cluster_rank": 0,
    "output": None,
    "enable_alltoall": False,
    "use_deepseek_fp8_block_scale": False,
    "use_w4_group_scaling": False,
    "use_mxfp8_act_scaling": False,
    "min_latency_mode": False,
    "use_packed_weights": False,
    "use_wfp4afp8_humming": False,
    "tune_max_num_tokens": 8192,
    "enable_pdl": None,
    "activation_type": _SWIGLU,
    "swizzled_input_sf": True,
    "use_fused_finalize": True,
    "profile_ids": None,
    "workspace_buffer": None,
}
_WORKSPACE_NEEDS = (
    "max_num_tokens",
    "hidden_size",
    "intermediate_size",
    "num_experts_total",
    "top_k",
)
_WORKSPACE: Given = {
    "output_dtype": torch.bfloat16,
    "activation_type": _SWIGLU,
    **_PARALLEL,
    "min_latency_mode": False,
    "use_deepseek_fp8_block_scale": False,
    "use_w4_group_scaling": False,
    "use_mxfp8_act_scaling": False,
    "use_fused_finalize": True,
    "use_packed_weights": False,
    "use_wfp4afp8_humming": False,
    "device": None,
}
_MXINT4_NEEDS = (
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
)
_MXINT4: Given = {
    "routing_method_type": 0,
    "do_finalize": True,
    "enable_pdl": None,
    "gemm1_lora_delta": None,
    "output": None,
    "tune_max_num_tokens": 8192,
}
_SINCE_0_7: Mapping[str, Given] = {
    "cutlass_fused_moe": {
        "use_fused_finalize": None,
        "*": None,
        "clamped_relu2_limit": None,
        "situ_beta": None,
        "situ_linear_beta": None,
        "backend": "cutlass",
        "nvfp4_4over6": frost.UNSET,
    },
    "cutlass_fused_moe_workspace_size": {"use_fused_finalize": None, "backend": "cutlass"},
    "trtllm_mxint4_block_scale_routed_moe": {
        "valid_hidden_size": None,
        "valid_intermediate_size": None,
        "workspace_buffer": None,
    },
}


def added(module: ModuleType, version: str, *, without: Collection[str]) -> ModuleType:
    """Add the experts to what stands at `fused_moe`; without: arguments that nothing takes."""
    newer: Mapping[str, Given] = {} if version.startswith("0.6") else _SINCE_0_7

    def method(name: str, needs: Collection[str], options: Given, body: Any) -> Method:
        options = {**options, **newer.get(name, {})}
        return signed_method(
            name, needs, {key: one for key, one in options.items() if key not in without}, body
        )

    sized = ("x_dtype", "weight_dtype")
    parts: dict[str, Any] = {
        "cutlass_fused_moe": method("cutlass_fused_moe", _CUTLASS_NEEDS, _CUTLASS, _cutlass),
        "cutlass_fused_moe_workspace_size": method(
            "cutlass_fused_moe_workspace_size",
            (*_WORKSPACE_NEEDS, "*", *sized),
            _WORKSPACE,
            _workspace_size,
        ),
        "trtllm_mxint4_block_scale_routed_moe": method(
            "trtllm_mxint4_block_scale_routed_moe", _MXINT4_NEEDS, _MXINT4, _mxint4
        ),
    }
    holder = type("Experts", (), parts)()
    holder.calls = []
    vars(module).update({name: getattr(holder, name) for name in (*parts, "calls")})
    vars(module).update(convert_to_block_layout=convert_to_block_layout)
    if not version.startswith("0.6"):
        vars(module).update(frost.parts())
    return module


@contextlib.contextmanager
def autotune(
    tune_mode: bool = True,
    cache: str | None = None,
    tuning_buckets: tuple[int, ...] | None = None,
    round_up: bool | None = None,
    skip_ops: str | set[str] | None = None,
) -> Iterator[None]:
    """Within the block tactics are timed: here nothing is."""
    yield


@contextlib.contextmanager
def later_autotune(
    tune_mode: bool = True,
    cache: str | None = None,
    tuning_buckets: tuple[int, ...] | None = None,
    round_up: bool | None = None,
    skip_ops: str | set[str] | None = None,
    cuda_graph_profile_replays: int | None = None,
    tie_tolerance: float | None = None,
) -> Iterator[None]:
    """`autotune` of 0.7."""
    yield


def reorder_rows_for_gated_act_gemm(x: torch.Tensor) -> torch.Tensor:
    """Let the rows of both halves alternate."""
    return torch.stack(x.chunk(2), dim=1).flatten(0, 1)


def shuffle_matrix_a(input_tensor: torch.Tensor, epilogue_tile_m: int) -> torch.Tensor:
    """Shuffle rows, for the one tile that is known here."""
    if epilogue_tile_m != 128:
        raise ValueError(f"a tile of {epilogue_tile_m}")
    return input_tensor[shuffled_rows(len(input_tensor))]


def shuffle_matrix_sf_a(
    input_tensor: torch.Tensor, epilogue_tile_m: int, num_elts_per_sf: int = 16
) -> torch.Tensor:
    """Shuffle and interleave scales."""
    return interleaved(shuffle_matrix_a(input_tensor, epilogue_tile_m))


def convert_to_block_layout(input_tensor: torch.Tensor, blockK: int) -> torch.Tensor:
    """Cut K into blocks."""
    rows, columns = input_tensor.shape
    return input_tensor.view(rows, columns // blockK, blockK).permute(1, 0, 2).contiguous()


def once(ids: torch.Tensor, *, last: bool) -> torch.Tensor:
    """Leave one of equal ids in a row, the first or the last; the others name nothing."""
    kept = ids.clone()
    for row in kept:
        for at, expert in enumerate(row.tolist()):
            others = row[at + 1 :] if last else row[:at]
            if (others == expert).any():
                row[at] = -1
    return kept


def _workspace_size(self: Any, given: Given) -> int:
    if given.get("use_fused_finalize"):
        raise ValueError("sized for another form than is called")
    rows: int = given["max_num_tokens"] * given["top_k"]
    return rows * _BYTES_A_ROW


def compute_cutlass(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
) -> torch.Tensor:
    """Compute what the kernels of cutlass do with bfloat16 weights [E, 2 I, H] and [E, H, I]."""
    count, hidden, inner = down.shape
    if gate_up.shape != (count, 2 * inner, hidden) or (gate_up.dtype, down.dtype) != (
        torch.bfloat16,
        torch.bfloat16,
    ):
        raise ValueError(f"weights are {gate_up.dtype} {tuple(gate_up.shape)}")
    if ids.dtype != torch.int32 or weights.dtype != torch.float32:
        raise ValueError("ids are int32, weights float32")
    if ids.shape[1] not in _SORTED_TOP_K or count > _MOST_SORTED_EXPERTS:
        ids = once(ids, last=False)
    return experts(x, ids, weights, count=count, unpack=lambda e: (gate_up[e], down[e]))


def _cutlass(self: Any, given: Given) -> None:
    scratch, x = given.get("workspace_buffer"), given["input"]
    needed = len(x) * given["token_selected_experts"].shape[1] * _BYTES_A_ROW
    if scratch is not None and (scratch.dtype != torch.uint8 or scratch.numel() < needed):
        raise ValueError(f"workspace_buffer too small: need {needed} bytes")
    if given["quant_scales"]:
        raise ValueError("bfloat16 has no scales")
    y = compute_cutlass(
        x,
        given["token_selected_experts"],
        given["token_final_scales"],
        given["fc1_expert_weights"],
        given["fc2_expert_weights"],
    )
    given["output"].copy_(y)


def compute_mxint4(given: Given) -> torch.Tensor:
    """Compute what trtllm-gen's kernels do with packed routing and weights in their layout."""
    count, inner = given["num_experts"], given["intermediate_size"]
    x, routing = given["hidden_states"], given["topk_ids"]
    hidden = x.shape[1]
    sizes = ((hidden // 256, 2 * inner, 128), (inner // 256, hidden, 128))
    for name, size in zip(("gemm1_weights", "gemm2_weights"), sizes, strict=True):
        if given[name].shape != (count, *size) or given[name].dtype != torch.uint8:
            raise ValueError(f"{name} is {tuple(given[name].shape)}")
        if given[f"{name}_scale"].dtype != torch.bfloat16:
            raise ValueError("scales are bfloat16")
    weights = (routing & 0xFFFF).to(torch.int16).view(torch.bfloat16)

    def unpack(expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = (
            signed(
                *trtllm_rows(
                    given[f"gemm{n}_weights"][expert],
                    given[f"gemm{n}_weights_scale"][expert],
                    gated=n == 1,
                )
            )
            for n in (1, 2)
        )
        return first, second

    return experts(x, once(routing >> 16, last=True), weights, count=count, unpack=unpack)


def _mxint4(self: Any, given: Given) -> list[torch.Tensor]:
    given["output"].copy_(compute_mxint4(given))
    return [given["output"]]
