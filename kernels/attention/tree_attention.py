"""Grouped-query attention of T draft tokens over a paged KV cache and a tree-masked draft block.

For request b, query head h, its key head g = h // (q_heads / kv_heads) and draft token i:
    s[n]        = scale * <q[b*T + i, h], k[n]>     over keys n = 0 .. L_b + T - 1 of head g
    s[L_b + j]  = -inf unless bit j of mask_words[b, i] is set: the committed prefix is always seen,
                  a draft only by itself and its descendants
    out[b*T + i, h] = sum_n softmax(s)[n] v[n],    lse[b*T + i, h] = ln sum_n exp(s[n])
Pages, lengths and mask words are those of `_paged.py`; the drafts' own keys and values are
in the cache already, at n = L_b .. L_b + T - 1. A row that sees no key gives out 0, lse -inf.

q [batch*T, q_heads, head_dim]; k_cache, v_cache [pages, page_size, kv_heads, head_dim], any strides
but 1 for head_dim, so that FlashInfer's paged wrappers take (k_cache, v_cache) as they are (layout
NHD). All bfloat16, all float16, or caches of float8 e4m3, whose keys are k_scale x what is stored,
and values v_scale x; the scales of other caches are 1. T = draft_tokens, 1 to 32.
out as q; lse float32 [batch*T, q_heads], natural logarithm.

Errors: ValueError for shapes, dtypes, scales or strides that are not those.
Source: the verify step of speculative decoding as SGLang, vLLM and FlashInfer define it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Prepared, Stage, Tolerance
from kernels._inputs import must_be
from kernels.attention import _paged
from kernels.attention._forms import FORMS, Form, form_of
from kernels.attention._gathered import Gathered, gather, pack, softmax, unpack
from kernels.attention._tree_attention_cases import (
    gate_cases,
    long_gate_cases,
    measured_cases,
    tiny_cases,
)
from verifyscope.records import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of one call. `width` is the page table's, in pages."""

    requests: int
    tokens: int
    q_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    width: int

    @property
    def group(self) -> int:
        """Return how many query heads share a key head."""
        return self.q_heads // self.kv_heads

    @property
    def most_keys(self) -> int:
        """Return how many keys a request can have at most."""
        return self.width * self.page_size

    def form(self, mode: Mode) -> Form:
        """Return how the rows that share a key head are packed in the form `mode`."""
        return form_of(mode, tokens=self.tokens, group=self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The inputs of one call, checked: `Given(**inputs)` raises ValueError if they do not fit."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor
    prefix_lens: torch.Tensor
    mask_words: torch.Tensor
    scale: float
    draft_tokens: int
    k_scale: float = 1.0
    v_scale: float = 1.0

    def __post_init__(self) -> None:
        caches = (self.k_cache, self.v_cache)
        _paged.check_cache_dtype(self.q, caches=caches, scales=(self.k_scale, self.v_scale))
        must_be(self.q, "q", (None, None, None))
        must_be(self.k_cache, "k_cache", (None, None, None, self.q.shape[2]))
        must_be(self.v_cache, "v_cache", tuple(self.k_cache.shape))
        _paged.check_paging(
            page_table=self.page_table,
            prefix_lens=self.prefix_lens,
            mask_words=self.mask_words,
            draft_tokens=self.draft_tokens,
        )
        requests, (_, q_heads, _) = len(self.page_table), self.q.shape
        if len(self.q) != requests * self.draft_tokens or not self.q.is_contiguous():
            raise ValueError(
                f"q is {tuple(self.q.shape)}, strides {self.q.stride()}: give a contiguous tensor "
                f"of {requests} requests x {self.draft_tokens} tokens"
            )
        kv_heads = self.k_cache.shape[2]
        if not kv_heads or q_heads % kv_heads:
            raise ValueError(f"{q_heads} query heads do not share {kv_heads} key heads evenly")
        if any(cache.stride(3) != 1 for cache in caches):
            raise ValueError("k_cache and v_cache need a stride of 1 along head_dim")

    @property
    def shape(self) -> Shape:
        """Return the sizes."""
        return Shape(
            requests=len(self.page_table),
            tokens=self.draft_tokens,
            q_heads=self.q.shape[1],
            kv_heads=self.k_cache.shape[2],
            head_dim=self.q.shape[2],
            page_size=self.k_cache.shape[1],
            width=self.page_table.shape[1],
        )


def reference(**inputs: Any) -> Outputs:
    """Compute in float64 from the rounded inputs, request after request, and do not round."""
    given = Given(**inputs)
    shape, tokens = given.shape, given.draft_tokens
    outs, lses = [], []
    for request, length in enumerate(given.prefix_lens.tolist()):
        live = partial(
            _paged.keys_of, page_table=given.page_table, request=request, keys=length + tokens
        )
        k, v = live(given.k_cache) * given.k_scale, live(given.v_cache) * given.v_scale
        rows = given.q[request * tokens : (request + 1) * tokens].double()
        rows = rows.view(tokens, shape.kv_heads, shape.group, -1)
        score = given.scale * torch.einsum("thgd,nhd->thgn", rows, k)
        weight, lse = _paged.softmax_over_tree(
            score, words=given.mask_words[request], length=length
        )
        outs.append(torch.einsum("thgn,nhd->thgd", weight, v).flatten(1, 2))
        lses.append(lse.flatten(1, 2))
    return {"out": torch.cat(outs), "lse": torch.cat(lses)}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw the lengths' keys and the trees' drafts of a case; see `draw`."""
    return draw(
        lengths=_paged.prefix_lengths(case),
        words=_paged.words_of(case),
        page_size=case.number("page"),
        heads=(case.number("q_heads"), case.number("kv_heads")),
        head_dim=case.number("head_dim"),
        dtype=case.dtype,
        cache_dtype=_paged.FP8 if case.dims["kv"] == "fp8" else case.dtype,
        seed=case.seed,
        device=device,
    )


def draw(
    *,
    lengths: Sequence[int],
    words: Sequence[Sequence[int]],
    page_size: int,
    heads: tuple[int, int],
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    cache_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Inputs:
    """Draw normal q, keys and values into a shuffled page table; NaN is wherever no key is.

    lengths, words: L and T unsigned mask words of each request. What lies past a request's last
    page in the table is poisoned with -1 and with ids of no page. Another seed gives other values
    in the same places, so that they can be copied over the first ones.
    """
    generator = torch.Generator(device).manual_seed(seed)
    requests, tokens = len(lengths), len(words[0])
    layout = _paged.lay_out(lengths=lengths, tokens=tokens, page_size=page_size)

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device=device, dtype=dtype)

    def cache() -> torch.Tensor:
        drawn = normal(layout.pages, page_size, heads[1], head_dim).to(cache_dtype or dtype)
        layout.poison(drawn)
        return drawn

    k_scale, v_scale = _paged.drawn_scales(cache_dtype)
    return {
        "q": normal(requests * tokens, heads[0], head_dim),
        "k_cache": cache(),
        "v_cache": cache(),
        "page_table": layout.table.to(device),
        "prefix_lens": torch.tensor(lengths, dtype=torch.int32, device=device),
        "mask_words": _paged.signed_words(words).to(device),
        "scale": head_dim**-0.5,
        "draft_tokens": tokens,
        "k_scale": k_scale,
        "v_scale": v_scale,
    }


def cost(inputs: Inputs, mode: Mode = "verify") -> Cost:
    """Return what the form `mode` must spend on these inputs; waits for the device.

    Keys and values count once for each unit of the form that reads them, so once in all for
    "verify", which is the least; products are those that the masks let through.
    """
    given: Any = inputs
    checked = Given(**given)
    shape, q, cache = checked.shape, checked.q, checked.k_cache
    counted = _paged.count(
        prefix_lens=checked.prefix_lens,
        mask_words=checked.mask_words,
        draft_tokens=shape.tokens,
        page_size=shape.page_size,
    )
    a_key = 2 * shape.kv_heads * shape.head_dim * cache.element_size()
    return Cost(
        flops=4 * counted.pairs * shape.q_heads * shape.head_dim,
        read_bytes=a_key * counted.keys * shape.form(mode).units + q.nbytes + counted.index_bytes,
        written_bytes=q.nbytes + 4 * len(q) * shape.q_heads,
    )


FORM_COSTS = {mode: partial(cost, mode=mode) for mode in FORMS}

OP = Op(
    name="tree_attention",
    part="attention",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(*tiny_cases(), *measured_cases()),
    gate_cases=gate_cases(),
    long_gate_cases=long_gate_cases(),
    tolerance=Tolerance(
        row=6e-3,
        absolute={"lse": 1e-4},
        why="weights and result are each rounded to bfloat16 once, 2**-8 of an element at most; "
        "measured 2.3e-3 of a row for the result alone and 3.3e-3 for both, float16 an "
        "eighth. One wrong key in 8192 is about 7e-3. The LSE is never rounded: measured 1e-6",
    ),
)


@OP.prepared_implementation("torch", kind="baseline-composed")
def torch_attention(**inputs: Any) -> Prepared:
    """Use nothing but plain torch in float32: gather, product, softmax, product.

    Gathering and widening the keys is timed, for no engine keeps a second cache; the index and the
    mask are the plan, and are not.
    """
    given = Given(**inputs)
    shape = given.shape

    def index() -> Gathered:
        return gather(
            page_table=given.page_table,
            prefix_lens=given.prefix_lens,
            mask_words=given.mask_words,
            page_size=shape.page_size,
            group=shape.group,
        )

    plan = index()
    hidden = ~plan.visible[:, None]  # [batch, 1, rows, keys]

    def call() -> Outputs:
        rows = pack(given.q, tokens=shape.tokens, kv_heads=shape.kv_heads).float()
        keys = plan.keys(given.k_cache).float()
        score = rows * (given.scale * given.k_scale) @ keys.transpose(2, 3)
        weight, lse = softmax(score, hidden=hidden)  # [batch, heads, rows, keys]
        values = plan.keys(given.v_cache).float()
        out = unpack(weight @ values * given.v_scale, tokens=shape.tokens)
        return {"out": out.to(given.q.dtype), "lse": unpack(lse, tokens=shape.tokens)}

    return Prepared(call=call, stages=(Stage(name="indices", run=index),))
