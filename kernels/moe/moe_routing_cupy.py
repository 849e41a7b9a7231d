"""`moe_routing` in CUDA C++ through CuPy: one warp a token, its keys in registers.

A key becomes an int of the same order, so that a maximum over a warp is one instruction; each
choice is a maximum, the lowest id that has it, and that id's key taken away. Lane l holds experts
l, l + 32, ...; a group's two best keys are found the same way, and lane g keeps the score of group
g.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from kernels import Needs, Outputs, Prepared
from kernels._raw import RawKernel
from kernels.moe.moe_routing import EPSILON, EXCLUDED, MOST_KEY, OP, Given

_WARP = 32
_TYPES = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16"}

_ROUTE = """
constexpr int TAKEN = -2147483647 - 1;  // below every key
constexpr unsigned ALL = ~0u;

__device__ float sigmoid(const float x) {  // nothing overflows
  const float small = expf(-fabsf(x));
  return (x < 0.f ? small : 1.f) / (1.f + small);
}

// int in the order of a float that is no NaN; the two zeros are one.
__device__ int order_of(const float x) {
  const int bits = x == 0.f ? 0 : __float_as_int(x);
  return bits ^ (bits >> 31 & 0x7fffffff);
}
__device__ float key_of(const int order) {
  return __int_as_float(order ^ (order >> 31 & 0x7fffffff));
}

__device__ float sum_of_warp(float value) {
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(ALL, value, step);
  return value;
}

// The largest of the warp's orders among experts from `first` to before `last` that are not
// `but`; *expert becomes the lowest that has it.
__device__ int largest(const int (&order)[EACH_LANE], const int first, const int last,
                       const int but, int* expert) {
  int best = TAKEN, at = 0x7fffffff;
#pragma unroll
  for (int n = 0; n < EACH_LANE; n++) {
    const int one = n * 32 + threadIdx.x;
    if (one >= first && one < last && one != but && order[n] > best) best = order[n], at = one;
  }
  const int top = __reduce_max_sync(ALL, best);
  *expert = __reduce_min_sync(ALL, best == top ? at : 0x7fffffff);
  return top;
}

extern "C" __global__ void __launch_bounds__(32) route(
    const LOGIT* logits, BIAS int* ids, float* weights, const int experts, const int top_k,
    const int groups, const int top_groups, const int renormalise, const float scaling) {
  const int lane = threadIdx.x;
  const long long row = blockIdx.x;
  logits += row * experts;
  int order[EACH_LANE], expert;
#pragma unroll
  for (int n = 0; n < EACH_LANE; n++) {
    order[n] = TAKEN;
    const int one = n * 32 + lane;
    if (one >= experts) continue;
    float key = float(logits[one]);
#ifdef SIGMOID
    key = sigmoid(key) + bias[one];
#endif
    order[n] = order_of(key > EXCLUDED ? fminf(key, MOST_KEY) : EXCLUDED);  // NaN is no greater
  }
  float total = 1.f;
#ifndef SIGMOID
  const float top_key = key_of(largest(order, 0, experts, -1, &expert));
  if (!renormalise) {
    total = 0.f;
#pragma unroll
    for (int n = 0; n < EACH_LANE; n++) {
      const float key = key_of(order[n]);
      if (n * 32 + lane < experts && key > EXCLUDED) total += expf(key - top_key);
    }
    total = sum_of_warp(total);
  }
#endif
  if (groups > 1) {
    const int each = experts / groups;
    int score = TAKEN;
    for (int g = 0; g < groups; g++) {
      const int best = largest(order, g * each, g * each + each, -1, &expert);
      const int second = largest(order, g * each, g * each + each, expert, &expert);
      if (lane == g) score = order_of(key_of(best) + key_of(second));
    }
    unsigned kept = 0;
    for (int n = 0; n < top_groups; n++) {
      const int top = __reduce_max_sync(ALL, score);
      const int group = __ffs(__ballot_sync(ALL, score == top)) - 1;
      kept |= 1u << group;
      if (lane == group) score = TAKEN;
    }
#pragma unroll
    for (int n = 0; n < EACH_LANE; n++) {
      const int one = n * 32 + lane;
      if (one < experts && !(kept >> one / each & 1)) order[n] = TAKEN;
    }
  }
  int chosen = 0;  // of lane j: the choice j
  float key = EXCLUDED;
  for (int j = 0; j < top_k; j++) {
    const float top = key_of(largest(order, 0, experts, -1, &expert));
    if (lane == j) chosen = expert, key = top;
#pragma unroll
    for (int n = 0; n < EACH_LANE; n++)
      if (n * 32 + lane == expert) order[n] = TAKEN;
  }
  float weight = 0.f;
#ifdef SIGMOID
  if (key > EXCLUDED) weight = sigmoid(float(logits[chosen]));
#else
  if (key > EXCLUDED) weight = expf(key - top_key);
#endif
  if (renormalise) total = sum_of_warp(weight);
  if (lane < top_k) {
    ids[row * top_k + lane] = chosen;
    weights[row * top_k + lane] = weight / (total + EPSILON) * scaling;
  }
}
"""


@cache
def _kernel(logit: torch.dtype, *, sigmoid: bool, each_lane: int) -> RawKernel:
    constants = (
        f"#include <cuda_bf16.h>\n#define LOGIT {_TYPES[logit]}\n#define EACH_LANE {each_lane}\n"
        f"#define EXCLUDED {EXCLUDED}f\n#define MOST_KEY {MOST_KEY}f\n#define EPSILON {EPSILON}f\n"
        + ("#define SIGMOID\n#define BIAS const float* bias,\n" if sigmoid else "#define BIAS\n")
    )
    return RawKernel("route", constants + _ROUTE)


@OP.prepared_implementation(
    "cupy", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",))
)
def cupy_routing(**inputs: Any) -> Prepared:
    """Allocate the outputs; a call is one launch, of a warp a token."""
    given = Given(**inputs)
    outputs = given.empty_outputs()
    bias = () if given.bias is None else (given.bias,)
    # A kernel for each 128 experts: that many keys are in registers.
    each_lane = -(-given.experts // (4 * _WARP)) * 4
    kernel = _kernel(given.logits.dtype, sigmoid=bool(bias), each_lane=each_lane)
    numbers = (given.experts, given.top_k, given.groups, given.top_groups, given.renormalise)

    def call() -> Outputs:
        kernel(
            (len(given.logits),), (_WARP,),
            given.logits, *bias, outputs["ids"], outputs["weights"],
            *map(np.int32, numbers), np.float32(given.scaling),
        )  # fmt: skip
        return outputs

    return Prepared(call=call, launches=1)
