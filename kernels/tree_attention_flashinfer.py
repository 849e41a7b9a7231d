"""`tree_attention` by FlashInfer: paged prefill with a custom mask, fa2 kernels, on all GPUs.

kv_len of request b is L_b + T, for the drafts' keys are in the pages already; its mask is
[T, L_b + T], all true for the prefix, then the tree. Inputs and outputs are those of the op: the
caches go in as they are (NHD), `out` and the LSE are written where they were allocated.

Two implementations differ in the plan alone, which is not timed:
    flashinfer        planned for exactly these lengths: tiles for T rows, split only where it pays
    flashinfer_graph  planned as an engine must that replays one CUDA graph for all lengths: always
                      split and merged, on the largest grid. Before 0.7 the query tile, too, is that
                      of the worst ragged batch; later versions are told `uniform_q_len` = T
Both can be captured. The backend is fa2 by name, for no other takes a custom mask in 0.6.18 and
0.7.4. The LSE is asked for in base 2 and made natural by `convert`, after what is timed.

Errors: ValueError for inputs that `shape_of` refuses or a mask of 2^31 bits; RuntimeError, with
what is missing, for a version that cannot be called so (`refuses` says it beforehand).
Source: signatures and kernels in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from kernels import Case, Needs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call, PageLists
from kernels._paged import prefix_lengths
from kernels.tree_attention import OP, Given, Shape

_WRAPPER = "BatchPrefillWithPagedKVCacheWrapper"
_BACKEND = "fa2"
_HEAD_DIMS = (64, 128, 256)  # those that its own builds hold; wider ones are for MLA
_DTYPES = (torch.bfloat16, torch.float16)
_QUERY_TILES = (16, 32, 64, 128)

WRAPPER = Call(
    function=_WRAPPER, needed=("float_workspace_buffer", "kv_layout", "backend", "use_cuda_graph")
)
GRAPH_WRAPPER = Call(
    function=_WRAPPER,
    needed=(
        *WRAPPER.needed,
        "qo_indptr_buf",
        "paged_kv_indptr_buf",
        "paged_kv_indices_buf",
        "paged_kv_last_page_len_buf",
        "custom_mask_buf",
        "mask_indptr_buf",
    ),
)
RESET = Call(
    function=f"{_WRAPPER}.reset_workspace_buffer",
    needed=("float_workspace_buffer", "int_workspace_buffer"),
)
PLAN = Call(
    function=f"{_WRAPPER}.plan",
    needed=(
        "qo_indptr",
        "paged_kv_indptr",
        "paged_kv_indices",
        "paged_kv_last_page_len",
        "num_qo_heads",
        "num_kv_heads",
        "head_dim_qk",
        "page_size",
        "custom_mask",
        "sm_scale",
        "q_data_type",
        "kv_data_type",
    ),
    offered=("uniform_q_len",),
)
RUN = Call(
    function=f"{_WRAPPER}.run",
    needed=("q", "paged_kv_cache", "out", "lse", "return_lse"),
    offered=("lse_base",),
)
PACK = Call(function="segment_packbits", needed=("x", "indptr", "bitorder"))
_TO_RUN = (WRAPPER, GRAPH_WRAPPER, RESET, PLAN, RUN)
CALLS = (*_TO_RUN, PACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What an engine makes anew for each verify step: lengths, pages and mask, on the device.

    qo_indptr int32 [batch + 1]; custom_mask bool [bits], request after request, each [T, kv_len]
    row-major; request_bits: T * kv_len of each.
    """

    qo_indptr: torch.Tensor
    pages: PageLists
    custom_mask: torch.Tensor
    request_bits: tuple[int, ...]


def metadata(
    *,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
    page_size: int,
) -> Metadata:
    """Fill the index lists and the mask from the op's inputs; waits for the device."""
    requests, tokens = mask_words.shape
    kv_lens = [length + tokens for length in prefix_lens.tolist()]
    request_bits = tuple(tokens * kv_len for kv_len in kv_lens)
    if (reason := _flashinfer.mask_too_large(sum(request_bits))) is not None:
        raise ValueError(reason)
    return Metadata(
        qo_indptr=_flashinfer.indptr([tokens] * requests, page_table.device),
        pages=_flashinfer.page_lists(page_table, kv_lens=kv_lens, page_size=page_size),
        custom_mask=_visible(mask_words, kv_lens),
        request_bits=request_bits,
    )


def pack_mask(library: ModuleType, step: Metadata) -> torch.Tensor:
    """Pack the mask as `plan` does, so that this part of it can be timed alone: uint8 bytes."""
    packed = PACK.accepted(
        library,
        x=step.custom_mask,
        indptr=_flashinfer.indptr(step.request_bits, step.custom_mask.device),
        bitorder="little",
    )
    packed_bytes: torch.Tensor = PACK.find(library)(**packed.kwargs)[0]
    return packed_bytes


def plan(
    library: ModuleType,
    wrapper: Any,
    step: Metadata,
    *,
    shape: Shape,
    scale: float,
    dtype: torch.dtype,
) -> tuple[str, ...]:
    """Pack the mask and plan `wrapper` for `step`; return the arguments this version dropped."""
    planned = PLAN.accepted(
        library,
        qo_indptr=step.qo_indptr,
        paged_kv_indptr=step.pages.indptr,
        paged_kv_indices=step.pages.indices,
        paged_kv_last_page_len=step.pages.last_page_len,
        num_qo_heads=shape.q_heads,
        num_kv_heads=shape.kv_heads,
        head_dim_qk=shape.head_dim,
        page_size=shape.page_size,
        custom_mask=step.custom_mask,
        sm_scale=scale,
        q_data_type=dtype,
        kv_data_type=dtype,
        uniform_q_len=shape.tokens,
    )
    wrapper.plan(**planned.kwargs)
    return planned.dropped


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot compute `case`."""
    if (dim := case.number("head_dim")) not in _HEAD_DIMS:
        return f"FlashInfer's fa2 kernels take a head_dim of {_HEAD_DIMS}, not {dim}"
    if case.dtype not in _DTYPES:
        return f"FlashInfer's fa2 kernels take float16 and bfloat16 queries, not {case.dtype}"
    if case.dims["kv"] == "fp8":
        return "this adapter gives FlashInfer no fp8 caches"
    tokens = case.number("rows")
    bits = sum(tokens * (length + tokens) for length in prefix_lengths(case))
    if (reason := _flashinfer.mask_too_large(bits) or _flashinfer.why_not(_TO_RUN)) is not None:
        return reason
    return _flashinfer.unknown_lse_base(_flashinfer.library(), RUN)


_NEEDS = Needs(capabilities=(80, 90, 100, 110, 120), packages=("flashinfer",), refuses=refuses)


@OP.prepared_implementation("flashinfer", kind="baseline-direct", needs=_NEEDS)
def flashinfer_attention(**inputs: Any) -> Prepared:
    """Plan for exactly these lengths."""
    return _prepare(**inputs, any_lengths=False)


@OP.prepared_implementation("flashinfer_graph", kind="baseline-direct", needs=_NEEDS)
def flashinfer_graph_attention(**inputs: Any) -> Prepared:
    """Plan for one CUDA graph that is replayed with other lengths and trees."""
    return _prepare(**inputs, any_lengths=True)


def _prepare(*, any_lengths: bool, **inputs: Any) -> Prepared:
    given = Given(**inputs)
    shape, library = given.shape, _flashinfer.library()
    step = metadata(
        page_table=given.page_table,
        prefix_lens=given.prefix_lens,
        mask_words=given.mask_words,
        page_size=shape.page_size,
    )
    wrapper = make_wrapper(library, step, shape=shape, any_lengths=any_lengths)
    dropped = plan(library, wrapper, step, shape=shape, scale=given.scale, dtype=given.q.dtype)
    facts = _facts(library, wrapper, dropped=dropped, shape=shape, any_lengths=any_lengths)
    cache = (given.k_cache, given.v_cache)
    return _prepared(library, wrapper, q=given.q, cache=cache, facts=facts)


def _prepared(
    library: ModuleType,
    wrapper: Any,
    *,
    q: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    facts: Mapping[str, str],
) -> Prepared:
    # NaN, so that a buffer that a version no longer writes cannot pass for a result.
    out = torch.full_like(q, float("nan"))
    lse = torch.full(q.shape[:2], float("nan"), dtype=torch.float32, device=q.device)
    run = RUN.accepted(
        library, q=q, paged_kv_cache=cache, out=out, lse=lse, return_lse=True, lse_base="log2"
    )

    finite_infinity = "lse_base" in run.dropped

    def call() -> Outputs:
        wrapper.run(**run.kwargs)
        return {"out": out, "lse": lse}

    def convert(given: Outputs) -> Outputs:
        natural = _flashinfer.natural_log(given["lse"], finite_infinity=finite_infinity)
        return {"out": given["out"], "lse": natural}

    return Prepared(call=call, convert=convert, facts=facts)


def make_wrapper(library: ModuleType, step: Metadata, *, shape: Shape, any_lengths: bool) -> Any:
    """Return a wrapper that is not planned yet; `any_lengths`: up to what the page table holds."""
    device = step.qo_indptr.device
    scratch = _flashinfer.workspace(device)
    given: dict[str, object] = {
        "float_workspace_buffer": scratch,
        "kv_layout": "NHD",
        "backend": _BACKEND,
        "use_cuda_graph": any_lengths,
    }
    made = WRAPPER
    if any_lengths:
        made = GRAPH_WRAPPER
        given |= _graph_buffers(shape, device)
    wrapper = made.find(library)(**made.accepted(library, **given).kwargs)
    smaller = RESET.accepted(
        library,
        float_workspace_buffer=scratch,
        int_workspace_buffer=torch.empty(_flashinfer.PLAN_BYTES, dtype=torch.uint8, device=device),
    )
    wrapper.reset_workspace_buffer(**smaller.kwargs)
    return wrapper


def _graph_buffers(shape: Shape, device: torch.device) -> dict[str, object]:
    """Return buffers that hold the plan of any lengths the page table has room for."""

    def int32(size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int32, device=device)

    mask_bytes = _flashinfer.packed_mask_bytes([shape.tokens * shape.most_keys] * shape.requests)
    return {
        "qo_indptr_buf": int32(shape.requests + 1),
        "paged_kv_indptr_buf": int32(shape.requests + 1),
        "paged_kv_indices_buf": int32(shape.requests * shape.width),
        "paged_kv_last_page_len_buf": int32(shape.requests),
        "custom_mask_buf": torch.zeros(mask_bytes, dtype=torch.uint8, device=device),
        "mask_indptr_buf": int32(shape.requests + 1),
    }


def _visible(mask_words: torch.Tensor, kv_lens: list[int]) -> torch.Tensor:
    """Return the flat bool mask: the prefix of each row, then the bits of its word."""
    tokens = mask_words.shape[1]
    bit = torch.arange(tokens, device=mask_words.device)
    tree = (mask_words[:, :, None] >> bit) & 1 != 0  # [batch, T, T]
    masks = []
    for block, kv_len in zip(tree.unbind(), kv_lens, strict=True):
        prefix = torch.ones(tokens, kv_len - tokens, dtype=torch.bool, device=block.device)
        masks.append(torch.cat([prefix, block], dim=1).flatten())
    return torch.cat(masks)


def _facts(
    library: ModuleType, wrapper: Any, *, dropped: tuple[str, ...], shape: Shape, any_lengths: bool
) -> Mapping[str, str]:
    if any_lengths:
        hint = "not taken by this version" if "uniform_q_len" in dropped else str(shape.tokens)
    else:
        hint = "not needed"
    facts = {
        "flashinfer": _flashinfer.version(library),
        "backend": str(getattr(wrapper, "_backend", _BACKEND)),
        "plan": "any lengths" if any_lengths else "these lengths",
        "uniform_q_len": hint,
        "lse": "base 2, made natural after the timed call",
    }
    # The proof that uniform_q_len took effect. The list is private: only a plausible value is told.
    planned = getattr(wrapper, "_plan_info", None)
    if planned is not None and len(planned) > 3 and planned[3] in _QUERY_TILES:
        facts["query_tile"] = str(planned[3])
    return facts
