"""What a layer list needs to know of a model: sizes, attention, experts, and the weights' formats.

`find_model` takes a name of `TABLE` or the path of a Hugging Face config.json (or of its folder).
Sizes are elements unless the name says otherwise. Source of the table: the config.json files of
the checkpoints, as shipped in aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from verifyscope.errors import UsageError

Arithmetic = Literal["bf16", "fp8"]
Scaling = Literal["none", "yarn", "llama3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How a weight is stored, and the dtype that its products are computed in.

    One scale of `scale_bytes` serves `elements_per_scale` elements: 128 x 128 of a block, 32 of a
    group.
    """

    name: str
    bits: int
    elements_per_scale: int | None = None
    scale_bytes: int = 0
    arithmetic: Arithmetic = "bf16"

    def bytes_of(self, elements: float) -> float:
        """Return the bytes of `elements` weights with their scales."""
        scales = elements / self.elements_per_scale if self.elements_per_scale else 0
        return elements * self.bits / 8 + scales * self.scale_bytes


BF16 = WeightFormat(name="bf16", bits=16)


def fp8_blocks(rows: int = 128, columns: int = 128) -> WeightFormat:
    """Return fp8 e4m3 with one float32 scale a block; products are computed in fp8."""
    return WeightFormat(
        name=f"fp8 block {rows}x{columns}",
        bits=8,
        elements_per_scale=rows * columns,
        scale_bytes=4,
        arithmetic="fp8",
    )


def integer_groups(bits: int = 4, group: int = 32) -> WeightFormat:
    """Return symmetric integers with one bf16 scale a group; products are computed in bf16."""
    return WeightFormat(
        name=f"int{bits} group {group}", bits=bits, elements_per_scale=group, scale_bytes=2
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The format of each part that may be quantised; embedding, router and norms are bf16."""

    attention: WeightFormat = BF16
    dense_mlp: WeightFormat = BF16
    shared_expert: WeightFormat = BF16
    routed_experts: WeightFormat = BF16
    lm_head: WeightFormat = BF16


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Latent attention: all heads share one latent of kv_lora_rank + rope_dim a token.

    `q_lora_rank` is None where queries are projected in one step.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def latent_dim(self) -> int:
        """Return the elements that the cache holds for a token, in each layer and on each rank."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def query_dim(self) -> int:
        """Return the elements of one head's query."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Gqa:
    """Grouped-query attention; `head_norm` says that queries and keys are normalised by head."""

    kv_heads: int
    head_dim: int
    head_norm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A layer of experts; `correction_bias` is the one that routing adds and weights do not."""

    experts: int
    top_k: int
    intermediate: int
    shared_experts: int = 0
    groups: int = 1
    top_groups: int = 1
    scoring: Literal["sigmoid", "softmax"] = "softmax"
    correction_bias: bool = False
    routed_scaling: float = 1.0
    norm_top_k: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary positions; the fields after `factor` are None where the scaling has no such number.

    `mscale_all_dim` is the weight of yarn's factor in the softmax scale; see `Model.softmax_scale`.
    """

    theta: float
    scaling: Scaling = "none"
    factor: float = 1.0
    original_positions: int | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale_all_dim: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder. The first `dense_layers` have a dense MLP, the others experts."""

    name: str
    hidden: int
    layers: int
    dense_layers: int
    heads: int
    attention: Mla | Gqa
    dense_intermediate: int
    moe: Moe | None
    vocab: int
    max_positions: int
    rope: Rope
    rms_eps: float
    mtp_layers: int = 0
    formats: Formats = Formats()

    @property
    def softmax_scale(self) -> float:
        """Return what multiplies a score <q, k>, of the heads before any absorption.

        mscale^2 / sqrt(dims of a query), mscale = 0.1 * mscale_all_dim * ln(factor) + 1; 1 where
        the config names no mscale_all_dim. Source: modeling_deepseek.py of DeepSeek-V3.
        """
        given, rope = self.attention, self.rope
        dims = given.query_dim if isinstance(given, Mla) else given.head_dim
        mscale = 1.0
        if rope.mscale_all_dim is not None and rope.factor > 1:
            mscale += 0.1 * rope.mscale_all_dim * math.log(rope.factor)
        return mscale**2 / math.sqrt(dims)


def find_model(name: str) -> Model:
    """Return the table's model `name`, or read the config.json (or its folder) at that path.

    `UsageError` that lists the known ones if it is neither.
    """
    if name.strip().lower() in TABLE:
        return TABLE[name.strip().lower()]
    if _exists(name):
        return from_config(Path(name))
    known = ", ".join(TABLE)
    raise UsageError(f"unknown model {name!r}; known: {known}, or the path of a config.json")


def from_config(config: Path | Mapping[str, object]) -> Model:
    """Return the model that a Hugging Face config.json describes; `UsageError` if it cannot be.

    Families: deepseek_v3, kimi_k2, kimi_k25 (its text_config), qwen3_moe, llama.
    """
    from verifyscope import model_config  # here, because it builds on the classes above

    return model_config.read(config)


def _exists(name: str) -> bool:
    try:
        return bool(name.strip()) and Path(name).exists()
    except OSError:  # too long for a path
        return False


_MLA = Mla(q_lora_rank=1536, kv_lora_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
_FP8 = Formats(
    attention=fp8_blocks(),
    dense_mlp=fp8_blocks(),
    shared_expert=fp8_blocks(),
    routed_experts=fp8_blocks(),
)
_KIMI_K2 = Model(
    name="kimi-k2",
    hidden=7168,
    layers=61,
    dense_layers=1,
    heads=64,
    attention=_MLA,
    dense_intermediate=18_432,
    moe=Moe(
        experts=384,
        top_k=8,
        intermediate=2048,
        shared_experts=1,
        scoring="sigmoid",
        correction_bias=True,
        routed_scaling=2.827,
    ),
    vocab=163_840,
    max_positions=131_072,
    rope=Rope(
        theta=50_000,
        scaling="yarn",
        factor=32,
        original_positions=4096,
        beta_fast=1,
        beta_slow=1,
        mscale_all_dim=1,
    ),
    rms_eps=1e-6,
    formats=_FP8,
)
_KIMI_K25 = replace(
    _KIMI_K2,
    name="kimi-k2.5",
    max_positions=262_144,
    rope=replace(_KIMI_K2.rope, factor=64, beta_fast=32),
    rms_eps=1e-5,
    formats=Formats(routed_experts=integer_groups()),
)
_DEEPSEEK_V3 = Model(
    name="deepseek-v3",
    hidden=7168,
    layers=61,
    dense_layers=3,
    heads=128,
    attention=_MLA,
    dense_intermediate=18_432,
    moe=Moe(
        experts=256,
        top_k=8,
        intermediate=2048,
        shared_experts=1,
        groups=8,
        top_groups=4,
        scoring="sigmoid",
        correction_bias=True,
        routed_scaling=2.5,
    ),
    vocab=129_280,
    max_positions=163_840,
    rope=Rope(
        theta=10_000,
        scaling="yarn",
        factor=40,
        original_positions=4096,
        beta_fast=32,
        beta_slow=1,
        mscale_all_dim=1,
    ),
    rms_eps=1e-6,
    mtp_layers=1,
    formats=_FP8,
)
_QWEN3_235B = Model(
    name="qwen3-235b-a22b",
    hidden=4096,
    layers=94,
    dense_layers=0,
    heads=64,
    attention=Gqa(kv_heads=4, head_dim=128, head_norm=True),
    dense_intermediate=12_288,
    moe=Moe(experts=128, top_k=8, intermediate=1536),
    vocab=151_936,
    max_positions=40_960,
    rope=Rope(theta=1e6),
    rms_eps=1e-6,
)
_QWEN3_30B = replace(
    _QWEN3_235B,
    name="qwen3-30b-a3b",
    hidden=2048,
    layers=48,
    heads=32,
    dense_intermediate=6144,
    moe=Moe(experts=128, top_k=8, intermediate=768),
)
_LLAMA_70B = Model(
    name="llama-3.1-70b",
    hidden=8192,
    layers=80,
    dense_layers=80,
    heads=64,
    attention=Gqa(kv_heads=8, head_dim=128),
    dense_intermediate=28_672,
    moe=None,
    vocab=128_256,
    max_positions=131_072,
    rope=Rope(
        theta=500_000,
        scaling="llama3",
        factor=8,
        original_positions=8192,
    ),
    rms_eps=1e-5,
)
_ENTRIES = (
    _KIMI_K2,
    _KIMI_K25,
    _DEEPSEEK_V3,
    _QWEN3_235B,
    _QWEN3_30B,
    _LLAMA_70B,
)
TABLE: Mapping[str, Model] = MappingProxyType({model.name: model for model in _ENTRIES})
