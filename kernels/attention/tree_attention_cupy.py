"""`tree_attention` in CUDA C++ through CuPy, on tensor cores through `nvcuda::wmma`.

A block takes up to 64 of the rows that share a key head, and one part of the keys. The next tile of
keys and values is on its way into registers, 16 bytes a load, while this one, in shared memory, is
multiplied: scores = q k^T (16 x 16 x 16, float32 sums), the online softmax of them in shared memory
with several lanes a row, and out += weights v with the weights rounded to q's type. wmma does not
say which lane holds which element, so a row's factor is loaded as a fragment of equal columns, laid
out as the sums are, and multiplied with them element by element; where no row has found a larger
score, which is most tiles, that is left out. Rows are filled up to 16 with zeros.

fp8 caches are widened on their way into shared memory. The parts are merged by a second kernel.
Three implementations, one kernel: `cupy` reads each key once for all rows, `cupy_decode` and
`cupy_extend` pack the rows as those forms of `kernels/attention/_forms.py` do, the last unsplit.

Lengths, trees and page ids are read on the device. Keys and values need 16-byte alignment.
"""

from functools import partial
from typing import Any

from kernels import Needs, Outputs, Prepared
from kernels.attention import _tree_attention_cuda as cuda
from kernels.attention._split_plan import Plan
from kernels.attention._tree_attention_plan import prepare, shared_bytes, tile_for
from kernels.attention.tree_attention import FORM_COSTS, OP, Given
from verifyscope.records import Mode

_BODY = (
    """
#include <mma.h>
using namespace nvcuda;

constexpr int PIECES = DIM / VECTOR;  // loads of a key
constexpr int LOADS = (KEYS * PIECES + THREADS - 1) / THREADS;  // of a thread and tile
constexpr int WIDE = DIM + 8, SCORES = KEYS + 4, WEIGHTS = KEYS + 8;  // rows in different banks
constexpr int ROW_TILES = ROWS / 16, KEY_TILES = KEYS / 16, DIM_TILES = DIM / 16;
constexpr int SHARERS = WARPS > KEY_TILES ? WARPS / KEY_TILES : 1;  // warps of one tile of keys
constexpr int SCORE_TILES = (ROW_TILES + SHARERS - 1) / SHARERS;    // of a warp and tile of keys
constexpr int OUT_TILES = (DIM_TILES + WARPS - 1) / WARPS;          // of a warp and tile of rows
constexpr int LANES = THREADS / ROWS;                               // of a row of the softmax

using Rows = wmma::fragment<wmma::matrix_a, 16, 16, 16, ELEMENT, wmma::row_major>;
using Transposed = wmma::fragment<wmma::matrix_b, 16, 16, 16, ELEMENT, wmma::col_major>;
using Columns = wmma::fragment<wmma::matrix_b, 16, 16, 16, ELEMENT, wmma::row_major>;
using Sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;
struct alignas(8 * sizeof(OUT)) Stored { OUT at[8]; };
"""
    + f"""
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attend_part({cuda.PARAMETERS}) {{
  const Work work = {cuda.WORK_OF_BLOCK};
"""
    + """
  DYNAMIC_SHARED(ELEMENT, queries);                  // [ROWS][WIDE]
  const auto keys = queries + ROWS * WIDE;           // [KEYS][WIDE]
  const auto values = keys + KEYS * WIDE;            // [KEYS][WIDE]
  const auto weights = values + KEYS * WIDE;         // [ROWS][WEIGHTS]
  const auto scores = SHARED_AS(float, weights + ROWS * WEIGHTS);  // [ROWS][SCORES]
  const auto factors = scores + ROWS * SCORES;       // [ROWS][16], equal columns
  const float minus_infinity = __int_as_float(0xff800000);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int first = work.first, last = work.last;

  for (int n = thread; n < ROWS * DIM / 8; n += THREADS) {
    const int r = n / (DIM / 8), d = n % (DIM / 8) * 8;
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (work.token(r) >= 0) bits = *reinterpret_cast<const uint4*>(q + work.place(r) * DIM + d);
    SHARED_AS(uint4, queries + r * WIDE + d)[0] = bits;
  }

  // The tile behind `start`, on its way into registers, and the pages of the one behind that.
  const int* const pages = page_table + (long long)work.request * width;
  k += work.kv_head * stride_kh;
  v += work.kv_head * stride_vh;
  uint4 key_bits[LOADS], value_bits[LOADS];
  int page[LOADS];
  const auto load_pages = [&](const int start) {
#pragma unroll
    for (int u = 0; u < LOADS; u++) {
      const int key = start + (thread + u * THREADS) / PIECES;
      page[u] = key < last ? __ldg(pages + key / PAGE) : 0;
    }
  };
  const auto load = [&](const int start) {
#pragma unroll
    for (int u = 0; u < LOADS; u++) {
      const int n = thread + u * THREADS, key = start + n / PIECES, d = n % PIECES * VECTOR;
      key_bits[u] = value_bits[u] = make_uint4(0, 0, 0, 0);
      if (key < last) {
        const long long at = page[u], slot = key % PAGE;
        key_bits[u] =
            __ldg(reinterpret_cast<const uint4*>(k + at * stride_kp + slot * stride_ks + d));
        value_bits[u] =
            __ldg(reinterpret_cast<const uint4*>(v + at * stride_vp + slot * stride_vs + d));
      }
    }
  };
  Sums sums[ROW_TILES][OUT_TILES];
#pragma unroll
  for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
    for (int j = 0; j < OUT_TILES; j++) wmma::fill_fragment(sums[i][j], 0.f);
  const auto scale_sums = [&] {
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++) {
      Sums factor;
      wmma::load_matrix_sync(factor, factors + i * 256, 16, wmma::mem_row_major);
#pragma unroll
      for (int j = 0; j < OUT_TILES; j++)
#pragma unroll
        for (int e = 0; e < factor.num_elements; e++) sums[i][j].x[e] *= factor.x[e];
    }
  };
  const int row = thread / LANES, piece = thread % LANES;  // of the softmax
  const int token = work.token(row);
  const int word = token < 0 ? 0 : mask_words[work.request * tokens + token];
  float top = minus_infinity, total = 0.f;
  const auto set_factor = [&](const float factor) {
    for (int column = piece; column < 16; column += LANES) factors[row * 16 + column] = factor;
  };

  load_pages(first);
  load(first);
  load_pages(first + KEYS);
  for (int start = first; start < last; start += KEYS) {
#pragma unroll
    for (int u = 0; u < LOADS; u++) {
      const int n = thread + u * THREADS, at = n / PIECES * WIDE + n % PIECES * VECTOR;
      if (KEYS * PIECES % THREADS == 0 || n < KEYS * PIECES) {
        put(key_bits[u], keys + at);
        put(value_bits[u], values + at);
      }
    }
    __syncthreads();
    load(start + KEYS);
    load_pages(start + 2 * KEYS);

    for (int tile = warp / SHARERS; tile < KEY_TILES; tile += WARPS / SHARERS) {
      Sums score[SCORE_TILES];
#pragma unroll
      for (int i = 0; i < SCORE_TILES; i++) wmma::fill_fragment(score[i], 0.f);
#pragma unroll 4
      for (int d = 0; d < DIM; d += 16) {
        Transposed key;
        wmma::load_matrix_sync(key, keys + tile * 16 * WIDE + d, WIDE);
#pragma unroll
        for (int i = 0; i < SCORE_TILES; i++) {
          const int r = i * SHARERS + warp % SHARERS;
          if (r >= ROW_TILES) continue;
          Rows query;
          wmma::load_matrix_sync(query, queries + r * 16 * WIDE + d, WIDE);
          wmma::mma_sync(score[i], query, key, score[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < SCORE_TILES; i++) {
        const int r = i * SHARERS + warp % SHARERS;
        if (r < ROW_TILES)
          wmma::store_matrix_sync(scores + r * 16 * SCORES + tile * 16, score[i], SCORES,
                                  wmma::mem_row_major);
      }
    }
    __syncthreads();

    float score[KEYS / LANES], new_top = top;
#pragma unroll
    for (int n = 0; n < KEYS / LANES; n++) {
      const int key = start + n * LANES + piece, draft = key - work.prefix;
      const bool seen = key < last && (draft < 0 || (word >> draft & 1));
      score[n] = seen ? scores[row * SCORES + n * LANES + piece] * scale_log2 : minus_infinity;
      new_top = fmaxf(new_top, score[n]);
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
    for (int n = 0; n < KEYS / LANES; n++) {
      const float weight = exp2f(score[n] - shift);
      total += weight;
      weights[row * WEIGHTS + n * LANES + piece] = NARROW(weight);
    }
    set_factor(rises ? kept : 1.f);
    if (__syncthreads_or(rises)) scale_sums();

#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
      for (int j = 0; j < OUT_TILES; j++) {
        const int tile = j * WARPS + warp;
        if (tile >= DIM_TILES) continue;
        Columns value;
        wmma::load_matrix_sync(value, values + n * 16 * WIDE + tile * 16, WIDE);
#pragma unroll
        for (int i = 0; i < ROW_TILES; i++) {
          Rows weight;
          wmma::load_matrix_sync(weight, weights + i * 16 * WEIGHTS + n * 16, WEIGHTS);
          wmma::mma_sync(sums[i][j], weight, value, sums[i][j]);
        }
      }
    __syncthreads();
  }

#pragma unroll
  for (int step = LANES / 2; step; step /= 2) total += __shfl_xor_sync(~0u, total, step);
  set_factor(divided(v_scale, total));
  const bool written = first < work.keys || work.splits == 1;
  if (token >= 0 && piece == 0)
    lse[work.place(row) * work.splits + work.split] = lse_of(top, total);
  __syncthreads();
  // An empty part leaves its sums unwritten: the merge knows it by its LSE.
  if (!written) return;
  scale_sums();
  const auto patch = SHARED_AS(float, keys) + warp * 256;  // where the keys were
#pragma unroll
  for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
    for (int j = 0; j < OUT_TILES; j++) {
      const int tile = j * WARPS + warp, r = i * 16 + lane / 2, d = lane % 2 * 8;
      if (tile >= DIM_TILES) continue;
      wmma::store_matrix_sync(patch, sums[i][j], 16, wmma::mem_row_major);
      __syncwarp();
      if (work.token(r) >= 0) {
        Stored stored;
        for (int e = 0; e < 8; e++) stored.at[e] = STORE(patch[lane / 2 * 16 + d + e]);
        const long long at = work.place(r) * work.splits + work.split;
        *reinterpret_cast<Stored*>(out + at * DIM + tile * 16 + d) = stored;
      }
      __syncwarp();
    }
}
"""
)

_own = partial(
    OP.prepared_implementation,
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",), refuses=cuda.refuses),
    declares=("tensor_core", "wide_load"),
)


@_own("cupy", mode="verify")
def cupy_attention(**inputs: Any) -> Prepared:
    """Read each key once for all the rows that share it."""
    return _prepared(Given(**inputs), "verify")


@_own("cupy_decode", mode="decode", form_cost=FORM_COSTS["decode"])
def cupy_decode(**inputs: Any) -> Prepared:
    """Treat each draft token as a decode request of its own."""
    return _prepared(Given(**inputs), "decode")


@_own("cupy_extend", mode="extend", form_cost=FORM_COSTS["extend"])
def cupy_extend(**inputs: Any) -> Prepared:
    """Let one block a query head and row tile walk the whole prefix."""
    return _prepared(Given(**inputs), "extend")


def _prepared(given: Given, mode: Mode) -> Prepared:
    cuda.check_alignment(given)
    shape = given.shape
    tile = tile_for("cuda", rows=shape.form(mode).rows, head_dim=shape.head_dim)
    return prepare(given, mode, tile=tile, attend=attend)


def attend(given: Given, plan: Plan) -> Outputs:
    """Launch by this plan, whatever the shape would choose."""
    size = shared_bytes(plan.tile, head_dim=given.shape.head_dim)
    return cuda.attend(given, plan, body=_BODY, shared_bytes=size)
