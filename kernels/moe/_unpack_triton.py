"""Weights of experts -> bfloat16 in Triton, in as few instructions as there are.

    int4   (nibble - 8) x scale of the group, rounded to bfloat16 once
    fp8    e4m3, exact; the scale of its block is applied to the float32 product

A byte of int4 is two weights, k and k + 1: they come apart as two tiles, even k and odd k, each as
wide as the bytes, and so do two neighbours of x (`pairs`). The product is the sum of two, even with
even and odd with odd, since a sum over k has no order: nothing is shuffled. Four bytes are unpacked
at once, in packed pairs of bfloat16: a nibble put into the low bits of 0x4300 is 128 + nibble,
less 136 that is nibble - 8, exactly; times the scale that is 16 instructions for 8 weights. Left to
Triton's types it is above 40, and H200 has time for 30 while DRAM brings 8 weights.

e4m3 in the right place of a bfloat16, sign in front, means 2**-120 of what it meant, subnormal
numbers too. Bits that mean NaN (0x7F, 0xFF) become 480: nothing here looks for them.

The interpreter knows no assembly: there both are computed by float32 arithmetic that gives the same
bits. tests/test_experts_triton.py executes the assembly, instruction by instruction, and compares.
"""

import triton
import triton.language as tl

from kernels._bfloat16 import INTERPRETED, narrow

# $0, $1: even weights; $2, $3: odd ones; $4: four bytes; $5, $6: their scales.
INT4_ASSEMBLY = """{
    .reg .b32 one, bias, zero, a, b, c, d;
    mov.b32 one, 0x3F803F80;
    mov.b32 bias, 0xC308C308;
    mov.b32 zero, 0x80008000;
    prmt.b32 a, $4, 0, 0x4140;
    prmt.b32 b, $4, 0, 0x4342;
    shr.u32 c, a, 4;
    shr.u32 d, b, 4;
    lop3.b32 a, a, 0x000F000F, 0x43004300, 0xEA;
    lop3.b32 b, b, 0x000F000F, 0x43004300, 0xEA;
    lop3.b32 c, c, 0x000F000F, 0x43004300, 0xEA;
    lop3.b32 d, d, 0x000F000F, 0x43004300, 0xEA;
    fma.rn.bf16x2 a, a, one, bias;
    fma.rn.bf16x2 b, b, one, bias;
    fma.rn.bf16x2 c, c, one, bias;
    fma.rn.bf16x2 d, d, one, bias;
    fma.rn.bf16x2 $0, a, $5, zero;
    fma.rn.bf16x2 $1, b, $6, zero;
    fma.rn.bf16x2 $2, c, $5, zero;
    fma.rn.bf16x2 $3, d, $6, zero;
}"""
# $0, $1: weights; $2: four bytes.
FP8_ASSEMBLY = """{
    .reg .b32 lift, zero, a, b, c, d;
    mov.b32 lift, 0x7B807B80;
    mov.b32 zero, 0x80008000;
    prmt.b32 a, $2, 0, 0x1404;
    prmt.b32 b, $2, 0, 0x3424;
    shr.u32 c, a, 4;
    shr.u32 d, b, 4;
    and.b32 c, c, 0x07F007F0;
    and.b32 d, d, 0x07F007F0;
    lop3.b32 a, a, 0x80008000, c, 0xEA;
    lop3.b32 b, b, 0x80008000, d, 0xEA;
    fma.rn.bf16x2 $0, a, lift, zero;
    fma.rn.bf16x2 $1, b, lift, zero;
}"""
_INT4 = tl.constexpr(INT4_ASSEMBLY)
_FP8 = tl.constexpr(FP8_ASSEMBLY)


@triton.jit
def unpack_int4(packed, scale):
    """Return the even and the odd weights, bfloat16, of bytes and the scales of each, bfloat16."""
    if INTERPRETED:
        wide = packed.to(tl.int32)
        factor = scale.to(tl.float32)
        even = narrow(((wide & 15) - 8).to(tl.float32) * factor, tl.bfloat16)
        odd = narrow(((wide >> 4) - 8).to(tl.float32) * factor, tl.bfloat16)
    else:
        even, odd = tl.inline_asm_elementwise(
            _INT4, "=&r,=&r,=&r,=&r,r,r,r", [packed, scale],
            dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
        )  # fmt: skip
    return even, odd


@triton.jit
def unpack_fp8(packed):
    """Return the numbers whose e4m3 bits are given as uint8, bfloat16."""
    if INTERPRETED:
        wide = packed.to(tl.int32)
        bits = ((wide & 0x80) << 24) | ((wide & 0x7F) << 20)
        # float32 has bfloat16's exponent: 2**120, too.
        return narrow(bits.to(tl.float32, bitcast=True) * 1.329227995784916e36, tl.bfloat16)
    return tl.inline_asm_elementwise(
        _FP8, "=&r,=&r,r", [packed], dtype=tl.bfloat16, is_pure=True, pack=4
    )


@triton.jit
def pairs(both):
    """Return the lower and the upper bfloat16 of each int32: even and odd neighbours."""
    bits = both.to(tl.uint32, bitcast=True)
    even = (bits & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    odd = (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return even, odd
