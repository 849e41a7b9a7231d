"""The second product of `fused_moe` in CUDA C++: y = sum_j w_tj W2_e act, directly or sorted.

DOWN_DIRECT: a block has 16 TILES columns of y, of all tokens. Its warps share the experts, each
whole or in PARTS of K, as one stream of steps, and leave what they get for each slot in shared
memory, where the choices of a token are added in float, in the order of j. So nothing is added by
atomics, no launch waits for this one to combine, and all blocks have the same work.

DOWN_SORTED: out[slot] = W2_e act, float: a warp computes RUN ranges of columns one after the other,
as one stream. COMBINE: y = sum_j w_tj out[slot], in the order of j.
"""

from kernels.moe._columns_cuda import COLUMNS

_DOWN_DIRECT = r"""
// What a warp knows of a range of steps: the slots of its columns, and which part of K it is.
constexpr int HEADER = COLUMNS + 4, HEADER_BYTES = 4 * HEADER;
static_assert(STAGES * HEADER >= 32, "no room for a warp's choices");
constexpr int WIDTH = 16 * TILES;  // columns of y
constexpr int PARTS = 1 << PART_BITS;

extern "C" __global__ void __launch_bounds__(MOST_THREADS, BLOCKS) down_direct(
    const ELEMENT* act, const void* weights, const void* scales, const int* ids,
    const float* choice_weights, const int* leaders, const int* members, ELEMENT* y,
#if SHARED
    const ELEMENT* shared_act, const void* shared_weights, const int shared_inner,
#endif
    const int tokens, const int top_k, const int experts, const int hidden, const int inner,
    const unsigned weight_bytes, const unsigned scale_bytes) {
  DYNAMIC_SHARED(unsigned char, memory);
  const int warps = blockDim.x / 32;
  const int headers_at = warps * RING_BYTES, out_at = headers_at + warps * STAGES * HEADER_BYTES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slots = tokens * top_k;
  const int g = lane / 4, p = lane % 4, first = blockIdx.x * WIDTH;
  const int steps = steps_of<ROUTED>(inner);
  const auto headers = SHARED_AS(int, memory + headers_at) + warp * STAGES * HEADER;
  const auto out = SHARED_AS(float, memory + out_at);  // [slots, PARTS, WIDTH]
  // What choice a choice finds its product under; each warp's 32 where its headers were.
  const auto stands_for = [&](const int slot) {
    return SHARED_AS(int, memory + headers_at) + slot / 32 * STAGES * HEADER + slot % 32;
  };

  // The warp's share l is a part of a choice, all parts of one side by side; lane l knows which
  // expert it is of.
  const int share = warp + lane * warps;
  const int leader = share < slots * PARTS ? __ldg(leaders + share / PARTS) : -1;
  unsigned left = __ballot_sync(~0u, leader >= 0);
  int found = 0, used = 0, step = steps, part = 0;
  Sums sums;
  Tokens chose;
  sums.clear();
  Steps of_all = steps_of<ROUTED>(matrix(weights, scales, inner, 8), first, 0, PARTS);
  of_all.left = 0;
  const auto next = [&](Steps& from) {
    if (!left) return;
    const int l = __ffs(left) - 1, expert = __shfl_sync(~0u, leader, l);
    const int mine = warp + l * warps;
    left &= left - 1;
    const auto header = headers + found * HEADER;
    found = found + 1 == STAGES ? 0 : found + 1;
    if (lane < COLUMNS / 4)
      __pipeline_memcpy_async(header + 4 * lane,
                              members + unsigned(mine) / PARTS * COLUMNS + 4 * lane, 16);
    if (PARTS > 1 && lane == 0) header[COLUMNS] = mine & (PARTS - 1);
    from.weights = expert_at(of_all.weights, expert, weight_bytes);
    from.scales = expert_at(of_all.scales, expert, scale_bytes);
    from.next = mine & (PARTS - 1);
    from.left = unsigned(steps - from.next + PARTS - 1) / PARTS;
  };
  const auto use = [&](const int stage) {
    const auto header = headers + used * HEADER;
    if (step >= steps) {
      step = part = PARTS > 1 ? header[COLUMNS] : 0;
      chose = tokens_of<ROUTED>(header, act, inner, 1);
    }
    const int count = COLUMN_TILES == 1 || header[COLUMNS - 8] < 0 ? 8 : COLUMNS;
    ROUTED::add(sums, memory, stage, chose, step, count, inner);
    step += PARTS;
    if (step < steps) return;
#pragma unroll
    for (int i = 0; i < COLUMN_TILES * 2; i++) {
      const int slot = header[i / 2 * 8 + 2 * p + i % 2];
      if (slot < 0) continue;
      const auto to = out + (slot * PARTS + part) * WIDTH + g;
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        to[m * 16] = sums.at[m][i / 2][i % 2];
        to[m * 16 + 8] = sums.at[m][i / 2][i % 2 + 2];
      }
    }
    sums.clear();
    used = used + 1 == STAGES ? 0 : used + 1;
  };
  walk<ROUTED>(memory, warp * RING_BYTES, of_all, next, use);
#if SHARED
  const int all = all_tokens(headers, 0, tokens);
  multiply_share<Bf16>(memory, tokens_of<Bf16>(headers, shared_act, shared_inner, 1), all,
                       matrix(shared_weights, shared_weights, shared_inner, 8), first);
#endif

  if (threadIdx.x < slots) {  // no more than there are threads
    const int id = ids[threadIdx.x];
    int at = id < 0 || id >= experts ? -1 : threadIdx.x / top_k * top_k;
    while (at >= 0 && ids[at] != id) at++;
    stands_for(threadIdx.x)[0] = at;
  }
  __syncthreads();
  for (int at = threadIdx.x; at < tokens * WIDTH; at += blockDim.x) {
    const int token = at / WIDTH, c = at % WIDTH;
    float sum = 0.f;
    for (int slot = token * top_k; slot < (token + 1) * top_k; slot++) {
      const int from = stands_for(slot)[0];
      if (from < 0) continue;
      float one = 0.f;
#pragma unroll
      for (int part = 0; part < PARTS; part++) one += out[(from * PARTS + part) * WIDTH + c];
      sum += choice_weights[slot] * one;
    }
#if SHARED
    sum += sum_of_shares(memory, ((c / 16 * COLUMN_TILES + token / 8) * 4 + c % 16 / 8 * 2 +
                                  token % 2) * 32 + c % 8 * 4 + token % 8 / 2);
#endif
    y[(long long)token * hidden + first + c] = __float2bfloat16(sum);
  }
}
"""

_DOWN_SORTED = r"""
constexpr int WIDTH = 16 * TILES;  // columns of out

// RUN ranges of WIDTH columns, one after the other, all warps side by side.
template <class Format, class Memory, class Place>
__device__ inline void down_columns(const Memory memory, const Place columns, const int count,
                                    const Matrix& of, const ELEMENT* act, float* out,
                                    const int hidden) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, p = threadIdx.x % 4;
  const int steps = steps_of<Format>(of.columns);
  const int all = blockDim.x / 32 * WIDTH;  // columns of all warps
  const int begin = blockIdx.x * RUN * all + warp * WIDTH;
  const int end = min(hidden, (blockIdx.x + 1) * RUN * all);
  const Tokens tokens = tokens_of<Format>(columns, act, of.columns, 1);
  int copied = begin, first = begin, step = 0;
  Sums sums;
  sums.clear();
  walk<Format>(
      memory, warp * RING_BYTES, Steps{},
      [&](Steps& from) {
        if (copied >= end) return;
        from = steps_of<Format>(of, copied, 0, 1);
        copied += all;
      },
      [&](const int stage) {
        Format::add(sums, memory, stage, tokens, step, count, of.columns);
        if (++step < steps) return;
#pragma unroll
        for (int i = 0; i < COLUMN_TILES * 4; i++) {
          const int slot = columns[i / 4 * 8 + 2 * p + i % 2];
          if (slot < 0) continue;
#pragma unroll
          for (int m = 0; m < TILES; m++)
            out[(long long)slot * hidden + first + m * 16 + i % 4 / 2 * 8 + g] =
                sums.at[m][i / 4][i % 4];
        }
        sums.clear();
        first += all, step = 0;
      });
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, BLOCKS) down_sorted(
    const ELEMENT* act, const void* weights, const void* scales, const int* sorted_slots,
    const int* block_experts, float* out,
#if SHARED
    const ELEMENT* shared_act, const void* shared_weights, float* shared_out,
    const int shared_inner, const int shared_blocks,
#endif
    const int tokens, const int top_k, const int experts, const int hidden, const int inner,
    const unsigned weight_bytes, const unsigned scale_bytes) {
  DYNAMIC_SHARED(unsigned char, memory);
  const auto columns =
      SHARED_AS(int, memory + blockDim.x / 32 * RING_BYTES) + threadIdx.x / 32 * COLUMNS;
  int block = blockIdx.y;
#if SHARED
  if (block < shared_blocks) {
    const int count = all_tokens(columns, block * COLUMNS, tokens);
    down_columns<Bf16>(memory, columns, count,
                       matrix(shared_weights, shared_weights, shared_inner, 8), shared_act,
                       shared_out, hidden);
    return;
  }
  block -= shared_blocks;
#endif
  const int expert = block_experts[block];
  if (expert < 0) return;
  const int count =
      sorted_columns(columns, sorted_slots + (long long)block * COLUMNS, tokens * top_k);
  down_columns<ROUTED>(
      memory, columns, count,
      matrix(expert_at(weights, expert, weight_bytes), expert_at(scales, expert, scale_bytes),
             inner, 8),
      act, out, hidden);
}
"""

COMBINE = r"""
#include <cuda_bf16.h>
struct alignas(8) Pairs { __nv_bfloat162 at[2]; };

// A thread adds up four columns of a token.
extern "C" __global__ void __launch_bounds__(THREADS) combine(
    const int* ids, const float* choice_weights, const float* out,
#if SHARED
    const float* shared_out,
#endif
    __nv_bfloat16* y, const int top_k, const int experts, const int hidden) {
  const int column = (blockIdx.x * THREADS + threadIdx.x) * 4;
  const long long token = blockIdx.y;
  if (column >= hidden) return;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  const auto add = [&](const float weight, const float* from) {
    const float4 one = *reinterpret_cast<const float4*>(from + column);
    sum.x += weight * one.x, sum.y += weight * one.y;
    sum.z += weight * one.z, sum.w += weight * one.w;
  };
#pragma unroll 4
  for (int j = 0; j < top_k; j++) {
    const long long slot = token * top_k + j;
    if (ids[slot] >= 0 && ids[slot] < experts) add(choice_weights[slot], out + slot * hidden);
  }
#if SHARED
  add(1.f, shared_out + token * hidden);
#endif
  const Pairs narrow = {__floats2bfloat162_rn(sum.x, sum.y), __floats2bfloat162_rn(sum.z, sum.w)};
  *reinterpret_cast<Pairs*>(y + token * hidden + column) = narrow;
}
"""

DOWN_DIRECT = COLUMNS + _DOWN_DIRECT
DOWN_SORTED = COLUMNS + _DOWN_SORTED
