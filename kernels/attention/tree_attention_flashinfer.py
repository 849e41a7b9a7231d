"""`tree_attention` by FlashInfer: paged prefill with a custom mask, fa2 kernels, on all GPUs.

kv_len of request b is L_b + T, for the drafts' keys are in the pages already; its mask is
[T, L_b + T], all true for the prefix, then the tree. Inputs and outputs are those of the op: the
caches go in as they are (NHD), `out` and the LSE are written where they were allocated.

Two implementations differ in the plan alone, which is timed in rows of its own:
    flashinfer        planned for exactly these lengths: tiles for T rows, split only where it pays
    flashinfer_graph  planned as an engine must that replays one CUDA graph for all lengths: always
                      split and merged, on the largest grid. Before 0.7 the query tile, too, is that
                      of the worst ragged batch; later versions are told `uniform_q_len` = T
Both can be captured. The backend is fa2 by name, for no other takes a custom mask in 0.6.18 and
0.7.4. The LSE is asked for in base 2 and made natural by `convert`, after what is timed.

Errors: ValueError for inputs that `Given` refuses or a mask of 2^31 bits; RuntimeError, with
what is missing, for a version that cannot be called so (`refuses` says it beforehand).
Source: signatures and kernels in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from kernels import Case, Needs, Prepared, Stage, _flashinfer
from kernels._flashinfer import Call
from kernels.attention import _flashinfer_lists, _flashinfer_paged
from kernels.attention._flashinfer_lists import PageLists
from kernels.attention._paged import prefix_lengths
from kernels.attention.tree_attention import OP, Given, Shape
from kernels.drafts import _mask_layout
from kernels.drafts.mask_expand import expand_with_torch
from kernels.drafts.mask_pack_flashinfer import PACK

_WRAPPER = "BatchPrefillWithPagedKVCacheWrapper"
_BACKEND = "fa2"
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
PLANNED = (
    "qo_indptr",
    "paged_kv_indptr",
    "paged_kv_indices",
    "paged_kv_last_page_len",
    "num_qo_heads",
    "num_kv_heads",
    "head_dim_qk",
    "page_size",
    "sm_scale",
    "q_data_type",
    "kv_data_type",
)
PLAN = Call(
    function=f"{_WRAPPER}.plan", needed=(*PLANNED, "custom_mask"), offered=("uniform_q_len",)
)
RUN = Call(
    function=f"{_WRAPPER}.run",
    needed=("q", "paged_kv_cache", "k_scale", "v_scale", "out", "lse", "return_lse"),
    offered=("lse_base",),
)
CALLS = (WRAPPER, GRAPH_WRAPPER, RESET, PLAN, RUN, PACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """Which rows of q and which pages each request owns; qo_indptr int32 [batch + 1]."""

    qo_indptr: torch.Tensor
    pages: PageLists


def index_lists(
    page_table: torch.Tensor, *, prefix_lens: Sequence[int], tokens: int, page_size: int
) -> Lists:
    """List rows and pages of requests of L + T keys; the lengths are known on the host."""
    return Lists(
        qo_indptr=_flashinfer_lists.indptr([tokens] * len(prefix_lens), page_table.device),
        pages=_flashinfer_lists.page_lists(
            page_table, kv_lens=[length + tokens for length in prefix_lens], page_size=page_size
        ),
    )


def planned_for(given: Given, lists: Lists) -> dict[str, object]:
    """Return the arguments `PLANNED` of a plan."""
    shape = given.shape
    return {
        "qo_indptr": lists.qo_indptr,
        "paged_kv_indptr": lists.pages.indptr,
        "paged_kv_indices": lists.pages.indices,
        "paged_kv_last_page_len": lists.pages.last_page_len,
        "num_qo_heads": shape.q_heads,
        "num_kv_heads": shape.kv_heads,
        "head_dim_qk": shape.head_dim,
        "page_size": shape.page_size,
        "sm_scale": given.scale,
        "q_data_type": given.q.dtype,
        "kv_data_type": given.k_cache.dtype,
    }


def pack_mask(library: ModuleType, mask: torch.Tensor, *, bits: Sequence[int]) -> torch.Tensor:
    """Pack a mask of `bits` for each request, as `plan` does with it: uint8 bytes."""
    offsets = _flashinfer_lists.indptr(bits, mask.device)
    packed = PACK.accepted(library, x=mask, indptr=offsets, bitorder="little")
    packed_bytes: torch.Tensor = PACK.find(library)(**packed.kwargs)[0]
    return packed_bytes


def plan(
    library: ModuleType, wrapper: Any, given: Given, *, lists: Lists, custom_mask: torch.Tensor
) -> tuple[str, ...]:
    """Pack the mask and plan `wrapper`; return the arguments this version dropped."""
    accepted = PLAN.accepted(
        library,
        **planned_for(given, lists),
        custom_mask=custom_mask,
        uniform_q_len=given.draft_tokens,
    )
    wrapper.plan(**accepted.kwargs)
    return accepted.dropped


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot compute `case`."""
    if (reason := _flashinfer_paged.refuses(case)) is not None:
        return reason
    bits = _mask_layout.bits_of(prefix_lengths(case), case.number("rows"))
    too_large = _flashinfer_lists.mask_too_large(sum(bits))
    if (reason := too_large or _flashinfer.why_not(CALLS)) is not None:
        return reason
    return _flashinfer.unknown_lse_base(_flashinfer.installed(), RUN)


_NEEDS = Needs(
    capabilities=_flashinfer_paged.CAPABILITIES, packages=("flashinfer",), refuses=refuses
)


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
    shape, library, lengths = given.shape, _flashinfer.installed(), given.prefix_lens.tolist()
    bits = _flashinfer_lists.countable_bits(lengths, shape.tokens)

    def index() -> Lists:
        return index_lists(
            given.page_table, prefix_lens=lengths, tokens=shape.tokens, page_size=shape.page_size
        )

    def fill() -> torch.Tensor:
        return expand_with_torch(given.mask_words, given.prefix_lens, mask_bits=sum(bits))

    def pack() -> torch.Tensor:
        return pack_mask(library, mask, bits=bits)

    lists, mask = index(), fill()
    wrapper = make_wrapper(library, shape, device=given.q.device, any_lengths=any_lengths)

    def plan_again() -> tuple[str, ...]:
        return plan(library, wrapper, given, lists=lists, custom_mask=mask)

    dropped = plan_again()
    return _flashinfer_paged.prepared(
        library,
        wrapper,
        run=RUN,
        given=given,
        facts=_facts(library, wrapper, dropped=dropped, shape=shape, any_lengths=any_lengths),
        stages=(
            Stage(name="indices", run=index),
            Stage(name="mask", run=fill),
            # plan() packs as well: it is given bools, since what is packed already it misreads.
            Stage(name="pack", run=pack, within="plan"),
            Stage(name="plan", run=plan_again),
        ),
    )


def make_wrapper(
    library: ModuleType, shape: Shape, *, device: torch.device, any_lengths: bool
) -> Any:
    """Return a wrapper that is not planned yet; `any_lengths`: up to what the page table holds."""
    given: dict[str, object] = {
        "float_workspace_buffer": _flashinfer.workspace(device),
        "kv_layout": "NHD",
        "backend": _BACKEND,
        "use_cuda_graph": any_lengths,
    }
    made = WRAPPER
    if any_lengths:
        made = GRAPH_WRAPPER
        given |= _graph_buffers(shape, device)
    return _flashinfer_paged.new_wrapper(library, wrapper=made, reset=RESET, given=given)


def _graph_buffers(shape: Shape, device: torch.device) -> dict[str, object]:
    """Return buffers that hold the plan of any lengths the page table has room for."""

    def int32(size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int32, device=device)

    longest = [shape.most_keys - shape.tokens] * shape.requests
    mask_bytes = sum(_mask_layout.bytes_of(longest, shape.tokens))
    return {
        "qo_indptr_buf": int32(shape.requests + 1),
        "paged_kv_indptr_buf": int32(shape.requests + 1),
        "paged_kv_indices_buf": int32(shape.requests * shape.width),
        "paged_kv_last_page_len_buf": int32(shape.requests),
        "custom_mask_buf": torch.zeros(mask_bytes, dtype=torch.uint8, device=device),
        "mask_indptr_buf": int32(shape.requests + 1),
    }


def _facts(
    library: ModuleType, wrapper: Any, *, dropped: tuple[str, ...], shape: Shape, any_lengths: bool
) -> Mapping[str, str]:
    if any_lengths:
        hint = "not taken by this version" if "uniform_q_len" in dropped else str(shape.tokens)
    else:
        hint = "not needed"
    return {
        **_flashinfer_paged.facts_of(library, wrapper, dropped=dropped),
        "plan": "any lengths" if any_lengths else "these lengths",
        "uniform_q_len": hint,
        **query_tile(wrapper),
    }


def query_tile(wrapper: Any) -> dict[str, str]:
    """Return the query tile of fa2's plan: the proof that uniform_q_len took effect."""
    # The list is private: only a plausible value is told.
    planned = getattr(wrapper, "_plan_info", None)
    if planned is not None and len(planned) > 3 and planned[3] in _QUERY_TILES:
        return {"query_tile": str(planned[3])}
    return {}
