"""The CUDA C++ that finds the tokens of a block, and what both products do with them.

A warp has COLUMNS tokens at a time, named by slots: slot t top_k + j is choice (t, j). Directly, a
block belongs to one choice, and ends at once unless that is the first of its expert; it then takes
all tokens that chose it, once each: where a token names an expert twice, its first slot stands for
both. Sorted, a block has the slots that `moe_align` put there. The shared expert takes all tokens.
"""

from kernels.moe._expert_product_cuda import PRODUCT

_COLUMNS = r"""
// Where a lane finds its tokens: of a warp's columns, which are slots, or tokens for the shared
// expert. Where there is none, -1, the first one is looked at again, and nobody asks what of it.
template <class Format, class Place>
__device__ inline Tokens tokens_of(const Place columns, const ELEMENT* from, const int stride,
                                   const int slots_a_token) {
  const int lane = threadIdx.x % 32;
  Tokens found;
#pragma unroll
  for (int n = 0; n < COLUMN_TILES; n++) {
    const int slot = columns[n * 8 + lane / 4];
    const long long row = (slot < 0 ? columns[0] : slot) / slots_a_token;
    found.at[n] = from + row * stride + lane % 4 * Format::LANE;
  }
  return found;
}

// Takes as columns all of `tokens` from `first` on that there is room for; returns how many.
template <class Place>
__device__ inline int all_tokens(const Place columns, const int first, const int tokens) {
  for (int c = threadIdx.x % 32; c < COLUMNS; c += 32)
    columns[c] = first + c < tokens ? first + c : -1;
  __syncwarp();
  return min(COLUMNS, tokens - first);
}

// Multiplies the warp's share of K, one step of as many as there are warps, and leaves the sums in
// its ring: those of element i of column tile n and tile m at [(m COLUMN_TILES + n) 4 + i][lane].
template <class Format, class Memory>
__device__ inline void multiply_share(const Memory memory, const Tokens& tokens, const int count,
                                      const Matrix& of, const int first) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int ring = warp * RING_BYTES;
  int step = warp;
  Sums sums;
  sums.clear();
  walk<Format>(
      memory, ring, steps_of<Format>(of, first, warp, warps), [](Steps&) {},
      [&](const int stage) {
        Format::add(sums, memory, stage, tokens, step, count, of.columns);
        step += warps;
      });
  const auto mine = SHARED_AS(float, memory + ring);
#pragma unroll
  for (int m = 0; m < TILES; m++)
#pragma unroll
    for (int i = 0; i < COLUMN_TILES * 4; i++)
      mine[(m * COLUMN_TILES * 4 + i) * 32 + lane] = sums.at[m][i / 4][i % 4];
}

// Element `at` of what all warps left in their rings, added up in their order.
template <class Memory>
__device__ inline float sum_of_shares(const Memory memory, const int at) {
  float sum = 0.f;
  for (int w = 0; w < blockDim.x / 32; w++) sum += SHARED_AS(float, memory + w * RING_BYTES)[at];
  return sum;
}

__device__ inline Matrix matrix(const void* weights, const void* scales, const int columns,
                                const int far) {
  return {static_cast<const unsigned char*>(weights), static_cast<const unsigned char*>(scales),
          columns, far};
}

// Where the next of experts begin, that many `bytes` each.
__device__ inline const unsigned char* expert_at(const void* first, const unsigned expert,
                                                 const unsigned bytes) {
  return static_cast<const unsigned char*>(first) +
         static_cast<unsigned long long>(expert) * bytes;
}
"""

_CHOSEN = r"""
// If `choice` is the first of its expert, takes as columns the first slot of each token that chose
// it, and returns how many; 0 if it is not. All lanes of a warp.
template <class Place>
__device__ inline int chosen(const Place columns, const int* ids, const int slots, const int top_k,
                             const int choice, const int expert) {
  const int lane = threadIdx.x % 32;
  int id[MOST_SLOTS / 32];
#pragma unroll
  for (int i = 0; i < MOST_SLOTS / 32; i++)
    id[i] = i * 32 + lane < slots ? __ldg(ids + i * 32 + lane) : -1;
  int first = -1;
  unsigned mine = 0;  // choices of the token of this lane
#pragma unroll
  for (int i = 0; i < MOST_SLOTS / 32; i++) {
    const unsigned found = __ballot_sync(~0u, id[i] == expert);
    if (first < 0 && found) first = i * 32 + __ffs(found) - 1;
    const int at = lane * top_k - i * 32;  // where they begin in this word
    if (at > -32 && at < 32) mine |= at < 0 ? found << -at : found >> at;
  }
  if (first != choice) return 0;
  mine &= (1u << top_k) - 1;
  const unsigned have = __ballot_sync(~0u, mine != 0);
  const int count = __popc(have);
  if (mine) columns[__popc(have & ((1u << lane) - 1))] = lane * top_k + __ffs(mine) - 1;
  if (lane >= count && lane < COLUMNS) columns[lane] = -1;
  __syncwarp();
  return count;
}
"""

_SORTED_COLUMNS = r"""
// Takes as columns the slots of a block; returns how many there are, in front of the padding.
template <class Place>
__device__ inline int sorted_columns(const Place columns, const int* sorted_slots,
                                     const int slots) {
  int count = 0;
#pragma unroll
  for (int c = threadIdx.x % 32; c < (COLUMNS + 31) / 32 * 32; c += 32) {
    const int slot = c < COLUMNS ? __ldg(sorted_slots + c) : slots;
    if (c < COLUMNS) columns[c] = slot < slots ? slot : -1;
    count += __popc(__ballot_sync(~0u, slot < slots));
  }
  __syncwarp();
  return count;
}
"""

COLUMNS = PRODUCT + _COLUMNS + _CHOSEN + _SORTED_COLUMNS
