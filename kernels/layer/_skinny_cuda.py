"""A product of few rows by a large weight in CUDA C++, on tensor cores: see `_skinny_plan`.

`multiply` is what a warp does: 16 outputs (of each of SETS weights, such as gate and up) for ROWS
rows of x, over part of the inputs, in CHUNKs that it brings to registers while the one before is
multiplied, and through shared memory of its own, so that it waits for no other warp. Rows of x are
asked for by number, and one that is not there is null: a caller may gather them. `leave` puts what
it has where other warps find it. Kernels of experts can be made of the same two.

It wants the macros of `_elements_cuda`, the functions of `_elementwise_cuda`, and ROWS (16, 32 or
64), CHUNK (32 or 64), WARPS and WAYS (warps that share outputs and divide the inputs) before. A
warp's own memory, at multiples of 32 bytes, is `warp_bytes`.
"""

_PADDING = 8  # elements a row of a chunk: 16 bytes, so that rows lie in different banks
_SUM_STEP = 20  # floats a row of 16 sums


def warp_bytes(*, rows: int, chunk: int, sets: int) -> int:
    """Return what a warp stages of x and weights, or leaves of its sums, whichever is more."""
    staged = 2 * (rows + 16 * sets) * (chunk + _PADDING)
    return max(staged, 4 * sets * rows * _SUM_STEP)


_STEPS = f"""
constexpr int STEP = CHUNK + {_PADDING}, SUM_STEP = {_SUM_STEP};
"""

DEVICE_CODE = (
    _STEPS
    + """
#include <mma.h>
using namespace nvcuda;

constexpr int ROW_TILES = ROWS / 16;
constexpr int LANES = CHUNK / 8, AT_ONCE = 32 / LANES;  // lanes a row, rows a load
static_assert(WARPS % WAYS == 0, "warps");

using Rows = wmma::fragment<wmma::matrix_a, 16, 16, 16, ELEMENT, wmma::row_major>;
using Weights = wmma::fragment<wmma::matrix_b, 16, 16, 16, ELEMENT, wmma::col_major>;
using Sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// 16 bytes a lane of N rows, CHUNK elements each.
template <int N>
struct Piece {
  uint4 at[N / AT_ONCE];

  template <class RowOf>
  __device__ void fetch(const RowOf row_of, const int first, const int last) {
    const int lane = threadIdx.x % 32, k = first + lane % LANES * 8;
#pragma unroll
    for (int i = 0; i < N / AT_ONCE; i++) {
      const ELEMENT* const row = row_of(lane / LANES + i * AT_ONCE);
      at[i] = make_uint4(0, 0, 0, 0);
      if (row != nullptr && k < last) at[i] = __ldg(reinterpret_cast<const uint4*>(row + k));
    }
  }

  template <class Tile>
  __device__ void put(const Tile to) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < N / AT_ONCE; i++)
      SHARED_AS(uint4, to + (lane / LANES + i * AT_ONCE) * STEP + lane % LANES * 8)[0] = at[i];
  }
};

// Adds to sums[set][m] the product of rows 16 m .. of x and 16 outputs of each weight, over the
// inputs first .. last - 1, of which this warp takes every WAYS-th chunk. x_row(r) and weight_row(
// set, n) point at row r and output n, or are null. mine: (ROWS + 16 SETS) x STEP elements.
template <int SETS, class Tile, class XRow, class WeightRow>
__device__ inline void multiply(Sums (&sums)[SETS][ROW_TILES], const Tile mine, const int way,
                                const XRow x_row, const WeightRow weight_row, const int first,
                                const int last) {
  Piece<ROWS> rows;
  Piece<16> weights[SETS];
  const auto fetch = [&](const int k) {
#pragma unroll
    for (int set = 0; set < SETS; set++)
      weights[set].fetch([&](const int n) { return weight_row(set, n); }, k, last);
    rows.fetch(x_row, k, last);
  };
  int k = first + way * CHUNK;
  if (k < last) fetch(k);
  for (; k < last; k += WAYS * CHUNK) {
    __syncwarp();  // the chunk before is no longer read
    rows.put(mine);
#pragma unroll
    for (int set = 0; set < SETS; set++) weights[set].put(mine + (ROWS + 16 * set) * STEP);
    __syncwarp();
    if (k + WAYS * CHUNK < last) fetch(k + WAYS * CHUNK);
#pragma unroll
    for (int at = 0; at < CHUNK; at += 16) {
      Rows a[ROW_TILES];
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++)
        wmma::load_matrix_sync(a[m], mine + m * 16 * STEP + at, STEP);
#pragma unroll
      for (int set = 0; set < SETS; set++) {
        Weights b;
        wmma::load_matrix_sync(b, mine + (ROWS + 16 * set) * STEP + at, STEP);
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
          wmma::mma_sync(sums[set][m], a[m], b, sums[set][m]);
      }
    }
  }
  __syncwarp();
}

// Leaves this warp's sums where all can read them: [SETS, ROWS, SUM_STEP] floats.
template <int SETS, class Tile>
__device__ inline void leave(const Sums (&sums)[SETS][ROW_TILES], const Tile mine) {
#pragma unroll
  for (int set = 0; set < SETS; set++)
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
      wmma::store_matrix_sync(mine + (set * ROWS + m * 16) * SUM_STEP, sums[set][m], SUM_STEP,
                              wmma::mem_row_major);
}
"""
)

KERNEL = """
constexpr int SETS = GATED ? 2 : 1, TILES = WARPS / WAYS, THREADS = 32 * WARPS;

// One row and output of a block: the tile of its warps, and its column there.
struct Element { int tile, row, column; };

// Gives each thread some of the first `rows` rows and `outputs` outputs, 16 side by side.
template <class Take>
__device__ inline void each_element(const int rows, const int outputs, const Take take) {
  for (int e = threadIdx.x; e < TILES * 16 * rows; e += THREADS) {
    const Element it = {e / 16 % TILES, e / (16 * TILES), e % 16};
    if (it.tile * 16 + it.column < outputs) take(it);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) skinny(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* y, float* parts, int* arrivals,
    const int rows, const int inputs, const int outputs, const int part_inputs) {
  DYNAMIC_SHARED(unsigned char, memory);
  const int warp = threadIdx.x / 32, way = warp % WAYS;
  const int first_row = blockIdx.x * ROWS, first_output = blockIdx.y * TILES * 16;
  const int mine = first_output + warp / WAYS * 16;
  const int first = blockIdx.z * part_inputs, last = min(first + part_inputs, inputs);
  const auto x_row = [&](const int r) -> const ELEMENT* {
    return first_row + r < rows ? x + (long long)(first_row + r) * inputs : nullptr;
  };
  const auto weight_row = [&](const int set, const int n) -> const ELEMENT* {
    return mine + n < outputs ? weight + ((long long)set * outputs + mine + n) * inputs : nullptr;
  };
  Sums sums[SETS][ROW_TILES];
#pragma unroll
  for (int set = 0; set < SETS; set++)
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) wmma::fill_fragment(sums[set][m], 0.f);
  const auto own = memory + warp * WARP_BYTES;
  multiply<SETS>(sums, SHARED_AS(ELEMENT, own), way, x_row, weight_row, first, last);
  leave<SETS>(sums, SHARED_AS(float, own));
  __syncthreads();

  const int live = min(ROWS, rows - first_row);
  const auto place = [&](const Element& it) {
    return (long long)(first_row + it.row) * outputs + first_output + it.tile * 16 + it.column;
  };
  const auto write = [&](const long long at, const float (&sum)[SETS]) {
#if GATED
    y[at] = NARROW(gated(sum[0], sum[1]));
#else
    y[at] = NARROW(sum[0]);
#endif
  };
#if !ONCE
  SHARED_ARRAY(int, last_one, 1);
  const long long size = (long long)rows * outputs;
#endif
  each_element(live, outputs - first_output, [&](const Element it) {
    float sum[SETS] = {};
#pragma unroll
    for (int w = 0; w < WAYS; w++) {
      const auto theirs = SHARED_AS(float, memory + (it.tile * WAYS + w) * WARP_BYTES);
#pragma unroll
      for (int set = 0; set < SETS; set++)
        sum[set] += theirs[(set * ROWS + it.row) * SUM_STEP + it.column];
    }
#if ONCE
    write(place(it), sum);
#else
#pragma unroll
    for (int set = 0; set < SETS; set++)
      parts[((long long)blockIdx.z * SETS + set) * size + place(it)] = sum[set];
#endif
  });
#if !ONCE
  __threadfence();  // what this thread wrote is there before it is counted
  __syncthreads();
  int* const arrived = arrivals + blockIdx.y * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) {
    last_one[0] = atomicAdd(arrived, 1) == gridDim.z - 1;
    if (last_one[0]) *arrived = 0;
  }
  __syncthreads();
  if (!last_one[0]) return;
  __threadfence();
  each_element(live, outputs - first_output, [&](const Element it) {
    float sum[SETS] = {};
#pragma unroll 8
    for (int part = 0; part < gridDim.z; part++)
#pragma unroll
      for (int set = 0; set < SETS; set++)
        sum[set] += __ldcg(parts + ((long long)part * SETS + set) * size + place(it));
    write(place(it), sum);
  });
#endif
}
"""
