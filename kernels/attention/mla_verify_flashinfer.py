"""`mla_verify` by FlashInfer for trees: the prefix, each draft's own keys, and a merge of both.

No MLA kernel of FlashInfer takes a tree mask, so the work is composed of three of its calls:
    1. the draft block: each draft token is a request of one row, whose list of pages (of one key
       each: a view of the same cache) names exactly the drafts that it sees. No mask is needed, and
       no kernel of ours, whose speed would then be part of the baseline's
    2. the prefix: T tokens a request over its L_b keys, not causal, so that keys are read once
    3. `merge_state_in_place` of 2 into 1, both with LSE to base 2
Where no request has a prefix, 1 is all there is. A request without one among others that have one
gives out 0 and LSE -inf in 2, which the merge leaves as nothing. A row that sees no key at all
(which no draft token is: it sees itself) is out 0, LSE -inf where no request has a prefix, and else
NaN: the merge takes the difference of two infinities.

Errors: ValueError for inputs that `Given` refuses, and for caches whose keys int32 cannot number.
Source: signatures and kernels in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from kernels import Case, Outputs, Prepared, Stage, _flashinfer
from kernels._flashinfer import MERGE, Call
from kernels.attention import _flashinfer_lists, _flashinfer_mla
from kernels.attention._flashinfer_mla import Lists
from kernels.attention.mla_verify import OP, Given


def calls(library: ModuleType) -> tuple[Call, ...]:
    """Return the calls that are made of this version."""
    return (*_flashinfer_mla.calls(library), MERGE)


def _refuses(case: Case) -> str | None:
    return _flashinfer.why_not((MERGE,)) or _flashinfer_mla.empty_kv(case)


@OP.prepared_implementation(
    "flashinfer_composed", kind="baseline-composed", needs=_flashinfer_mla.needs(_refuses)
)
def flashinfer_composed_attention(**inputs: Any) -> Prepared:
    """Plan the draft block and, if there is one, the prefix."""
    given = Given(**inputs)
    library, lengths = _flashinfer.installed(), given.prefix_lens.tolist()

    def index_drafts() -> Lists:
        return draft_lists(given)

    def index_prefix() -> Lists:
        return prefix_lists(given, lengths)

    drafts = _flashinfer_mla.attention(library, given, index_drafts(), causal=False, base=2)
    parts = [drafts]
    stages = [Stage(name="drafts", run=index_drafts), Stage(name="plan_drafts", run=drafts.plan)]
    steps = [drafts.run]
    if max(lengths) > 0:
        prefix = _flashinfer_mla.attention(library, given, index_prefix(), causal=False, base=2)
        parts.append(prefix)
        stages += [
            Stage(name="indices", run=index_prefix),
            Stage(name="plan", run=prefix.plan),
        ]
        steps += [prefix.run, _flashinfer.merger(library, drafts.state, other=prefix.state)]
    state, finite_infinity = drafts.state, _flashinfer.has_finite_infinity(library)

    def call() -> Outputs:
        for step in steps:
            step()
        return {"out": state.out, "lse": state.lse}

    def convert(got: Outputs) -> Outputs:
        natural = _flashinfer.natural_log(got["lse"], finite_infinity=finite_infinity)
        return {"out": got["out"], "lse": natural}

    facts = {
        "flashinfer": _flashinfer.version(library),
        "backend": ", ".join(dict.fromkeys(part.backend() for part in parts)),
        "composed_of": "drafts, prefix, merge" if len(parts) > 1 else "drafts: there is no prefix",
        "lse": "base 2, made natural after the timed call",
    }
    return Prepared(
        call=call, convert=convert, facts=facts, launches=len(steps), stages=tuple(stages)
    )


def prefix_lists(given: Given, prefix_lens: Sequence[int]) -> Lists:
    """List T rows and the pages of the L_b committed keys of each request; L_b may be 0."""
    device, shape = given.page_table.device, given.shape
    kv_indptr, kv_indices = _flashinfer_lists.page_indices(
        given.page_table, kv_lens=prefix_lens, page_size=shape.page_size
    )
    return Lists(
        qo_indptr=_flashinfer_lists.indptr([shape.tokens] * shape.requests, device),
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        kv_lens=_flashinfer_lists.int32(prefix_lens, device),
        page_size=shape.page_size,
    )


def draft_lists(given: Given) -> Lists:
    """List each draft token as a request, and the drafts that it sees as pages of one key.

    Waits for the device, for how many they are is in the mask words.
    """
    shape, device = given.shape, given.page_table.device
    if given.ckv_cache.shape[0] * shape.page_size > 2**31:
        raise ValueError(
            f"{given.ckv_cache.shape[0]} pages of {shape.page_size} keys: FlashInfer numbers "
            f"pages in int32, and here a key is a page; give at most 2^31 keys"
        )
    bit = torch.arange(shape.tokens, device=device)
    seen = (given.mask_words[:, :, None] >> bit) & 1 != 0  # [batch, T, T]
    key = given.prefix_lens.long()[:, None] + bit  # [batch, T]
    page = given.page_table.long().gather(1, key // shape.page_size)
    slot = (page * shape.page_size + key % shape.page_size).to(torch.int32)
    kv_lens = seen.sum(-1, dtype=torch.int32).flatten()
    starts = torch.nn.functional.pad(kv_lens.cumsum(0, dtype=torch.int32), (1, 0))
    return Lists(
        qo_indptr=torch.arange(len(kv_lens) + 1, dtype=torch.int32, device=device),
        kv_indptr=starts,
        kv_indices=slot[:, None, :].expand_as(seen)[seen],
        kv_lens=kv_lens,
        page_size=1,
    )
