"""Hugging Face config.json of a target or of a drafter (EAGLE, EAGLE-3, latent attention, MTP):
sizes.

Targets are read by `verifyscope.models`. A drafter is told by its draft vocabulary or architecture
name:

    EAGLE-3   attention over [embedding, hidden] (2 x hidden wide), fc from the target's hidden
    states EAGLE     fc from [embedding, hidden] to hidden, then a plain layer
    a step reads its layer and its lm_head; fc from the target's states is read once a cycle

Names and paths inside a config are not read. Weights of a drafter count as bf16.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from ingest import json_documents
from ingest.facts import Facts, Read
from ingest.log import Log
from ingest.opening import Unreadable
from verifyscope import models
from verifyscope.errors import UsageError
from verifyscope.models import BF16, Model

Kind = Literal["EAGLE-3", "EAGLE", "MTP"]
_Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
_CountOrZero = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_USUAL_STATES = 3
_WORDS: tuple[tuple[str, Kind], ...] = (
    ("eagle3", "EAGLE-3"),
    ("eagle", "EAGLE"),
    ("nextn", "MTP"),
    ("mtp", "MTP"),
)


class _EagleConfig(msgspec.Struct):
    eagle_aux_hidden_state_layer_ids: list[int] | None = None


class _Config(msgspec.Struct):
    """What decides whether a config is a drafter's."""

    architectures: list[str] | None = None
    draft_vocab_size: _Count | None = None


class _Drafter(msgspec.Struct, kw_only=True):
    hidden_size: _Count
    intermediate_size: _Count
    num_attention_heads: _Count
    vocab_size: _Count
    num_hidden_layers: _Count = 1
    num_key_value_heads: _Count | None = None
    head_dim: _Count | None = None
    draft_vocab_size: _Count | None = None
    target_hidden_size: _Count | None = None
    kv_lora_rank: _Count | None = None
    q_lora_rank: _Count | None = None
    qk_nope_head_dim: _Count = 128
    qk_rope_head_dim: _Count = 64
    v_head_dim: _Count = 128
    n_routed_experts: _CountOrZero | None = None
    n_shared_experts: _CountOrZero | None = None
    num_experts_per_tok: _CountOrZero | None = None
    moe_intermediate_size: _Count | None = None
    eagle_config: _EagleConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A drafter: what it must share with its target, and the bytes of a step and of its fc."""

    kind: Kind
    layers: int
    hidden: int
    target_hidden: int
    vocab: int
    draft_vocab: int
    latent: bool
    step_bytes: float
    once_bytes: float


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` is a config.json."""
    named = b'"model_type"' in head or b'"architectures"' in head
    return head.lstrip()[:1] == b"{" and named and b'"hidden_size"' in head


def read(log: Log) -> Iterator[Read]:
    """Yield the model or the drafter of a config.json."""
    data = log.stream.read(json_documents.LARGEST_BYTES + 1)
    if len(data) > json_documents.LARGEST_BYTES // 8:
        raise Unreadable(f"{log.file} is over 4 MiB; a config.json has a few kB: give that file")
    if json_documents.depth(data) > 32:
        raise Unreadable(f"{log.file} nests deeper than 32; no config.json does")
    config = json_documents.decoded(data, log.file, _Config)
    kind = _kind(config)
    if kind is not None:
        yield Facts(file=log.file, drafter=drafter(data, log.file, kind))
        return
    try:
        model = models.from_config(_mapping(data, log.file))
    except UsageError as error:
        raise Unreadable(str(error).replace("the config", log.file, 1)) from None
    yield Facts(file=log.file, model=model)


def drafter(data: bytes, place: str, kind: Kind) -> Drafter:
    """Return the drafter that a config.json of that kind describes."""
    config = json_documents.decoded(data, place, _Drafter)
    states = config.eagle_config.eagle_aux_hidden_state_layer_ids if config.eagle_config else None
    target = config.target_hidden_size or config.hidden_size
    once = 0.0
    if kind == "EAGLE-3":
        once = float((len(states) if states else _USUAL_STATES) * target * config.hidden_size)
    per_step = 0.0 if kind == "EAGLE-3" else 2.0 * config.hidden_size**2
    vocab = config.draft_vocab_size or config.vocab_size
    layers = config.num_hidden_layers * _layer_elements(config, kind)
    return Drafter(
        kind=kind,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        target_hidden=target,
        vocab=config.vocab_size,
        draft_vocab=vocab,
        latent=config.kv_lora_rank is not None,
        step_bytes=BF16.bytes_of(layers + per_step + float(vocab * config.hidden_size)),
        once_bytes=BF16.bytes_of(once),
    )


def mtp_step_bytes(model: Model) -> float:
    """Return the bytes of one draft step of a model's own MTP layer, and of its lm_head."""
    from verifyscope.model_sizes import attention_elements  # here, because reading needs none of it

    formats, hidden = model.formats, model.hidden
    found = formats.attention.bytes_of(attention_elements(model)) + BF16.bytes_of(2 * hidden**2)
    if model.moe is None:
        found += formats.dense_mlp.bytes_of(3 * hidden * model.dense_intermediate)
    else:
        each = 3.0 * hidden * model.moe.intermediate
        found += formats.routed_experts.bytes_of(each * model.moe.top_k)
        found += formats.shared_expert.bytes_of(each * model.moe.shared_experts)
    return found + formats.lm_head.bytes_of(model.vocab * hidden)


def _kind(config: _Config) -> Kind | None:
    names = " ".join(config.architectures or []).lower()
    found = next((kind for word, kind in _WORDS if word in names), None)
    return found or ("EAGLE-3" if config.draft_vocab_size is not None else None)


def _layer_elements(config: _Drafter, kind: Kind) -> float:
    hidden, heads = config.hidden_size, config.num_attention_heads
    inputs = 2 * hidden if kind == "EAGLE-3" else hidden
    if config.kv_lora_rank is not None:
        query = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim)
        rank = config.q_lora_rank
        attention = inputs * query if rank is None else inputs * rank + rank * query
        attention += inputs * (config.kv_lora_rank + config.qk_rope_head_dim)
        attention += config.kv_lora_rank * heads * (config.qk_nope_head_dim + config.v_head_dim)
        attention += heads * config.v_head_dim * hidden
    else:
        width = config.head_dim or max(1, hidden // heads)
        keys = config.num_key_value_heads or heads
        attention = inputs * (heads + 2 * keys) * width + heads * width * hidden
    experts, wide = config.n_routed_experts, config.moe_intermediate_size
    if experts and wide:
        used = (config.num_experts_per_tok or 1) + (config.n_shared_experts or 0)
        return float(attention + 3 * hidden * wide * used)
    return float(attention + 3 * hidden * config.intermediate_size)


def _mapping(data: bytes, place: str) -> Mapping[str, object]:
    try:
        return msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"{place} is no whole JSON ({error}); give it whole") from None
