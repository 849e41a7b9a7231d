"""`tree_accept` in CUDA C++ through CuPy: one warp a request, one lane a node.

All lists are loaded at once, so that memory is waited for once and not at each step of the walk; a
step picks its cells by shuffles.
"""

import numpy as np
import torch

from kernels import Needs, Outputs
from kernels._raw import RawKernel
from kernels.drafts.tree_accept import OP, empty_outputs, must_fit

_WARP = 32

_ACCEPT = """
extern "C" __global__ void __launch_bounds__(32) accept(
    const int* draft_ids, const int* target_ids, const int* first_child, const int* next_sibling,
    int* path, int* accepted, int* bonus, const int tokens) {
  const int node = threadIdx.x;
  const long long at = (long long)blockIdx.x * tokens + node;
  int draft = 0, target = 0, first = -1, following = -1;
  if (node < tokens) {
    draft = draft_ids[at];
    target = target_ids[at];
    first = first_child[at];
    following = next_sibling[at];
  }
  // What is no later node is none: each step goes forward, and the walk ends.
  if (first <= node || first >= tokens) first = -1;
  if (following <= node || following >= tokens) following = -1;
  int count = 0, mine = node == 0 ? 0 : -1;
  int choice = __shfl_sync(~0u, target, 0), child = __shfl_sync(~0u, first, 0);
  while (child > 0) {
    const bool hit = __shfl_sync(~0u, draft, child) == choice;
    if (hit) {
      choice = __shfl_sync(~0u, target, child);
      if (node == ++count) mine = child;
    }
    child = __shfl_sync(~0u, hit ? first : following, child);
  }
  if (node < tokens) path[at] = mine;
  if (node == 0) {
    accepted[blockIdx.x] = count;
    bonus[blockIdx.x] = choice;
  }
}
"""

_KERNEL = RawKernel("accept", _ACCEPT)


@OP.implementation("cupy", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",)))
def cupy_accept(
    *,
    draft_ids: torch.Tensor,
    target_ids: torch.Tensor,
    first_child: torch.Tensor,
    next_sibling: torch.Tensor,
) -> Outputs:
    """Launch one warp a request."""
    lists = {"draft_ids": draft_ids, "target_ids": target_ids,
             "first_child": first_child, "next_sibling": next_sibling}  # fmt: skip
    requests, tokens = must_fit(**lists)
    found = empty_outputs(draft_ids)
    _KERNEL((requests,), (_WARP,), *lists.values(), *found.values(), np.int32(tokens))
    return found
