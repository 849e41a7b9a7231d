"""`mla_verify` by FlashInfer's MLA wrapper, for chains: two forms of the same work.

    flashinfer_causal  T tokens a request over L_b + T keys with `causal=True`: the keys are read
                       once. This is how SGLang's FlashInfer backend verifies chains
    flashinfer_rows    each draft token as a request of its own, of L_b + i + 1 keys: the form
                       "decode" of `_forms.py`, in which the keys are read T times, as where
                       an engine flattens a verify into decode rows
The LSE is asked for to base e, which the kernels write themselves. Trees that branch are refused,
and so are plans that could lose a key (`_flashinfer_mla.drops_a_key`).

Errors: ValueError for inputs that `Given` refuses and for mask words that are no chain.
Source: signatures and kernels in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

import math
from types import ModuleType
from typing import Any

from kernels import Case, Outputs, Prepared, Stage, _flashinfer
from kernels._flashinfer import Call
from kernels.attention import _flashinfer_lists, _flashinfer_mla
from kernels.attention._flashinfer_mla import Lists
from kernels.attention.mla_verify import FORM_COSTS, OP, Given


def calls(library: ModuleType) -> tuple[Call, ...]:
    """Return the calls that are made of this version."""
    return _flashinfer_mla.calls(library)


def _refuses(case: Case) -> str | None:
    return _flashinfer_lists.not_a_chain(case) or _flashinfer_mla.drops_a_key(case)


@OP.prepared_implementation(
    "flashinfer_causal", kind="baseline-direct", needs=_flashinfer_mla.needs(_refuses)
)
def flashinfer_causal_attention(**inputs: Any) -> Prepared:
    """Plan T tokens a request."""
    given = Given(**inputs)
    return _prepare(given, tokens=given.draft_tokens)


@OP.prepared_implementation(
    "flashinfer_rows",
    kind="baseline-direct",
    needs=_flashinfer_mla.needs(_flashinfer_lists.not_a_chain),
    mode="decode",
    form_cost=FORM_COSTS["decode"],
)
def flashinfer_rows_attention(**inputs: Any) -> Prepared:
    """Plan each draft token as a request of its own."""
    return _prepare(Given(**inputs), tokens=1)


def _prepare(given: Given, *, tokens: int) -> Prepared:
    """Plan requests of `tokens` tokens: all of a request's, or one."""
    _flashinfer_lists.check_chain(given.mask_words)
    library, lengths = _flashinfer.installed(), given.prefix_lens.tolist()

    def index() -> Lists:
        return _index(given, lengths, tokens=tokens)

    attention = _flashinfer_mla.attention(library, given, index(), causal=tokens > 1, base=math.e)
    state = attention.state

    def call() -> Outputs:
        attention.run()
        return {"out": state.out, "lse": state.lse}

    facts = {
        "flashinfer": _flashinfer.version(library),
        "backend": attention.backend(),
        "causal": str(tokens > 1).lower(),
        "lse": "base e, by the kernel",
    }
    stages = (Stage(name="indices", run=index), Stage(name="plan", run=attention.plan))
    return Prepared(call=call, facts=facts, launches=1, stages=stages)


def _index(given: Given, lengths: list[int], *, tokens: int) -> Lists:
    device, shape = given.page_table.device, given.shape
    kv_lens = [
        length + seen for length in lengths for seen in range(tokens, shape.tokens + 1, tokens)
    ]
    kv_indptr, kv_indices = _flashinfer_lists.page_indices(
        given.page_table, kv_lens=kv_lens, page_size=shape.page_size
    )
    return Lists(
        qo_indptr=_flashinfer_lists.indptr([tokens] * len(kv_lens), device),
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        kv_lens=_flashinfer_lists.int32(kv_lens, device),
        page_size=shape.page_size,
    )
