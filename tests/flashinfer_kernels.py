"""What stands in the place of FlashInfer's compiled modules: it sees what the kernels would.

The real wrappers' own Python carries a plan to its kernel; what arrives here is computed as the
stand-ins compute it. Private names of the wheels are used, those of 0.6.18.post1 and 0.7.4.
"""

import importlib
import inspect
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kernels import _flashinfer
from tests import flashinfer_stand_in as stand_in
from tests.flashinfer_cases import fresh
from tests.flashinfer_softmax import attend
from tests.flashinfer_stand_in_mla import merge_state_in_place, visited

_CAUSAL, _CUSTOM = 1, 2
_MOST_THAT_A_PLAN_CHECKS = 2**24  # MLA of 0.7.4, with what 108 SMs park


class Kernels:
    """The modules of prefill, decode and MLA; `planned` holds what the last plan was given."""

    workspace_size = None

    def __init__(self, infinity: float) -> None:
        self.infinity, self.planned = infinity, tuple[Any, ...]()

    def plan(self, *args: object) -> list[int]:
        """Keep the arguments."""
        self.planned = args
        return [0, 0, 0, 16]

    def paged_run(self, *args: Any) -> None:
        """Compute what paged prefill, and decode on tensor cores, hand over."""
        q, k_cache, v_cache, qo_indptr, indptr, indices, last_page_len, out, lse, mask = args[3:13]
        lists = {"paged_kv_indptr": indptr, "paged_kv_indices": indices}
        lists["paged_kv_last_page_len"] = last_page_len
        if mask == _CUSTOM:
            lists |= {"custom_mask": args[16], "mask_indptr": args[17]}
        me = self._planned(k_cache, q, scale=args[23], causal=mask == _CAUSAL, lists=lists)
        ends = qo_indptr.tolist()
        for request in range(len(ends) - 1):
            rows = slice(ends[request], ends[request + 1])
            out[rows], lse[rows] = stand_in.attend_planned(me, request, q[rows], k_cache, v_cache)

    def _planned(
        self, k_cache: torch.Tensor, q: torch.Tensor, *, scale: float, causal: bool, lists: Any
    ) -> Any:
        planned = {
            "page_size": k_cache.shape[1],
            "num_qo_heads": q.shape[1],
            "num_kv_heads": k_cache.shape[2],
            "sm_scale": scale,
            "causal": causal,
        }
        return SimpleNamespace(infinity=self.infinity, planned=planned, lists=lists)


class DecodeKernel(Kernels):
    """The module of decode without tensor cores: one token a request."""

    def run(self, *args: Any) -> None:
        """Compute what is handed over."""
        q, k_cache, v_cache, indptr, indices, last_page_len, out, lse = args[3:11]
        lists = {
            "paged_kv_indptr": indptr,
            "paged_kv_indices": indices,
            "paged_kv_last_page_len": last_page_len,
        }
        me = self._planned(k_cache, q, scale=args[16], causal=True, lists=lists)
        for request in range(len(q)):
            row = slice(request, request + 1)
            out[row], lse[row] = stand_in.attend_planned(me, request, q[row], k_cache, v_cache)


class MlaKernel(Kernels):
    """The module of MLA; each wrapper's plan is what its `plan` returns, and its run brings."""

    def plan(self, *args: object) -> Any:
        """Return the lists as the plan, for the run to bring them."""
        self.planned = args
        return args

    def run(self, *args: Any) -> None:
        """Compute what is handed over."""
        plan, q_nope, q_pe, ckv, kpe, indices, out, lse, mask, heads, _, scale, natural = args[2:15]
        rows, pages, kv_lens = (part.tolist() for part in plan[3:6])
        for request, kv_len in enumerate(kv_lens):
            mine = slice(rows[request], rows[request + 1])
            listed = indices[pages[request] : pages[request + 1]].long()
            c, r = (cache[listed].flatten(0, 1)[:kv_len, None] for cache in (ckv, kpe))
            seen = visited(
                q_len=mine.stop - mine.start, kv_len=kv_len, heads=heads, causal=mask == _CAUSAL
            )
            out[mine], lse[mine] = attend(
                torch.cat([q_nope[mine], q_pe[mine]], dim=-1),
                torch.cat([c, r], dim=-1).expand(-1, heads, -1),
                c.expand(-1, heads, -1),
                visible=seen,
                scale=scale,
            )
        if natural:
            lse.mul_(torch.log(torch.tensor(2.0)))


def put_in_place(monkeypatch: pytest.MonkeyPatch, library: ModuleType, kernels: Kernels) -> None:
    """Replace what asks for a device: pinned memory, compiled modules, questions of capability."""
    allocate = torch.empty

    def pageable(*size: Any, pin_memory: bool = False, **given: Any) -> torch.Tensor:
        return allocate(*size, **given)

    fresh(monkeypatch)
    monkeypatch.setattr(_flashinfer, "WORKSPACE_BYTES", _MOST_THAT_A_PLAN_CHECKS)
    monkeypatch.setattr(torch, "empty", pageable)
    _put_paged(monkeypatch, kernels)
    if hasattr(library.mla, "MLAPlanMetadata"):
        _put_mla(monkeypatch, kernels)
    else:
        core = importlib.import_module("flashinfer.mla._core")
        monkeypatch.setattr(core, "determine_mla_backend", lambda device: "fa2")
        monkeypatch.setattr(core, "get_batch_mla_module", lambda *_: kernels)
        monkeypatch.setattr(core, "get_compute_capability", lambda device: (8, 0))
    monkeypatch.setattr(library, "merge_state_in_place", merge_state_in_place)


def _put_paged(monkeypatch: pytest.MonkeyPatch, kernels: Kernels) -> None:
    prefill = importlib.import_module("flashinfer.prefill")
    decode = importlib.import_module("flashinfer.decode")
    packbits = inspect.getmodule(inspect.unwrap(prefill.segment_packbits))

    def pack(x: torch.Tensor, indptr: torch.Tensor, _: object, order: str, y: torch.Tensor) -> None:
        y.copy_(stand_in.segment_packbits(x, indptr, order)[0])

    monkeypatch.setattr(
        packbits, "get_quantization_module", lambda: SimpleNamespace(segment_packbits=pack)
    )
    for module in (prefill, decode):
        monkeypatch.setattr(module, "get_batch_prefill_module", lambda *_: kernels)
        monkeypatch.setattr(module, "device_support_pdl", lambda device: False)
        monkeypatch.setattr(module, "_get_cache_alibi_slopes_buf", lambda heads, device: None)
        monkeypatch.setattr(module, "get_compute_capability", lambda device: (8, 0))
    monkeypatch.setattr(prefill, "determine_attention_backend", lambda *_, **__: "fa2")
    monkeypatch.setattr(decode, "get_batch_decode_module", lambda *_: kernels)


def _put_mla(monkeypatch: pytest.MonkeyPatch, kernels: Kernels) -> None:
    folder = "flashinfer.mla._batch_mla"
    policy = importlib.import_module(f"{folder}._auto_policy")
    shared = importlib.import_module(f"{folder}._backends._fa_common")
    fa2 = importlib.import_module(f"{folder}._backends.fa2_backend")
    monkeypatch.setattr(policy, "_get_compute_capability", lambda device: (8, 0))
    monkeypatch.setattr(shared, "get_compute_capability", lambda device: (8, 0))
    monkeypatch.setattr(shared, "get_device_sm_count", lambda device: 108)
    limits = (167_936, 166_912)  # of capability 8.0
    monkeypatch.setattr(shared, "_get_fa_shared_memory_limits", lambda device: limits)
    monkeypatch.setattr(fa2, "get_batch_mla_module", lambda *_: kernels)
