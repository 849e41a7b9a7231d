"""The CUDA C++ of `mla_verify`: scores and sums on tensor cores, each latent read once a block.

A block takes up to ROWS packed rows of one request and unit (`_forms`) and one part of its keys. It
brings KEYS of them at a time, latent and rotated part side by side, into shared memory, where both
products find them:
    scores [ROWS, KEYS] = q [ROWS, LATENT + ROPE] x keys^T    warps share rows, keys and dims
    sums [ROWS, LATENT] = sums x kept + weights [ROWS, KEYS] x keys[:, :LATENT]
with an online softmax between them, a row by THREADS / ROWS lanes. The sums stay in registers: each
warp owns columns of 16. What one row keeps of them when its maximum grows stands in a matrix of
equal columns, which is loaded as a fragment of their kind and multiplied element by element, since
nobody knows which lane holds which row. While a tile is computed, the next one is on its way to
registers, and the page ids of the one after it too.

An fp8 cache is widened on its way into shared memory (`_fp8_cuda`, `_elements_cuda`).
"""

SOURCE = r"""
#include <mma.h>
using namespace nvcuda;

constexpr int THREADS = 32 * WARPS, DIM = LATENT + ROPE;
constexpr int VECTOR = 16 / sizeof(CACHE);  // elements of a load
constexpr int ROW_TILES = ROWS / 16, KEY_TILES = KEYS / 16;
constexpr int WAYS = WARPS / (ROW_TILES * KEY_TILES);  // warps that share the dims of a score
constexpr int COLUMNS = LATENT / 16, MY_COLUMNS = (COLUMNS + WARPS - 1) / WARPS;
constexpr int LANES = THREADS / ROWS, MY_KEYS = KEYS / LANES;  // of a row in the softmax
static_assert(WARPS % (ROW_TILES * KEY_TILES) == 0 && KEYS % LANES == 0 && LANES <= 32, "tile");

using Rows = wmma::fragment<wmma::matrix_a, 16, 16, 16, ELEMENT, wmma::row_major>;
using Keys = wmma::fragment<wmma::matrix_b, 16, 16, 16, ELEMENT, wmma::col_major>;
using Values = wmma::fragment<wmma::matrix_b, 16, 16, 16, ELEMENT, wmma::row_major>;
using Sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

template <class T>
struct alignas(16) Vector { T at[16 / sizeof(T)]; };

// A thread's share of a tile's latents or rotated parts: the same 16 bytes of every STEP-th key.
template <int WIDTH>
struct Share {
  static constexpr int PIECES = WIDTH / VECTOR, STEP = THREADS / PIECES;
  static constexpr int LOADS = (KEYS + STEP - 1) / STEP;
  static_assert(THREADS % PIECES == 0, "a width that is no power of two");
  uint4 at[LOADS];

  template <class Pages>
  __device__ void fetch(const CACHE* from, const Pages pages, const int start, const int last,
                        const long long stride_p, const long long stride_s) {
    from += threadIdx.x % PIECES * VECTOR;
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int n = threadIdx.x / PIECES + i * STEP;
      at[i] = make_uint4(0, 0, 0, 0);
      if ((KEYS % STEP == 0 || n < KEYS) && start + n < last) {
        const long long page = pages[n], slot = (start + n) % PAGE;
        at[i] = __ldg(reinterpret_cast<const uint4*>(from + page * stride_p + slot * stride_s));
      }
    }
  }

  template <class Tile>
  __device__ void put(const Tile to) const {
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int n = threadIdx.x / PIECES + i * STEP;
      if (KEYS % STEP && n >= KEYS) break;
      ::put(at[i], to + n * ROW_STEP + threadIdx.x % PIECES * VECTOR);
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attend_part(
    const ELEMENT* q_nope, const ELEMENT* q_pe, const CACHE* ckv, const CACHE* kpe,
    const int* page_table, const int* prefix_lens, const int* mask_words, OUT* out, float* lse,
    const long long stride_cp, const long long stride_cs,
    const long long stride_rp, const long long stride_rs,
    const int tokens, const int heads, const int unit_tokens, const int unit_heads,
    const int width, const int least_keys,
    const float score_factor, const float rope_ratio, const float out_factor) {
  DYNAMIC_SHARED(unsigned char, memory);
  const auto q = SHARED_AS(ELEMENT, memory + Q_AT);              // [ROWS, ROW_STEP]
  const auto kv = SHARED_AS(ELEMENT, memory + KV_AT);            // [KEYS, ROW_STEP]
  const auto scores = SHARED_AS(float, memory + SCORES_AT);      // [WAYS, ROWS, SCORE_STEP]
  const auto weights = SHARED_AS(ELEMENT, memory + WEIGHTS_AT);  // [ROWS, WEIGHT_STEP]
  const auto factors = SHARED_AS(float, memory + FACTORS_AT);    // [ROWS, FACTOR_STEP]
  const auto pages = SHARED_AS(int, memory + PAGES_AT);          // [KEYS]
  const float minus_infinity = __int_as_float(0xff800000);
  const int warp = threadIdx.x / 32;
  // Row tiles and units of one part are neighbours in the grid: they share lines in L2.
  const int unit_rows = unit_tokens * unit_heads, tiles = (unit_rows + ROWS - 1) / ROWS;
  const int tile = blockIdx.x % tiles, unit = blockIdx.x / tiles;
  const int split = blockIdx.y, splits = gridDim.y, request = blockIdx.z;
  const int prefix = prefix_lens[request];
  const int keys = min(prefix + tokens, width * PAGE);
  const int share = max(least_keys, (keys + splits - 1) / splits);
  const int part = (share + KEYS - 1) / KEYS * KEYS;
  const int first = split * part, last = min(first + part, keys);

  // The token of a row, or -1 behind the last row, and its place in q and out.
  const auto token_of = [&](const int r) {
    const int row = tile * ROWS + r, head_units = heads / unit_heads;
    return row < unit_rows ? unit / head_units * unit_tokens + row / unit_heads : -1;
  };
  const auto place = [&](const int r) {
    const int row = tile * ROWS + r, head_units = heads / unit_heads;
    const int head = unit % head_units * unit_heads + row % unit_heads;
    return ((long long)request * tokens + token_of(r)) * heads + head;
  };

  const int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;  // in the softmax
  const int token = token_of(row);
  if (first >= keys && splits > 1) {  // an empty part: the merge knows it by its LSE
    if (token >= 0 && lane == 0) lse[place(row) * splits + split] = minus_infinity;
    return;
  }
  const unsigned word = token < 0 ? 0 : mask_words[request * tokens + token];

  const int* const table = page_table + (long long)request * width;
  const auto page_of = [&](const int key) { return key < last ? __ldg(table + key / PAGE) : 0; };
  Share<LATENT> latents;
  Share<ROPE> rotated;
  const auto fetch = [&](const int start) {
    latents.fetch(ckv, pages, start, last, stride_cp, stride_cs);
    rotated.fetch(kpe, pages, start, last, stride_rp, stride_rs);
  };

  if (threadIdx.x < KEYS) pages[threadIdx.x] = page_of(first + threadIdx.x);
  int page = threadIdx.x < KEYS ? page_of(first + KEYS + threadIdx.x) : 0;
  __syncthreads();
  fetch(first);
  for (int n = threadIdx.x; n < ROWS * DIM / 8; n += THREADS) {
    const int r = n / (DIM / 8), dim = n % (DIM / 8) * 8;
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (token_of(r) >= 0)
      bits = *reinterpret_cast<const uint4*>(
          dim < LATENT ? q_nope + place(r) * LATENT + dim : q_pe + place(r) * ROPE + dim - LATENT);
    SHARED_AS(uint4, q + r * ROW_STEP + dim)[0] = bits;
  }

  Sums sums[ROW_TILES][MY_COLUMNS];
#pragma unroll
  for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
    for (int c = 0; c < MY_COLUMNS; c++) wmma::fill_fragment(sums[m][c], 0.f);
  const auto set_factor = [&](const float factor) {
    for (int n = lane; n < 16; n += LANES) factors[row * FACTOR_STEP + n] = factor;
  };
  const auto scale_sums = [&] {
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
      Sums by;
      wmma::load_matrix_sync(by, factors + m * 16 * FACTOR_STEP, FACTOR_STEP, wmma::mem_row_major);
#pragma unroll
      for (int c = 0; c < MY_COLUMNS; c++)
        for (int i = 0; i < by.num_elements; i++) sums[m][c].x[i] *= by.x[i];
    }
  };
  float top = minus_infinity, total = 0.f;  // of the row; each lane adds up its own keys

  for (int start = first; start < last; start += KEYS) {
    __syncthreads();  // the tile before is no longer read
    latents.put(kv);
    rotated.put(kv + LATENT);
    if (threadIdx.x < KEYS) {
      pages[threadIdx.x] = page;
      page = page_of(start + 2 * KEYS + threadIdx.x);
    }
    __syncthreads();
    if (start + KEYS < last) fetch(start + KEYS);

    {
      const int m = warp % ROW_TILES, n = warp / ROW_TILES % KEY_TILES;
      const int way = warp / (ROW_TILES * KEY_TILES);
      const auto my_rows = q + m * 16 * ROW_STEP, my_keys = kv + n * 16 * ROW_STEP;
      Rows a;
      Keys b;
      Sums sum;
      const auto add = [&](const int dim) {
        wmma::load_matrix_sync(a, my_rows + dim, ROW_STEP);
        wmma::load_matrix_sync(b, my_keys + dim, ROW_STEP);
        wmma::mma_sync(sum, a, b, sum);
      };
      wmma::fill_fragment(sum, 0.f);
      for (int k = way; k < ROPE / 16; k += WAYS) add(LATENT + k * 16);
#if FP8
      for (int i = 0; i < sum.num_elements; i++) sum.x[i] *= rope_ratio;  // of the scales
#endif
#pragma unroll 2
      for (int k = way; k < LATENT / 16; k += WAYS) add(k * 16);
      wmma::store_matrix_sync(scores + (way * ROWS + m * 16) * SCORE_STEP + n * 16, sum,
                              SCORE_STEP, wmma::mem_row_major);
    }
    __syncthreads();

    float score[MY_KEYS], new_top = top;
#pragma unroll
    for (int j = 0; j < MY_KEYS; j++) {
      const int n = lane + j * LANES, key = start + n, draft = key - prefix;
      score[j] = 0.f;
#pragma unroll
      for (int way = 0; way < WAYS; way++)
        score[j] += scores[(way * ROWS + row) * SCORE_STEP + n];
      score[j] *= score_factor;
      const bool seen = token >= 0 && key < last && (draft < 0 || (word >> draft & 1));
      if (!seen) score[j] = minus_infinity;
      new_top = fmaxf(new_top, score[j]);
    }
#pragma unroll
    for (int step = LANES / 2; step; step /= 2)
      new_top = fmaxf(new_top, __shfl_xor_sync(~0u, new_top, step));
    const float shift = shift_of(new_top);
    const float kept = exp2f(top - shift);
    const bool rises = new_top > top;
    top = new_top;
    total *= kept;
#pragma unroll
    for (int j = 0; j < MY_KEYS; j++) {
      const float weight = exp2f(score[j] - shift);
      total += weight;
      weights[row * WEIGHT_STEP + lane + j * LANES] = NARROW(weight);
    }
    set_factor(rises ? kept : 1.f);
    if (__syncthreads_or(rises)) scale_sums();  // most tiles raise no row
#pragma unroll
    for (int k = 0; k < KEY_TILES; k++) {
      Rows a[ROW_TILES];
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++)
        wmma::load_matrix_sync(a[m], weights + m * 16 * WEIGHT_STEP + k * 16, WEIGHT_STEP);
#pragma unroll
      for (int c = 0; c < MY_COLUMNS; c++) {
        const int column = warp + c * WARPS;
        if (COLUMNS % WARPS && column >= COLUMNS) break;
        Values b;
        wmma::load_matrix_sync(b, kv + k * 16 * ROW_STEP + column * 16, ROW_STEP);
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) wmma::mma_sync(sums[m][c], a[m], b, sums[m][c]);
      }
    }
  }

#pragma unroll
  for (int step = LANES / 2; step; step /= 2) total += __shfl_xor_sync(~0u, total, step);
  __syncthreads();  // the last tile's factors are no longer read
  set_factor(divided(out_factor, total));
  if (token >= 0 && lane == 0)
    lse[place(row) * splits + split] = lse_of(top, total);
  __syncthreads();
  scale_sums();
  __syncthreads();  // from here on all shared memory is the warps'
  const auto mine = SHARED_AS(float, memory + warp * WARP_BYTES);  // [16, FACTOR_STEP]
  const int r = threadIdx.x % 32 / 2, half = threadIdx.x % 2 * 8;
#pragma unroll
  for (int m = 0; m < ROW_TILES; m++) {
    const bool there = token_of(m * 16 + r) >= 0;
    const long long at = place(m * 16 + r) * splits + split;
#pragma unroll
    for (int c = 0; c < MY_COLUMNS; c++) {
      const int column = warp + c * WARPS;
      if (COLUMNS % WARPS && column >= COLUMNS) break;
      wmma::store_matrix_sync(mine, sums[m][c], FACTOR_STEP, wmma::mem_row_major);
      __syncwarp();
      constexpr int WIDE = 16 / sizeof(OUT);
#pragma unroll
      for (int piece = 0; piece < 8; piece += WIDE) {
        Vector<OUT> wide;
#pragma unroll
        for (int i = 0; i < WIDE; i++)
          wide.at[i] = STORE(mine[r * FACTOR_STEP + half + piece + i]);
        if (there)
          *reinterpret_cast<Vector<OUT>*>(out + at * LATENT + column * 16 + half + piece) = wide;
      }
      __syncwarp();
    }
  }
}
"""
