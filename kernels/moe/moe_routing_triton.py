"""`moe_routing` in Triton: one warp a token, its keys in registers.

A key becomes an int32 of the same order, so that a maximum over a warp is one instruction; each
choice is a maximum, the lowest id that has it, and that id's key taken away. Shuffles are all that
a choice waits for. Keys lie as [groups, experts of a group], padded to powers of two.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from kernels import Needs, Outputs, Prepared
from kernels.moe.moe_routing import EPSILON, EXCLUDED, MOST_KEY, OP, Given

_TAKEN = tl.constexpr(-(2**31))  # below every key
_EXCLUDED, _MOST_KEY, _EPSILON = map(tl.constexpr, (EXCLUDED, MOST_KEY, EPSILON))


@triton.jit
def _sigmoid(x):
    """Return 1 / (1 + exp(-x)); nothing overflows."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0, small, 1.0) / (1.0 + small)


@triton.jit
def _order(x):
    """Return int32 in the order of float32 `x`, which is no NaN; the two zeros are one."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _key(order):
    """Return the float32 that `order` was made of."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _outside_groups_taken(order, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr):
    """Return `order` [BLOCK_G, BLOCK_I] with what lies outside of the top groups taken."""
    group = tl.arange(0, order.shape[0])
    item = tl.arange(0, order.shape[1])
    best = tl.max(order, 1)
    where = tl.min(tl.where(order == best[:, None], item[None, :], order.shape[1]), 1)
    second = tl.max(tl.where(item[None, :] == where[:, None], _TAKEN, order), 1)
    score = tl.where(group < GROUPS, _order(_key(best) + _key(second)), _TAKEN)
    kept = group < 0
    for _ in tl.static_range(TOP_GROUPS):
        chosen = tl.min(tl.where(score == tl.max(score, 0), group, order.shape[0]), 0)
        kept = kept | (group == chosen)
        score = tl.where(group == chosen, _TAKEN, score)
    return tl.where(kept[:, None], order, _TAKEN)


@triton.jit
def _route(
    logits_ptr, bias_ptr, ids_ptr, weights_ptr, scaling,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
    SIGMOID: tl.constexpr, RENORMALISE: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    EACH: tl.constexpr = EXPERTS // GROUPS
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, BLOCK_G)[:, None]
    item = tl.arange(0, BLOCK_I)[None, :]
    there = (group < GROUPS) & (item < EACH)
    expert = group * EACH + item  # [BLOCK_G, BLOCK_I]
    logits_ptr += row * EXPERTS
    key = tl.load(logits_ptr + expert, mask=there, other=0.0).to(tl.float32)
    if SIGMOID:
        key = _sigmoid(key) + tl.load(bias_ptr + expert, mask=there, other=0.0)
    key = tl.where(key > _EXCLUDED, tl.minimum(key, _MOST_KEY), _EXCLUDED)  # NaN is no greater
    order = tl.where(there, _order(key), _TAKEN)
    if GROUPS > 1:
        order = _outside_groups_taken(order, GROUPS, TOP_GROUPS)

    slot = tl.arange(0, BLOCK_K)
    ids = tl.zeros([BLOCK_K], tl.int32)
    keys = tl.full([BLOCK_K], _EXCLUDED, tl.float32)
    for choice in tl.static_range(TOP_K):
        # Over groups first: a lane has the same expert of each in its registers.
        top = tl.max(tl.max(order, 0), 0)
        # Cells of no expert are taken from the start: none is as large as what is chosen.
        chosen = tl.min(tl.min(tl.where(order == top, expert, EXPERTS), 0), 0)
        order = tl.where(expert == chosen, _TAKEN, order)
        ids = tl.where(slot == choice, chosen, ids)
        keys = tl.where(slot == choice, _key(top), keys)

    live = keys > _EXCLUDED
    total = 1.0
    if SIGMOID:
        weights = _sigmoid(tl.load(logits_ptr + ids, mask=live, other=0.0).to(tl.float32))
    else:
        largest = tl.max(keys, 0)
        weights = tl.exp(keys - largest)
        if not RENORMALISE:
            total = tl.sum(tl.where(there & (key > _EXCLUDED), tl.exp(key - largest), 0.0))
    weights = tl.where(live, weights, 0.0)
    if RENORMALISE:
        total = tl.sum(weights, 0)
    at = row * TOP_K + slot
    tl.store(ids_ptr + at, ids, mask=slot < TOP_K)
    tl.store(weights_ptr + at, weights / (total + _EPSILON) * scaling, mask=slot < TOP_K)


@OP.prepared_implementation(
    "triton", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",))
)
def triton_routing(**inputs: Any) -> Prepared:
    """Allocate the outputs; a call is one launch, of a warp a token."""
    given = Given(**inputs)
    outputs = given.empty_outputs()
    bias = given.logits if given.bias is None else given.bias  # softmax reads none

    def call() -> Outputs:
        _route[(len(given.logits),)](
            given.logits, bias, outputs["ids"], outputs["weights"], float(given.scaling),
            EXPERTS=given.experts, TOP_K=given.top_k,
            GROUPS=given.groups, TOP_GROUPS=given.top_groups,
            SIGMOID=given.bias is not None, RENORMALISE=bool(given.renormalise),
            BLOCK_G=triton.next_power_of_2(given.groups),
            BLOCK_I=triton.next_power_of_2(given.experts // given.groups),
            BLOCK_K=triton.next_power_of_2(given.top_k), num_warps=1,
        )  # fmt: skip
        return outputs

    return Prepared(call=call, launches=1)
