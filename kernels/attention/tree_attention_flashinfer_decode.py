"""`tree_attention` by FlashInfer's paged decode, for chains: two forms of the same work.

    flashinfer_decode  one request of T tokens (`q_len_per_req`), causal among the drafts, as a
                       chain is; keys are read once. At T = 1 it is the decode step of an engine
    flashinfer_rows    each draft token as a request of its own, of L_b + i + 1 keys: the form
                       "decode" of `kernels/attention/_forms.py`, in which the keys are read T times

Tensor cores are used from 4 query heads a key head on, and for more than one token, which no other
kernel of it serves; with 1 to 3 the one without them wastes less, and knows no larger group than 8
anyhow. The backend is fa2 by name: "auto" of 0.7 may choose cuDNN or XQA by the shape, and then
neither the base of the LSE nor what was compared would be the same. Trees that branch are refused.

Errors: ValueError for inputs that `Given` refuses and for mask words that are no chain.
Source: signatures and kernels in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from types import ModuleType
from typing import Any

from kernels import Case, Needs, Prepared, Stage, _flashinfer
from kernels._flashinfer import Call
from kernels.attention import _flashinfer_lists, _flashinfer_paged
from kernels.attention._flashinfer_lists import PageLists
from kernels.attention.tree_attention import FORM_COSTS, OP, Given

_WRAPPER = "BatchDecodeWithPagedKVCacheWrapper"
_BACKEND = "fa2"
_TENSOR_CORES_FROM_GROUP = 4

WRAPPER = Call(
    function=_WRAPPER,
    needed=(
        "float_workspace_buffer",
        "kv_layout",
        "backend",
        "use_cuda_graph",
        "use_tensor_cores",
    ),
)
RESET = Call(
    function=f"{_WRAPPER}.reset_workspace_buffer",
    needed=("float_workspace_buffer", "int_workspace_buffer"),
)
PLAN = Call(
    function=f"{_WRAPPER}.plan",
    needed=(
        "indptr",
        "indices",
        "last_page_len",
        "num_qo_heads",
        "num_kv_heads",
        "head_dim",
        "page_size",
        "sm_scale",
        "q_data_type",
        "kv_data_type",
    ),
)
SEVERAL_PLAN = Call(function=PLAN.function, needed=(*PLAN.needed, "q_len_per_req"))
RUN = Call(
    function=f"{_WRAPPER}.run",
    needed=("q", "paged_kv_cache", "k_scale", "v_scale", "out", "lse", "return_lse"),
)
CALLS = (WRAPPER, RESET, PLAN, SEVERAL_PLAN, RUN)


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot compute `case`."""
    reason = _flashinfer_lists.not_a_chain(case) or _flashinfer_paged.refuses(case)
    if (reason := reason or _flashinfer.why_not(CALLS)) is not None:
        return reason
    # Decode has no lse_base: its base was read in the wheels of 0.6.18 and 0.7.4.
    return _flashinfer.unknown_lse_base(_flashinfer.installed(), RUN, before=(0, 8))


_NEEDS = Needs(
    capabilities=_flashinfer_paged.CAPABILITIES, packages=("flashinfer",), refuses=refuses
)


@OP.prepared_implementation("flashinfer_decode", kind="baseline-direct", needs=_NEEDS)
def flashinfer_decode_attention(**inputs: Any) -> Prepared:
    """Plan T tokens a request."""
    given = Given(**inputs)
    return _prepare(given, tokens=given.draft_tokens)


@OP.prepared_implementation(
    "flashinfer_rows",
    kind="baseline-direct",
    needs=_NEEDS,
    mode="decode",
    form_cost=FORM_COSTS["decode"],
)
def flashinfer_rows_attention(**inputs: Any) -> Prepared:
    """Plan each draft token as a request of its own."""
    return _prepare(Given(**inputs), tokens=1)


def _prepare(given: Given, *, tokens: int) -> Prepared:
    """Plan requests of `tokens` tokens: all of a request's, or one."""
    _flashinfer_lists.check_chain(given.mask_words)
    shape, library = given.shape, _flashinfer.installed()
    kv_lens = [
        length + seen
        for length in given.prefix_lens.tolist()
        for seen in range(tokens, shape.tokens + 1, tokens)
    ]

    def index() -> PageLists:
        return _flashinfer_lists.page_lists(
            given.page_table, kv_lens=kv_lens, page_size=shape.page_size
        )

    pages = index()
    tensor_cores = tokens > 1 or shape.group >= _TENSOR_CORES_FROM_GROUP
    wrapper = _flashinfer_paged.new_wrapper(
        library,
        wrapper=WRAPPER,
        reset=RESET,
        given={
            "float_workspace_buffer": _flashinfer.workspace(given.q.device),
            "kv_layout": "NHD",
            "backend": _BACKEND,
            "use_cuda_graph": False,
            "use_tensor_cores": tensor_cores,
        },
    )

    def plan() -> None:
        _plan(library, wrapper, given, pages=pages, tokens=tokens)

    plan()
    facts = {
        **_flashinfer_paged.facts_of(library, wrapper),
        "tensor_cores": str(tensor_cores).lower(),
        "q_len_per_req": str(tokens),
    }
    return _flashinfer_paged.prepared(
        library,
        wrapper,
        run=RUN,
        given=given,
        facts=facts,
        stages=(Stage(name="indices", run=index), Stage(name="plan", run=plan)),
    )


def _plan(
    library: ModuleType, wrapper: Any, given: Given, *, pages: PageLists, tokens: int
) -> None:
    several: dict[str, object] = {"q_len_per_req": tokens} if tokens > 1 else {}
    accepted = (SEVERAL_PLAN if several else PLAN).accepted(
        library,
        indptr=pages.indptr,
        indices=pages.indices,
        last_page_len=pages.last_page_len,
        num_qo_heads=given.shape.q_heads,
        num_kv_heads=given.shape.kv_heads,
        head_dim=given.shape.head_dim,
        page_size=given.shape.page_size,
        sm_scale=given.scale,
        q_data_type=given.q.dtype,
        kv_data_type=given.k_cache.dtype,
        **several,
    )
    with _flashinfer.advice():
        wrapper.plan(**accepted.kwargs)
