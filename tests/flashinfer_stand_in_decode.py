"""FlashInfer's paged decode as 0.6.18 and 0.7.4 have it, computed in torch from the plan alone."""

from typing import Any

import torch

from tests.flashinfer_signatures import Given, method
from tests.flashinfer_softmax import attend, causal

_INIT = {
    "kv_layout": "NHD",
    "use_cuda_graph": False,
    "use_tensor_cores": False,
    "paged_kv_indptr_buffer": None,
    "paged_kv_indices_buffer": None,
    "paged_kv_last_page_len_buffer": None,
    "backend": "auto",
    "jit_args": None,
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
    "q_len_per_req": None,
    "skip_softmax_threshold_scale_factor": None,
    "kv_cache_sf": None,
}

_GROUPS_WITHOUT_TENSOR_CORES = (1, 2, 3, 4, 6, 8)
# What `plan(**kwargs)` hands on, and raises TypeError for anything else.
PLAN_OPTIONS = (
    "pos_encoding_mode",
    "window_left",
    "window_right",
    "logits_soft_cap",
    "q_data_type",
    "kv_data_type",
    "o_data_type",
    "data_type",
    "sm_scale",
    "rope_scale",
    "rope_theta",
    "non_blocking",
    "block_tables",
    "seq_lens",
    "fixed_split_size",
    "disable_split_kv",
    "q_len_per_req",
)


def wrapper(version: str) -> type:
    """Return the wrapper's class of a version."""
    newer = {} if version.startswith("0.6") else {"jit_kwargs": None}
    needs = ("float_workspace_buffer", "int_workspace_buffer")
    return type(
        "BatchDecodeWithPagedKVCacheWrapper",
        (),
        {
            "made": [],
            "__init__": method("__init__", ("float_workspace_buffer",), {**_INIT, **newer}, _init),
            "reset_workspace_buffer": method("reset", needs, {}, lambda self, given: None),
            "plan": _plan,
            "run": method("run", ("q", "paged_kv_cache", "*args"), _RUN, _run),
        },
    )


def _init(self: Any, given: Given) -> None:
    if given["kv_layout"] != "NHD" or given["use_cuda_graph"]:
        raise ValueError("the stand-in is for NHD without graph buffers")
    self.made.append(self)
    self.use_tensor_cores, self._backend = given["use_tensor_cores"], given["backend"]


def _plan(
    self: Any,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    *deprecated_positional_args: Any,
    **kwargs: Any,
) -> None:
    if unknown := set(kwargs) - set(PLAN_OPTIONS):
        raise TypeError(f"unexpected {unknown}")
    tokens, self.group = kwargs.get("q_len_per_req", 1), num_qo_heads // num_kv_heads
    served = tokens == 1 and self.group in _GROUPS_WITHOUT_TENSOR_CORES
    if not self.use_tensor_cores and not served:
        raise ValueError(f"{tokens} tokens of a group of {self.group} need tensor cores")
    kv_lens = (indptr.diff() - 1) * page_size + last_page_len
    if int(kv_lens.min()) < tokens:
        raise ValueError(f"kv_len >= q_len_per_req = {tokens}")
    self.indptr, self.indices, self.kv_lens = indptr.tolist(), indices, kv_lens.tolist()
    self.tokens, self.planned = tokens, kwargs


def _run(self: Any, given: Given) -> Any:
    q, caches, out, lse = given["q"], given["paged_kv_cache"], given["out"], given["lse"]
    if (q.dtype, caches[0].dtype) != (self.planned["q_data_type"], self.planned["kv_data_type"]):
        raise ValueError("the dtypes of plan and run differ")
    if len(q) != len(self.kv_lens) * self.tokens:
        raise ValueError("q implies another q_len_per_req than was planned")
    for request, kv_len in enumerate(self.kv_lens):
        pages = self.indices[self.indptr[request] : self.indptr[request + 1]].long()
        k, v = (
            cache[pages].flatten(0, 1)[:kv_len].double().repeat_interleave(self.group, dim=1)
            for cache in caches
        )
        rows = slice(request * self.tokens, (request + 1) * self.tokens)
        out[rows], lse[rows] = attend(
            q[rows],
            k,
            v,
            visible=causal(self.tokens, kv_len),
            scale=self.planned["sm_scale"] * (given["k_scale"] or 1.0),
        )
    out *= given["v_scale"] or 1.0
    return (out, lse) if given["return_lse"] else out
