"""A forward pass on one rank of tensor parallelism, as the list of its ops: what each must move.

    bytes of weights = sum over ops of elements x format
    routed experts   = expected distinct experts x slice, distinct = E (1 - (1 - k / E)^rows)

The one truth for the stub, the prediction and the budget. `forward` returns the sections of a pass
in order (embedding, dense layers, expert layers, head); a section repeats its ops `count` times.
Part names are those of `verifyscope.parts`; how an op is counted stands in `graphs.ops`.

rows: tokens a request in this pass; requests: how many such requests at once; context: tokens of
each request that the cache held before.

Split over the ranks: heads, the intermediate width of MLPs and experts, the vocabulary. Whole on
every rank: q_a and kv_a of latent attention and its cache, router, norms. Key-value heads are
split down to one a rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from graphs import ops
from graphs.ops import Op
from verifyscope.errors import UsageError
from verifyscope.models import Gqa, Mla, Model, Moe, WeightFormat
from verifyscope.records import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Ops that follow each other, `count` times."""

    name: Literal["embedding", "dense", "experts", "head"]
    count: int
    ops: tuple[Op, ...]

    @property
    def is_layer(self) -> bool:
        """Say whether this is a layer, and `count` the number of such layers."""
        return self.name in ("dense", "experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What is asked of the model: see the module for rows, requests and context."""

    model: Model
    tp: int
    rows: int
    context: int
    requests: int = 1
    mode: Mode = "verify"

    @property
    def all_rows(self) -> int:
        """Return the rows of all requests: the height of every matrix product."""
        return self.rows * self.requests

    @property
    def heads(self) -> int:
        """Return the query heads of a rank."""
        return self.model.heads // self.tp

    @property
    def vocab_slice(self) -> int:
        """Return the rows of embedding and lm_head on a rank, padded so that all have as many."""
        return -(-self.model.vocab // self.tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A pass and its sections, in order. Sums are over the whole pass, on one rank."""

    asked: Pass
    sections: tuple[Section, ...] = field(repr=False)

    def calls(self) -> Iterator[tuple[Op, int]]:
        """Yield each op with the number of its calls in the pass."""
        for section in self.sections:
            for op in section.ops:
                yield op, section.count

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of weights that the pass reads."""
        return sum(op.weight_bytes * count for op, count in self.calls())

    @property
    def kv_bytes(self) -> float:
        """Return the bytes of cached entries that the pass reads."""
        return sum(op.kv_bytes * count for op, count in self.calls())


def forward(
    model: Model, *, tp: int, rows: int, context: int, requests: int = 1, mode: Mode | None = None
) -> Forward:
    """Return the ops of one pass; `UsageError` if the model cannot be split over `tp` ranks.

    mode: "decode" is one row a request and "verify" several drafted ones; both keep the latent of
    latent attention folded into queries and outputs. "extend" is for rows that are known (a
    prompt): keys and values are unfolded, and only the last row has logits. Default: by `rows`.
    """
    _require_split(model, tp)
    mode = mode or ("decode" if rows == 1 else "verify")
    asked = Pass(model=model, tp=tp, rows=rows, context=context, requests=requests, mode=mode)
    sections = [Section(name="embedding", count=1, ops=tuple(_embedding(asked)))]
    if model.dense_layers:
        layer = (*_attention_block(asked), *_dense_block(asked))
        sections.append(Section(name="dense", count=model.dense_layers, ops=layer))
    if model.moe is not None and model.layers > model.dense_layers:
        layer = (*_attention_block(asked), *_expert_block(asked, model.moe))
        count = model.layers - model.dense_layers
        sections.append(Section(name="experts", count=count, ops=layer))
    sections.append(Section(name="head", count=1, ops=tuple(_head(asked))))
    return Forward(asked=asked, sections=tuple(sections))


def _embedding(asked: Pass) -> Iterator[Op]:
    model = asked.model
    yield ops.embedding(
        rows=asked.all_rows, width=model.hidden, vocab=asked.vocab_slice, share=1 / asked.tp
    )
    yield from _all_reduce(asked, "embedding_all_reduce", "embedding_all_reduce")


def _attention_block(asked: Pass) -> Iterator[Op]:
    attention, rows, hidden = asked.model.attention, asked.all_rows, asked.model.hidden
    yield ops.norm("input_norm", rows=rows, width=hidden, residual=True)
    if isinstance(attention, Mla):
        yield from _latent_attention(asked, attention)
    else:
        yield from _grouped_attention(asked, attention)
    yield from _all_reduce(asked, "all_reduce", "attention_all_reduce")
    yield ops.norm("post_attention_norm", rows=rows, width=hidden, residual=True)


def _latent_attention(asked: Pass, mla: Mla) -> Iterator[Op]:
    heads, rows, hidden = asked.heads, asked.all_rows, asked.model.hidden
    queries = heads * mla.query_dim
    if mla.q_lora_rank is None:
        yield _projection(asked, "q_proj", inputs=hidden, outputs=queries)
    else:
        yield _projection(asked, "q_a_proj", inputs=hidden, outputs=mla.q_lora_rank)
        yield ops.norm("q_a_norm", rows=rows, width=mla.q_lora_rank)
        yield _projection(asked, "q_b_proj", inputs=mla.q_lora_rank, outputs=queries)
    yield _projection(asked, "kv_a_proj", inputs=hidden, outputs=mla.latent_dim)
    yield ops.norm("kv_a_norm", rows=rows, width=mla.kv_lora_rank)
    yield ops.rope(rows=rows, width=(heads + 1) * mla.rope_dim, cached=mla.latent_dim)
    yield from (_unfolded if asked.mode == "extend" else _folded)(asked, mla)
    yield _projection(asked, "o_proj", inputs=heads * mla.value_dim, outputs=hidden)


def _folded(asked: Pass, mla: Mla) -> Iterator[Op]:
    """kv_b is folded into queries and outputs, by head, and the latents are attended to."""
    heads, latent = asked.heads, mla.kv_lora_rank
    yield _projection(asked, "kv_b_key", inputs=mla.nope_dim, outputs=latent, batch=heads)
    yield _attention(asked, query_dim=mla.latent_dim, value_dim=latent, entry=mla.latent_dim)
    yield _projection(asked, "kv_b_value", inputs=latent, outputs=mla.value_dim, batch=heads)


def _unfolded(asked: Pass, mla: Mla) -> Iterator[Op]:
    """Keys and values of all tokens are computed from their latents, and attended to."""
    cached = asked.context * asked.requests
    tokens, wide = cached + asked.all_rows, asked.heads * (mla.nope_dim + mla.value_dim)
    yield ops.linear(
        "attention_projections",
        "kv_b_proj",
        rows=tokens,
        inputs=mla.kv_lora_rank,
        outputs=wide,
        format_=asked.model.formats.attention,
        cached_bytes=cached * mla.kv_lora_rank * ops.ELEMENT_BYTES,
    )
    yield _attention(
        asked,
        query_dim=mla.query_dim,
        value_dim=mla.value_dim,
        entry=mla.rope_dim,
        unfolded_bytes=tokens * wide * ops.ELEMENT_BYTES,
    )


def _grouped_attention(asked: Pass, gqa: Gqa) -> Iterator[Op]:
    heads, rows, hidden = asked.heads, asked.all_rows, asked.model.hidden
    kv_heads = max(1, gqa.kv_heads // asked.tp)
    entry, rotated = 2 * kv_heads * gqa.head_dim, (heads + kv_heads) * gqa.head_dim
    yield _projection(asked, "qkv_proj", inputs=hidden, outputs=heads * gqa.head_dim + entry)
    if gqa.head_norm:
        yield ops.norm("qk_norm", rows=rows, width=rotated, weights=2 * gqa.head_dim)
    yield ops.rope(rows=rows, width=rotated, cached=entry)
    yield _attention(asked, query_dim=gqa.head_dim, value_dim=gqa.head_dim, entry=entry)
    yield _projection(asked, "o_proj", inputs=heads * gqa.head_dim, outputs=hidden)


def _dense_block(asked: Pass) -> Iterator[Op]:
    width = asked.model.dense_intermediate // asked.tp
    yield from _mlp(asked, "dense_mlp", width=width, format_=asked.model.formats.dense_mlp)
    yield from _all_reduce(asked, "all_reduce", "mlp_all_reduce")


def _expert_block(asked: Pass, moe: Moe) -> Iterator[Op]:
    rows, hidden, formats = asked.all_rows, asked.model.hidden, asked.model.formats
    width, routed = moe.intermediate // asked.tp, formats.routed_experts
    yield ops.linear("router", "router", rows=rows, inputs=hidden, outputs=moe.experts)
    yield ops.routing(moe, rows=rows)
    yield ops.align(moe, rows=rows)
    up, down = {"inputs": hidden, "outputs": 2 * width}, {"inputs": width, "outputs": hidden}
    yield ops.experts("experts_gate_up", moe, rows=rows, **up, format_=routed, gathers=True)
    yield ops.activation("experts_activation", rows=rows * moe.top_k, width=width)
    yield ops.experts("experts_down", moe, rows=rows, **down, format_=routed, gathers=False)
    if moe.shared_experts:
        shared = width * moe.shared_experts
        yield from _mlp(asked, "shared_expert", width=shared, format_=formats.shared_expert)
    yield from _all_reduce(asked, "all_reduce", "mlp_all_reduce")


def _head(asked: Pass) -> Iterator[Op]:
    hidden, vocab = asked.model.hidden, asked.vocab_slice
    rows = asked.requests if asked.mode == "extend" else asked.all_rows
    yield ops.norm("final_norm", rows=asked.all_rows, width=hidden, residual=True)
    format_ = asked.model.formats.lm_head
    yield ops.linear("lm_head", "lm_head", rows=rows, inputs=hidden, outputs=vocab, format_=format_)
    if asked.tp > 1:
        name = "logits_all_gather"
        yield ops.collective(name, name, rows=rows, width=vocab * asked.tp)


def _mlp(asked: Pass, part: str, *, width: int, format_: WeightFormat) -> Iterator[Op]:
    rows, hidden = asked.all_rows, asked.model.hidden
    up, down = {"inputs": hidden, "outputs": 2 * width}, {"inputs": width, "outputs": hidden}
    yield ops.linear(part, f"{part}_gate_up", rows=rows, **up, format_=format_)
    yield ops.activation(f"{part}_activation", rows=rows, width=width)
    yield ops.linear(part, f"{part}_down", rows=rows, **down, format_=format_)


def _projection(asked: Pass, name: str, *, inputs: int, outputs: int, batch: int = 1) -> Op:
    return ops.linear(
        "attention_projections",
        name,
        rows=asked.all_rows,
        inputs=inputs,
        outputs=outputs,
        format_=asked.model.formats.attention,
        batch=batch,
    )


def _attention(
    asked: Pass, *, query_dim: int, value_dim: int, entry: int, unfolded_bytes: float = 0
) -> Op:
    return ops.attention(
        requests=asked.requests,
        rows=asked.rows,
        context=asked.context,
        heads=asked.heads,
        query_dim=query_dim,
        value_dim=value_dim,
        entry=entry,
        unfolded_bytes=unfolded_bytes,
    )


def _all_reduce(asked: Pass, part: str, name: str) -> Iterator[Op]:
    if asked.tp > 1:
        yield ops.collective(part, name, rows=asked.all_rows, width=asked.model.hidden)


def _require_split(model: Model, tp: int) -> None:
    if not _splits(model, tp):
        allowed = [str(ranks) for ranks in range(1, model.heads + 1) if _splits(model, ranks)]
        raise UsageError(
            f"{model.name} with {model.heads} heads cannot be split over {tp} ranks; "
            f"it can over {', '.join(allowed)}"
        )


def _splits(model: Model, tp: int) -> bool:
    whole = [model.heads]
    if model.dense_layers:
        whole.append(model.dense_intermediate)
    if model.moe is not None:
        whole.append(model.moe.intermediate)
    if isinstance(model.attention, Gqa):
        few, many = sorted((model.attention.kv_heads, tp))
        if many % few:
            return False
    return all(size % tp == 0 for size in whole)
