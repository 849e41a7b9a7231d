"""The steps of a section, built op by op from graphs/layers.py.

What flows, by name: residual, hidden (what a block adds to it), x (the norm of both), and within
blocks q_a, q, k, kv_a, latent, q_nope, q_pe, qkv, attended, heads, gate_up, activated,
router_logits, ids, weights, logits, all_logits.
"""

from collections.abc import Callable, Iterator

import torch

from graphs._stub import attention_steps, expert_steps, linear, reducing
from graphs._stub.drawing import Layer
from graphs._stub.step import Flow, Step, simple, step
from graphs.layers import Section
from graphs.ops import Op
from kernels import Case
from verifyscope.errors import UsageError
from verifyscope.models import BF16, WeightFormat
from verifyscope.records import Value

# Of each linear op, what flows in and what it sets.
LINEAR = {
    "q_proj": ("x", "q"),
    "q_a_proj": ("x", "q_a"),
    "q_b_proj": ("q_a", "q"),
    "kv_a_proj": ("x", "kv_a"),
    "qkv_proj": ("x", "qkv"),
    "o_proj": ("heads", "hidden"),
    "dense_mlp_gate_up": ("x", "gate_up"),
    "dense_mlp_down": ("activated", "hidden"),
    "router": ("x", "router_logits"),
    "shared_expert_gate_up": ("x", "gate_up"),
    "lm_head": ("x", "logits"),
}

_MLP = tuple(
    f"{part}_{name}"
    for part in ("dense_mlp", "shared_expert")
    for name in ("gate_up", "activation", "down")
)


def steps(layer: Layer, section: Section) -> Iterator[Step]:
    """Yield the steps of a section once, in order, without the numbers of layers."""
    builders = {**_BUILDERS, **attention_steps.BUILDERS, **expert_steps.BUILDERS}
    whole_mlp = "mlp" in layer.drawing.choice.named
    for op in section.ops:
        if whole_mlp and op.name in _MLP:
            if op.name.endswith("_down"):
                yield _mlp(layer, op)
        elif op.name in LINEAR:
            yield simple(op, *LINEAR[op.name], _product(layer, op))
        elif op.message_bytes is not None:
            yield from _collective(layer, op)
        elif op.name in builders:
            yield builders[op.name](layer, op)
        elif op.name not in expert_steps.EXPERTS:
            raise ValueError(f"no step computes the op {op.name}; add one in graphs/_stub")


def _formats(layer: Layer) -> dict[str, WeightFormat]:
    """Return the format of each part that may be quantised."""
    formats = layer.drawing.model.formats
    return {
        "attention_projections": formats.attention,
        "dense_mlp": formats.dense_mlp,
        "shared_expert": formats.shared_expert,
        "lm_head": formats.lm_head,
    }


def _product(layer: Layer, op: Op) -> linear.Product:
    return linear.product(
        op,
        _formats(layer).get(op.part, BF16),
        generator=layer.generator,
        device=layer.drawing.device,
    )


def _shared_down(layer: Layer, op: Op) -> Step:
    """Return the second product of the shared expert, added to what the routed ones gave."""
    multiply = _product(layer, op)

    def run(flow: Flow) -> None:
        flow["hidden"] = flow["hidden"] + multiply(flow["activated"])

    return step(op, run, writes=("hidden",))


def _mlp(layer: Layer, op: Op) -> Step:
    """Return a whole MLP as one op of kernels/, added to what the routed experts gave."""
    drawing, (hidden, width) = layer.drawing, (int(op.shape["outputs"]), int(op.shape["inputs"]))
    given = _formats(layer)[op.part]
    if given.bits != BF16.bits:
        raise UsageError(
            f"--impl mlp={drawing.choice.named['mlp']} takes bf16, and {op.part} has {given.name}; "
            f"leave mlp out, or give --quant bf16"
        )
    dims: dict[str, Value] = {
        "rows": drawing.rows,
        "hidden": hidden,
        "width": width,
        "layer": op.part,
    }
    compute = layer.bound(
        op.name,
        kind="mlp",
        op="shared_expert",
        fits=Case(name=f"{op.part} of {drawing.rows} x {hidden} x {width}", dims=dims),
        inputs={
            "gate_up": layer.normal(2 * width, hidden, scale=hidden**-0.5),
            "down": layer.normal(hidden, width, scale=width**-0.5),
        },
        like={"x": layer.normal(drawing.rows, hidden)},
    )
    shared = op.part == "shared_expert"

    def run(flow: Flow) -> None:
        y = compute({"x": flow["x"]})["y"]
        flow["hidden"] = flow["hidden"] + y if shared else y

    covers = tuple(f"{op.part}_{name}" for name in ("gate_up", "activation", "down"))
    return step(op, run, writes=("hidden",), covers=covers)


def _residual_norm(layer: Layer, op: Op) -> Step:
    """Return the norm of hidden + residual, which sets the residual to that sum as well."""
    sizes = layer.drawing.rows, int(op.shape["width"])
    norm = layer.norm("residual norm", layer.normal(*sizes), residual=layer.normal(*sizes))

    def run(flow: Flow) -> None:
        got = norm({"x": flow["hidden"], "residual": flow["residual"]})
        flow["x"], flow["residual"] = got["y"], got["new_residual"]

    return step(op, run, writes=("x", "residual"))


def _activation(layer: Layer, op: Op) -> Step:
    rows, width = int(op.shape["rows"]), int(op.shape["width"])
    act = layer.bound(
        op.name,
        kind="activation",
        op="silu_mul",
        fits=Case(name=f"{op.name} of {rows} x {width}", dims={"rows": rows, "width": width}),
        inputs={},
        like={"gate_up": layer.normal(rows, 2 * width)},
    )

    def run(flow: Flow) -> None:
        flow["activated"] = act({"gate_up": flow["gate_up"]})["y"]

    return step(op, run, writes=("activated",))


def _embedding(layer: Layer, op: Op) -> Step:
    """Return the look-up; of real ranks each has the rows of the tokens in its slice."""
    rows, width, vocab = (int(op.shape[name]) for name in ("rows", "width", "vocab"))
    drawing, device = layer.drawing, layer.drawing.device
    table, before = layer.normal(vocab, width), layer.normal(rows, width)
    tokens = torch.randint(0, vocab, (rows,), generator=layer.generator, device=device)
    mine = torch.arange(rows, device=device) % drawing.ranks == drawing.rank
    mask = mine.to(table.dtype)[:, None] if drawing.ranks > 1 else None

    def run(flow: Flow) -> None:
        found = table[tokens]
        flow["hidden"] = found if mask is None else found * mask
        flow["residual"] = before

    return step(op, run, writes=("hidden", "residual"))


def _collective(layer: Layer, op: Op) -> Iterator[Step]:
    drawing = layer.drawing
    given = drawing.case.reduce
    if op.part != "logits_all_gather":
        reduce = reducing.all_reduce(given, drawing.device)
        if reduce is not None:
            yield step(op, _reducing(reduce), writes=(), in_place=("hidden",))
        return
    logits = layer.normal(int(op.shape["rows"]), int(op.shape["width"]) // drawing.case.tp)
    gather = reducing.all_gather(given, ranks=drawing.ranks, like=logits)
    if gather is not None:
        yield simple(op, "logits", "all_logits", gather)


def _reducing(reduce: reducing.InPlace) -> Callable[[Flow], None]:
    def run(flow: Flow) -> None:
        reduce(flow["hidden"])

    return run


_BUILDERS: dict[str, Callable[[Layer, Op], Step]] = {
    "embedding": _embedding,
    "input_norm": _residual_norm,
    "post_attention_norm": _residual_norm,
    "final_norm": _residual_norm,
    "dense_mlp_activation": _activation,
    "shared_expert_activation": _activation,
    "shared_expert_down": _shared_down,
}
