"""`moe_routing` by FlashInfer's `fused_topk_deepseek`: sigmoid, bias, groups, renormalised.

The same work in one kernel, with a block a token. Weights come in the dtype of the logits; they
become float32 in `convert`, which is not timed. Its ties go to the lower id, too.

Refused: softmax, weights that are not renormalised, more than 8 experts a token; without groups
more than 384 experts; with them more than 8 groups, 4 top groups, 32 experts a group, or 256 in
all. Its own checks let 9 to 32 groups and 5 to 8 top groups pass, but the kernel has a warp a group
of 8 and room for 4 top groups.

Source: Python and csrc/fused_moe/noAuxTcKernels.cu in the wheel of FlashInfer 0.6.18.post1, and
the Python of 0.7.4.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels import Case, Needs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.moe.moe_routing import OP, Given

ROUTE = Call(
    function="fused_moe.fused_topk_deepseek",
    needed=(
        "scores",
        "bias",
        "n_group",
        "topk_group",
        "topk",
        "routed_scaling_factor",
        "topk_values",
        "topk_indices",
    ),
)
CALLS = (ROUTE,)

_NAME = "FlashInfer's fused_topk_deepseek"
_MOST_TOP_K = 8
_MOST_EXPERTS = 384
_MOST_GROUPS, _MOST_TOP_GROUPS, _MOST_EXPERTS_OF_A_GROUP = 8, 4, 32


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot route so."""
    if case.dims["scoring"] != "sigmoid":
        return f"{_NAME} scores by sigmoid, not by {case.dims['scoring']}"
    if case.dims["renormalise"] != "yes":
        return f"{_NAME} renormalises the weights"
    if (top_k := case.number("top_k")) > _MOST_TOP_K:
        return f"{_NAME} chooses up to {_MOST_TOP_K} experts a token, not {top_k}"
    experts, groups = case.number("experts"), case.number("groups")
    if groups == 1 and experts > _MOST_EXPERTS:
        return f"{_NAME} takes up to {_MOST_EXPERTS} experts without groups, not {experts}"
    top_groups, each = case.number("top_groups"), experts // groups
    if groups > 1 and (
        groups > _MOST_GROUPS or top_groups > _MOST_TOP_GROUPS or each > _MOST_EXPERTS_OF_A_GROUP
    ):
        return (
            f"{_NAME} takes up to {_MOST_GROUPS} groups of {_MOST_EXPERTS_OF_A_GROUP} experts, "
            f"{_MOST_TOP_GROUPS} of them on top, not {groups} of {each} with {top_groups}"
        )
    return _flashinfer.why_not(CALLS)


@OP.prepared_implementation(
    "flashinfer",
    kind="baseline-direct",
    needs=Needs(capabilities=(89, 90, 100, 120), packages=("flashinfer",), refuses=refuses),
)
def flashinfer_routing(**inputs: Any) -> Prepared:
    """Allocate the outputs; a call is one launch."""
    given = Given(**inputs)
    outputs = given.empty_outputs()
    values = torch.empty_like(outputs["weights"], dtype=given.logits.dtype)
    library = _flashinfer.installed()
    route = ROUTE.find(library)
    arguments = ROUTE.accepted(
        library,
        scores=given.logits,
        bias=given.bias,
        n_group=given.groups,
        topk_group=given.top_groups,
        topk=given.top_k,
        routed_scaling_factor=given.scaling,
        topk_values=values,
        topk_indices=outputs["ids"],
    ).kwargs

    def call() -> Outputs:
        route(**arguments)
        return {"ids": outputs["ids"], "weights": values}

    def convert(found: Outputs) -> Outputs:
        return {**found, "weights": found["weights"].float()}

    facts = {
        "flashinfer": _flashinfer.version(library),
        "weights": f"{values.dtype}".removeprefix("torch."),
    }
    return Prepared(call=call, convert=convert, facts=facts, launches=1)
