"""`tree_build` in CUDA C++ through CuPy: one warp a request, one lane a node.

Each lane shows its parent to all others by a shuffle; ancestors are found by pointer doubling: in
round n a lane takes over what the node 2^n above it sees, and jumps as far again. After the loads
nothing goes through memory, and no lane waits for another but in shuffles.
"""

import numpy as np
import torch

from kernels import Needs, Outputs
from kernels._raw import RawKernel
from kernels.drafts.tree_build import OP, OUTPUTS, must_fit

_WARP = 32

_BUILD = """
extern "C" __global__ void __launch_bounds__(32) build_tree(
    const int* parents, const int* prefix_lens, int* positions, int* mask_words, int* first_child,
    int* next_sibling, const int tokens) {
  const int node = threadIdx.x;
  const long long at = (long long)blockIdx.x * tokens + node;
  int parent = node < tokens ? parents[at] : -1;
  if (parent < 0 || parent >= node) parent = -1;
  unsigned children = 0, later = 0;
  for (int other = 1; other < tokens; other++) {
    const int its = __shfl_sync(~0u, parent, other);
    children |= unsigned(its == node) << other;
    later |= unsigned(its == parent && other > node) << other;
  }
  if (parent < 0) later = 0;
  unsigned word = 1u << node;
  int up = parent;
#pragma unroll
  for (int round = 0; round < 5; round++) {
    const int from = up < 0 ? node : up;
    const unsigned seen = __shfl_sync(~0u, word, from);
    const int above = __shfl_sync(~0u, up, from);
    if (up >= 0) {
      word |= seen;
      up = above;
    }
  }
  if (node >= tokens) return;
  positions[at] = prefix_lens[blockIdx.x] + __popc(word) - 1;
  mask_words[at] = int(word);
  first_child[at] = __ffs(children) - 1;
  next_sibling[at] = __ffs(later) - 1;
}
"""

_KERNEL = RawKernel("build_tree", _BUILD)


@OP.implementation("cupy", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",)))
def cupy_build(*, parents: torch.Tensor, prefix_lens: torch.Tensor) -> Outputs:
    """Launch one warp a request."""
    requests, tokens = must_fit(parents=parents, prefix_lens=prefix_lens)
    built = {name: torch.empty_like(parents) for name in OUTPUTS}
    _KERNEL((requests,), (_WARP,), parents, prefix_lens, *built.values(), np.int32(tokens))
    return built
