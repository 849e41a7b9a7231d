"""`tree_attention` by FlashInfer for chains: paged prefill, causal, no mask.

Among T draft tokens that form a chain, token i sees the prefix and tokens 0 .. i: a causal mask
that is aligned to the end of the L_b + T keys, which is what `causal=True` means here. The backend
is the one that FlashInfer chooses: fa3 on capability 9.0 (fa2 for fp8 caches), else fa2; the record
names it. Trees that branch are refused, and are not silently computed as chains.

Errors: ValueError for inputs that `Given` refuses and for mask words that are no chain.
Source: signatures and kernels in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from typing import Any

from kernels import Case, Needs, Prepared, Stage, _flashinfer
from kernels._flashinfer import Call
from kernels.attention import _flashinfer_lists, _flashinfer_paged
from kernels.attention.tree_attention import OP, Given
from kernels.attention.tree_attention_flashinfer import (
    PLAN,
    PLANNED,
    RESET,
    RUN,
    WRAPPER,
    Lists,
    index_lists,
    planned_for,
    query_tile,
)

_BACKEND = "auto"
CAUSAL_PLAN = Call(function=PLAN.function, needed=(*PLANNED, "causal"))
CALLS = (WRAPPER, RESET, CAUSAL_PLAN, RUN)


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot compute `case`."""
    reason = _flashinfer_lists.not_a_chain(case) or _flashinfer_paged.refuses(case)
    if (reason := reason or _flashinfer.why_not(CALLS)) is not None:
        return reason
    return _flashinfer.unknown_lse_base(_flashinfer.installed(), RUN)


_NEEDS = Needs(
    capabilities=_flashinfer_paged.CAPABILITIES, packages=("flashinfer",), refuses=refuses
)


@OP.prepared_implementation("flashinfer_causal", kind="baseline-direct", needs=_NEEDS)
def flashinfer_causal_attention(**inputs: Any) -> Prepared:
    """Plan for exactly these lengths."""
    given = Given(**inputs)
    _flashinfer_lists.check_chain(given.mask_words)
    shape, library, lengths = given.shape, _flashinfer.installed(), given.prefix_lens.tolist()

    def index() -> Lists:
        return index_lists(
            given.page_table, prefix_lens=lengths, tokens=shape.tokens, page_size=shape.page_size
        )

    lists = index()
    wrapper = _flashinfer_paged.new_wrapper(
        library,
        wrapper=WRAPPER,
        reset=RESET,
        given={
            "float_workspace_buffer": _flashinfer.workspace(given.q.device),
            "kv_layout": "NHD",
            "backend": _BACKEND,
            "use_cuda_graph": False,
        },
    )

    def plan() -> None:
        accepted = CAUSAL_PLAN.accepted(library, **planned_for(given, lists), causal=True)
        with _flashinfer.advice():
            wrapper.plan(**accepted.kwargs)

    plan()
    return _flashinfer_paged.prepared(
        library,
        wrapper,
        run=RUN,
        given=given,
        facts={**_flashinfer_paged.facts_of(library, wrapper), **query_tile(wrapper)},
        stages=(Stage(name="indices", run=index), Stage(name="plan", run=plan)),
    )
