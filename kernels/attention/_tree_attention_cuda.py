"""What both CUDA C++ kernels of `tree_attention` are made of: elements, a block's work, the call.

A block computes ROWS of the rows that a unit of the form packs (`_forms.py`), over one part
of the keys of one request and key head. Caches are read 16 bytes at a time: VECTOR elements, which
need 16-byte alignment. A kernel's own source is what `attend` is given as `body`.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from kernels import Case, Outputs
from kernels._elements_cuda import ELEMENTS, PUT
from kernels._fp8_cuda import LIFT, WIDEN_FP8
from kernels._raw import RawKernel, must_be_aligned
from kernels.attention._merge_cupy import merge
from kernels.attention._paged import FP8
from kernels.attention._softmax_cuda import SOFTMAX
from kernels.attention._split_plan import Plan, part_sums
from kernels.attention.tree_attention import Given

_LOG2_E = 1.4426950408889634
_HEAD_DIMS = (16, 32, 64, 128, 256)
PARAMETERS = """
    const ELEMENT* q, const CACHE* k, const CACHE* v, const int* page_table,
    const int* prefix_lens, const int* mask_words, OUT* out, float* lse,
    const long long stride_kp, const long long stride_ks, const long long stride_kh,
    const long long stride_vp, const long long stride_vs, const long long stride_vh,
    const int unit_tokens, const int unit_heads, const int units,
    const int tokens, const int kv_heads, const int group, const int width, const int least_keys,
    const float scale_log2, const float v_scale"""

_WORK = """
constexpr int VECTOR = 16 / sizeof(CACHE);  // elements of a 16-byte load
constexpr int THREADS = 32 * WARPS;

// Which rows and keys are a block's.
struct Work {
  int request, kv_head, unit, tile, split, splits;
  int prefix, keys, first, last;  // keys of the request, and those of this part
  int unit_tokens, unit_heads, tokens, kv_heads, group;

  // The draft token of row r, or -1 behind the last row.
  __device__ int token(const int r) const {
    const int row = tile * ROWS + r, sharing = group / unit_heads;  // units of the same tokens
    if (row >= unit_tokens * unit_heads) return -1;
    return unit / sharing * unit_tokens + row / unit_heads;
  }
  // The place of row r in q and out; only if it has a token.
  __device__ long long place(const int r) const {
    const int head = unit % (group / unit_heads) * unit_heads + (tile * ROWS + r) % unit_heads;
    return (((long long)request * tokens + token(r)) * kv_heads + kv_head) * group + head;
  }
};

__device__ inline Work work_of_block(
    const int* prefix_lens, const int unit_tokens, const int unit_heads, const int units,
    const int tokens, const int kv_heads, const int group, const int width, const int least_keys) {
  // Row tiles, units and heads of one part are neighbours: they share lines and pages.
  const int tiles = (unit_tokens * unit_heads + ROWS - 1) / ROWS;
  const int splits = gridDim.y, request = blockIdx.z;
  const int prefix = prefix_lens[request], keys = min(prefix + tokens, width * PAGE);
  const int part = max(least_keys, (keys + splits - 1) / splits), first = blockIdx.y * part;
  return {request, int(blockIdx.x / (tiles * units)), int(blockIdx.x / tiles % units),
          int(blockIdx.x % tiles), int(blockIdx.y), splits,
          prefix, keys, first, min(first + part, keys),
          unit_tokens, unit_heads, tokens, kv_heads, group};
}
"""

WORK_OF_BLOCK = (
    "work_of_block(prefix_lens, unit_tokens, unit_heads, units, tokens, kv_heads, group, width, "
    "least_keys)"
)


def refuses(case: Case) -> str | None:
    """Say why a kernel of these pieces cannot compute `case`; None if it can."""
    dim = case.number("head_dim")
    return None if dim in _HEAD_DIMS else f"head_dim is {dim}; it is built for {_HEAD_DIMS}"


def attend(given: Given, plan: Plan, *, body: str, shared_bytes: int = 0) -> Outputs:
    """Launch the kernel `attend_part` of source `body` by this plan, and merge its parts."""
    shape, form, q, caches = given.shape, plan.form, given.q, (given.k_cache, given.v_cache)
    lift = LIFT if given.k_cache.dtype == FP8 else 1.0
    out = torch.empty_like(q)
    lse = torch.empty(len(q), shape.q_heads, dtype=torch.float32, device=q.device)
    once = plan.splits == 1
    part_out, part_lse = part_sums(out, lse, splits=plan.splits)
    sizes = (
        *(form.tokens, form.heads, form.units),
        *(shape.tokens, shape.kv_heads, shape.group, shape.width, plan.least_keys),
    )
    _kernel(given, plan, body)(
        (plan.blocks, plan.splits, shape.requests),
        (32 * plan.tile.warps,),
        q, *caches, given.page_table, given.prefix_lens, given.mask_words, part_out, part_lse,
        *caches[0].stride()[:3], *caches[1].stride()[:3],
        *map(np.int32, sizes),
        np.float32(given.scale * given.k_scale * lift * _LOG2_E),
        np.float32(given.v_scale * lift),
        shared_bytes=shared_bytes,
    )  # fmt: skip
    if not once:
        merge(part_out=part_out, part_lse=part_lse, out=out, lse=lse)
    return {"out": out, "lse": lse}


def _kernel(given: Given, plan: Plan, body: str) -> RawKernel:
    shape, tile, once = given.shape, plan.tile, plan.splits == 1
    constants = {
        "CACHE": "unsigned char" if given.k_cache.dtype == FP8 else "ELEMENT",
        "FP8": int(given.k_cache.dtype == FP8),
        "DIM": shape.head_dim,
        "PAGE": shape.page_size,
        "ROWS": tile.rows,
        "KEYS": tile.keys,
        "WARPS": tile.warps,
        "BLOCKS": tile.blocks_per_sm,
        "OUT": "ELEMENT" if once else "float",
        "STORE": "NARROW" if once else "",
    }
    defined = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    return _built(ELEMENTS[given.q.dtype] + defined + WIDEN_FP8 + PUT + SOFTMAX + _WORK + body)


@cache
def _built(source: str) -> RawKernel:
    return RawKernel("attend_part", source)


def check_alignment(given: Given) -> None:
    """Raise ValueError unless q and the caches can be read 16 bytes at a time."""
    for name, tensor in (("q", given.q), ("k_cache", given.k_cache), ("v_cache", given.v_cache)):
        must_be_aligned(name, tensor, to_bytes=16)
