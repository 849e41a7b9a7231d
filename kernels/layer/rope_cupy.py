"""`rope` in CUDA C++ through CuPy: a thread turns four or eight pairs, 16 bytes a load.

Halves: eight dims of the first half and their partners in the second; interleaved: eight dims side
by side. Further threads copy what does not turn.

Refused: rotated dims that 16 does not divide (8, interleaved), and a dim that 8 does not. q, k and
the table need 16-byte alignment.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from kernels import Case, Needs, Outputs
from kernels._elements_cuda import ELEMENTS
from kernels._raw import RawKernel, must_be_aligned
from kernels.layer._elementwise_cuda import VECTOR, VECTOR_BYTES, VECTORS
from kernels.layer.rope import OP, Given

_THREADS = 128
_MOST_THREADS = 2**31 - 1
_POSITION_TYPES = {torch.int32: "int", torch.int64: "long long"}

_SOURCE = """
constexpr int HALF = ROTATED / 2, TURNING = INTERLEAVED ? ROTATED / 8 : ROTATED / 16;
constexpr int ITEMS = TURNING + (DIM - ROTATED) / 8;  // threads a head

struct Four { float at[4]; };

__device__ inline Four load_four(const float* from) {
  const float4 bits = *reinterpret_cast<const float4*>(from);
  return {{bits.x, bits.y, bits.z, bits.w}};
}

// (a, b) by the angle of this cosine and sine.
__device__ inline void turn(float& a, float& b, const float cosine, const float sine) {
  const float first = a * cosine - b * sine;
  b = b * cosine + a * sine;
  a = first;
}

extern "C" __global__ void __launch_bounds__(128) rotate(
    const ELEMENT* q, const ELEMENT* k, const float* cos_sin, const POSITION* positions,
    ELEMENT* q_out, ELEMENT* k_out, const long long stride_qt, const long long stride_qh,
    const long long stride_kt, const long long stride_kh, const int count, const int q_heads,
    const int k_heads) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x;
  if (n >= count) return;
  const int heads = q_heads + k_heads, item = n % ITEMS;
  const int head = n / ITEMS % heads;
  const long long token = n / ITEMS / heads;
  const int k_head = head - q_heads;
  const ELEMENT* const from = k_head < 0 ? q + token * stride_qt + head * stride_qh
                                         : k + token * stride_kt + k_head * stride_kh;
  ELEMENT* const to = k_head < 0 ? q_out + (token * q_heads + head) * DIM
                                 : k_out + (token * k_heads + k_head) * DIM;
  if (item >= TURNING) {
    const int at = ROTATED + (item - TURNING) * 8;
    store_vector(to + at, load_vector(from + at));
    return;
  }
  const float* const cosines = cos_sin + (long long)positions[token] * ROTATED;
  const int at = item * 8;
  const uint4 bits = load_vector(from + at);
#if INTERLEAVED
  const Four cosine = load_four(cosines + at / 2), sine = load_four(cosines + HALF + at / 2);
  Eight x = widened(bits);
#pragma unroll
  for (int i = 0; i < 4; i++) turn(x.at[2 * i], x.at[2 * i + 1], cosine.at[i], sine.at[i]);
  store_vector(to + at, narrowed(x));
#else
  const uint4 partner_bits = load_vector(from + HALF + at);
  Four cosine[2], sine[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    cosine[i] = load_four(cosines + at + 4 * i);
    sine[i] = load_four(cosines + HALF + at + 4 * i);
  }
  Eight a = widened(bits), b = widened(partner_bits);
#pragma unroll
  for (int i = 0; i < 8; i++)
    turn(a.at[i], b.at[i], cosine[i / 4].at[i % 4], sine[i / 4].at[i % 4]);
  store_vector(to + at, narrowed(a));
  store_vector(to + HALF + at, narrowed(b));
#endif
}
"""


@cache
def _kernel(
    dtype: torch.dtype, positions: torch.dtype, *, dim: int, rotated: int, interleaved: bool
) -> RawKernel:
    constants = (
        f"#define POSITION {_POSITION_TYPES[positions]}\n#define DIM {dim}\n"
        f"#define ROTATED {rotated}\n#define INTERLEAVED {int(interleaved)}\n"
    )
    return RawKernel("rotate", ELEMENTS[dtype] + constants + VECTORS + _SOURCE)


def _turned_by_a_thread(interleaved: bool) -> int:
    return VECTOR if interleaved else 2 * VECTOR


def _why_not(*, dim: int, rotated: int, interleaved: bool) -> str | None:
    step = _turned_by_a_thread(interleaved)
    if rotated % step or dim % VECTOR:
        return (
            f"{rotated} of {dim} dims turn; {VECTOR_BYTES}-byte loads need a dim that {VECTOR} "
            f"divides, and {step} what turns"
        )
    return None


def _refuses(case: Case) -> str | None:
    return _why_not(
        dim=case.number("head_dim"),
        rotated=case.number("rotated"),
        interleaved=case.dims["style"] == "interleaved",
    )


@OP.implementation(
    "cupy",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",), refuses=_refuses),
    declares=("wide_load",),
)
def cupy_rope(**inputs: Any) -> Outputs:
    """Launch once for queries and keys together."""
    given = Given(**inputs)
    dim, rotated, interleaved = given.dim, given.rotated, given.interleaved
    if (reason := _why_not(dim=dim, rotated=rotated, interleaved=interleaved)) is not None:
        raise ValueError(reason)
    for name in ("q", "k", "cos_sin"):
        must_be_aligned(name, getattr(given, name), to_bytes=VECTOR_BYTES)
    outputs = given.empty_outputs()
    tokens, q_heads, k_heads = len(given.q), given.q.shape[1], given.k.shape[1]
    items = rotated // _turned_by_a_thread(interleaved) + (dim - rotated) // VECTOR
    count = tokens * (q_heads + k_heads) * items
    if count > _MOST_THREADS:
        raise ValueError(f"{tokens} tokens are {count} threads: rotate fewer at once")
    kernel = _kernel(
        given.q.dtype, given.positions.dtype, dim=dim, rotated=rotated, interleaved=interleaved
    )
    kernel(
        (-(-count // _THREADS),), (_THREADS,),
        given.q, given.k, given.cos_sin, given.positions, outputs["q_out"], outputs["k_out"],
        *given.q.stride()[:2], *given.k.stride()[:2], *map(np.int32, (count, q_heads, k_heads)),
    )  # fmt: skip
    return outputs
