"""FlashInfer as 0.6.18 and 0.7.4 declare it, computed in torch on the CPU from the plan alone.

`made(version)` returns a module to put in `sys.modules`. What it has has the signatures of the
wheels (tests compare them where one is installed). Its paged prefill packs and reads mask bits as
the kernels do, and gives what they give: LSE in base 2, an empty row at -5e4 before 0.7 and at -inf
from then on. A wrapper's class keeps what was made in `made`, and each of those its calls and their
keywords in `calls`. Decode, MLA, XQA, experts, routing and a layer's small ops are in files of
their own.
"""

import itertools
import math
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tests import flashinfer_stand_in_decode as decode
from tests import flashinfer_stand_in_experts as experts
from tests import flashinfer_stand_in_layer as layer
from tests import flashinfer_stand_in_mla as mla
from tests import flashinfer_stand_in_moe as moe
from tests.flashinfer_signatures import Body, Given, Method
from tests.flashinfer_signatures import method as signed
from tests.flashinfer_softmax import attend, causal
from tests.flashinfer_stand_in_xqa import xqa

_INIT = {
    "kv_layout": "NHD",
    "use_cuda_graph": False,
    "qo_indptr_buf": None,
    "paged_kv_indptr_buf": None,
    "paged_kv_indices_buf": None,
    "paged_kv_last_page_len_buf": None,
    "custom_mask_buf": None,
    "mask_indptr_buf": None,
    "backend": "auto",
    "jit_args": None,
    "jit_kwargs": None,
}
_PLAN_NEEDS = (
    "qo_indptr",
    "paged_kv_indptr",
    "paged_kv_indices",
    "paged_kv_last_page_len",
    "num_qo_heads",
    "num_kv_heads",
    "head_dim_qk",
    "page_size",
)
_PLAN = {
    "head_dim_vo": None,
    "custom_mask": None,
    "packed_custom_mask": None,
    "causal": False,
    "pos_encoding_mode": "NONE",
    "use_fp16_qk_reduction": False,
    "sm_scale": None,
    "window_left": -1,
    "logits_soft_cap": None,
    "rope_scale": None,
    "rope_theta": None,
    "q_data_type": "float16",
    "kv_data_type": None,
    "o_data_type": None,
    "non_blocking": True,
    "prefix_len_ptr": None,
    "token_pos_in_items_ptr": None,
    "token_pos_in_items_len": 0,
    "max_item_len_ptr": None,
    "seq_lens": None,
    "seq_lens_q": None,
    "block_tables": None,
    "max_token_per_sequence": None,
    "max_sequence_kv": None,
    "fixed_split_size": None,
    "disable_split_kv": False,
}
_RUN = {
    "q_scale": None,
    "k_scale": None,
    "v_scale": None,
    "out": None,
    "lse": None,
    "return_lse": False,
    "enable_pdl": None,
    "window_left": None,
    "sinks": None,
    "kv_cache_sf": None,
    "skip_softmax_threshold_scale_factor": None,
    "use_fp16_softmax": None,
    "uses_spcompress": None,
}
_SINCE_0_7: Mapping[str, Given] = {
    "__init__": {"variant_owns_mask": False, "max_total_num_rows": None},
    "plan": {"uniform_q_len": None, "use_token_head_sf": False},
    "run": {"lse_base": "log2", "lse_layout": "NH"},
}


def made(
    version: str, *, without: Collection[str] = (), asks_for: Collection[str] = ()
) -> ModuleType:
    """Return a module `flashinfer`.

    without: arguments that no function takes. asks_for: ones that `plan` cannot do without.
    """
    newer: Mapping[str, Given] = {} if version.startswith("0.6") else _SINCE_0_7
    infinity = 5e4 if version.startswith("0.6") else math.inf

    def method(name: str, needs: Collection[str], options: Given, body: Body) -> Method:
        options = {**options, **newer.get(name, {})}
        taken = {key: value for key, value in options.items() if key not in without}
        return signed(name, needs, taken, body)

    module = ModuleType("flashinfer")
    wrapper = type(
        "BatchPrefillWithPagedKVCacheWrapper",
        (),
        {
            "made": [],
            "infinity": infinity,
            "__init__": method("__init__", ("float_workspace_buffer",), _INIT, _init),
            "plan": method("plan", (*_PLAN_NEEDS, *asks_for), _PLAN, _plan),
            "run": method("run", ("q", "paged_kv_cache", "*args"), _RUN, _run),
            "reset_workspace_buffer": method(
                "reset", ("float_workspace_buffer", "int_workspace_buffer"), {}, _reset
            ),
        },
    )
    vars(module).update(
        __version__=version,
        BatchPrefillWithPagedKVCacheWrapper=wrapper,
        BatchDecodeWithPagedKVCacheWrapper=decode.wrapper(version),
        mla=mla.module(version),
        merge_state_in_place=mla.merge_state_in_place,
        segment_packbits=segment_packbits,
        xqa=xqa,
        merge_states=_merge_states(infinity),
        chain_speculative_sampling=chain_speculative_sampling,
        fused_moe=experts.added(moe.module(version), version, without=without),
        top_k=moe.top_k,
        autotune=experts.autotune if version.startswith("0.6") else experts.later_autotune,
        reorder_rows_for_gated_act_gemm=experts.reorder_rows_for_gated_act_gemm,
        shuffle_matrix_a=experts.shuffle_matrix_a,
        shuffle_matrix_sf_a=experts.shuffle_matrix_sf_a,
        **layer.modules(),
    )
    return module


def chain_speculative_sampling(
    draft_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_probs: torch.Tensor,
    maybe_output_accepted_token_num: torch.Tensor | None = None,
    maybe_output_emitted_draft_token_num: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Accept with random numbers of its own, in float32; tokens behind the last are -1."""
    drawn = torch.Generator().manual_seed(int(seed or 0))
    requests, drafts = draft_token_ids.shape
    at = draft_token_ids.long()[..., None]
    p, q = target_probs[:, :drafts].gather(2, at)[..., 0], draft_probs.gather(2, at)[..., 0]
    kept = torch.rand(requests, drafts, generator=drawn) * q < p
    emitted = kept.int().cumprod(1).sum(1)
    tokens = torch.full((requests, drafts + 1), -1, dtype=torch.int32)
    for request, count in enumerate(emitted.tolist()):
        left = target_probs[request, count]
        if count < drafts:
            left = (left - draft_probs[request, count]).clamp(min=0)
        tokens[request, :count] = draft_token_ids[request, :count]
        tokens[request, count] = torch.multinomial(left, 1, generator=drawn)[0]
    return tokens, kept.sum(1).int(), emitted.int()


def _merge_states(infinity: float) -> Callable[..., object]:
    def merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Merge [n, states, heads, dim] one state after another, in base 2, as its kernel does."""
        top = torch.full_like(s[:, 0], -infinity)
        total, out = torch.ones_like(top), torch.zeros_like(v[:, 0], dtype=torch.float32)
        for state in range(s.shape[1]):
            new_top = torch.maximum(top, s[:, state])
            kept = torch.exp2(top - new_top).nan_to_num(0.0)
            weight = torch.exp2(s[:, state] - new_top).nan_to_num(0.0)
            total = total * kept + weight
            out = out * kept[..., None] + weight[..., None] * v[:, state].float()
            top = new_top
        return (out / total[..., None]).to(v.dtype), top + total.log2()

    return merge_states


def segment_packbits(
    x: torch.Tensor, indptr: torch.Tensor, bitorder: str = "big"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack each segment of bools, padded to a byte; return the bytes and where segments begin."""
    ends = indptr.tolist()
    packed = [
        np.packbits(x[start:end].numpy(), bitorder="little" if bitorder == "little" else "big")
        for start, end in itertools.pairwise(ends)
    ]
    starts = np.cumsum([0, *(len(segment) for segment in packed)])
    return torch.from_numpy(np.concatenate(packed)), torch.from_numpy(starts).int()


def _init(self: Any, given: Given) -> None:
    self.made.append(self)
    self.created, self._backend, self._plan_info = given, given["backend"], None
    if given["use_cuda_graph"]:
        for name in ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"):
            if given[f"{name}_buf"] is None:
                raise ValueError(f"{name}_buf should be a torch.Tensor in CUDA graph mode")


def _reset(self: Any, given: Given) -> None:
    self.reset = given


def _plan(self: Any, given: Given) -> None:
    queries = given["qo_indptr"].diff()
    whole_pages = given["paged_kv_indptr"].diff() - 1
    kv_lens = whole_pages * given["page_size"] + given["paged_kv_last_page_len"]
    lists = {name: given[name] for name in _PLAN_NEEDS[:4]}
    # packed_custom_mask is not served: with it the wheels keep `bits` where bytes are meant.
    if given["custom_mask"] is not None:
        bits = torch.cat([torch.zeros(1, dtype=torch.int32), (queries * kv_lens).cumsum(0)])
        lists["custom_mask"], lists["mask_indptr"] = segment_packbits(
            given["custom_mask"], bits, bitorder="little"
        )
    if self.created["use_cuda_graph"]:
        lists = {name: _kept(self.created[f"{name}_buf"], part) for name, part in lists.items()}
    self.planned, self.lists = given, lists
    self._backend = "fa2" if self._backend == "auto" else self._backend
    self._plan_info = [0, 0, 0, 16]


def _kept(buffer: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    if len(part) > len(buffer) or part.dtype != buffer.dtype:
        raise ValueError(f"a buffer of {len(buffer)} does not hold {len(part)}")
    buffer[: len(part)] = part
    return buffer


def _run(self: Any, given: Given) -> object:
    q, (k_cache, v_cache) = given["q"], given["paged_kv_cache"]
    if (q.dtype, k_cache.dtype) != (self.planned["q_data_type"], self.planned["kv_data_type"]):
        raise ValueError("the dtypes of plan and run differ")
    out, lse = given["out"], given["lse"]
    ends = self.lists["qo_indptr"].tolist()
    for request in range(len(ends) - 1):
        rows = slice(ends[request], ends[request + 1])
        out[rows], lse[rows] = attend_planned(
            self, request, q[rows], k_cache, v_cache, k_scale=given["k_scale"] or 1.0
        )
    out *= given["v_scale"] or 1.0
    if given.get("lse_base") == "ln":
        lse *= math.log(2)
    return (out, lse) if given["return_lse"] else out


def attend_planned(
    self: Any,
    request: int,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute one request from what was planned; LSE in base 2."""
    plan, lists = self.planned, self.lists
    first, last = lists["paged_kv_indptr"][request : request + 2].tolist()
    kv_len = (last - first - 1) * plan["page_size"] + int(lists["paged_kv_last_page_len"][request])
    pages = lists["paged_kv_indices"][first:last].long()
    group = plan["num_qo_heads"] // plan["num_kv_heads"]
    k, v = (
        cache[pages].flatten(0, 1)[:kv_len].double().repeat_interleave(group, dim=1)
        for cache in (k_cache, v_cache)
    )
    if "custom_mask" in lists:
        # Bit n of the request, counted over all its rows, in byte n / 8 from where it begins.
        bit = torch.arange(len(q) * kv_len).reshape(len(q), kv_len)
        begin = int(lists["mask_indptr"][request])
        visible = (lists["custom_mask"][begin + bit // 8] >> (bit % 8)) & 1 == 1
    elif plan["causal"]:
        visible = causal(len(q), kv_len)
    else:
        visible = torch.ones(len(q), kv_len, dtype=torch.bool)
    return attend(
        q,
        k,
        v,
        visible=visible,
        scale=plan["sm_scale"] * k_scale,
        infinity=self.infinity,
    )
