"""How many weights a model has, and how many of them one pass reads: bytes by part, on all ranks.

    attention (latent)  = hidden x (q_lora + latent) + q_lora x heads x query + kv_lora x heads x
    (nope + value)
                          + heads x value x hidden
    attention (grouped) = hidden x (heads + 2 kv_heads) x head_dim + heads x head_dim x hidden
    experts             = 3 x hidden x intermediate each; a pass reads E (1 - (1 - k / E)^rows) of E

Norms and biases, some thousandths of the whole, are left out. What one rank reads, op by op, is in
`graphs.layers`; both are held to one another by a test.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from verifyscope.models import BF16, Mla, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of weights by part: `stored` in the whole model, `read` by one pass."""

    stored: Mapping[str, float]
    read: Mapping[str, float]
    elements: float

    @property
    def stored_bytes(self) -> float:
        """Return the bytes of all weights."""
        return sum(self.stored.values())

    @property
    def read_bytes(self) -> float:
        """Return the bytes of weights that one pass reads."""
        return sum(self.read.values())


def attention_elements(model: Model) -> float:
    """Return the number of weights of one layer's attention."""
    hidden, heads, kind = model.hidden, model.heads, model.attention
    if not isinstance(kind, Mla):
        width = kind.head_dim
        return hidden * (2 * heads + 2 * kind.kv_heads) * width
    queries = heads * kind.query_dim
    rank = kind.q_lora_rank
    down = hidden * queries if rank is None else hidden * rank + rank * queries
    latent = hidden * kind.latent_dim
    unfold = kind.kv_lora_rank * heads * (kind.nope_dim + kind.value_dim)
    return down + latent + unfold + heads * kind.value_dim * hidden


def sizes(model: Model, *, rows: int = 1) -> Sizes:
    """Return the sizes of `model` and of a pass of `rows` rows in all."""
    hidden, formats = model.hidden, model.formats
    experts_layers = model.layers - model.dense_layers if model.moe else 0
    elements = {
        "attention": attention_elements(model) * model.layers,
        "dense_mlp": 3.0 * hidden * model.dense_intermediate * (model.layers - experts_layers),
        "lm_head": float(model.vocab * hidden),
        "embedding": float(model.vocab * hidden),
    }
    stored = {
        "attention": formats.attention.bytes_of(elements["attention"]),
        "dense_mlp": formats.dense_mlp.bytes_of(elements["dense_mlp"]),
        "lm_head": formats.lm_head.bytes_of(elements["lm_head"]),
        "embedding": BF16.bytes_of(elements["embedding"]),
    }
    read = {**stored, "embedding": BF16.bytes_of(rows * hidden)}
    if model.moe is not None and experts_layers:
        moe = model.moe
        each = 3.0 * hidden * moe.intermediate * experts_layers
        shares = {"routed_experts": moe.experts, "shared_expert": moe.shared_experts}
        elements |= {name: each * count for name, count in shares.items()}
        elements["router"] = float(hidden * moe.experts * experts_layers)
        stored["routed_experts"] = formats.routed_experts.bytes_of(elements["routed_experts"])
        stored["shared_expert"] = formats.shared_expert.bytes_of(elements["shared_expert"])
        stored["router"] = BF16.bytes_of(elements["router"])
        distinct = 1 - (1 - moe.top_k / moe.experts) ** rows
        read |= {name: stored[name] for name in ("shared_expert", "router")}
        read["routed_experts"] = stored["routed_experts"] * distinct
    return Sizes(stored=stored, read=read, elements=sum(elements.values()))
