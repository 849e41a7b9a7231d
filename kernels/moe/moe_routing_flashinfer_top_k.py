"""`moe_routing` of softmax by FlashInfer's `top_k` and torch: the wheel of 0.6 has no other.

The largest logits are those of the largest probabilities, so a call takes the top_k logits, told to
prefer the lower id, and then their softmax, or without renormalisation exp(logit - logsumexp) of
all. Some small kernels of torch beside it: hence `baseline-composed`. `convert`, not timed, puts
equal logits into the order of their ids, which no argument promises.

Source: signature and Python in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from __future__ import annotations

from typing import Any

from kernels import Case, Needs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.moe.moe_routing import OP, Given, in_order

TOP_K = Call(function="top_k", needed=("input", "k", "sorted", "deterministic", "tie_break"))
CALLS = (TOP_K,)

_LOWER_ID = 1  # TopKTieBreak.SMALL


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot route so."""
    if case.dims["scoring"] != "softmax":
        return "FlashInfer's top_k adds no bias: sigmoid scores have fused_topk_deepseek"
    return _flashinfer.why_not(CALLS)


@OP.prepared_implementation(
    "flashinfer_top_k",
    kind="baseline-composed",
    needs=Needs(capabilities=(80, 90, 100, 110, 120), packages=("flashinfer",), refuses=refuses),
)
def flashinfer_top_k_routing(**inputs: Any) -> Prepared:
    """Prepare the arguments; a call chooses, and makes weights of what it chose."""
    given = Given(**inputs)
    library = _flashinfer.installed()
    top_k = TOP_K.find(library)
    arguments = TOP_K.accepted(
        library,
        input=given.logits,
        k=given.top_k,
        sorted=True,
        deterministic=True,
        tie_break=_LOWER_ID,
    ).kwargs

    def call() -> Outputs:
        chosen, ids = top_k(**arguments)
        if given.renormalise:
            weights = chosen.float().softmax(1)
        else:
            weights = (chosen.float() - given.logits.float().logsumexp(1, keepdim=True)).exp()
        return {"ids": ids.int(), "weights": weights * given.scaling}

    facts = {"flashinfer": _flashinfer.version(library), "weights": "by torch"}
    return Prepared(call=call, convert=lambda found: in_order(given, found), facts=facts)
