"""The CUDA C++ that streams rows of an expert's weights past a few tokens: for both products.

    sums [16 TILES, COLUMNS] = weights [16 TILES rows, K] x tokens [COLUMNS, K]^T, by one warp

Weights come as they are stored, 64 bytes of each row a step, through a ring in shared memory that
belongs to the warp alone: STAGES - 1 steps are on their way (cp.async, 16 bytes a lane) while one
is multiplied, and no warp waits for another. In shared memory, not in registers, so that many bytes
are under way, and because of int4: a lane's 16 bytes are the 32 numbers of one scale, but a product
wants those of one scale spread over four lanes. Pieces of 16 bytes are swizzled: no bank conflict.

Weights are the left factor of `mma_16x8x16` (`_mma_cuda`), unpacked in the registers that multiply
them; a token is a column, so that one token wastes 7 of 8 columns and not a byte. Tokens come
through L1: other warps and blocks want the same. What is unpacked, in instructions a byte few:

    int4   nibble | 0x4300 is 128 + nibble in bfloat16. What is too much, 136 x the sum of a group's
           tokens, is a product too, with which the sum of the group begins; then it meets its
           scale: weights stay exact. A word gives the pairs (0, 4), (1, 5), (2, 6), (3, 7), so
           tokens are put in that order: in registers, or as they are stored (ORDERED).
    fp8    sign, exponent and mantissa move to their places in bfloat16, where they mean 2**-120 of
           what they meant, and are multiplied by 2**120, subnormal ones too. NaN becomes 480. A
           sum of 64 k then meets the scale of its block.
"""

from kernels._mma_cuda import MMA

_TILES = r"""
#define ELEMENT __nv_bfloat16
constexpr int THREADS = 32 * WARPS, COLUMNS = 8 * COLUMN_TILES;
constexpr int STEP_BYTES = 64, TILE_BYTES = 16 * STEP_BYTES;
constexpr int TILE_ROWS = PAIRED ? 8 : 16;  // from one tile to the next
struct alignas(8) Two { unsigned at[2]; };
struct alignas(16) Four { unsigned at[4]; };
struct Tokens { const ELEMENT* at[COLUMN_TILES]; };  // of the lane's columns; null: none
struct Sums {
  float at[TILES][COLUMN_TILES][4];
  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int i = 0; i < COLUMN_TILES * 4; i++) at[m][i / 4][i % 4] = 0.f;
  }
};

// Rows of an expert's matrix [.., columns]: row r of tile m is first + m TILE_ROWS + r % 8, and
// `far` further from r = 8 on: gate and up of the same 8, or 16 side by side.
struct Matrix {
  const unsigned char *weights, *scales;
  int columns, far;
  __device__ long long row(const int first, const int m, const int r) const {
    return first + m * TILE_ROWS + r % 8 + r / 8 * far;
  }
};

// Where 16 bytes of a row lie in a tile.
__device__ inline int swizzled(const int row, const int piece) {
  return row * STEP_BYTES + (piece ^ (row >> 1 & 3)) * 16;
}

__device__ inline Four load_tokens(const ELEMENT* row, const int k) {
  if (!row) return Four{};
  const uint4 bits = __ldg(reinterpret_cast<const uint4*>(row + k));
  return Four{{bits.x, bits.y, bits.z, bits.w}};
}
"""

_BF16 = r"""
struct Bf16 {
  static constexpr int STEP = 32, SCALE_BYTES = 0;  // k of a step; of a tile
  static constexpr bool WHOLE = true;               // no step goes past the last k
  __device__ static long long bytes(const int columns) { return 2 * columns; }
  template <class Place>
  __device__ static void copy_scales(const Place, const Matrix&, int, int) {}

  template <class Place>
  __device__ static void add(Sums& sums, const Place stage, const Tokens& tokens, const int step,
                             const int count, const Matrix&, int) {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    Four upper[TILES], lower[TILES];
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      upper[m] = SHARED_AS(Four, stage + m * TILE_BYTES + swizzled(g, p))[0];
      lower[m] = SHARED_AS(Four, stage + m * TILE_BYTES + swizzled(g + 8, p))[0];
    }
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
      if (n && n * 8 >= count) break;
      const Four x = load_tokens(tokens.at[n], step * STEP + 8 * p);
#pragma unroll
      for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const unsigned a[4] = {upper[m].at[i], lower[m].at[i], upper[m].at[i + 1],
                                 lower[m].at[i + 1]};
          mma_16x8x16(sums.at[m][n], a, x.at[i], x.at[i + 1], sums.at[m][n]);
        }
    }
  }
};
"""

_FP8 = r"""
struct Fp8 {
  static constexpr int STEP = 64, SCALE_BYTES = 16, BLOCK = 128;
  static constexpr bool WHOLE = true;
  __device__ static long long bytes(const int columns) { return columns; }
  template <class Place>
  __device__ static void copy_scales(const Place to, const Matrix& of, const int first,
                                     const int step) {
    const int m = threadIdx.x % 32 / 2, half = threadIdx.x % 2;
    if (m >= TILES) return;
    const long long block =
        of.row(first, m, 8 * half) / BLOCK * (of.columns / BLOCK) + step * STEP / BLOCK;
    __pipeline_memcpy_async(to + m * SCALE_BYTES + 4 * half, of.scales + 4 * block, 4);
  }

  // Bytes 0 and 1 of four e4m3 numbers, or 2 and 3.
  __device__ static unsigned widen(const unsigned four, const bool high) {
    const unsigned two = __byte_perm(four, 0, high ? 0x3424 : 0x1404);  // each in the upper byte
    const unsigned moved = (two & 0x80008000) | (two & 0x7F007F00) >> 4;
    const unsigned lift = 0x7B807B80;  // 2^120
    const __nv_bfloat162 lifted = __hmul2(reinterpret_cast<const __nv_bfloat162&>(moved),
                                          reinterpret_cast<const __nv_bfloat162&>(lift));
    return reinterpret_cast<const unsigned&>(lifted);
  }

  template <class Place>
  __device__ static void add(Sums& sums, const Place stage, const Tokens& tokens, const int step,
                             const int count, const Matrix&, int) {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    unsigned a[TILES][4][4];
    float scales[TILES][2];
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const Four bits = SHARED_AS(Four, stage + m * TILE_BYTES + swizzled(g + 8 * half, p))[0];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          a[m][i][half] = widen(bits.at[i], false);
          a[m][i][half + 2] = widen(bits.at[i], true);
        }
        scales[m][half] =
            SHARED_AS(float, stage + TILES * TILE_BYTES + m * SCALE_BYTES)[half];
      }
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
      if (n && n * 8 >= count) break;
      const Four x[2] = {load_tokens(tokens.at[n], step * STEP + 16 * p),
                         load_tokens(tokens.at[n], step * STEP + 16 * p + 8)};
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        float part[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++)
          mma_16x8x16(part, a[m][i], x[i / 2].at[i % 2 * 2], x[i / 2].at[i % 2 * 2 + 1], part);
#pragma unroll
        for (int i = 0; i < 4; i++) sums.at[m][n][i] += scales[m][i / 2] * part[i];
      }
    }
  }
};
"""

_INT4 = r"""
template <bool ORDERED>
struct Int4 {
  static constexpr int GROUP = 32, STEP = 128;
  // Of the 4 groups of a row: where rows of scales begin at no multiple of 8 bytes, the words of 4
  // bytes around them.
  static constexpr bool WHOLE = WHOLE_STEPS;
  static constexpr int ROW_SCALE_BYTES = WHOLE ? 8 : 16, SCALE_BYTES = 16 * ROW_SCALE_BYTES;
  __device__ static long long bytes(const int columns) { return columns / 2; }

  template <class Place>
  __device__ static void copy_scales(const Place to, const Matrix& of, const int first,
                                     const int step) {
    const int m = threadIdx.x % 32 / 16, r = threadIdx.x % 16;
    if (m >= TILES) return;
    const auto place = to + (m * 16 + r) * ROW_SCALE_BYTES;
    const int row_bytes = of.columns / GROUP * 2;
    const unsigned char* const from = of.scales + of.row(first, m, r) * row_bytes + 8 * step;
    if (WHOLE) {
      __pipeline_memcpy_async(place, from, 8);
      return;
    }
    const int past = offset(of, first, m, r, step);
#pragma unroll
    for (int i = 0; i < 3; i++)
      if (4 * i - past < row_bytes - 8 * step)
        __pipeline_memcpy_async(place + 4 * i, from - past + 4 * i, 4);
  }

  // Bytes from the word before the scales of a row and step to the scales.
  __device__ static int offset(const Matrix& of, const int first, const int m, const int r,
                               const int step) {
    return int(of.row(first, m, r) * (of.columns / GROUP) & 1) * 2;
  }

  // Nibbles `pair` and `pair` + 4, 128 too much each.
  __device__ static unsigned unpack(const unsigned word, const int pair) {
    return (word >> 4 * pair & 0x000F000F) | 0x43004300;
  }

  template <class Place>
  __device__ static void add(Sums& sums, const Place stage, const Tokens& tokens, const int step,
                             const int count, const Matrix& of, const int first) {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    const int left = of.columns - step * STEP;  // k from this step on
    Two scales[TILES][2];
    Four near[4];  // of the first columns
#pragma unroll
    for (int n = 0; n < 4; n++)
      near[n] = WHOLE || n * GROUP < left
                    ? load_tokens(tokens.at[0], step * STEP + n * GROUP + 8 * p)
                    : Four{};
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int r = g + 8 * half;
        const auto place = stage + TILES * TILE_BYTES + (m * 16 + r) * ROW_SCALE_BYTES;
        if (WHOLE) {
          scales[m][half] = SHARED_AS(Two, place)[0];
          continue;
        }
        const int past = offset(of, first, m, r, step) / 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const unsigned one =
              i * GROUP < left ? SHARED_AS(unsigned short, place)[past + i] : 0;
          scales[m][half].at[i / 2] = i % 2 ? scales[m][half].at[i / 2] | one << 16 : one;
        }
      }
#pragma unroll
    for (int group = 0; group < 4; group++) {
      unsigned a[TILES][2][4];
#pragma unroll
      for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const unsigned word = SHARED_AS(
              unsigned, stage + m * TILE_BYTES + swizzled(g + 8 * half, group))[p];
#pragma unroll
          for (int i = 0; i < 4; i++) a[m][i / 2][half + i % 2 * 2] = unpack(word, i);
        }
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; n++) {
        if (n && n * 8 >= count) break;
        Four x = near[group];
        if (n)
          x = WHOLE || group * GROUP < left
                  ? load_tokens(tokens.at[n], step * STEP + group * GROUP + 8 * p)
                  : Four{};
        if (!ORDERED)
          x = {{__byte_perm(x.at[0], x.at[2], 0x5410), __byte_perm(x.at[0], x.at[2], 0x7632),
                __byte_perm(x.at[1], x.at[3], 0x5410), __byte_perm(x.at[1], x.at[3], 0x7632)}};
        const unsigned less[4] = {0xC308C308, 0xC308C308, 0xC308C308, 0xC308C308};  // -136
        float begin[4] = {};
        mma_16x8x16(begin, less, x.at[0], x.at[1], begin);
        mma_16x8x16(begin, less, x.at[2], x.at[3], begin);
#pragma unroll
        for (int m = 0; m < TILES; m++) {
          float part[4];
          mma_16x8x16(part, a[m][0], x.at[0], x.at[1], begin);
          mma_16x8x16(part, a[m][1], x.at[2], x.at[3], part);
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const unsigned two = scales[m][i / 2].at[group / 2];
            const float scale = __uint_as_float(group % 2 ? two & 0xFFFF0000 : two << 16);
            sums.at[m][n][i] += scale * part[i];
          }
        }
      }
    }
  }
};
"""

_WALK = r"""
// Steps of rows from `first` on: what is copied next, and where it ends.
struct Steps { Matrix of; int first, step, stride, last; };

template <class Format>
constexpr int STAGE_BYTES = TILES * (TILE_BYTES + Format::SCALE_BYTES);

template <class Format, class Place>
__device__ inline void copy_step(const Place stage, const Steps& it) {
  const int r = threadIdx.x % 32 / 4, piece = threadIdx.x % 4;
  const long long row_bytes = Format::bytes(it.of.columns);
  const int at = it.step * STEP_BYTES + piece * 16;
  if (Format::WHOLE || at < row_bytes)
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        __pipeline_memcpy_async(
            stage + m * TILE_BYTES + swizzled(r + 8 * half, piece),
            it.of.weights + it.of.row(it.first, m, r + 8 * half) * row_bytes + at, 16);
  Format::copy_scales(stage + TILES * TILE_BYTES, it.of, it.first, it.step);
}

// Copies all steps that `next` names, one range after the other, and gives each to `use` when it
// is there. All lanes of a warp, and nothing is under way at the end.
template <class Format, class Place, class Next, class Use>
__device__ inline void walk(const Place ring, const Next next, const Use use) {
  Steps it;
  it.step = it.last = 0;
  bool more = true;
  int copied = 0, filled = 0, stage = 0;
  const auto copy = [&] {
    if (more && it.step >= it.last) more = next(it);
    if (more) {
      copy_step<Format>(ring + filled * STAGE_BYTES<Format>, it);
      it.step += it.stride;
      copied++;
      filled = filled + 1 == STAGES ? 0 : filled + 1;
    }
    __pipeline_commit();  // one that is empty counts too
  };
#pragma unroll
  for (int i = 1; i < STAGES; i++) copy();
  for (int used = 0;; used++) {
    __pipeline_wait_prior(STAGES - 2);
    __syncwarp();  // all lanes' copies are there, and the stage before is no longer read
    copy();
    if (used == copied) break;
    use(ring + stage * STAGE_BYTES<Format>);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
}
"""

PRODUCT = (
    "#include <cuda_bf16.h>\n#include <cuda_pipeline_primitives.h>\n"
    + MMA
    + _TILES
    + _BF16
    + _FP8
    + _INT4
    + _WALK
)
