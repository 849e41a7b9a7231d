"""FlashInfer's MLA wrapper, in both of its forms: one `Plan` is attention over lists of pages.

Until 0.6 a plan takes flat lists and a run the four tensors, and any base of the LSE. From 0.7 on a
plan takes `MLAPlanMetadata`, declares the layouts and the LSE that its runs must then ask for, and
a run takes pairs; the old form still works there, but warns and declares nothing.

- The only mask is causal, aligned to the end of kv_len: a tree needs another way.
- LSE float32 [rows, heads], base 2 or e as asked for. kv_len 0 gives out 0 and LSE -inf from 0.6.11
  on (its issue 3047); before that what is read lies in front of the page list.
- Causal plans cut rows (T x heads) into tiles of 64, or of 128 if they are more than 64, and the
  kernels round a tile's end down to a token: where a tile ends within a token, and the key that
  only its last rows see begins a key tile (16, 32 or 64 keys), that key is lost. 0.7.4 refuses such
  plans; `drops_a_key` says it for all versions.
- fp8 caches: capability 9.0 and bfloat16 queries alone.
- A plan keeps 8 MB on the device and as much pinned.

Source: mla/, scheduler.cuh, mla.cuh and mla_hopper.cuh in the wheels of 0.6.18.post1 and 0.7.4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from kernels import Case, Needs, _flashinfer
from kernels._flashinfer import Call, State
from kernels.attention import _paged
from kernels.attention.mla_verify import Given

Reason = str
_DIMS = (512, 64)
_DTYPES = (torch.bfloat16, torch.float16)
CAPABILITIES = (80, 90, 100, 110, 120)
_EMPTY_KV_SINCE = (0, 6, 11)
_KEY_TILE = 16  # the smallest; what begins a larger one begins this one too

_WRAPPER = "mla.BatchMLAPagedAttentionWrapper"
_LISTS = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")
_PLANNED = (
    "num_heads",
    "head_dim_ckv",
    "head_dim_kpe",
    "page_size",
    "causal",
    "sm_scale",
    "q_data_type",
    "kv_data_type",
)
_WRITTEN = ("out", "lse", "return_lse", "return_lse_base_on_e")
_SCALES = ("ckv_scale", "kpe_scale")
WRAPPER = Call(function=_WRAPPER, needed=("float_workspace_buffer", "backend"))
METADATA = Call(function="mla.MLAPlanMetadata.csr", needed=_LISTS)
PLAN = Call(
    function=f"{_WRAPPER}.plan",
    needed=("metadata", *_PLANNED, "query_layout", "kv_cache_layout", "lse_mode"),
)
FLAT_PLAN = Call(function=PLAN.function, needed=(*_LISTS, *_PLANNED))
RUN = Call(function=f"{_WRAPPER}.run", needed=("query", "kv_cache", *_WRITTEN), offered=_SCALES)
FLAT_RUN = Call(
    function=RUN.function,
    needed=("q_nope", "q_pe", "ckv_cache", "kpe_cache", *_WRITTEN),
    offered=_SCALES,
)


def calls(library: ModuleType) -> tuple[Call, ...]:
    """Return the calls that are made of this version."""
    if _takes_metadata(library):
        return (WRAPPER, METADATA, PLAN, RUN)
    return (WRAPPER, FLAT_PLAN, FLAT_RUN)


def _takes_metadata(library: ModuleType) -> bool:
    return METADATA.why_not(library) is None


def needs(refuses: Callable[[Case], Reason | None]) -> Needs:
    """Return what an implementation by this wrapper needs; `refuses` says what more it refuses."""

    def why_not(case: Case) -> Reason | None:
        return _refuses(case) or refuses(case) or _not_callable(case)

    return Needs(capabilities=CAPABILITIES, packages=("flashinfer",), refuses=why_not)


def _refuses(case: Case) -> Reason | None:
    dims = (case.number("latent"), case.number("rope"))
    if dims != _DIMS:
        return f"FlashInfer's MLA kernels are built for 512 + 64 dims, not {dims[0]} + {dims[1]}"
    if case.dtype not in _DTYPES:
        return f"FlashInfer's MLA kernels take float16 and bfloat16 queries, not {case.dtype}"
    if case.dims["kv"] != "fp8":
        return None
    if case.dtype != torch.bfloat16:
        return f"FlashInfer's MLA kernels take fp8 caches with bfloat16 queries, not {case.dtype}"
    capability = _flashinfer.device_capability()
    if capability is not None and capability // 10 != 9:
        return "FlashInfer's MLA kernels take fp8 caches on capability 9.0 alone"
    return None


def _not_callable(case: Case) -> Reason | None:
    if (reason := _flashinfer.why_not((WRAPPER,))) is not None:
        return reason
    library = _flashinfer.installed()
    if (reason := _flashinfer.why_not(calls(library))) is not None:
        return reason
    if case.dims["kv"] == "fp8":
        run = RUN if _takes_metadata(library) else FLAT_RUN
        if dropped := run.dropped(library):
            return (
                f"{run.function} of FlashInfer {_flashinfer.version(library)} takes no "
                f"{' and no '.join(dropped)}, and so no fp8 cache"
            )
    return None


def empty_kv(case: Case) -> Reason | None:
    """Say why a case of which only some requests have a prefix cannot be given to this version."""
    library, lengths = _flashinfer.installed(), _paged.prefix_lengths(case)
    if min(lengths) > 0 or max(lengths) == 0:
        return None
    if _flashinfer.is_before(library, _EMPTY_KV_SINCE):
        return (
            f"the MLA kernels of FlashInfer {_flashinfer.version(library)} read in front of an "
            f"empty list of pages; they do not from {'.'.join(map(str, _EMPTY_KV_SINCE))} on"
        )
    return None


def drops_a_key(case: Case) -> Reason | None:
    """Say so where a causal plan could lose a key that the last rows of a tile see."""
    heads, tokens = case.number("heads"), case.number("rows")
    tile = 64 if tokens * heads <= 64 else 128
    for end in range(tile, tokens * heads, tile):
        token, within = divmod(end, heads)
        if within and any(
            (length + token) % _KEY_TILE == 0 for length in _paged.prefix_lengths(case)
        ):
            return (
                f"FlashInfer's causal MLA kernels may lose the key of draft {token}: a tile of "
                f"{tile} rows ends within that token of {heads} heads"
            )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """What each request owns, int32: rows of q, pages and keys.

    qo_indptr, kv_indptr [n + 1]; kv_indices [kv_indptr[-1]]; kv_lens [n]. page_size is that of the
    cache as the wrapper is shown it.
    """

    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    kv_lens: torch.Tensor
    page_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A wrapper, the caches that it reads, and where it writes, with the base of its LSE.

    `lists` are those that it was made for; `plan` may be repeated, and `run` is what is timed.
    """

    plan: Callable[[], None]
    run: Callable[[], None]
    state: State
    backend: Callable[[], str]


def attention(
    library: ModuleType, given: Given, lists: Lists, *, causal: bool, base: float
) -> Attention:
    """Make a wrapper for `lists` and plan it once; its outputs are NaN until they are written."""
    device = given.q_nope.device
    with _flashinfer.advice():
        wrapper = WRAPPER.find(library)(
            **WRAPPER.accepted(
                library, float_workspace_buffer=_flashinfer.workspace(device), backend="auto"
            ).kwargs
        )
    out = torch.full_like(given.q_nope, float("nan"))
    lse = torch.full(out.shape[:2], float("nan"), dtype=torch.float32, device=device)
    state = State(out=out, lse=lse, base=base)

    def plan() -> None:
        with _flashinfer.advice():
            wrapper.plan(**_planned(library, given, lists, causal=causal, base=base))

    plan()
    run = _run_arguments(library, given, lists, state=state)
    return Attention(
        plan=plan,
        run=lambda: wrapper.run(**run),
        state=state,
        backend=lambda: str(getattr(wrapper, "_backend", "unknown")),
    )


def _planned(
    library: ModuleType, given: Given, lists: Lists, *, causal: bool, base: float
) -> dict[str, Any]:
    common: dict[str, object] = {
        "num_heads": given.shape.heads,
        "head_dim_ckv": given.shape.latent,
        "head_dim_kpe": given.shape.rope,
        "page_size": lists.page_size,
        "causal": causal,
        "sm_scale": given.scale,
        "q_data_type": given.q_nope.dtype,
        "kv_data_type": given.ckv_cache.dtype,
    }
    flat = {
        "qo_indptr": lists.qo_indptr,
        "kv_indptr": lists.kv_indptr,
        "kv_indices": lists.kv_indices,
        "kv_len_arr": lists.kv_lens,
    }
    if not _takes_metadata(library):
        return dict(FLAT_PLAN.accepted(library, **flat, **common).kwargs)
    metadata = METADATA.find(library)(**METADATA.accepted(library, **flat).kwargs)
    return dict(
        PLAN.accepted(
            library,
            metadata=metadata,
            **common,
            query_layout="split",
            kv_cache_layout="split",
            lse_mode="basee" if base == math.e else "base2",
        ).kwargs
    )


def _run_arguments(
    library: ModuleType, given: Given, lists: Lists, *, state: State
) -> dict[str, Any]:
    caches = tuple(
        # As pages of one key, if the lists name keys: a view of the same memory.
        cache if lists.page_size == given.shape.page_size else cache.view(-1, 1, cache.shape[2])
        for cache in (given.ckv_cache, given.kpe_cache)
    )
    fp8 = given.ckv_cache.dtype == _paged.FP8
    common: dict[str, object] = {
        "out": state.out,
        "lse": state.lse,
        "return_lse": True,
        "return_lse_base_on_e": state.base == math.e,
        "ckv_scale": given.ckv_scale if fp8 else None,
        "kpe_scale": given.kpe_scale if fp8 else None,
    }
    if _takes_metadata(library):
        pairs = {"query": (given.q_nope, given.q_pe), "kv_cache": caches}
        return dict(RUN.accepted(library, **pairs, **common).kwargs)
    return dict(
        FLAT_RUN.accepted(
            library,
            q_nope=given.q_nope,
            q_pe=given.q_pe,
            ckv_cache=caches[0],
            kpe_cache=caches[1],
            **common,
        ).kwargs
    )
