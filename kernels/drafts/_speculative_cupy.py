"""The two kernels of the stochastic accept ops in CUDA C++.

`sum_chunks`, a block a chunk and request: every warp walks the drafts for itself (registers and
shuffles, one wait for memory), then the block adds up what is left of its chunk at the node where
the walk ended. `draw`, a block a request: finds the chunk, then the token, in which the sum passes
the coin. So a row of 655 KB is read by as many SMs as there are chunks, once, and 8 KB of it again.

An op gives the walk: `WALK`, a device function that returns a `Walk` for the calling warp, and
whether what is left is p without the tried tokens or, DRAWN, max(0, p - q).
"""

import numpy as np
import torch

from kernels._raw import RawKernel
from kernels.drafts._speculative import CHUNK, COIN_BITS, WEIGHT_BITS

_WARPS = 8

_PRELUDE = (
    f"""
constexpr int CHUNK = {CHUNK}, WARPS = {_WARPS}, EACH = CHUNK / (32 * WARPS);
constexpr int COIN_BITS = {COIN_BITS}, WEIGHT_BITS = {WEIGHT_BITS};
"""
    + """
typedef long long Weight;

__device__ inline Weight weight_of(const float p) {
  const float held = p > 0.f ? fminf(p, 1.f) : 0.f;  // NaN is 0
  return (Weight)(held * float(1ll << WEIGHT_BITS));
}

__device__ inline Weight units_of(const float coin) {
  const float held = coin > 0.f ? fminf(coin, 1.f) : 0.f;
  return min((Weight)(held * float(1 << COIN_BITS)), (Weight)(1 << COIN_BITS) - 1);
}

// floor(units x total / 2^COIN_BITS), without leaving 64 bits.
__device__ inline Weight threshold(const Weight total, const Weight units) {
  const Weight low = total & ((1 << COIN_BITS) - 1);
  return (total >> COIN_BITS) * units + (low * units >> COIN_BITS);
}

__device__ inline Weight sum_of_warp(Weight value) {
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// Sum of this and the lanes below.
__device__ inline Weight sum_up_to(Weight value) {
  const int lane = threadIdx.x % 32;
  for (int step = 1; step < 32; step *= 2) {
    const Weight below = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

// What a warp knows after the walk. Lane i holds its node's entry of the path; the rest is the same
// in all lanes. `tried`: the children of `node` whose tokens are gone from p, as bits.
struct Walk { int node, accepted, last, path; unsigned tried; };
"""
)

_ROWS = """
// What is left of token `at` where the walk ended; q is null where nothing is to be subtracted.
__device__ inline Weight left_of(const float* p, const float* q, const int at) {
  const Weight weight = weight_of(p[at]);
  return q == nullptr ? weight : max((Weight)0, weight - weight_of(q[at]));
}

__device__ inline const float* target_row(
    const float* probs, const int node, const int tokens, const int vocabulary) {
  return probs + ((long long)blockIdx.y * tokens + node) * vocabulary;
}

__device__ inline const float* draft_row(
    const float* probs, const int node, const int tokens, const int vocabulary) {
#if DRAWN
  if (node < tokens - 1)
    return probs + ((long long)blockIdx.y * (tokens - 1) + node) * vocabulary;
#endif
  return nullptr;
}
"""

_SUM = """
extern "C" __global__ void __launch_bounds__(32 * WARPS) sum_chunks(
    const int* draft_ids, const int* first_child, const int* next_sibling,
    const float* target_probs, const float* draft_probs, const float* coins, int* path,
    int* accepted, Weight* sums, int* state, const int tokens, const int vocabulary) {
  SHARED_ARRAY(Weight, of_warp, WARPS);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, request = blockIdx.y;
  int token = -1;
  const Walk walk = WALK(draft_ids, first_child, next_sibling, target_probs, draft_probs, coins,
                         tokens, vocabulary, token);
  if (blockIdx.x == 0 && warp == 0) {
#if !DRAWN
    if (lane < tokens) path[(long long)request * tokens + lane] = walk.path;
#endif
    if (lane == 0) {
      accepted[request] = walk.accepted;
      state[3 * request] = walk.node;
      state[3 * request + 1] = int(walk.tried);
      state[3 * request + 2] = walk.last;
    }
  }
  const float* const p = target_row(target_probs, walk.node, tokens, vocabulary);
  const float* const q = draft_row(draft_probs, walk.node, tokens, vocabulary);
  const int begin = blockIdx.x * CHUNK;
  Weight sum = 0;
#pragma unroll
  for (int n = 0; n < EACH; n++) {
    const int at = begin + n * 32 * WARPS + threadIdx.x;
    if (at < vocabulary) sum += left_of(p, q, at);
  }
  // A tried child's token is known to the lane of that child.
  if (warp == 0 && (walk.tried >> lane & 1) && token >= begin && token < begin + CHUNK)
    sum -= weight_of(p[token]);
  sum = sum_of_warp(sum);
  if (lane == 0) of_warp[warp] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int other = 1; other < WARPS; other++) sum += of_warp[other];
  sums[(long long)request * gridDim.x + blockIdx.x] = sum;
}
"""

_DRAW = """
extern "C" __global__ void __launch_bounds__(32 * WARPS) draw(
    const int* draft_ids, const float* target_probs, const float* draft_probs,
    const float* bonus_coins, const Weight* sums, const int* state, int* bonus, const int tokens,
    const int vocabulary, const int chunks) {
  SHARED_ARRAY(Weight, of_warp, WARPS);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, request = blockIdx.y;
  const int node = state[3 * request];
  const unsigned tried = state[3 * request + 1];
  int token = -1;
#if !DRAWN
  if (lane < tokens) token = draft_ids[(long long)request * tokens + lane];
#endif
  // Each warp finds the chunk for itself: nothing to wait for.
  sums += (long long)request * chunks;
  Weight total = 0;
  for (int n = lane; n < chunks; n += 32) total += sums[n];
  total = sum_of_warp(total);
  if (total <= 0) {
    if (threadIdx.x == 0) bonus[request] = state[3 * request + 2];
    return;
  }
  Weight wanted = threshold(total, units_of(bonus_coins[request]));
  int chunk = 0;
  for (int first = 0; first < chunks; first += 32) {
    const Weight mine = first + lane < chunks ? sums[first + lane] : 0;
    const Weight up_to = sum_up_to(mine);
    const unsigned passed = __ballot_sync(~0u, up_to > wanted);
    if (passed) {
      const int found = __ffs(passed) - 1;
      chunk = first + found;
      wanted -= __shfl_sync(~0u, up_to - mine, found);
      break;
    }
    wanted -= __shfl_sync(~0u, up_to, 31);
  }

  const float* const p = target_row(target_probs, node, tokens, vocabulary);
  const float* const q = draft_row(draft_probs, node, tokens, vocabulary);
  const int begin = chunk * CHUNK + warp * 32 * EACH + lane;
  Weight weight[EACH], sum = 0;
#pragma unroll
  for (int n = 0; n < EACH; n++) {
    const int at = begin + 32 * n;
    weight[n] = at < vocabulary ? left_of(p, q, at) : 0;
  }
  for (unsigned others = tried; others; others &= others - 1) {
    const int gone = __shfl_sync(~0u, token, __ffs(others) - 1);
#pragma unroll
    for (int n = 0; n < EACH; n++)
      if (begin + 32 * n == gone) weight[n] = 0;
  }
#pragma unroll
  for (int n = 0; n < EACH; n++) sum += weight[n];
  sum = sum_of_warp(sum);
  if (lane == 0) of_warp[warp] = sum;
  __syncthreads();
  for (int other = 0; other < warp; other++) wanted -= of_warp[other];
  if (wanted < 0 || wanted >= sum) return;  // the token is another warp's
  for (int n = 0; n < EACH; n++) {
    const Weight up_to = sum_up_to(weight[n]);
    const unsigned passed = __ballot_sync(~0u, up_to > wanted);
    if (passed) {
      if (lane == __ffs(passed) - 1) bonus[request] = begin + 32 * n;
      return;
    }
    wanted -= __shfl_sync(~0u, up_to, 31);
  }
}
"""


class SampledAccept:
    """The two kernels for one walk. `walk`: source of a device function; `name`: its name."""

    def __init__(self, name: str, walk: str, *, is_drawn: bool) -> None:
        rows = f"#define DRAWN {int(is_drawn)}\n{_PRELUDE}{_ROWS}"
        self._sum = RawKernel("sum_chunks", f"#define WALK {name}\n{rows}{walk}{_SUM}")
        self._draw = RawKernel("draw", rows + _DRAW)

    def __call__(
        self,
        *,
        lists: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        target_probs: torch.Tensor,
        draft_probs: torch.Tensor,
        coins: torch.Tensor,
        bonus_coins: torch.Tensor,
        scratch: dict[str, torch.Tensor],
        path: torch.Tensor,
        accepted: torch.Tensor,
        bonus: torch.Tensor,
    ) -> None:
        """Launch both. A walk that has no path, lists or drafts gets any tensor in their place."""
        requests, tokens, vocabulary = target_probs.shape
        chunks = scratch["sums"].shape[1]
        sizes = (np.int32(tokens), np.int32(vocabulary))
        block = (32 * _WARPS,)
        self._sum(
            (chunks, requests), block,
            *lists, target_probs, draft_probs, coins, path, accepted,
            scratch["sums"], scratch["state"], *sizes,
        )  # fmt: skip
        self._draw(
            (1, requests), block,
            lists[0], target_probs, draft_probs, bonus_coins,
            scratch["sums"], scratch["state"], bonus, *sizes, np.int32(chunks),
        )  # fmt: skip
