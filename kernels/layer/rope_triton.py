"""`rope` in Triton: a program takes some heads of one token, of queries or of keys.

It loads the token's cosines and sines once for them. About 1,024 elements a program, 16 bytes a
thread: few tokens are few programs, and then their time is that of a launch.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from kernels import Needs, Outputs
from kernels._bfloat16 import narrow
from kernels.layer.rope import OP, Given

_ELEMENTS = 1024
_WARP_ELEMENTS = 256  # 16 bytes a thread


@triton.jit
def _turn(
    x_ptr, out_ptr, table_ptr, token, first, heads, stride_t, stride_h,
    DIM: tl.constexpr, ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    """Rotate heads `first` and the BLOCK_H - 1 after it of one token."""
    HALF: tl.constexpr = ROTATED // 2
    head = (first + tl.arange(0, BLOCK_H)).to(tl.int64)
    some = (head < heads)[:, None]
    x_row = (token * stride_t + head * stride_h)[:, None]
    out_row = ((token * heads + head) * DIM)[:, None]
    i = tl.arange(0, BLOCK_I)
    cosine = tl.load(table_ptr + i, mask=i < HALF, other=0.0)[None, :]  # [1, BLOCK_I]
    sine = tl.load(table_ptr + HALF + i, mask=i < HALF, other=0.0)[None, :]
    dtype = out_ptr.dtype.element_ty
    if INTERLEAVED:
        at = tl.arange(0, 2 * BLOCK_I)[None, :]
        there = some & (at < ROTATED)
        x = tl.load(x_ptr + x_row + at, mask=there, other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(x, [BLOCK_H, BLOCK_I, 2]))  # [BLOCK_H, BLOCK_I]
        pairs = tl.join(a * cosine - b * sine, b * cosine + a * sine)
        pairs = tl.reshape(pairs, [BLOCK_H, 2 * BLOCK_I])
        tl.store(out_ptr + out_row + at, narrow(pairs, dtype), mask=there)
    else:
        at = i[None, :]
        there = some & (at < HALF)
        a = tl.load(x_ptr + x_row + at, mask=there, other=0.0).to(tl.float32)
        b = tl.load(x_ptr + x_row + HALF + at, mask=there, other=0.0).to(tl.float32)
        tl.store(out_ptr + out_row + at, narrow(a * cosine - b * sine, dtype), mask=there)
        tl.store(out_ptr + out_row + HALF + at, narrow(b * cosine + a * sine, dtype), mask=there)
    if DIM > ROTATED:
        at = ROTATED + tl.arange(0, BLOCK_REST)[None, :]
        there = some & (at < DIM)
        tl.store(
            out_ptr + out_row + at, tl.load(x_ptr + x_row + at, mask=there, other=0.0), mask=there
        )


@triton.jit
def _rope(
    q_ptr, k_ptr, cos_sin_ptr, positions_ptr, q_out_ptr, k_out_ptr, q_heads, k_heads,
    stride_qt, stride_qh, stride_kt, stride_kh,
    DIM: tl.constexpr, ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    table_ptr = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * ROTATED
    q_blocks = tl.cdiv(q_heads, BLOCK_H)
    if block < q_blocks:
        _turn(
            q_ptr, q_out_ptr, table_ptr, token, block * BLOCK_H, q_heads, stride_qt, stride_qh,
            DIM, ROTATED, INTERLEAVED, BLOCK_H, BLOCK_I, BLOCK_REST,
        )  # fmt: skip
    else:
        _turn(
            k_ptr, k_out_ptr, table_ptr, token, (block - q_blocks) * BLOCK_H, k_heads,
            stride_kt, stride_kh, DIM, ROTATED, INTERLEAVED, BLOCK_H, BLOCK_I, BLOCK_REST,
        )  # fmt: skip


@OP.implementation(
    "triton",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",)),
    declares=("wide_load",),
)
def triton_rope(**inputs: Any) -> Outputs:
    """Launch once for queries and keys together."""
    given = Given(**inputs)
    outputs = given.empty_outputs()
    q_heads, k_heads = given.q.shape[1], given.k.shape[1]
    wide = triton.next_power_of_2(given.dim)
    heads = min(max(1, _ELEMENTS // wide), triton.next_power_of_2(max(q_heads, k_heads)))
    blocks = triton.cdiv(q_heads, heads) + triton.cdiv(k_heads, heads)
    pairs = triton.next_power_of_2(given.rotated // 2)
    tile = heads * pairs * (2 if given.interleaved else 1)  # of one load
    _rope[(len(given.q), blocks)](
        given.q, given.k, given.cos_sin, given.positions, outputs["q_out"], outputs["k_out"],
        q_heads, k_heads, *given.q.stride()[:2], *given.k.stride()[:2],
        DIM=given.dim, ROTATED=given.rotated, INTERLEAVED=given.interleaved, BLOCK_H=heads,
        BLOCK_I=pairs,
        BLOCK_REST=triton.next_power_of_2(max(1, given.dim - given.rotated)),
        num_warps=max(1, tile // _WARP_ELEMENTS),
    )  # fmt: skip
    return outputs
