"""A Hugging Face config.json becomes a Model, or one line that says why it cannot.

Families: deepseek_v3 and kimi_k2 (latent attention, experts), kimi_k25 (the same in text_config),
qwen3_moe, llama. Weights: bf16 or fp16, fp8 in blocks, compressed-tensors integers in groups; the
lists of modules that stay unquantised decide by part. Fields are named as in transformers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from verifyscope import models
from verifyscope.errors import UsageError

_LARGEST_BYTES = 4 * 2**20
_HALF_PRECISION = ("bfloat16", "float16", None)
_SCALINGS: Mapping[str, models.Scaling] = {"default": "none", "yarn": "yarn", "llama3": "llama3"}

_Count = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
_CountOrZero = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class _Weights(msgspec.Struct):
    num_bits: int
    type: str = "int"
    symmetric: bool = True
    group_size: int | None = None


class _Group(msgspec.Struct):
    weights: _Weights | None = None


class _Quantization(msgspec.Struct):
    quant_method: str | None = None
    weight_block_size: tuple[_Count, _Count] | None = None
    modules_to_not_convert: list[str] | None = None
    config_groups: dict[str, _Group] = {}
    ignore: list[str] = []


class _Rope(msgspec.Struct):
    type: str | None = None
    rope_type: str | None = None
    rope_theta: _Positive | None = None
    factor: _Positive = 1.0
    original_max_position_embeddings: _Count | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale_all_dim: float | None = None


class _Outer(msgspec.Struct):
    """What decides how the rest is read."""

    model_type: str
    text_config: msgspec.Raw = msgspec.Raw()
    torch_dtype: str | None = None
    dtype: str | None = None
    quantization_config: _Quantization | None = None


class _Decoder(msgspec.Struct, kw_only=True):
    hidden_size: _Count
    num_hidden_layers: _Count
    num_attention_heads: _Count
    intermediate_size: _Count
    vocab_size: _Count
    max_position_embeddings: _Count
    rms_norm_eps: _Positive
    rope_theta: _Positive | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    torch_dtype: str | None = None
    dtype: str | None = None
    quantization_config: _Quantization | None = None


class _LatentExperts(_Decoder, kw_only=True):
    q_lora_rank: _Count | None
    kv_lora_rank: _Count
    qk_nope_head_dim: _Count
    qk_rope_head_dim: _Count
    v_head_dim: _Count
    first_k_dense_replace: _CountOrZero
    moe_layer_freq: _Count = 1
    moe_intermediate_size: _Count
    n_routed_experts: _Count
    n_shared_experts: _CountOrZero | None = None
    num_experts_per_tok: _Count
    n_group: _Count = 1
    topk_group: _Count = 1
    topk_method: str = "noaux_tc"
    scoring_func: Literal["sigmoid", "softmax"] = "sigmoid"
    routed_scaling_factor: float
    norm_topk_prob: bool = True
    num_nextn_predict_layers: _CountOrZero = 0


class _Qwen3Experts(_Decoder, kw_only=True):
    num_key_value_heads: _Count
    head_dim: _Count
    moe_intermediate_size: _Count
    num_experts: _Count
    num_experts_per_tok: _Count
    norm_topk_prob: bool
    decoder_sparse_step: _Count = 1
    mlp_only_layers: list[int] = []


class _Llama(_Decoder, kw_only=True):
    num_key_value_heads: _Count
    head_dim: _Count | None = None


@dataclass(frozen=True, slots=True)
class _Text:
    """The text of a config, what to call it and its model, and what an outer config adds."""

    data: bytes
    place: str
    name: str
    quantization: _Quantization | None = None
    dtype: str | None = None


def read(config: Path | Mapping[str, object]) -> models.Model:
    """Return the model of a config.json, of the folder that holds it, or of its content.

    `UsageError` for a model_type that is not known here, and for what cannot be read.
    """
    text = _text(config)
    outer = _decoded(text, _Outer)
    family = outer.model_type
    text = replace(
        text, quantization=outer.quantization_config, dtype=outer.dtype or outer.torch_dtype
    )
    if family == "kimi_k25":
        inner = bytes(outer.text_config)
        text = replace(text, data=inner or text.data)
        family = _decoded(text, _Outer).model_type if inner else "kimi_k2"
    build = _FAMILIES.get(family)
    if build is None:
        known = ", ".join((*_FAMILIES, "kimi_k25"))
        raise UsageError(f"{text.place}: unknown model_type {family!r}; known: {known}")
    return build(text)


def _latent_experts(text: _Text) -> models.Model:
    config = _decoded(text, _LatentExperts)
    _require(config.moe_layer_freq == 1, text, "moe_layer_freq", "1: experts in each later layer")
    dense = min(config.first_k_dense_replace, config.num_hidden_layers)
    moe = models.Moe(
        experts=config.n_routed_experts,
        top_k=config.num_experts_per_tok,
        intermediate=config.moe_intermediate_size,
        shared_experts=config.n_shared_experts or 0,
        groups=config.n_group,
        top_groups=config.topk_group,
        scoring=config.scoring_func,
        correction_bias=config.topk_method == "noaux_tc",
        routed_scaling=config.routed_scaling_factor,
        norm_top_k=config.norm_topk_prob,
    )
    attention = models.Mla(
        q_lora_rank=config.q_lora_rank,
        kv_lora_rank=config.kv_lora_rank,
        nope_dim=config.qk_nope_head_dim,
        rope_dim=config.qk_rope_head_dim,
        value_dim=config.v_head_dim,
    )
    return replace(
        _model(text, config, attention=attention, moe=moe, dense_layers=dense),
        mtp_layers=config.num_nextn_predict_layers,
    )


def _qwen3_experts(text: _Text) -> models.Model:
    config = _decoded(text, _Qwen3Experts)
    _require(config.decoder_sparse_step == 1, text, "decoder_sparse_step", "1")
    _require(not config.mlp_only_layers, text, "mlp_only_layers", "[]")
    moe = models.Moe(
        experts=config.num_experts,
        top_k=config.num_experts_per_tok,
        intermediate=config.moe_intermediate_size,
        norm_top_k=config.norm_topk_prob,
    )
    attention = models.Gqa(
        kv_heads=config.num_key_value_heads, head_dim=config.head_dim, head_norm=True
    )
    return _model(text, config, attention=attention, moe=moe, dense_layers=0)


def _llama(text: _Text) -> models.Model:
    config = _decoded(text, _Llama)
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    attention = models.Gqa(kv_heads=config.num_key_value_heads, head_dim=head_dim)
    return _model(
        text, config, attention=attention, moe=None, dense_layers=config.num_hidden_layers
    )


_FAMILIES: Mapping[str, Callable[[_Text], models.Model]] = {
    "deepseek_v3": _latent_experts,
    "kimi_k2": _latent_experts,
    "qwen3_moe": _qwen3_experts,
    "llama": _llama,
}


def _model(
    text: _Text,
    config: _Decoder,
    *,
    attention: models.Mla | models.Gqa,
    moe: models.Moe | None,
    dense_layers: int,
) -> models.Model:
    if moe is not None:
        few = moe.top_k <= moe.experts
        _require(few, text, "num_experts_per_tok", f"at most the {moe.experts} experts")
    dtype = config.dtype or config.torch_dtype or text.dtype
    _require(dtype in _HALF_PRECISION, text, "torch_dtype", "bfloat16 or float16")
    last = config.num_hidden_layers - 1
    return models.Model(
        name=text.name,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        dense_layers=dense_layers,
        heads=config.num_attention_heads,
        attention=attention,
        dense_intermediate=config.intermediate_size,
        moe=moe,
        vocab=config.vocab_size,
        max_positions=config.max_position_embeddings,
        rope=_rope(text, config),
        rms_eps=config.rms_norm_eps,
        formats=_formats(text, config.quantization_config or text.quantization, last=last),
    )


def _rope(text: _Text, config: _Decoder) -> models.Rope:
    given = config.rope_parameters or config.rope_scaling or _Rope()
    theta = config.rope_theta or given.rope_theta
    if theta is None:
        raise UsageError(f"{text.place}: rope_theta is missing; add it")
    kind = given.rope_type or given.type or "default"
    scaling = _SCALINGS.get(kind)
    if scaling is None:
        known = ", ".join(_SCALINGS)
        raise UsageError(f"{text.place}: unknown rope type {kind!r}; known: {known}")
    return models.Rope(
        theta=theta,
        scaling=scaling,
        factor=given.factor,
        original_positions=given.original_max_position_embeddings,
        beta_fast=given.beta_fast,
        beta_slow=given.beta_slow,
        mscale_all_dim=given.mscale_all_dim,
    )


def _formats(text: _Text, given: _Quantization | None, *, last: int) -> models.Formats:
    """Return each part's format, by the name of one of its modules in the last layer."""
    if given is None:
        return models.Formats()
    if given.quant_method == "fp8" and given.weight_block_size is not None:
        format_ = models.fp8_blocks(*given.weight_block_size)
        kept = ["lm_head", *(given.modules_to_not_convert or [])]
    elif given.quant_method == "compressed-tensors" or given.config_groups:
        format_ = _integers(text, given)
        kept = given.ignore
    else:
        method = given.quant_method
        raise UsageError(
            f"{text.place}: unknown quantization {method!r}; known: fp8 with weight_block_size, "
            f"compressed-tensors integers in groups, or none"
        )

    def format_of(module: str) -> models.WeightFormat:
        return models.BF16 if _is_kept(text, module, kept) else format_

    return models.Formats(
        attention=format_of(f"model.layers.{last}.self_attn.o_proj"),
        dense_mlp=format_of("model.layers.0.mlp.down_proj"),
        shared_expert=format_of(f"model.layers.{last}.mlp.shared_experts.down_proj"),
        routed_experts=format_of(f"model.layers.{last}.mlp.experts.0.down_proj"),
        lm_head=format_of("lm_head"),
    )


def _integers(text: _Text, given: _Quantization) -> models.WeightFormat:
    all_weights = [group.weights for group in given.config_groups.values()]
    weights = all_weights[0] if len(all_weights) == 1 else None
    if (
        weights is None
        or weights.type != "int"
        or weights.num_bits not in (4, 8)
        or not weights.symmetric
        or not weights.group_size
        or weights.group_size < 1
    ):
        raise UsageError(
            f"{text.place}: of compressed-tensors only one group of symmetric 4- or 8-bit "
            f"integers with a group_size is known"
        )
    return models.integer_groups(weights.num_bits, weights.group_size)


def _is_kept(text: _Text, module: str, kept: Sequence[str]) -> bool:
    """Say whether `module` stays unquantised. An entry is "re:" and a pattern, or a name's part."""
    names = (module, f"language_model.{module}")  # kimi_k25 puts its decoder there
    for entry in kept:
        if not entry.startswith("re:"):
            if any(f".{entry}." in f".{name}." for name in names):
                return True
            continue
        try:
            pattern = re.compile(entry[3:])
        except re.error as error:
            raise UsageError(f"{text.place}: {entry!r} in ignore is no pattern ({error})") from None
        if any(pattern.match(name) for name in names):
            return True
    return False


def _text(config: Path | Mapping[str, object]) -> _Text:
    if isinstance(config, Mapping):
        return _Text(msgspec.json.encode(config), "the config", str(config.get("model_type")))
    path = config / "config.json" if config.is_dir() else config
    if not path.is_file():
        raise UsageError(f"{path} is no file; give a Hugging Face config.json or its folder")
    with path.open("rb") as file:
        data = file.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise UsageError(f"{path} is over 4 MiB; a config.json has a few kB: give that file")
    if not data.strip():
        raise UsageError(f"{path} is empty; give a Hugging Face config.json")
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return _Text(data, str(path), name)


def _decoded(text: _Text, type_: type[_Struct]) -> _Struct:
    try:
        return msgspec.json.decode(text.data, type=type_)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{text.place}: {error}; give the config.json of a known family as it was published"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{text.place} is no JSON ({error}); give a Hugging Face config.json"
        ) from None


def _require(holds: bool, text: _Text, field: str, allowed: str) -> None:
    if not holds:
        raise UsageError(f"{text.place}: {field} must be {allowed}; other layouts are not known")
