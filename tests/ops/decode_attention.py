"""Attention of one query per head over keys that all heads share, as in a decode step.

out[h, d] = sum_n softmax_n(sum_d q[h, d] k[n, d] / sqrt(dim)) v[n, d]

q, out: [heads, dim]; k, v: [keys, dim]; contiguous, bfloat16; dim is 16 or a larger power of two;
sums are float32. lse: [heads] float32, the natural log-sum-exp. An op for the tests alone.
"""

from collections.abc import Callable

import numpy as np
import torch
import triton
import triton.language as tl

from kernels import Case, Cost, Inputs, Needs, Op, Outputs, Prepared, Tolerance
from kernels._bfloat16 import dot, narrow
from kernels._raw import RawKernel

_NVIDIA = (80, 89, 90, 100, 120)
_THREADS = 128


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Outputs:
    """Compute in float32 with plain torch."""
    score = q.float() @ k.float().T * q.shape[-1] ** -0.5
    return {"out": torch.softmax(score, -1) @ v.float(), "lse": torch.logsumexp(score, -1)}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw normal q, k and v, the same on every call."""
    generator = torch.Generator(device).manual_seed(case.seed)

    def normal(rows: int) -> torch.Tensor:
        drawn = torch.randn(rows, case.number("dim"), generator=generator, device=device)
        return drawn.to(case.dtype)

    keys = case.number("keys")
    return {"q": normal(case.number("heads")), "k": normal(keys), "v": normal(keys)}


def _count(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Cost:
    """Read q, k and v once, write out and lse once; two products per head, key and dim."""
    heads, keys, dim = len(q), len(k), q.shape[-1]
    return Cost(
        flops=4 * heads * keys * dim,
        read_bytes=2 * dim * (heads + 2 * keys),
        written_bytes=(2 * dim + 4) * heads,
    )


_cost: Callable[..., Cost] = _count

OP = Op(
    name="decode_attention",
    part="attention",
    reference=reference,
    inputs=inputs,
    cost=lambda inputs: _cost(**inputs),
    cases=(
        Case(name="ragged", dims={"heads": 3, "keys": 37, "dim": 16}, tiny=True),
        Case(name="two-blocks", dims={"heads": 17, "keys": 64, "dim": 32}, tiny=True),
        Case(name="keys-8192", dims={"heads": 8, "keys": 8192, "dim": 128}, cpu=True),
    ),
    gate_cases=(Case(name="gate-dim-128", dims={"heads": 16, "keys": 128, "dim": 128}),),
    tolerance=Tolerance(
        row=1e-2,
        absolute={"lse": 1e-3},
        why="weights and result are each rounded to bfloat16 once, 2**-8 of an element at most",
    ),
)


@triton.jit
def _decode_attention(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, heads, keys, scale,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H)
    dim = tl.arange(0, DIM)
    row = head[:, None] * DIM + dim[None, :]  # [BLOCK_H, DIM]
    q = tl.load(q_ptr + row, mask=head[:, None] < heads, other=0.0)
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    out = tl.zeros([BLOCK_H, DIM], tl.float32)
    for first in range(0, keys, BLOCK_N):
        key = first + tl.arange(0, BLOCK_N).to(tl.int64)
        cell = key[:, None] * DIM + dim[None, :]  # [BLOCK_N, DIM]
        k = tl.load(k_ptr + cell, mask=key[:, None] < keys, other=0.0)
        v = tl.load(v_ptr + cell, mask=key[:, None] < keys, other=0.0)
        score = dot(q, tl.trans(k)) * scale  # [BLOCK_H, BLOCK_N]
        score = tl.where(key[None, :] < keys, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp(score - new_top[:, None])
        kept = tl.exp(top - new_top)
        total = total * kept + tl.sum(weight, 1)
        out = out * kept[:, None] + dot(narrow(weight, v.dtype), v)
        top = new_top
    out = narrow(out / total[:, None], out_ptr.dtype.element_ty)
    tl.store(out_ptr + row, out, mask=head[:, None] < heads)
    tl.store(lse_ptr + head, top + tl.log(total), mask=head < heads)


@OP.prepared_implementation(
    "triton",
    needs=Needs(capabilities=_NVIDIA, packages=("triton",)),
    declares=("tensor_core", "wide_load"),
)
def decode_attention_triton(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Prepared:
    """One program per 16 heads goes through all keys: short, not fast."""
    out = torch.empty_like(q)
    lse = torch.empty(len(q), dtype=torch.float32, device=q.device)
    heads, dim = q.shape

    def call() -> Outputs:
        _decode_attention[(triton.cdiv(heads, 16),)](
            q, k, v, out, lse, heads, len(k), dim**-0.5, BLOCK_H=16, BLOCK_N=32, DIM=dim
        )
        return {"out": out, "lse": lse}

    return Prepared(call=call, facts={"block_n": "32"})


_SOURCE = """
#include <cuda_bf16.h>
extern "C" __global__ void decode_attention(
    const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v, __nv_bfloat16* out,
    float* lse, long long keys, long long dim, float scale) {
  DYNAMIC_SHARED(float, weight);  // [keys]
  SHARED_ARRAY(float, total, 1);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const __nv_bfloat16* query = q + blockIdx.x * dim;

  for (long long n = warp; n < keys; n += warps) {
    float score = 0.f;
    for (long long d = lane; d < dim; d += 32)
      score += __bfloat162float(query[d]) * __bfloat162float(k[n * dim + d]);
    for (int step = 16; step; step /= 2) score += __shfl_xor_sync(~0u, score, step);
    if (lane == 0) weight[n] = score * scale;
  }
  __syncthreads();

  if (warp == 0) {
    float top = weight[0], sum = 0.f;
    for (long long n = lane; n < keys; n += 32) top = fmaxf(top, weight[n]);
    for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    __syncwarp();  // all lanes have read weight[0] before one writes it
    for (long long n = lane; n < keys; n += 32) sum += weight[n] = __expf(weight[n] - top);
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) {
      total[0] = sum;
      lse[blockIdx.x] = top + __logf(sum);
    }
  }
  __syncthreads();

  for (long long d = threadIdx.x; d < dim; d += blockDim.x) {
    float sum = 0.f;
    for (long long n = 0; n < keys; n++) sum += weight[n] * __bfloat162float(v[n * dim + d]);
    out[blockIdx.x * dim + d] = __float2bfloat16(sum / total[0]);
  }
}
"""
_decode_attention_raw = RawKernel("decode_attention", _SOURCE)


@OP.implementation("cupy", needs=Needs(capabilities=_NVIDIA, packages=("cupy",)))
def decode_attention_cupy(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Outputs:
    """4 bytes of shared memory a key: what a block may have bounds the keys. bfloat16 only."""
    out = torch.empty_like(q)
    lse = torch.empty(len(q), dtype=torch.float32, device=q.device)
    heads, dim = q.shape
    args = (q, k, v, out, lse, len(k), dim, np.float32(dim**-0.5))
    _decode_attention_raw((heads,), (_THREADS,), *args, shared_bytes=4 * len(k))
    return {"out": out, "lse": lse}
