"""The steps of an attention block beside its plain projections: norms, rope, kv_b, attention.

Latent attention keeps kv_b folded: `kv_b_key` takes the queries into the latent space, attention
reads latents, `kv_b_value` takes its result back. rope rotates, and writes the drafts' entries into
the cache, as one step: attention then reads them there.
"""

from collections.abc import Callable, Mapping

import torch

from graphs._stub import linear
from graphs._stub.cache import Pages
from graphs._stub.drawing import Drawing, Layer
from graphs._stub.step import Bound, Flow, Step, step
from graphs.ops import Op
from kernels import Case
from verifyscope.models import Mla
from verifyscope.records import Value


def _q_a_norm(layer: Layer, op: Op) -> Step:
    norm = layer.norm(op.name, layer.normal(layer.drawing.rows, int(op.shape["width"])))

    def run(flow: Flow) -> None:
        flow["q_a"] = norm({"x": flow["q_a"]})["y"]

    return step(op, run, writes=("q_a",))


def _kv_a_norm(layer: Layer, op: Op) -> Step:
    """Return the norm of the latent, the front of a row of latent and rotated key."""
    mla, rows = layer.drawing.latent, layer.drawing.rows
    norm = layer.norm(op.name, layer.normal(rows, mla.latent_dim)[:, : mla.kv_lora_rank])

    def run(flow: Flow) -> None:
        flow["latent"] = norm({"x": flow["kv_a"][:, : mla.kv_lora_rank]})["y"]

    return step(op, run, writes=("latent",))


def _qk_norm(layer: Layer, op: Op) -> Step:
    """Return the norms of each head's query and key; the values of qkv stay where they are."""
    heads, both = layer.drawing.heads, layer.drawing.heads + layer.drawing.kv_heads
    whole = layer.normal(*_qkv_sizes(layer.drawing))
    query = layer.norm(f"{op.name} of queries", whole[:, :heads], heads=heads)
    key = layer.norm(f"{op.name} of keys", whole[:, heads:both], heads=both - heads)

    def run(flow: Flow) -> None:
        qkv = flow["qkv"].view(whole.shape)
        flow["q"] = query({"x": qkv[:, :heads]})["y"]
        flow["k"] = key({"x": qkv[:, heads:both]})["y"]

    return step(op, run, writes=("q", "k"))


def _rope(layer: Layer, op: Op) -> Step:
    """Return the rotation of queries and keys, and the store of the drafts' entries."""
    if isinstance(layer.drawing.model.attention, Mla):
        return _latent_rope(layer, op)
    return _grouped_rope(layer, op)


def _latent_rope(layer: Layer, op: Op) -> Step:
    drawing, mla, cache = layer.drawing, layer.drawing.latent, _cache(layer)
    sizes = drawing.rows, drawing.heads, mla.query_dim
    like = layer.normal(*sizes)[..., mla.nope_dim :]
    row = layer.normal(drawing.rows, mla.latent_dim)[:, None, mla.kv_lora_rank :]
    rotate = _rotation(layer, {"q": like, "k": row}, interleaved=True)
    slots = drawing.metadata.slots

    def run(flow: Flow) -> None:
        turned = rotate(
            {
                "q": flow["q"].view(sizes)[..., mla.nope_dim :],
                "k": flow["kv_a"][:, None, mla.kv_lora_rank :],
            }
        )
        flow["q_pe"] = turned["q_out"]
        cache.store(slots, flow["latent"], turned["k_out"])

    return step(op, run, writes=("q_pe",))


def _grouped_rope(layer: Layer, op: Op) -> Step:
    drawing, cache = layer.drawing, _cache(layer)
    heads, both = drawing.heads, drawing.heads + drawing.kv_heads
    normed = drawing.grouped.head_norm
    whole = layer.normal(*_qkv_sizes(drawing))
    like = {"q": whole[:, :heads], "k": whole[:, heads:both]}
    if normed:
        like = {name: one.contiguous() for name, one in like.items()}
    rotate = _rotation(layer, like, interleaved=False)
    slots = drawing.metadata.slots

    def run(flow: Flow) -> None:
        qkv = flow["qkv"].view(whole.shape)
        given = {"q": qkv[:, :heads], "k": qkv[:, heads:both]}
        turned = rotate({"q": flow["q"], "k": flow["k"]} if normed else given)
        flow["q"] = turned["q_out"]
        cache.store(slots, turned["k_out"], qkv[:, both:])

    return step(op, run, writes=("q",))


def _rotation(layer: Layer, like: Mapping[str, torch.Tensor], *, interleaved: bool) -> Bound:
    drawing, (q, k) = layer.drawing, (like["q"], like["k"])
    rotated = drawing.cos_sin.shape[1]
    dims: dict[str, Value] = {
        "rows": len(q),
        "q_heads": q.shape[1],
        "k_heads": k.shape[1],
        "head_dim": q.shape[2],
        "rotated": rotated,
        "style": "interleaved" if interleaved else "halves",
    }
    return layer.bound(
        "rope",
        kind="rope",
        op="rope",
        fits=Case(name=f"rope of {len(q)} x {q.shape[1]} x {q.shape[2]}", dims=dims),
        inputs={
            "cos_sin": drawing.cos_sin,
            "positions": drawing.metadata.positions,
            "interleaved": interleaved,
        },
        like=dict(like),
    )


def _kv_b_key(layer: Layer, op: Op) -> Step:
    drawing, mla = layer.drawing, layer.drawing.latent
    multiply = _batched(layer, op)
    sizes = drawing.rows, drawing.heads, mla.query_dim

    def run(flow: Flow) -> None:
        flow["q_nope"] = multiply(flow["q"].view(sizes)[..., : mla.nope_dim])

    return step(op, run, writes=("q_nope",))


def _kv_b_value(layer: Layer, op: Op) -> Step:
    multiply = _batched(layer, op)

    def run(flow: Flow) -> None:
        flow["heads"] = multiply(flow["attended"]).flatten(1)

    return step(op, run, writes=("heads",))


def _batched(layer: Layer, op: Op) -> linear.Product:
    drawing = layer.drawing
    sizes = drawing.rows, drawing.heads, int(op.shape["outputs"])
    out = torch.empty(sizes, dtype=torch.bfloat16, device=drawing.device)
    return linear.batched(op, generator=layer.generator, device=drawing.device, out=out)


def _attention(layer: Layer, op: Op) -> Step:
    """Return attention over the cache; of latent attention its result is in the latent space."""
    if isinstance(layer.drawing.model.attention, Mla):
        return _latent_attention(layer, op)
    return _grouped_attention(layer, op)


def _latent_attention(layer: Layer, op: Op) -> Step:
    drawing, mla, cache = layer.drawing, layer.drawing.latent, _cache(layer)
    heads = (drawing.rows, drawing.heads)
    attend = layer.bound(
        op.name,
        kind="attention",
        op="mla_verify",
        fits=_attention_case(
            drawing, heads=drawing.heads, latent=mla.kv_lora_rank, rope=mla.rope_dim
        ),
        inputs={
            "ckv_cache": cache.first,
            "kpe_cache": cache.second,
            **_seen(drawing),
        },
        like={
            "q_nope": layer.normal(*heads, mla.kv_lora_rank),
            "q_pe": layer.normal(*heads, mla.rope_dim),
        },
    )

    def run(flow: Flow) -> None:
        given = {"q_nope": flow["q_nope"], "q_pe": flow["q_pe"]}
        flow["attended"] = attend(given)["out"]

    return step(op, run, writes=("attended",))


def _grouped_attention(layer: Layer, op: Op) -> Step:
    drawing, gqa, cache = layer.drawing, layer.drawing.grouped, _cache(layer)
    attend = layer.bound(
        op.name,
        kind="attention",
        op="tree_attention",
        fits=_attention_case(
            drawing, q_heads=drawing.heads, kv_heads=drawing.kv_heads, head_dim=gqa.head_dim
        ),
        inputs={"k_cache": cache.first, "v_cache": cache.second, **_seen(drawing)},
        like={"q": layer.normal(drawing.rows, drawing.heads, gqa.head_dim)},
    )

    def run(flow: Flow) -> None:
        flow["heads"] = attend({"q": flow["q"]})["out"].flatten(1)

    return step(op, run, writes=("heads",))


def _seen(drawing: Drawing) -> dict[str, torch.Tensor | int | float]:
    """Return which keys the drafts see."""
    return {
        "page_table": drawing.metadata.page_table,
        "prefix_lens": drawing.metadata.prefix_lens,
        "mask_words": drawing.metadata.mask_words,
        "scale": drawing.model.softmax_scale,
        "draft_tokens": drawing.case.rows,
    }


def _attention_case(drawing: Drawing, **sizes: int) -> Case:
    given = drawing.case
    dims: dict[str, Value] = {
        "rows": given.rows,
        "requests": given.requests,
        "context": given.context,
        "lengths": "equal",
        "tree": given.tree,
        "page": given.page_size,
        "kv": "bf16",
        **sizes,
    }
    return Case(name=f"attention of {given.name}", dims=dims, mode="verify")


def _qkv_sizes(drawing: Drawing) -> tuple[int, int, int]:
    return drawing.rows, drawing.heads + 2 * drawing.kv_heads, drawing.grouped.head_dim


def _cache(layer: Layer) -> Pages:
    if layer.cache is None:
        raise TypeError("attention outside of a layer has no cache")
    return layer.cache


BUILDERS: Mapping[str, Callable[[Layer, Op], Step]] = {
    "q_a_norm": _q_a_norm,
    "kv_a_norm": _kv_a_norm,
    "qk_norm": _qk_norm,
    "rope": _rope,
    "kv_b_key": _kv_b_key,
    "kv_b_value": _kv_b_value,
    "attention": _attention,
}
