"""`tree_attention` in CUDA C++ through CuPy, without tensor cores.

A block of four warps takes one key head of one request, one part of its keys, and up to 8 of the
T x group rows that share them. head_dim / 8 lanes read a key with one 16-byte load each, so that a
warp reads 512 bytes at once; each lane keeps 8 dims of all the rows' queries and sums in registers,
and goes through its keys with an online softmax, without a barrier. What the lanes and warps found
is merged in shared memory once, at the end, and the parts by a second kernel (natural LSE).

Per key and row that is 4 * head_dim flops on the plain FMA units: fast enough for DRAM with 8 rows
(plain decode and short verifies of grouped heads). With more, the row tiles of one part run side by
side and find each other's keys in L2, and arithmetic decides; that is what tensor cores are for.

Lengths, trees and page ids are read on the device. Keys and values need 16-byte alignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from kernels import Case, Needs, Outputs, Prepared
from kernels._merge_cupy import merge
from kernels._raw import RawKernel
from kernels._splits import sm_count, split_count
from kernels.tree_attention import OP, Given, Shape

_LOG2_E = 1.4426950408889634
_WARPS = 4
_BLOCKS_PER_SM = 2  # about 200 registers a thread with 8 rows
_HEAD_DIMS = (16, 32, 64, 128, 256)
_ALIGNED_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rows a block, keys that a lane loads at once, parts of the keys, the least keys of a part."""

    rows: int
    at_once: int
    splits: int
    least_keys: int


_PREAMBLE = {
    torch.bfloat16: """
#include <cuda_bf16.h>
#define ELEMENT __nv_bfloat16
#define PAIR __nv_bfloat162
#define WIDEN __bfloat1622float2
#define NARROW __float2bfloat16
""",
    torch.float16: """
#include <cuda_fp16.h>
#define ELEMENT __half
#define PAIR __half2
#define WIDEN __half22float2
#define NARROW __float2half
""",
}

_ATTEND = """
constexpr int WARPS = 4, LANES = DIM / 8;  // lanes a key
constexpr int KEYS = 32 / LANES * WARPS;   // keys that the block reads at once

// 16 bytes to 8 floats, times `by`.
__device__ inline void widen(const uint4 bits, const float by, float (&to)[8]) {
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 two = WIDEN(reinterpret_cast<const PAIR&>(words[i]));
    to[2 * i] = two.x * by;
    to[2 * i + 1] = two.y * by;
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) attend_part(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const int* page_table,
    const int* prefix_lens, const int* mask_words, OUT* out, float* lse,
    const long long stride_kp, const long long stride_ks, const long long stride_kh,
    const long long stride_vp, const long long stride_vs, const long long stride_vh,
    const int tokens, const int kv_heads, const int group, const int width, const int least_keys,
    const float scale_log2) {
  SHARED_ARRAY(float, sums, KEYS * ROWS * DIM);
  SHARED_ARRAY(float, tops, KEYS * ROWS);
  SHARED_ARRAY(float, totals, KEYS * ROWS);
  const float minus_infinity = __int_as_float(0xff800000);
  const int mine = threadIdx.x / LANES, piece = threadIdx.x % LANES;  // which key, which 8 dims
  const int tiles = (tokens * group + ROWS - 1) / ROWS;
  const int tile = blockIdx.x % tiles, kv_head = blockIdx.x / tiles;
  const int split = blockIdx.y, splits = gridDim.y, request = blockIdx.z;
  const int prefix = prefix_lens[request];
  const int keys = min(prefix + tokens, width * PAGE);
  const int part = max(least_keys, (keys + splits - 1) / splits);
  const int first = split * part, last = min(first + part, keys);

  // The row's place in q and out, or -1 behind the last row.
  const auto place = [&](const int r) -> long long {
    const int row = tile * ROWS + r, token = row / group;
    if (token >= tokens) return -1;
    const long long at = (long long)request * tokens + token;
    return (at * kv_heads + kv_head) * group + row % group;
  };

  float query[ROWS][8], sum[ROWS][8] = {}, top[ROWS], total[ROWS];
  int word[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const long long at = place(r);
    uint4 bits = make_uint4(0, 0, 0, 0);
    word[r] = 0;
    if (at >= 0) {
      bits = *reinterpret_cast<const uint4*>(q + at * DIM + piece * 8);
      word[r] = mask_words[request * tokens + (tile * ROWS + r) / group];
    }
    widen(bits, scale_log2, query[r]);
    top[r] = minus_infinity;
    total[r] = 0.f;
  }

  const int* const pages = page_table + (long long)request * width;
  k += kv_head * stride_kh + piece * 8;
  v += kv_head * stride_vh + piece * 8;
  int page[AT_ONCE];
#pragma unroll
  for (int u = 0; u < AT_ONCE; u++) {
    const int key = first + u * KEYS + mine;
    page[u] = key < last ? __ldg(pages + key / PAGE) : 0;
  }
  for (int start = first; start < last; start += AT_ONCE * KEYS) {
    uint4 key_bits[AT_ONCE], value_bits[AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      const int key = start + u * KEYS + mine;
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
    for (int u = 0; u < AT_ONCE; u++) {
      const int key = start + (AT_ONCE + u) * KEYS + mine;
      page[u] = key < last ? __ldg(pages + key / PAGE) : 0;
    }

    float score[AT_ONCE][ROWS];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      float element[8];
      widen(key_bits[u], 1.f, element);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        score[u][r] = 0.f;
#pragma unroll
        for (int d = 0; d < 8; d++) score[u][r] += query[r][d] * element[d];
      }
    }
#pragma unroll
    for (int step = LANES / 2; step; step /= 2)
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) score[u][r] += __shfl_xor_sync(~0u, score[u][r], step);

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float new_top = top[r];
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
        const int key = start + u * KEYS + mine, draft = key - prefix;
        const bool seen = key < last && (draft < 0 || (word[r] >> draft & 1));
        if (!seen) score[u][r] = minus_infinity;
        new_top = fmaxf(new_top, score[u][r]);
      }
      // Before a row has seen a key its maximum is -inf; a shift of 0 keeps its weights 0.
      const float shift = new_top == minus_infinity ? 0.f : new_top;
      const float kept = exp2f(top[r] - shift);
      top[r] = new_top;
      total[r] *= kept;
#pragma unroll
      for (int d = 0; d < 8; d++) sum[r][d] *= kept;
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) total[r] += score[u][r] = exp2f(score[u][r] - shift);
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      float element[8];
      widen(value_bits[u], 1.f, element);
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int d = 0; d < 8; d++) sum[r][d] += score[u][r] * element[d];
    }
  }

#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    // Dim 8 * piece + d lies at d * LANES + piece: neighbours write to different banks.
#pragma unroll
    for (int d = 0; d < 8; d++)
      sums[(mine * ROWS + r) * DIM + d * LANES + piece] = sum[r][d];
    if (piece == 0) {
      tops[mine * ROWS + r] = top[r];
      totals[mine * ROWS + r] = total[r];
    }
  }
  __syncthreads();
  for (int n = threadIdx.x; n < ROWS * DIM; n += blockDim.x) {
    const int r = n / DIM, dim = n % DIM;
    const long long row = place(r);
    if (row < 0) continue;
    float best = minus_infinity, all = 0.f, value = 0.f;
    for (int i = 0; i < KEYS; i++) best = fmaxf(best, tops[i * ROWS + r]);
    const float shift = best == minus_infinity ? 0.f : best;
    for (int i = 0; i < KEYS; i++) {
      const float weight = exp2f(tops[i * ROWS + r] - shift);
      all += weight * totals[i * ROWS + r];
      value += weight * sums[(i * ROWS + r) * DIM + dim % 8 * LANES + dim / 8];
    }
    const long long at = row * splits + split;
    // An empty part leaves its sums unwritten: the merge knows it by its LSE.
    if (first < keys || splits == 1) out[at * DIM + dim] = STORE(all > 0.f ? value / all : 0.f);
    if (dim == 0) lse[at] = all > 0.f ? (best + log2f(all)) * 0.69314718f : minus_infinity;
  }
}
"""


@cache
def _attend_kernel(
    dtype: torch.dtype, *, head_dim: int, page_size: int, rows: int, at_once: int, once: bool
) -> RawKernel:
    store = ("ELEMENT", "NARROW") if once else ("float", "")
    constants = (
        f"#define DIM {head_dim}\n#define PAGE {page_size}\n#define ROWS {rows}\n"
        f"#define AT_ONCE {at_once}\n#define OUT {store[0]}\n#define STORE {store[1]}\n"
    )
    return RawKernel("attend_part", _PREAMBLE[dtype] + constants + _ATTEND)


def plan_for(shape: Shape, *, sms: int) -> Plan:
    """Choose few rows for plain decode, whose lanes then load more keys at once."""
    rows, at_once = (4, 4) if shape.form("verify").rows <= 4 else (8, 2)
    least_keys = max(64, shape.form("verify").rows)
    splits = split_count(
        blocks=shape.requests * shape.kv_heads * -(-shape.form("verify").rows // rows),
        most_keys=shape.most_keys,
        least_keys=least_keys,
        slots=sms * _BLOCKS_PER_SM,
    )
    return Plan(rows=rows, at_once=at_once, splits=splits, least_keys=least_keys)


def _refuses(case: Case) -> str | None:
    dim = case.number("head_dim")
    if dim not in _HEAD_DIMS:
        return f"head_dim is {dim}; it is built for {_HEAD_DIMS}"
    return "it does not read fp8 caches" if case.dims["kv"] == "fp8" else None


@OP.prepared_implementation(
    "cupy",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",), refuses=_refuses),
    declares=("wide_load",),
)
def cupy_attention(**inputs: Any) -> Prepared:
    """Choose rows and splits by the shapes; a call allocates its outputs and launches."""
    given = Given(**inputs)
    for name in ("q", "k_cache", "v_cache"):
        _must_be_aligned(name, getattr(given, name))
    plan = plan_for(given.shape, sms=sm_count(given.q.device))
    return Prepared(
        call=lambda: attend(given, plan=plan),
        facts={"splits": str(plan.splits), "rows": str(plan.rows), "warps": str(_WARPS)},
        launches=1 if plan.splits == 1 else 2,
    )


def attend(given: Given, *, plan: Plan) -> Outputs:
    """Launch by this plan, whatever the shape would choose."""
    shape, q, k_cache, v_cache = given.shape, given.q, given.k_cache, given.v_cache
    rows, dim = len(q) * shape.q_heads, shape.head_dim
    out = torch.empty_like(q)
    lse = torch.empty(len(q), shape.q_heads, dtype=torch.float32, device=q.device)
    once = plan.splits == 1
    part_out = out if once else lse.new_empty(rows, plan.splits, dim)
    part_lse = lse if once else lse.new_empty(rows, plan.splits)
    kernel = _attend_kernel(
        q.dtype, head_dim=dim, page_size=shape.page_size,
        rows=plan.rows, at_once=plan.at_once, once=once,
    )  # fmt: skip
    sizes = (shape.tokens, shape.kv_heads, shape.group, shape.width, plan.least_keys)
    kernel(
        (-(-shape.form("verify").rows // plan.rows) * shape.kv_heads, plan.splits, shape.requests),
        (32 * _WARPS,),
        q, k_cache, v_cache, given.page_table, given.prefix_lens, given.mask_words,
        part_out, part_lse, *k_cache.stride()[:3], *v_cache.stride()[:3],
        *map(np.int32, sizes), np.float32(given.scale * _LOG2_E),
    )  # fmt: skip
    if not once:
        merge(part_out=part_out, part_lse=part_lse, out=out, lse=lse)
    return {"out": out, "lse": lse}


def _must_be_aligned(name: str, tensor: torch.Tensor) -> None:
    strides = [step * tensor.element_size() for step in tensor.stride()[:-1]]
    if any(number % _ALIGNED_BYTES for number in (tensor.data_ptr(), *strides)):
        raise ValueError(
            f"{name} starts at an address or has strides ({strides} B) that are no multiples of "
            f"{_ALIGNED_BYTES} bytes, which its loads need: copy it"
        )
