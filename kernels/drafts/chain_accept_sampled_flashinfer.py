"""`chain_accept_sampled` by FlashInfer's `chain_speculative_sampling`: different work, said why.

It is the same algorithm on the same bytes, but it draws its own random numbers (Philox, from a seed
that is given so that no generator is asked), also tests the drafts behind the first rejection for a
statistic, and adds up in float32. So its tokens are another sample, and can be held to the given
coins only where no coin matters: it refuses targets that are not certain, and T = 1.

Each call allocates and zeroes its two counters, as its users have it.
Source: signature and kernel in the wheel of FlashInfer 0.6.18.post1; 0.7 by `_flashinfer`.
"""

import torch

from kernels import Case, Needs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.drafts.chain_accept_sampled import OP, must_fit

SAMPLE = Call(
    function="chain_speculative_sampling",
    needed=("draft_probs", "draft_token_ids", "target_probs", "deterministic"),
    offered=("seed", "offset"),
)
CALLS = (SAMPLE,)


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot be held to the coins."""
    if case.number("rows") == 1:
        return "FlashInfer's chain_speculative_sampling needs a draft; T = 1 has none"
    if case.dims["target"] != "certain":
        return (
            "FlashInfer's chain_speculative_sampling draws its own random numbers: it gives the "
            "tokens of given ones only where the target is certain"
        )
    return _flashinfer.why_not(CALLS)


@OP.prepared_implementation(
    "flashinfer",
    kind="baseline-different-work",
    needs=Needs(capabilities=(80, 90, 100, 110, 120), packages=("flashinfer",), refuses=refuses),
)
def flashinfer_accept(
    *,
    draft_ids: torch.Tensor,
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> Prepared:
    """Prepare nothing but the arguments; `convert` picks the bonus out of the tokens."""
    must_fit(
        draft_ids=draft_ids,
        draft_probs=draft_probs,
        target_probs=target_probs,
        coins=coins,
        bonus_coins=bonus_coins,
    )
    library = _flashinfer.installed()
    sample = SAMPLE.find(library)
    given = SAMPLE.accepted(
        library,
        draft_probs=draft_probs,
        draft_token_ids=draft_ids,
        target_probs=target_probs,
        deterministic=True,
        seed=0,
        offset=0,
    )

    def call() -> Outputs:
        tokens, _, emitted = sample(**given.kwargs)
        return {"tokens": tokens, "emitted": emitted}

    def convert(found: Outputs) -> Outputs:
        emitted = found["emitted"]
        bonus = found["tokens"].gather(1, emitted.long()[:, None])[:, 0]
        return {"accepted": emitted.to(torch.int32), "bonus": bonus.to(torch.int32)}

    facts = {
        "flashinfer": _flashinfer.version(library),
        "random_numbers": "its own" + (", seed not taken" if given.dropped else ""),
    }
    return Prepared(call=call, convert=convert, facts=facts)
