"""The first product of `fused_moe` in CUDA C++: act[slot] = silu(W1_e x_t) * (W3_e x_t).

act [slots, I], rounded to bfloat16 once. A block has 8 TILES rows of gate and the same of up, of
one expert, and all of K, which its warps share; they add up what they have in shared memory, in the
order of the warps. So gate and up of one number meet in one lane, and no second launch adds parts.

Directly, the blocks of the first rows write down what they found for the second launch: `leaders`
[slots], the expert whose first choice it is, or -1, and `members` [slots, COLUMNS], the slots of
the tokens that chose it, or -1. Blocks of the shared expert come first in the grid: in bfloat16
they take longest.
"""

from kernels.moe._columns_cuda import COLUMNS

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
  for (int at = threadIdx.x; at < TILES * COLUMN_TILES * 64; at += blockDim.x) {
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

extern "C" __global__ void __launch_bounds__(MOST_THREADS, BLOCKS) gate_up(
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
    const unsigned weight_bytes, const unsigned scale_bytes) {
  DYNAMIC_SHARED(unsigned char, memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slots = tokens * top_k;
  const auto columns = SHARED_AS(int, memory + blockDim.x / 32 * RING_BYTES) + warp * COLUMNS;
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
      matrix(expert_at(weights, expert, weight_bytes), expert_at(scales, expert, scale_bytes),
             hidden, inner),
      first, x, top_k, ORDERED_ACT, act);
}
"""

GATE_UP = COLUMNS + _GATE_UP
