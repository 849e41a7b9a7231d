"""A model small enough for a CPU, with every op, format and kind of layer of the large one.

Three layers, of which one dense where the large one has dense layers; sizes that all formats can
hold: multiples of 128 for blocks of fp8. What a rank of it takes says nothing about the large one,
and its name says that it is not that.
"""

from dataclasses import replace

from verifyscope.models import Gqa, Mla, Model, Moe

LAYERS = 3
HIDDEN = 256
HEADS = 16
VOCAB = 2048
_WIDTH = 512  # between the products of an MLP; 128 a rank at TP 4
_EXPERTS = 16
_TOP_K = 4
_POSITIONS = 65_536


def shrunken(model: Model, *, layers: int | None = None) -> Model:
    """Return `model` with small sizes and `layers` layers, 3 as a rule."""
    count = LAYERS if layers is None else layers
    dense = count if model.moe is None else min(model.dense_layers, 1, count - 1)
    return replace(
        model,
        name=f"{model.name}-shrunk",
        hidden=HIDDEN,
        layers=count,
        dense_layers=dense,
        heads=HEADS,
        attention=_attention(model.attention),
        dense_intermediate=_WIDTH,
        moe=None if model.moe is None else _moe(model.moe),
        vocab=VOCAB,
        max_positions=min(model.max_positions, _POSITIONS),
    )


def _attention(given: Mla | Gqa) -> Mla | Gqa:
    if isinstance(given, Gqa):
        return replace(given, kv_heads=8, head_dim=32)
    query = None if given.q_lora_rank is None else 128
    return Mla(q_lora_rank=query, kv_lora_rank=64, nope_dim=32, rope_dim=16, value_dim=32)


def _moe(given: Moe) -> Moe:
    groups = min(given.groups, _EXPERTS // 4)
    return replace(
        given,
        experts=_EXPERTS,
        top_k=min(given.top_k, _TOP_K),
        intermediate=_WIDTH,
        groups=groups,
        top_groups=min(given.top_groups, groups),
    )
