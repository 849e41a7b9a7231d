"""Latent attention (MLA) of T draft tokens over a paged latent cache, absorbed, tree-masked.

All heads of a token share one latent c[n] (512) and one rotated key r[n] (64) a key n. The query's
up-projection is folded into q_nope and the values' is applied to `out` afterwards, so that keys
and values are the same latent. For request b, head h and draft token i:
    s[n]        = scale * (<q_nope[b*T + i, h], c[n]> + <q_pe[b*T + i, h], r[n]>)
    s[L_b + j]  = -inf unless bit j of mask_words[b, i] is set
    out[b*T + i, h] = sum_n softmax(s)[n] c[n],    lse[b*T + i, h] = ln sum_n exp(s[n])
over n = 0 .. L_b + T - 1; pages, lengths and mask words are those of `_paged.py`, and the
drafts' own latents are in the cache already. A row that sees no key gives out 0, lse -inf.

scale is the model's, of the heads before absorption: mscale^2 / sqrt(128 + 64), not 1 / sqrt(576);
see `verifyscope.models.Model.softmax_scale`.

q_nope [batch*T, heads, latent], q_pe [batch*T, heads, rope]: bfloat16 or float16, contiguous.
ckv_cache [pages, page_size, latent], kpe_cache [pages, page_size, rope]: any strides but 1 along
the last dim; engines keep both in one pool [pages, page_size, latent + rope], and so does `draw`.
They are of the queries' dtype, or float8 e4m3, where the latent is ckv_scale x what is stored and
the rotated key kpe_scale x; the scales of other caches are 1. T = draft_tokens, 1 to 32.
out as q_nope; lse float32 [batch*T, heads], natural logarithm.

Errors: ValueError for shapes, dtypes, scales or strides that are not those.
Source: DeepSeek-V2 (arXiv 2405.04434) 2.1 for the formula and absorption; SGLang's and FlashInfer's
MLA backends for the layout and the order of drafts.
"""

from __future__ import annotations

import math
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
from kernels.attention._mla_verify_cases import (
    gate_cases,
    long_gate_cases,
    measured_cases,
    tiny_cases,
)
from verifyscope.models import TABLE
from verifyscope.records import Mode

_MODEL = TABLE["kimi-k2.5"]  # whose softmax scale the inputs have


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of one call. `width` is the page table's, in pages."""

    requests: int
    tokens: int
    heads: int
    latent: int
    rope: int
    page_size: int
    width: int

    @property
    def most_keys(self) -> int:
        """Return how many keys a request can have at most."""
        return self.width * self.page_size

    def form(self, mode: Mode) -> Form:
        """Return how the rows that share the latent are packed in the form `mode`."""
        return form_of(mode, tokens=self.tokens, group=self.heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The inputs of one call, checked: `Given(**inputs)` raises ValueError if they do not fit."""

    q_nope: torch.Tensor
    q_pe: torch.Tensor
    ckv_cache: torch.Tensor
    kpe_cache: torch.Tensor
    page_table: torch.Tensor
    prefix_lens: torch.Tensor
    mask_words: torch.Tensor
    scale: float
    draft_tokens: int
    ckv_scale: float = 1.0
    kpe_scale: float = 1.0

    def __post_init__(self) -> None:
        caches = (self.ckv_cache, self.kpe_cache)
        must_be(self.q_nope, "q_nope", (None, None, None))
        must_be(self.q_pe, "q_pe", (*self.q_nope.shape[:2], None))
        if self.q_pe.dtype != self.q_nope.dtype:
            raise ValueError(f"q_nope is {self.q_nope.dtype}, q_pe {self.q_pe.dtype}: give one")
        _paged.check_cache_dtype(
            self.q_nope, caches=caches, scales=(self.ckv_scale, self.kpe_scale)
        )
        must_be(self.ckv_cache, "ckv_cache", (None, None, self.q_nope.shape[2]))
        pages = self.ckv_cache.shape[:2]
        must_be(self.kpe_cache, "kpe_cache", (*pages, self.q_pe.shape[2]))
        _paged.check_paging(
            page_table=self.page_table,
            prefix_lens=self.prefix_lens,
            mask_words=self.mask_words,
            draft_tokens=self.draft_tokens,
        )
        requests = len(self.page_table)
        for name, q in (("q_nope", self.q_nope), ("q_pe", self.q_pe)):
            if len(q) != requests * self.draft_tokens or not q.is_contiguous():
                raise ValueError(
                    f"{name} is {tuple(q.shape)}, strides {q.stride()}: give a contiguous tensor "
                    f"of {requests} requests x {self.draft_tokens} tokens"
                )
        if any(cache.stride(2) != 1 for cache in caches):
            raise ValueError("ckv_cache and kpe_cache need a stride of 1 along the last dim")

    @property
    def shape(self) -> Shape:
        """Return the sizes."""
        return Shape(
            requests=len(self.page_table),
            tokens=self.draft_tokens,
            heads=self.q_nope.shape[1],
            latent=self.q_nope.shape[2],
            rope=self.q_pe.shape[2],
            page_size=self.ckv_cache.shape[1],
            width=self.page_table.shape[1],
        )


def reference(**inputs: Any) -> Outputs:
    """Compute in float64 from the rounded inputs, request after request, and do not round."""
    given = Given(**inputs)
    tokens = given.draft_tokens
    outs, lses = [], []
    for request, length in enumerate(given.prefix_lens.tolist()):
        live = partial(
            _paged.keys_of, page_table=given.page_table, request=request, keys=length + tokens
        )
        latent = live(given.ckv_cache) * given.ckv_scale
        rotated = live(given.kpe_cache) * given.kpe_scale
        mine = slice(request * tokens, (request + 1) * tokens)
        score = given.q_nope[mine].double() @ latent.T
        score += given.q_pe[mine].double() @ rotated.T
        weight, lse = _paged.softmax_over_tree(
            score.mul_(given.scale), words=given.mask_words[request], length=length
        )
        outs.append(weight @ latent)
        lses.append(lse)
    return {"out": torch.cat(outs), "lse": torch.cat(lses)}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw the lengths' latents and the trees' drafts of a case; see `draw`."""
    return draw(
        lengths=_paged.prefix_lengths(case),
        words=_paged.words_of(case),
        page_size=case.number("page"),
        heads=case.number("heads"),
        dims=(case.number("latent"), case.number("rope")),
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
    heads: int,
    dims: tuple[int, int] = (512, 64),
    dtype: torch.dtype,
    device: torch.device,
    cache_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Inputs:
    """Draw normal queries and latents into a shuffled page table; NaN is wherever no key is.

    lengths, words: L and T unsigned mask words of each request; dims: latent and rope. Queries are
    so large that scores vary by about 1, as they do in a model: with 576 dims of variance 1 a
    softmax would choose one key. What lies past a request's last page in the table is poisoned with
    -1 and with ids of no page. Another seed gives other values in the same places.
    """
    generator = torch.Generator(device).manual_seed(seed)
    requests, tokens = len(lengths), len(words[0])
    layout = _paged.lay_out(lengths=lengths, tokens=tokens, page_size=page_size)
    latent, rope = dims
    scale = _MODEL.softmax_scale

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device=device, dtype=dtype)

    def query(dim: int) -> torch.Tensor:
        return normal(requests * tokens, heads, dim) * (1 / (scale * math.sqrt(latent + rope)))

    pool = normal(layout.pages, page_size, latent + rope).to(cache_dtype or dtype)
    layout.poison(pool)
    ckv_scale, kpe_scale = _paged.drawn_scales(cache_dtype)
    return {
        "q_nope": query(latent),
        "q_pe": query(rope),
        "ckv_cache": pool[..., :latent],
        "kpe_cache": pool[..., latent:],
        "page_table": layout.table.to(device),
        "prefix_lens": torch.tensor(lengths, dtype=torch.int32, device=device),
        "mask_words": _paged.signed_words(words).to(device),
        "scale": scale,
        "draft_tokens": tokens,
        "ckv_scale": ckv_scale,
        "kpe_scale": kpe_scale,
    }


def cost(inputs: Inputs, mode: Mode = "verify") -> Cost:
    """Return what the form `mode` must spend on these inputs; waits for the device.

    A latent counts once for each unit of the form that reads it, so once in all for "verify", which
    is the least; products are those that the masks let through.
    """
    unchecked: Any = inputs
    given = Given(**unchecked)
    shape = given.shape
    counted = _paged.count(
        prefix_lens=given.prefix_lens,
        mask_words=given.mask_words,
        draft_tokens=shape.tokens,
        page_size=shape.page_size,
    )
    a_key = (shape.latent + shape.rope) * given.ckv_cache.element_size()
    read = a_key * counted.keys * shape.form(mode).units + counted.index_bytes
    return Cost(
        flops=2 * counted.pairs * shape.heads * (2 * shape.latent + shape.rope),
        read_bytes=read + given.q_nope.nbytes + given.q_pe.nbytes,
        written_bytes=given.q_nope.nbytes + 4 * len(given.q_nope) * shape.heads,
    )


FORM_COSTS = {mode: partial(cost, mode=mode) for mode in FORMS}

OP = Op(
    name="mla_verify",
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
        why="weights and result are each rounded to bfloat16 once, 2**-8 of an element at most and "
        "1.7e-3 of a row: 3.3e-3 measured for both in tree_attention. The LSE is never rounded",
    ),
)


@OP.prepared_implementation("torch", kind="baseline-composed")
def torch_attention(**inputs: Any) -> Prepared:
    """Use nothing but plain torch in float32: gather, product, softmax, product.

    Gathering and widening the latents is timed, for no engine keeps a second cache; the index and
    the mask are the plan, and are not.
    """
    given = Given(**inputs)
    shape = given.shape

    def index() -> Gathered:
        return gather(
            page_table=given.page_table,
            prefix_lens=given.prefix_lens,
            mask_words=given.mask_words,
            page_size=shape.page_size,
            group=shape.heads,
        )

    plan = index()
    hidden = ~plan.visible  # [batch, rows, keys]

    def call() -> Outputs:
        rows = torch.cat(
            [given.q_nope.float() * given.ckv_scale, given.q_pe.float() * given.kpe_scale], dim=-1
        )
        rows = pack(rows * given.scale, tokens=shape.tokens, kv_heads=1)[:, 0]
        latent = plan.keys(given.ckv_cache[:, :, None])[:, 0].float()  # [batch, keys, latent]
        rotated = plan.keys(given.kpe_cache[:, :, None])[:, 0].float()
        score = rows @ torch.cat([latent, rotated], dim=-1).transpose(1, 2)
        weight, lse = softmax(score, hidden=hidden)
        out = weight @ latent * given.ckv_scale
        return {
            "out": unpack(out[:, None], tokens=shape.tokens).to(given.q_nope.dtype),
            "lse": unpack(lse[:, None], tokens=shape.tokens),
        }

    return Prepared(call=call, stages=(Stage(name="indices", run=index),))
