"""`moe_routing` by FlashInfer's `trtllm_gen_routing`: different work, for it sorts the slots, too.

What its MoE launches before its GEMMs, alone; from 0.7 on, for capabilities 10.x and 12.x. A call
also allocates, counts the experts, pads and permutes (`moe_align`), with atomic adds, and finds the
ids again from that permutation by some kernels of torch. Weights are bfloat16; they become float32,
and each row is put in the order of its keys, in `convert`, which is not timed.

Refused: sigmoid that is not renormalised, softmax that is scaled; softmax of more than 256 experts
or 8 a token where it is not renormalised; groups as of `fused_topk_deepseek`, from more than 4 top
ones on. Its first call fetches headers, and fails where there is no network and no cache of them.

Source: Python, RoutingCustomPolicy.cuh and trtllm_fused_moe_routing_runner.cu of FlashInfer 0.7.4.
"""

from __future__ import annotations

from typing import Any

from kernels import Case, Needs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.moe.moe_routing import OP, Given, in_order

ROUTE = Call(
    function="fused_moe.trtllm_gen_routing",
    needed=(
        "routing_logits",
        "routing_bias",
        "routing_method",
        "top_k",
        "n_group",
        "topk_group",
        "routed_scaling_factor",
    ),
    offered=("tile_tokens_dim",),
)
CALLS = (ROUTE,)
SINCE = (0, 7)

_NAME = "FlashInfer's trtllm_gen_routing"
# RoutingMethodType: softmax of all, softmax of the chosen, and DeepSeek-V3's.
_SOFTMAX, _SOFTMAX_RENORMALISED, _SIGMOID = 0, 1, 2
_MOST_RAW_EXPERTS, _MOST_RAW_TOP_K = 256, 8
_MOST_TOP_GROUPS, _MOST_EXPERTS_OF_A_GROUP = 4, 32
_TILE = 16  # rows of a block of what it sorts


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot route so."""
    raw = case.dims["renormalise"] != "yes"
    experts, groups = case.number("experts"), case.number("groups")
    if case.dims["scoring"] == "sigmoid":
        if raw:
            return f"{_NAME} renormalises the weights of sigmoid scores with a bias"
        if groups > 1 and (
            case.number("top_groups") > _MOST_TOP_GROUPS
            or experts // groups > _MOST_EXPERTS_OF_A_GROUP
        ):
            return (
                f"{_NAME} takes {_MOST_TOP_GROUPS} top groups of {_MOST_EXPERTS_OF_A_GROUP} "
                f"experts, not {case.number('top_groups')} of {experts // groups}"
            )
    elif case.dims["scaling"] != 1:
        return f"{_NAME} does not scale the weights of softmax"
    elif raw and (experts > _MOST_RAW_EXPERTS or case.number("top_k") > _MOST_RAW_TOP_K):
        return (
            f"{_NAME} without renormalisation takes up to {_MOST_RAW_EXPERTS} experts and "
            f"{_MOST_RAW_TOP_K} a token, not {experts} and {case.number('top_k')}"
        )
    return _flashinfer.why_not(CALLS)


@OP.prepared_implementation(
    "flashinfer_trtllm",
    kind="baseline-different-work",
    needs=Needs(capabilities=(100, 120), packages=("flashinfer",), refuses=refuses),
)
def flashinfer_trtllm_routing(**inputs: Any) -> Prepared:
    """Prepare the arguments; a call routes and sorts."""
    given = Given(**inputs)
    method = _SIGMOID
    if given.bias is None:
        method = _SOFTMAX_RENORMALISED if given.renormalise else _SOFTMAX
    library = _flashinfer.installed()
    route = ROUTE.find(library)
    grouped = given.groups > 1
    arguments = ROUTE.accepted(
        library,
        routing_logits=given.logits,
        routing_bias=given.bias,
        routing_method=method,
        top_k=given.top_k,
        n_group=given.groups if grouped else 0,
        topk_group=given.top_groups if grouped else 0,
        routed_scaling_factor=given.scaling,
        tile_tokens_dim=_TILE,
    ).kwargs

    def call() -> Outputs:
        found = route(**arguments)
        return {"ids": found.topk_ids, "weights": found.topk_weights}

    def convert(found: Outputs) -> Outputs:
        return in_order(given, {**found, "weights": found["weights"].float()})

    facts = {"flashinfer": _flashinfer.version(library), "weights": "bfloat16", "sorts": "as well"}
    return Prepared(call=call, convert=convert, facts=facts)
