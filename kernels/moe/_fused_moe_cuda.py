"""The CUDA C++ of `fused_moe`: both products of all experts, two launches or, sorted, four.

GATE_UP: act[slot] = silu(W1_e x_t) * (W3_e x_t), bfloat16. A block belongs to the tokens of one
expert and to a few rows of gate and of up; its warps share K and add up what they have in shared
memory, in their order. Directly, a block belongs to one choice (t, j) and ends at once unless that
is the first of its expert; it then takes all tokens that chose it, once each: where a token names
an expert twice, its first slot stands for both. The blocks of the first rows write down what they
found for the second launch, `leaders` [slots], the expert or -1, and `members` [slots, COLUMNS],
the slots of its tokens or -1.

DOWN_DIRECT: y = sum_j w_tj W2_e act. A block belongs to a few columns of y; its warps share the
experts, each whole or a part of K, and leave what they get for each slot in shared memory, where
the choices of a token are added in the order of j. So nothing is added by atomics, and no launch
waits for another to combine.

DOWN_SORTED: out[slot] = W2_e act, float, a warp several tiles of columns one after the other.
COMBINE: y = sum_j w_tj out[slot], in the order of j.

Slot t top_k + j is choice (t, j). The shared expert's rows are blocks and warps' shares of the same
launches, of all tokens, in bfloat16.
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

// Multiplies the warp's share of K, every WARPS-th step, and leaves the sums in its ring: those of
// element i of column tile n and tile m at [(m COLUMN_TILES + n) 4 + i][lane].
template <class Format, class Memory>
__device__ inline void multiply_share(const Memory memory, const Tokens& tokens, const int count,
                                      const Matrix& of, const int first) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, ring = warp * RING_BYTES;
  int step = warp;
  Sums sums;
  sums.clear();
  walk<Format>(
      memory, ring, steps_of<Format>(of, first, warp, WARPS), [](Steps&) {},
      [&](const int stage) {
        Format::add(sums, memory, stage, tokens, step, count, of.columns);
        step += WARPS;
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
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += SHARED_AS(float, memory + w * RING_BYTES)[at];
  return sum;
}

__device__ inline Matrix matrix(const void* weights, const void* scales, const int columns,
                                const int far) {
  return {static_cast<const unsigned char*>(weights), static_cast<const unsigned char*>(scales),
          columns, far};
}

// That of one expert of many.
__device__ inline Matrix matrix_of(const long long expert, const void* weights,
                                   const long long weight_bytes, const void* scales,
                                   const long long scale_bytes, const int columns, const int far) {
  return {static_cast<const unsigned char*>(weights) + expert * weight_bytes,
          static_cast<const unsigned char*>(scales) + expert * scale_bytes, columns, far};
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

_GATE_UP = r"""
// 8 TILES rows of gate and of up of one expert, by all warps of the block.
template <class Format, class Memory, class Place>
__device__ inline void gate_up_rows(const Memory memory, const Place columns, const int count,
                                    const Matrix& of, const int first, const ELEMENT* x,
                                    const int slots_a_token, const bool ordered, ELEMENT* act) {
  const Tokens tokens = tokens_of<Format>(columns, x, of.columns, slots_a_token);
  multiply_share<Format>(memory, tokens, count, of, first);
  __syncthreads();
  // A lane holds gate of two columns, and up of them 64 numbers further.
  for (int at = threadIdx.x; at < TILES * COLUMN_TILES * 64; at += THREADS) {
    const int tile = at / 64, m = tile / COLUMN_TILES, g = at % 32 / 4;
    const int column = tile % COLUMN_TILES * 8 + at % 4 * 2 + at % 64 / 32;
    if (column >= count) continue;
    const float gate = sum_of_shares(memory, tile * 128 + at % 64);
    const float up = sum_of_shares(memory, tile * 128 + at % 64 + 64);
    // Where its nibbles want it, if the next product is of int4.
    const int place = ordered ? g % 4 * 2 + g / 4 : g;
    act[(long long)columns[column] * of.far + first + m * 8 + place] =
        __float2bfloat16(gate / (1.f + expf(-gate)) * up);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) gate_up(
    const ELEMENT* x, const void* weights, const void* scales, ELEMENT* act,
#if SORTED
    const int* sorted_slots, const int* block_experts,
#else
    const int* ids, int* leaders, int* members,
#endif
#if SHARED
    const void* shared_weights, ELEMENT* shared_act, const int shared_inner,
    const int shared_blocks,
#endif
    const int tokens, const int top_k, const int experts, const int hidden, const int inner,
    const long long weight_bytes, const long long scale_bytes) {
  DYNAMIC_SHARED(unsigned char, memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slots = tokens * top_k;
  const auto columns = SHARED_AS(int, memory + WARPS * RING_BYTES) + warp * COLUMNS;
  const int first = blockIdx.x * 8 * TILES;
  int block = blockIdx.y;
#if SHARED  // in front, for these take longest
  if (block < shared_blocks) {
    if (first >= shared_inner) return;
    const int count = all_tokens(columns, block * COLUMNS, tokens);
    gate_up_rows<Bf16>(memory, columns, count,
                       matrix(shared_weights, shared_weights, hidden, shared_inner), first, x, 1,
                       false, shared_act);
    return;
  }
  block -= shared_blocks;
#endif
  if (first >= inner) return;
#if SORTED
  const int expert = block_experts[block];
  if (expert < 0) return;
  const int count = sorted_columns(columns, sorted_slots + (long long)block * COLUMNS, slots);
#else
  const int expert = __ldg(ids + block);
  const bool known = expert >= 0 && expert < experts;
  const int count = known ? chosen(columns, ids, slots, top_k, block, expert) : 0;
  if (blockIdx.x == 0 && warp == 0) {
    if (lane == 0) leaders[block] = count ? expert : -1;
    if (count && lane < COLUMNS) members[block * COLUMNS + lane] = columns[lane];
  }
  if (!count) return;
#endif
  gate_up_rows<ROUTED>(
      memory, columns, count,
      matrix_of(expert, weights, weight_bytes, scales, scale_bytes, hidden, inner), first, x,
      top_k, ORDERED_ACT, act);
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

_DOWN_DIRECT = r"""
// What a warp knows of a range of steps: the slots of its columns, and which part of K it is.
constexpr int HEADER = COLUMNS + 4, HEADER_BYTES = 4 * HEADER, PART = COLUMNS;
constexpr int PARTS = 1 << PART_BITS;
constexpr int WIDTH = 16 * TILES;  // columns of y

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) down_direct(
    const ELEMENT* act, const void* weights, const void* scales, const int* ids,
    const float* choice_weights, const int* leaders, const int* members, ELEMENT* y,
#if SHARED
    const ELEMENT* shared_act, const void* shared_weights, const int shared_inner,
#endif
    const int tokens, const int top_k, const int experts, const int hidden, const int inner,
    const long long weight_bytes, const long long scale_bytes) {
  DYNAMIC_SHARED(unsigned char, memory);
  constexpr int OUT_AT = WARPS * (RING_BYTES + STAGES * HEADER_BYTES);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slots = tokens * top_k;
  const int g = lane / 4, p = lane % 4, first = blockIdx.x * WIDTH;
  const int steps = (inner + ROUTED::STEP - 1) / ROUTED::STEP;
  const auto headers = SHARED_AS(int, memory + WARPS * RING_BYTES) + warp * STAGES * HEADER;
  const auto out = SHARED_AS(float, memory + OUT_AT);  // [slots, PARTS, WIDTH]
  const auto stands_for = SHARED_AS(int, memory + OUT_AT + 4 * slots * PARTS * WIDTH);  // [slots]

  // The warp's share l is a part of a choice, all parts of one side by side; lane l knows which
  // expert it is of.
  const int share = warp + lane * WARPS;
  const int leader = share < slots << PART_BITS ? __ldg(leaders + (share >> PART_BITS)) : -1;
  unsigned left = __ballot_sync(~0u, leader >= 0);
  int found = 0, used = 0, step = steps;
  Sums sums;
  Tokens of_header;
  sums.clear();
  const auto next = [&](Steps& from) {
    if (!left) return;
    const int l = __ffs(left) - 1, expert = __shfl_sync(~0u, leader, l);
    const int mine = warp + l * WARPS, part = mine % PARTS;
    left &= left - 1;
    const auto header = headers + found++ % STAGES * HEADER;
    if (lane < COLUMNS / 4)
      __pipeline_memcpy_async(header + 4 * lane,
                              members + (mine >> PART_BITS) * COLUMNS + 4 * lane, 16);
    if (lane == 0) header[PART] = part;
    from = steps_of<ROUTED>(
        matrix_of(expert, weights, weight_bytes, scales, scale_bytes, inner, 8), first, part,
        PARTS);
  };
  const auto use = [&](const int stage) {
    const auto header = headers + used % STAGES * HEADER;
    if (step >= steps) {
      step = header[PART];
      of_header = tokens_of<ROUTED>(header, act, inner, 1);
    }
    const int count = header[COLUMNS - 8] < 0 ? 8 : COLUMNS;
    ROUTED::add(sums, memory, stage, of_header, step, count, inner);
    step += PARTS;
    if (step < steps) return;
#pragma unroll
    for (int i = 0; i < COLUMN_TILES * 4; i++) {
      const int slot = header[i / 4 * 8 + 2 * p + i % 2];
      if (slot < 0) continue;
#pragma unroll
      for (int m = 0; m < TILES; m++)
        out[(slot * PARTS + header[PART]) * WIDTH + m * 16 + i % 4 / 2 * 8 + g] =
            sums.at[m][i / 4][i % 4];
    }
    sums.clear();
    used++;
  };
  walk<ROUTED>(memory, warp * RING_BYTES, Steps{}, next, use);
#if SHARED
  const int all = all_tokens(headers, 0, tokens);
  multiply_share<Bf16>(memory, tokens_of<Bf16>(headers, shared_act, shared_inner, 1), all,
                       matrix(shared_weights, shared_weights, shared_inner, 8), first);
#endif

  for (int slot = threadIdx.x; slot < slots; slot += THREADS) {
    const int id = ids[slot];
    int at = id < 0 || id >= experts ? -1 : slot / top_k * top_k;
    while (at >= 0 && ids[at] != id) at++;
    stands_for[slot] = at;
  }
  __syncthreads();
  for (int at = threadIdx.x; at < tokens * WIDTH; at += THREADS) {
    const int token = at / WIDTH, c = at % WIDTH;
    float sum = 0.f;
    for (int slot = token * top_k; slot < (token + 1) * top_k; slot++) {
      if (stands_for[slot] < 0) continue;
      float one = 0.f;
#pragma unroll
      for (int part = 0; part < PARTS; part++)
        one += out[(stands_for[slot] * PARTS + part) * WIDTH + c];
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
  const int steps = (of.columns + Format::STEP - 1) / Format::STEP;
  const int begin = (blockIdx.x * RUN * WARPS + warp) * WIDTH;
  const int end = min(hidden, (blockIdx.x + 1) * RUN * WARPS * WIDTH);
  const Tokens tokens = tokens_of<Format>(columns, act, of.columns, 1);
  int copied = begin, first = begin, step = 0;
  Sums sums;
  sums.clear();
  walk<Format>(
      memory, warp * RING_BYTES, Steps{},
      [&](Steps& from) {
        if (copied >= end) return;
        from = steps_of<Format>(of, copied, 0, 1);
        copied += WARPS * WIDTH;
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
        first += WARPS * WIDTH, step = 0;
      });
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) down_sorted(
    const ELEMENT* act, const void* weights, const void* scales, const int* sorted_slots,
    const int* block_experts, float* out,
#if SHARED
    const ELEMENT* shared_act, const void* shared_weights, float* shared_out,
    const int shared_inner, const int shared_blocks,
#endif
    const int tokens, const int top_k, const int hidden, const int inner,
    const long long weight_bytes, const long long scale_bytes) {
  DYNAMIC_SHARED(unsigned char, memory);
  const auto columns =
      SHARED_AS(int, memory + WARPS * RING_BYTES) + threadIdx.x / 32 * COLUMNS;
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
      matrix_of(expert, weights, weight_bytes, scales, scale_bytes, inner, 8), act, out, hidden);
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

GATE_UP = PRODUCT + _COLUMNS + _CHOSEN + _SORTED_COLUMNS + _GATE_UP
DOWN_DIRECT = PRODUCT + _COLUMNS + _DOWN_DIRECT
DOWN_SORTED = PRODUCT + _COLUMNS + _SORTED_COLUMNS + _DOWN_SORTED
