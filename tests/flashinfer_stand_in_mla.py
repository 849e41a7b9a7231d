"""FlashInfer's MLA wrapper as 0.6.18 and 0.7.4 have it, and its merge, computed in torch.

Both forms of plan and run, with what they check: from 0.7 on a run must ask for the LSE that its
plan declared. Causal plans of 0.6 lose the keys that the kernels lose; those of 0.7 are refused.
"""

import math
from types import ModuleType
from typing import Any

import torch

from tests.flashinfer_signatures import Given, method
from tests.flashinfer_softmax import attend
from tests.flashinfer_softmax import causal as aligned

_INIT = {
    "use_cuda_graph": False,
    "qo_indptr": None,
    "kv_indptr": None,
    "kv_indices": None,
    "kv_len_arr": None,
    "backend": "auto",
}
_LISTS = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")
_PLAN_NEEDS = (
    *_LISTS,
    "num_heads",
    "head_dim_ckv",
    "head_dim_kpe",
    "page_size",
    "causal",
    "sm_scale",
    "q_data_type",
    "kv_data_type",
)
_PLAN_0_7 = {
    "use_profiler": False,
    "*": None,
    "metadata": None,
    "cum_seq_lens_q": None,
    "block_tables": None,
    "seq_lens": None,
    "max_q_len": None,
    "query_layout": None,
    "kv_cache_layout": None,
    "lse_mode": "none",
    "output_dtype": None,
    "output_scale": "none",
    "scale_mode": "default",
    "skip_softmax": False,
    "enable_pdl": None,
    "use_sinks": False,
}
_RUN_NEEDS = ("q_nope", "q_pe", "ckv_cache", "kpe_cache")
_RUN = {
    "out": None,
    "lse": None,
    "return_lse": False,
    "profiler_buffer": None,
    "kv_len": None,
    "page_table": None,
    "return_lse_base_on_e": False,
    "o_scale": None,
    "*": None,
}
_SCALES = {"ckv_scale": None, "ckv_scale_arr": None, "kpe_scale": None}
_RUN_0_7 = {
    "sinks": None,
    "skip_softmax_threshold_scale_factor": None,
    "bmm1_scale": None,
    "bmm2_scale": None,
}
_KEY_TILE = 16


class Metadata:
    """Lists in the order of requests."""

    def __init__(self, **lists: torch.Tensor) -> None:
        self.lists = lists

    @classmethod
    def csr(
        cls,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_len_arr: torch.Tensor,
    ) -> "Metadata":
        """Keep the lists."""
        return cls(
            qo_indptr=qo_indptr,
            kv_indptr=kv_indptr,
            kv_indices=kv_indices,
            kv_len_arr=kv_len_arr,
        )


def module(version: str) -> ModuleType:
    """Return the module `flashinfer.mla` of a version."""
    old = version.startswith("0.6")
    none = dict.fromkeys
    if old:
        plan = method("plan", _PLAN_NEEDS, {"use_profiler": False}, _plan)
        run = method("run", _RUN_NEEDS, {**_RUN, **_SCALES}, _run)
    else:
        plan = method("plan", (), {**none(_PLAN_NEEDS), **_PLAN_0_7}, _plan)
        pairs = {"query": None, "kv_cache": None}
        run = method("run", (), {**none(_RUN_NEEDS), **_RUN, **pairs, **_SCALES, **_RUN_0_7}, _run)
    found = ModuleType("flashinfer.mla")
    wrapper = type(
        "BatchMLAPagedAttentionWrapper",
        (),
        {
            "made": [],
            "old": old,
            "__init__": method("__init__", ("float_workspace_buffer",), _INIT, _init),
            "plan": plan,
            "run": run,
        },
    )
    vars(found)["BatchMLAPagedAttentionWrapper"] = wrapper
    if not old:
        vars(found)["MLAPlanMetadata"] = Metadata
    return found


def merge_state_in_place(
    v: torch.Tensor,
    s: torch.Tensor,
    v_other: torch.Tensor,
    s_other: torch.Tensor,
    mask: Any = None,
) -> None:
    """Merge states whose LSE is to base 2: nothing here sees another base."""
    if v.shape[1] * v.shape[2] // 16 > 1024:
        raise RuntimeError("MergeStateInPlace kernel launch failed: invalid configuration argument")
    if not v.is_contiguous() or not s.is_contiguous():
        raise ValueError("v and s must be contiguous")
    most = torch.maximum(s, s_other)
    a, b = (torch.exp2(one - most)[..., None] for one in (s, s_other))
    v.copy_((v.float() * a + v_other.float() * b) / (a + b))
    s.copy_(most + torch.log2((a + b)[..., 0]))


def _init(self: Any, given: Given) -> None:
    self.made.append(self)
    self._backend = given["backend"]


def _plan(self: Any, given: Given) -> None:
    if self.old:
        self.lists = {name: given[name] for name in _LISTS}
    elif given["metadata"] is None:
        raise TypeError("flat metadata is deprecated; here nothing gives it")
    else:
        self.lists = given["metadata"].lists
        if (given["query_layout"], given["kv_cache_layout"]) != ("split", "split"):
            raise ValueError("cannot provide the planned packed representation zero-copy")
    if any(part.dtype != torch.int32 for part in self.lists.values()):
        raise ValueError("lists are int32")
    self._backend, self.planned = "fa2", given


def _run(self: Any, given: Given) -> object:
    q_nope, q_pe = given.get("query") or (given["q_nope"], given["q_pe"])
    ckv, kpe = given.get("kv_cache") or (given["ckv_cache"], given["kpe_cache"])
    if (q_nope.dtype, ckv.dtype) != (self.planned["q_data_type"], self.planned["kv_data_type"]):
        raise ValueError("the dtypes of plan and run differ")
    asked = "basee" if given["return_lse_base_on_e"] else "base2"
    if not self.old and asked != self.planned["lse_mode"]:
        raise ValueError(f"LSE mode mismatch: planned {self.planned['lse_mode']}, got {asked}")
    scales = (given["ckv_scale"], given["kpe_scale"])
    if (ckv.dtype == torch.float8_e4m3fn) != (None not in scales):
        raise ValueError("ckv_scale and kpe_scale are for fp8 caches")
    latent, rotated = (
        cache.double() * (scale or 1.0) for cache, scale in zip((ckv, kpe), scales, strict=True)
    )
    out, lse = given["out"], given["lse"]
    rows, pages = (self.lists[name].tolist() for name in ("qo_indptr", "kv_indptr"))
    for request, kv_len in enumerate(self.lists["kv_len_arr"].tolist()):
        mine = slice(rows[request], rows[request + 1])
        listed = self.lists["kv_indices"][pages[request] : pages[request + 1]].long()
        c, r = (cache[listed].flatten(0, 1)[:kv_len, None] for cache in (latent, rotated))
        heads = q_nope.shape[1]
        out[mine], lse[mine] = attend(
            torch.cat([q_nope[mine], q_pe[mine]], dim=-1),
            torch.cat([c, r], dim=-1).expand(-1, heads, -1),
            c.expand(-1, heads, -1),
            visible=_visible(self, q_len=mine.stop - mine.start, kv_len=kv_len, heads=heads),
            scale=self.planned["sm_scale"],
        )
    if given["return_lse_base_on_e"]:
        lse *= math.log(2)
    return (out, lse) if given["return_lse"] else out


def _visible(self: Any, *, q_len: int, kv_len: int, heads: int) -> torch.Tensor:
    is_causal = self.planned["causal"]
    seen = visited(q_len=q_len, kv_len=kv_len, heads=heads, causal=is_causal)
    if not self.old and is_causal and not (seen == aligned(q_len, kv_len)[:, None]).all():
        raise ValueError("native execution would omit a visible key")
    return seen


def visited(*, q_len: int, kv_len: int, heads: int, causal: bool) -> torch.Tensor:
    """Return which keys the kernels visit for each row: bool [q_len, heads, kv_len]."""
    if not causal:
        return torch.ones(q_len, heads, kv_len, dtype=torch.bool)
    seen = aligned(q_len, kv_len).repeat_interleave(heads, dim=0)  # a row for each token and head
    tile = 64 if q_len * heads <= 64 else 128
    for end in range(tile, q_len * heads, tile):
        bound = min(kv_len, kv_len - q_len + end // heads)
        seen[end - tile : end, -(-bound // _KEY_TILE) * _KEY_TILE :] = False
    return seen.view(q_len, heads, kv_len)
