"""`chain_accept_sampled` in CUDA C++ through CuPy: all drafts are tested at once, by one warp.

A lane is a draft: it fetches p and q of its token, and a ballot tells how many were accepted before
the first that was not. `_speculative_cupy` says how the sums and the draw go.
"""

import torch

from kernels import Needs, Outputs
from kernels.drafts import _speculative
from kernels.drafts._speculative_cupy import SampledAccept
from kernels.drafts.chain_accept_sampled import OP, empty_outputs, must_fit

_WALK = """
__device__ inline Walk walk_chain(
    const int* draft_ids, const int*, const int*, const float* target_probs,
    const float* draft_probs, const float* coins, const int tokens, const int vocabulary, int&) {
  const int lane = threadIdx.x % 32, drafts = tokens - 1;
  const long long at = (long long)blockIdx.y * drafts + lane;
  const int token = lane < drafts ? draft_ids[at] : -1;
  const bool known = token >= 0 && token < vocabulary;
  bool kept = false;
  if (known) {
    const Weight p = weight_of(
        target_probs[((long long)blockIdx.y * tokens + lane) * vocabulary + token]);
    const Weight q = weight_of(draft_probs[at * vocabulary + token]);
    kept = units_of(coins[at]) * q < p << COIN_BITS;
  }
  const int accepted = __ffs(~__ballot_sync(~0u, kept)) - 1;  // lane 31 has no draft
  const int last = __shfl_sync(~0u, known ? token : -1, accepted);
  return {accepted, accepted, last, 0, 0u};
}
"""

_ACCEPT = SampledAccept("walk_chain", _WALK, is_drawn=True)


@OP.implementation("cupy", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",)))
def cupy_accept(
    *,
    draft_ids: torch.Tensor,
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> Outputs:
    """Launch two kernels."""
    requests, tokens, vocabulary = must_fit(
        draft_ids=draft_ids,
        draft_probs=draft_probs,
        target_probs=target_probs,
        coins=coins,
        bonus_coins=bonus_coins,
    )
    found = empty_outputs(draft_ids)
    some = tokens > 1  # without drafts there is nothing to point to
    ids = draft_ids if some else found["accepted"]
    _ACCEPT(
        lists=(ids, ids, ids),
        target_probs=target_probs,
        draft_probs=draft_probs if some else target_probs,
        coins=coins if some else bonus_coins,
        bonus_coins=bonus_coins,
        scratch=_speculative.state_of(requests, vocabulary, draft_ids.device),
        path=found["accepted"],
        **found,
    )
    return found
