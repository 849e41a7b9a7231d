"""`tree_attention` in CUDA C++ through CuPy, without tensor cores: for up to 8 rows a key head.

A block of four warps takes one key head of one request, one part of its keys, and up to 8 of the
T x group rows that share them. 16 bytes of a key are a lane's: head_dim / 8 lanes read a key, half
as many of an fp8 one, so that a warp reads 512 bytes at once; each lane keeps its dims of all the
rows' queries and sums in registers, and goes through its keys with an online softmax, without a
barrier. What the lanes and warps found is merged in shared memory once, at the end, and the parts
by a second kernel (natural LSE).

Per key and row that is 4 * head_dim flops on the plain FMA units: fast enough for DRAM with 8 rows
(plain decode and short verifies of grouped heads). More rows are `cupy`'s, which has tensor cores.

Lengths, trees and page ids are read on the device. Keys and values need 16-byte alignment.
"""

from typing import Any

from kernels import Case, Needs, Outputs, Prepared
from kernels.attention import _tree_attention_cuda as cuda
from kernels.attention._split_plan import Plan
from kernels.attention._tiles import Tile
from kernels.attention._tree_attention_plan import prepare
from kernels.attention.tree_attention import OP, Given, Shape

_MOST_ROWS = 8
_WARPS = 4
_BLOCKS_PER_SM = 2  # about 200 registers a thread with 8 rows

_BODY = (
    f"""
extern "C" __global__ void __launch_bounds__(THREADS) attend_part({cuda.PARAMETERS}) {{
  const Work work = {cuda.WORK_OF_BLOCK};
"""
    + """
  constexpr int LANES = DIM / VECTOR;          // of a key
  constexpr int AT_ONCE = THREADS / LANES;     // keys that the block reads at once
  constexpr int UNROLLED = KEYS / AT_ONCE;     // of them a thread
  SHARED_ARRAY(float, sums, AT_ONCE * ROWS * DIM);
  SHARED_ARRAY(float, tops, AT_ONCE * ROWS);
  SHARED_ARRAY(float, totals, AT_ONCE * ROWS);
  const float minus_infinity = __int_as_float(0xff800000);
  const int mine = threadIdx.x / LANES, piece = threadIdx.x % LANES;  // which key, which dims
  const int prefix = work.prefix, first = work.first, last = work.last;

  // 16 bytes of a cache as floats.
  const auto widen = [](const uint4 bits, float (&to)[VECTOR]) {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < VECTOR / 2; i++) {
#if FP8
      const float2 two = __half22float2(widen_fp8(words[i / 2], i % 2));
#else
      const float2 two = WIDEN(reinterpret_cast<const PAIR&>(words[i]));
#endif
      to[2 * i] = two.x;
      to[2 * i + 1] = two.y;
    }
  };

  float query[ROWS][VECTOR], sum[ROWS][VECTOR] = {}, top[ROWS], total[ROWS];
  int word[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const int token = work.token(r);
    word[r] = token < 0 ? 0 : mask_words[work.request * tokens + token];
    const PAIR* const from =
        reinterpret_cast<const PAIR*>(q + (token < 0 ? 0 : work.place(r)) * DIM + piece * VECTOR);
#pragma unroll
    for (int i = 0; i < VECTOR / 2; i++) {
      const float2 two = WIDEN(from[i]);
      query[r][2 * i] = token < 0 ? 0.f : two.x * scale_log2;
      query[r][2 * i + 1] = token < 0 ? 0.f : two.y * scale_log2;
    }
    top[r] = minus_infinity;
    total[r] = 0.f;
  }

  const int* const pages = page_table + (long long)work.request * width;
  k += work.kv_head * stride_kh + piece * VECTOR;
  v += work.kv_head * stride_vh + piece * VECTOR;
  int page[UNROLLED];
#pragma unroll
  for (int u = 0; u < UNROLLED; u++) {
    const int key = first + u * AT_ONCE + mine;
    page[u] = key < last ? __ldg(pages + key / PAGE) : 0;
  }
  for (int start = first; start < last; start += KEYS) {
    uint4 key_bits[UNROLLED], value_bits[UNROLLED];
#pragma unroll
    for (int u = 0; u < UNROLLED; u++) {
      const int key = start + u * AT_ONCE + mine;
      key_bits[u] = value_bits[u] = make_uint4(0, 0, 0, 0);
      if (key < last) {
        const long long at = page[u], slot = key % PAGE;
        key_bits[u] =
            __ldg(reinterpret_cast<const uint4*>(k + at * stride_kp + slot * stride_ks));
        value_bits[u] =
            __ldg(reinterpret_cast<const uint4*>(v + at * stride_vp + slot * stride_vs));
      }
    }
    // The next keys' pages are on their way before these keys arrive.
#pragma unroll
    for (int u = 0; u < UNROLLED; u++) {
      const int key = start + KEYS + u * AT_ONCE + mine;
      page[u] = key < last ? __ldg(pages + key / PAGE) : 0;
    }

    float score[UNROLLED][ROWS];
#pragma unroll
    for (int u = 0; u < UNROLLED; u++) {
      float element[VECTOR];
      widen(key_bits[u], element);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        score[u][r] = 0.f;
#pragma unroll
        for (int d = 0; d < VECTOR; d++) score[u][r] += query[r][d] * element[d];
      }
    }
#pragma unroll
    for (int step = LANES / 2; step; step /= 2)
#pragma unroll
      for (int u = 0; u < UNROLLED; u++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) score[u][r] += __shfl_xor_sync(~0u, score[u][r], step);

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float new_top = top[r];
#pragma unroll
      for (int u = 0; u < UNROLLED; u++) {
        const int key = start + u * AT_ONCE + mine, draft = key - prefix;
        const bool seen = key < last && (draft < 0 || (word[r] >> draft & 1));
        if (!seen) score[u][r] = minus_infinity;
        new_top = fmaxf(new_top, score[u][r]);
      }
      const float shift = shift_of(new_top);
      const float kept = exp2f(top[r] - shift);
      top[r] = new_top;
      total[r] *= kept;
#pragma unroll
      for (int d = 0; d < VECTOR; d++) sum[r][d] *= kept;
#pragma unroll
      for (int u = 0; u < UNROLLED; u++) total[r] += score[u][r] = exp2f(score[u][r] - shift);
    }
#pragma unroll
    for (int u = 0; u < UNROLLED; u++) {
      float element[VECTOR];
      widen(value_bits[u], element);
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int d = 0; d < VECTOR; d++) sum[r][d] += score[u][r] * element[d];
    }
  }

#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    // Dim VECTOR * piece + d lies at d * LANES + piece: neighbours write to different banks.
#pragma unroll
    for (int d = 0; d < VECTOR; d++)
      sums[(mine * ROWS + r) * DIM + d * LANES + piece] = sum[r][d];
    if (piece == 0) {
      tops[mine * ROWS + r] = top[r];
      totals[mine * ROWS + r] = total[r];
    }
  }
  __syncthreads();
  for (int n = threadIdx.x; n < ROWS * DIM; n += THREADS) {
    const int r = n / DIM, dim = n % DIM;
    if (work.token(r) < 0) continue;
    float best = minus_infinity, all = 0.f, value = 0.f;
    for (int i = 0; i < AT_ONCE; i++) best = fmaxf(best, tops[i * ROWS + r]);
    const float shift = shift_of(best);
    for (int i = 0; i < AT_ONCE; i++) {
      const float weight = exp2f(tops[i * ROWS + r] - shift);
      all += weight * totals[i * ROWS + r];
      value += weight * sums[(i * ROWS + r) * DIM + dim % VECTOR * LANES + dim / VECTOR];
    }
    const long long at = work.place(r) * work.splits + work.split;
    // An empty part leaves its sums unwritten: the merge knows it by its LSE. NaN is no empty one.
    if (first < work.keys || work.splits == 1)
      out[at * DIM + dim] = STORE(all == 0.f ? 0.f : value * (v_scale / all));
    if (dim == 0) lse[at] = lse_of(best, all);
  }
}
"""
)


def tile_for(shape: Shape, *, cache_bytes: int) -> Tile:
    """Choose few rows for plain decode, whose lanes then load more keys at once.

    fp8 gives a lane 16 dims instead of 8, whose registers are enough for 4 rows; more take two
    blocks.
    """
    few = shape.form("verify").rows <= 4 or cache_bytes == 1
    lanes = max(1, shape.head_dim * cache_bytes // 16)
    loads = 4 if few and cache_bytes == 2 else 2
    return Tile(
        rows=4 if few else 8,
        keys=32 * _WARPS // lanes * loads,
        warps=_WARPS,
        blocks_per_sm=_BLOCKS_PER_SM,
    )


def _refuses(case: Case) -> str | None:
    rows = case.number("rows") * case.number("q_heads") // case.number("kv_heads")
    if rows > _MOST_ROWS:
        return f"{rows} rows share a key head; beyond {_MOST_ROWS} take 'cupy', on tensor cores"
    return cuda.refuses(case)


@OP.prepared_implementation(
    "cupy_fma",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",), refuses=_refuses),
    declares=("wide_load",),
    mode="verify",
)
def cupy_fma_attention(**inputs: Any) -> Prepared:
    """Choose rows and splits by the shapes; a call allocates its outputs and launches."""
    given = Given(**inputs)
    cuda.check_alignment(given)
    tile = tile_for(given.shape, cache_bytes=given.k_cache.element_size())
    return prepare(given, "verify", tile=tile, attend=attend)


def attend(given: Given, plan: Plan) -> Outputs:
    """Launch by this plan, whatever the shape would choose."""
    return cuda.attend(given, plan, body=_BODY)
