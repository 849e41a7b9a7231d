"""The steps of routed experts: their choice, and the experts themselves as one op of kernels/.

The products of the experts, the activation between them and, on the sorted path, the alignment are
one step of part `routed_experts`: as kernels/moe/fused_moe.py, whose weights these are.
"""

from collections.abc import Callable, Mapping

import torch

from graphs._stub.drawing import Drawing, Layer
from graphs._stub.step import Flow, Step, step
from graphs.ops import Op
from kernels import Case
from kernels.moe import FORMATS, FP8_BLOCK, INT4_GROUP, FormatName, drawn, why_not_sizes
from verifyscope.errors import UsageError
from verifyscope.models import Moe, WeightFormat
from verifyscope.records import Value

EXPERTS = ("align", "experts_gate_up", "experts_activation", "experts_down")
_BIAS_SPREAD = 0.1


def format_name(given: WeightFormat) -> FormatName:
    """Return the format as kernels/moe/_formats.py names it; `UsageError` if it has none."""
    if given.bits == 16:
        return "bf16"
    block = FP8_BLOCK**2
    if given.arithmetic == "fp8" and given.elements_per_scale == block:
        return "fp8"
    if given.bits == 4 and given.elements_per_scale == INT4_GROUP:
        return "int4"
    raise UsageError(
        f"routed experts of {given.name} are computed by no kernel here; give --quant bf16, fp8 "
        f"or int4"
    )


def _routing(layer: Layer, op: Op) -> Step:
    drawing, moe = layer.drawing, _moe(layer.drawing)
    dims: dict[str, Value] = {
        "rows": drawing.rows,
        "experts": moe.experts,
        "top_k": moe.top_k,
        "groups": moe.groups,
        "top_groups": moe.top_groups,
        "scoring": moe.scoring,
        "renormalise": "yes" if moe.norm_top_k else "no",
        "scaling": moe.routed_scaling,
        "drawn": "normal",
    }
    inputs: dict[str, torch.Tensor | int | float] = {
        "top_k": moe.top_k,
        "renormalise": moe.norm_top_k,
        "scaling": moe.routed_scaling,
    }
    if moe.scoring == "sigmoid":
        bias = layer.normal(moe.experts, scale=_BIAS_SPREAD).float()
        inputs |= {"bias": bias, "groups": moe.groups, "top_groups": moe.top_groups}
    route = layer.bound(
        op.name,
        kind="routing",
        op="moe_routing",
        fits=Case(name=f"routing of {drawing.rows} x {moe.experts}", dims=dims),
        inputs=inputs,
        like={"logits": layer.normal(drawing.rows, moe.experts)},
    )

    def run(flow: Flow) -> None:
        got = route({"logits": flow["router_logits"]})
        flow["ids"], flow["weights"] = got["ids"], got["weights"]

    return step(op, run, writes=("ids", "weights"))


def _experts(layer: Layer, op: Op) -> Step:
    drawing, moe, name = layer.drawing, _moe(layer.drawing), _format(layer.drawing)
    hidden, width = drawing.model.hidden, moe.intermediate // drawing.case.tp
    if why := why_not_sizes(name, hidden=hidden, intermediate=width):
        raise UsageError(f"{drawing.model.name} at --tp {drawing.case.tp}: {why}")
    dims: dict[str, Value] = {
        "rows": drawing.rows,
        "experts": moe.experts,
        "top_k": moe.top_k,
        "hidden": hidden,
        "intermediate": width,
        "format": name,
        "routing": "drawn",
        "shared": 0,
    }
    gate_up, gate_up_scales = _drawn(layer, moe.experts, 2 * width, hidden)
    down, down_scales = _drawn(layer, moe.experts, hidden, width)
    compute = layer.bound(
        op.name,
        kind="moe",
        op="fused_moe",
        fits=Case(name=f"experts of {drawing.case.name}", dims=dims),
        inputs={
            "gate_up": gate_up,
            "gate_up_scales": gate_up_scales,
            "down": down,
            "down_scales": down_scales,
        },
        like=_routed(layer, moe, hidden),
    )

    def run(flow: Flow) -> None:
        given = {"x": flow["x"], "ids": flow["ids"], "weights": flow["weights"]}
        flow["hidden"] = compute(given)["y"]

    return step(op, run, writes=("hidden",), covers=EXPERTS)


def _drawn(
    layer: Layer, experts: int, rows: int, columns: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw experts of the model's format whose results vary as their inputs do."""
    name = _format(layer.drawing)
    weights, scales = drawn(
        name, (experts, rows, columns), generator=layer.generator, device=layer.drawing.device
    )
    (weights if name == "bf16" else scales).mul_(1 / (FORMATS[name].rms * columns**0.5))
    return weights, scales


def _routed(layer: Layer, moe: Moe, hidden: int) -> dict[str, torch.Tensor]:
    """Return rows, and experts and weights for them, as the steps before leave them."""
    rows, device = layer.drawing.rows, layer.drawing.device
    noise = torch.rand(rows, moe.experts, generator=layer.generator, device=device)
    weights = torch.rand(rows, moe.top_k, generator=layer.generator, device=device) + 0.5
    return {
        "x": layer.normal(rows, hidden),
        "ids": noise.topk(moe.top_k).indices.to(torch.int32),
        "weights": weights * (moe.routed_scaling / moe.top_k),
    }


def _moe(drawing: Drawing) -> Moe:
    if drawing.model.moe is None:
        raise TypeError(f"{drawing.model.name} has no experts")
    return drawing.model.moe


def _format(drawing: Drawing) -> FormatName:
    return format_name(drawing.model.formats.routed_experts)


# Of the ops that are one step, the last one stands for them all.
BUILDERS: Mapping[str, Callable[[Layer, Op], Step]] = {
    "routing": _routing,
    "experts_down": _experts,
}
