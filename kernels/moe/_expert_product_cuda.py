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
constexpr int COLUMNS = 8 * COLUMN_TILES;
constexpr int STEP_BYTES = 64, TILE_BYTES = 16 * STEP_BYTES;
constexpr int TILE_ROWS = PAIRED ? 8 : 16;  // from one tile to the next
struct alignas(8) Two { unsigned at[2]; };
struct alignas(16) Four { unsigned at[4]; };
struct Tokens { const ELEMENT* at[COLUMN_TILES]; };  // of the lane's columns
struct Sums {
  float at[TILES][COLUMN_TILES][4];
  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int i = 0; i < COLUMN_TILES * 4; i++) at[m][i / 4][i % 4] = 0.f;
  }
};

// An expert's rows [.., columns]. Of a warp's tile m row r is first + m TILE_ROWS + r % 8, and
// `far` further from r = 8 on: gate and up of the same 8, or 16 side by side.
struct Matrix {
  const unsigned char *weights, *scales;
  int columns, far;
  __device__ long long row(const int first, const int m, const int r) const {
    return first + m * TILE_ROWS + r % 8 + r / 8 * far;
  }
};

// Steps of a matrix's rows that are to be copied, as a lane sees them.
struct Steps {
  const unsigned char *weights, *scales;  // of its rows at step 0
  long long far_bytes, tile_bytes;        // to the row 8 further, and to the next tile
  int columns, next, stride, left;
};

// Where the 16 bytes `piece` of a row lie in a tile. Row 8 further lies 8 rows further, and
// another piece is at an exclusive or of 16 bytes.
__device__ inline int swizzled(const int row, const int piece) {
  return row * STEP_BYTES + (piece ^ (row >> 1 & 3)) * 16;
}

__device__ inline Four load_tokens(const ELEMENT* from) {
  const uint4 bits = __ldg(reinterpret_cast<const uint4*>(from));
  return {{bits.x, bits.y, bits.z, bits.w}};
}
"""

_BF16 = r"""
struct Bf16 {
  static constexpr int STEP = 32, SCALE_BYTES = 0;  // k of a step; of a tile
  static constexpr int LANE = 8;                    // k of a lane, side by side
  static constexpr bool WHOLE = true;               // no step goes past the last k
  __device__ static long long bytes(const int columns) { return 2LL * columns; }
  __device__ static const unsigned char* scales(const Matrix& of, int) { return of.weights; }
  template <class Memory>
  __device__ static void copy_scales(const Memory, int, const Steps&) {}

  template <class Memory>
  __device__ static void add(Sums& sums, const Memory memory, const int stage,
                             const Tokens& tokens, const int step, const int count, int) {
    const int lane = threadIdx.x % 32, at = stage + swizzled(lane / 4, lane % 4);
    Four upper[TILES], lower[TILES];
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      upper[m] = SHARED_AS(Four, memory + at + m * TILE_BYTES)[0];
      lower[m] = SHARED_AS(Four, memory + at + m * TILE_BYTES + 8 * STEP_BYTES)[0];
    }
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
      if (n && n * 8 >= count) break;
      const Four x = load_tokens(tokens.at[n] + step * STEP);
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
  static constexpr int STEP = 64, SCALE_BYTES = 16, LANE = 16, BLOCK = 128;
  static constexpr bool WHOLE = true;
  __device__ static long long bytes(const int columns) { return columns; }

  // Lanes 2 m and 2 m + 1 bring those of both halves of tile m.
  __device__ static const unsigned char* scales(const Matrix& of, const int first) {
    const int lane = threadIdx.x % 32;
    return of.scales + of.row(first, lane / 2, lane % 2 * 8) / BLOCK * (of.columns / BLOCK) * 4;
  }
  template <class Memory>
  __device__ static void copy_scales(const Memory memory, const int to, const Steps& from) {
    const int lane = threadIdx.x % 32;
    if (lane < 2 * TILES)
      __pipeline_memcpy_async(memory + to + lane / 2 * SCALE_BYTES + lane % 2 * 4,
                              from.scales + from.next * STEP / BLOCK * 4, 4);
  }

  // Bytes 0 and 1 of four e4m3 numbers, or 2 and 3.
  __device__ static unsigned widen(const unsigned four, const bool high) {
    const unsigned two = __byte_perm(four, 0, high ? 0x3424 : 0x1404);  // each in the upper byte
    const unsigned moved = masked_or(two, 0x80008000, two >> 4 & 0x07F007F0);
    const unsigned lift = 0x7B807B80;  // 2^120
    const __nv_bfloat162 lifted = __hmul2(reinterpret_cast<const __nv_bfloat162&>(moved),
                                          reinterpret_cast<const __nv_bfloat162&>(lift));
    return reinterpret_cast<const unsigned&>(lifted);
  }

  template <class Memory>
  __device__ static void add(Sums& sums, const Memory memory, const int stage,
                             const Tokens& tokens, const int step, const int count, int) {
    const int lane = threadIdx.x % 32, at = stage + swizzled(lane / 4, lane % 4);
    unsigned a[TILES][4][4];
    Two scales[TILES];
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      scales[m] =
          SHARED_AS(Two, memory + stage + TILES * TILE_BYTES + m * SCALE_BYTES)[0];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const Four bits =
            SHARED_AS(Four, memory + at + m * TILE_BYTES + half * 8 * STEP_BYTES)[0];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          a[m][i][half] = widen(bits.at[i], false);
          a[m][i][half + 2] = widen(bits.at[i], true);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
      if (n && n * 8 >= count) break;
      const Four x[2] = {load_tokens(tokens.at[n] + step * STEP),
                         load_tokens(tokens.at[n] + step * STEP + 8)};
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        float part[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++)
          mma_16x8x16(part, a[m][i], x[i / 2].at[i % 2 * 2], x[i / 2].at[i % 2 * 2 + 1], part);
#pragma unroll
        for (int i = 0; i < 4; i++)
          sums.at[m][n][i] += __uint_as_float(scales[m].at[i / 2]) * part[i];
      }
    }
  }
};
"""

_INT4 = r"""
template <bool ORDERED>
struct Int4 {
  static constexpr int GROUP = 32, STEP = 4 * GROUP, LANE = 8;
  static constexpr bool WHOLE = WHOLE_STEPS;
  // Four scales a row and step. Where rows of scales begin at no multiple of 8 bytes, the words of
  // 4 bytes that they lie in.
  static constexpr int ROW_SCALE_BYTES = WHOLE ? 8 : 16, SCALE_BYTES = 16 * ROW_SCALE_BYTES;
  __device__ static long long bytes(const int columns) { return columns / 2; }

  // Lane 16 m + r brings those of row r of tile m.
  __device__ static const unsigned char* scales(const Matrix& of, const int first) {
    const int lane = threadIdx.x % 32;
    return of.scales + of.row(first, lane / 16, lane % 16) * (of.columns / GROUP) * 2;
  }
  // How many bytes past a word the scales of row r begin: its parity is that of the matrix's row.
  __device__ static int past_word(const int r, const int columns) {
    return 2 * (r & columns / GROUP & 1);
  }
  template <class Memory>
  __device__ static void copy_scales(const Memory memory, const int to, const Steps& from) {
    const int lane = threadIdx.x % 32, place = to + lane * ROW_SCALE_BYTES;
    if (lane >= 16 * TILES) return;
    if (WHOLE) {
      __pipeline_memcpy_async(memory + place, from.scales + from.next * 8, 8);
      return;
    }
    const int past = past_word(lane, from.columns);
    const int end = from.columns / GROUP * 2 - from.next * 8;  // of the row
#pragma unroll
    for (int i = 0; i < 12; i += 4)
      if (i - past < end)
        __pipeline_memcpy_async(memory + place + i, from.scales + from.next * 8 - past + i, 4);
  }
  // Those of a row's four groups, two a word; 0 past the last one.
  template <class Memory>
  __device__ static Two scales_of(const Memory memory, const int place, const int r, const int left,
                                  const int columns) {
    if (WHOLE) return SHARED_AS(Two, memory + place)[0];
    const int past = past_word(r, columns) / 2;
    unsigned scale[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      scale[i] = i * GROUP < left ? SHARED_AS(unsigned short, memory + place)[past + i] : 0;
    return {{scale[0] | scale[1] << 16, scale[2] | scale[3] << 16}};
  }

  // 32 tokens' k of a lane, from 8 p on; none past the last k.
  __device__ static Four tokens_of_group(const ELEMENT* from, const int group, const int left) {
    if (!WHOLE && group * GROUP >= left) return Four{};
    const Four x = load_tokens(from + group * GROUP);
    if (ORDERED) return x;
    return {{__byte_perm(x.at[0], x.at[2], 0x5410), __byte_perm(x.at[0], x.at[2], 0x7632),
             __byte_perm(x.at[1], x.at[3], 0x5410), __byte_perm(x.at[1], x.at[3], 0x7632)}};
  }

  template <class Memory>
  __device__ static void add(Sums& sums, const Memory memory, const int stage,
                             const Tokens& tokens, const int step, const int count,
                             const int columns) {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    const int at = stage + swizzled(g, 0) + 4 * p, left = columns - step * STEP;
    // Of the first columns all groups are loaded at once, where registers are left for them.
    constexpr bool EARLY = TILES * COLUMN_TILES <= 2;
    Four first[4];
    Two scales[TILES][2];
#pragma unroll
    for (int group = 0; group < 4 && EARLY; group++)
      first[group] = tokens_of_group(tokens.at[0] + step * STEP, group, left);
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        scales[m][half] = scales_of(
            memory,
            stage + TILES * TILE_BYTES + m * SCALE_BYTES + (g + 8 * half) * ROW_SCALE_BYTES,
            g, left, columns);
#pragma unroll
    for (int group = 0; group < 4; group++) {
      unsigned a[TILES][2][4];
#pragma unroll
      for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const unsigned word = SHARED_AS(
              unsigned, memory + (at ^ group * 16) + m * TILE_BYTES + half * 8 * STEP_BYTES)[0];
#pragma unroll
          for (int i = 0; i < 4; i++)  // nibbles i and i + 4, 128 too much each
            a[m][i / 2][half + i % 2 * 2] = masked_or(word >> 4 * i, 0x000F000F, 0x43004300);
        }
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; n++) {
        if (n && n * 8 >= count) break;
        const Four x = EARLY && n == 0
                           ? first[group]
                           : tokens_of_group(tokens.at[n] + step * STEP, group, left);
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
template <class Format>
constexpr int STAGE_BYTES = TILES * (TILE_BYTES + Format::SCALE_BYTES);

__device__ inline int steps_left(const int steps, const int begin, const int stride) {
  return begin < steps ? (steps - begin + stride - 1) / stride : 0;
}
template <class Format>
__device__ inline int steps_of(const int columns) {
  return (columns + Format::STEP - 1) / Format::STEP;
}

// Every stride-th step of a matrix's rows from `first` on, the step `begin` the first.
template <class Format>
__device__ inline Steps steps_of(const Matrix& of, const int first, const int begin,
                                 const int stride) {
  const int lane = threadIdx.x % 32;
  const long long bytes = Format::bytes(of.columns);
  return {of.weights + of.row(first, 0, lane / 4) * bytes + lane % 4 * 16,
          Format::scales(of, first),
          of.far * bytes,
          TILE_ROWS * bytes,
          of.columns,
          begin,
          stride,
          steps_left(steps_of<Format>(of.columns), begin, stride)};
}

template <class Format, class Memory>
__device__ inline void copy_step(const Memory memory, const int stage, const Steps& from) {
  const int r = threadIdx.x % 32 / 4, piece = threadIdx.x % 4;
  const unsigned char* const step = from.weights + from.next * STEP_BYTES;
  if (Format::WHOLE || from.next * STEP_BYTES + piece * 16 < Format::bytes(from.columns))
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        __pipeline_memcpy_async(
            memory + stage + swizzled(r, piece) + m * TILE_BYTES + half * 8 * STEP_BYTES,
            step + m * from.tile_bytes + half * from.far_bytes, 16);
  Format::copy_scales(memory, stage + TILES * TILE_BYTES, from);
}

// Copies `from` into the ring, and what `next` makes of it when none are left, and gives the place
// of each step to `use` when it is there. All lanes of a warp; nothing is under way at the end.
template <class Format, class Memory, class Next, class Use>
__device__ inline void walk(const Memory memory, const int ring, Steps from, const Next next,
                            const Use use) {
  constexpr int ALL = STAGES * STAGE_BYTES<Format>;
  int copied = 0, used = 0, filled = ring, stage = ring;
  const auto copy = [&] {
    if (!from.left) next(from);
    if (from.left) {
      copy_step<Format>(memory, filled, from);
      from.next += from.stride;
      from.left--;
      copied++;
      filled = filled + STAGE_BYTES<Format> == ring + ALL ? ring : filled + STAGE_BYTES<Format>;
    }
    __pipeline_commit();  // one that is empty counts too
  };
#pragma unroll
  for (int i = 1; i < STAGES; i++) copy();
  while (true) {
    __pipeline_wait_prior(STAGES - 2);
    __syncwarp();  // all lanes' copies are there, and the stage before is no longer read
    copy();
    if (used == copied) break;
    use(stage);
    used++;
    stage = stage + STAGE_BYTES<Format> == ring + ALL ? ring : stage + STAGE_BYTES<Format>;
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
