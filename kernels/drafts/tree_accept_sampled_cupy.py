"""`tree_accept_sampled` in CUDA C++ through CuPy: the walk of a tree in one warp.

A lane is a node. It learns its parent from the lists by shuffles, then all lanes fetch the
probability of their token at their parent at once, and the walk goes on in registers.
`_speculative_cupy` says how the sums and the draw go.
"""

import torch

from kernels import Needs, Outputs
from kernels.drafts import _speculative
from kernels.drafts._speculative_cupy import SampledAccept
from kernels.drafts.tree_accept import empty_outputs
from kernels.drafts.tree_accept_sampled import OP, must_fit

_WALK = """
__device__ inline Walk walk_tree(
    const int* draft_ids, const int* first_child, const int* next_sibling,
    const float* target_probs, const float* draft_probs, const float* coins, const int tokens,
    const int vocabulary, int& token) {
  const int lane = threadIdx.x % 32;
  const long long at = (long long)blockIdx.y * tokens + lane;
  int first = -1, following = -1;
  Weight coin = 0;
  if (lane < tokens) {
    token = draft_ids[at];
    first = first_child[at];
    following = next_sibling[at];
    coin = units_of(coins[at]) << (WEIGHT_BITS - COIN_BITS);
  }
  // What is no later node is none: each step goes forward, and the walk ends.
  if (first <= lane || first >= tokens) first = -1;
  if (following <= lane || following >= tokens) following = -1;

  // Parent of a first child: who names it; of a later one: its elder sibling's, by doubling.
  int parent = -1, elder = -1;
  for (int other = 0; other < tokens; other++) {
    if (__shfl_sync(~0u, first, other) == lane) parent = other;
    if (__shfl_sync(~0u, following, other) == lane) elder = other;
  }
#pragma unroll
  for (int round = 0; round < 5; round++) {
    const int from = elder < 0 ? lane : elder;
    const int its_parent = __shfl_sync(~0u, parent, from);
    const int its_elder = __shfl_sync(~0u, elder, from);
    if (parent < 0) parent = its_parent;
    elder = elder < 0 ? -1 : its_elder;
  }
  const bool known = token >= 0 && token < vocabulary && lane < tokens;
  Weight weight = 0;
  if (known && parent >= 0)
    weight = weight_of(
        target_probs[((long long)blockIdx.y * tokens + parent) * vocabulary + token]);

  Walk walk = {0, 0, -1, lane == 0 ? 0 : -1, 0u};
  Weight mass = 0, asked = __shfl_sync(~0u, coin, 0);
  int child = __shfl_sync(~0u, first, 0);
  while (child > 0) {
    const int its = __shfl_sync(~0u, token, child);
    if (__shfl_sync(~0u, int(known), child)) {
      walk.last = its;
      if (!__any_sync(~0u, (walk.tried >> lane & 1) && token == its)) {
        mass += __shfl_sync(~0u, weight, child);
        walk.tried |= 1u << child;
      }
    }
    const bool hit = asked < mass;
    if (hit) {
      walk.node = child;
      if (lane == ++walk.accepted) walk.path = child;
      walk.tried = 0;
      walk.last = -1;
      mass = 0;
      asked = __shfl_sync(~0u, coin, child);
    }
    child = __shfl_sync(~0u, hit ? first : following, child);
  }
  return walk;
}
"""

_ACCEPT = SampledAccept("walk_tree", _WALK, is_drawn=False)


@OP.implementation("cupy", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",)))
def cupy_accept(
    *,
    draft_ids: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
    target_probs: torch.Tensor,
    coins: torch.Tensor,
    bonus_coins: torch.Tensor,
) -> Outputs:
    """Launch two kernels."""
    requests, _, vocabulary = must_fit(
        draft_ids=draft_ids,
        first_child=first_child,
        next_sibling=next_sibling,
        target_probs=target_probs,
        coins=coins,
        bonus_coins=bonus_coins,
    )
    found = empty_outputs(draft_ids)
    _ACCEPT(
        lists=(draft_ids, first_child, next_sibling),
        target_probs=target_probs,
        draft_probs=target_probs,  # candidates that were chosen have no distribution
        coins=coins,
        bonus_coins=bonus_coins,
        scratch=_speculative.state_of(requests, vocabulary, draft_ids.device),
        **found,
    )
    return found
