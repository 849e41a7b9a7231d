"""The merge of attention over disjoint sets of keys, in Triton: for any op that splits its keys.

    top = max_s part_lse[r, s],  w_s = exp(part_lse[r, s] - top)
    out[r] = sum_s w_s part_out[r, s] / sum_s w_s,  lse[r] = top + ln sum_s w_s

part_out [rows, splits, dim] float32, bfloat16 or float16, part_lse [rows, splits] float32, natural
logarithm, as everywhere here: there is no argument for another base. A part of no keys has an LSE
of -inf; its part_out may hold anything and is not read. A row of such parts alone gives 0 and -inf.
NaN in an LSE stays NaN: a part that was never written does not pass for an empty one.

A program takes 256 bytes of each part of a row: a few rows of many parts still use many SMs.
Source: the log-sum-exp identity that split attention rests on (FlashDecoding, FlashInfer).
"""

import torch
import triton
import triton.language as tl

from kernels._bfloat16 import narrow

_PIECE_BYTES = 256  # of a part of a row, by one program
_TILE_ELEMENTS = 4096  # 32 a thread of four warps
_WARP_BYTES = 32 * 16  # one load of a warp


@triton.jit
def _merge_parts(
    part_out_ptr, part_lse_ptr, out_ptr, lse_ptr, splits,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    dim = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    there = dim < DIM
    top = float("-inf")
    total = 0.0
    out = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)
        at = row * splits + split
        lse = tl.load(part_lse_ptr + at, mask=split < splits, other=float("-inf"))
        some = lse != float("-inf")
        sums = tl.load(
            part_out_ptr + at[:, None] * DIM + dim, mask=some[:, None] & there[None, :], other=0.0
        ).to(tl.float32)  # [BLOCK_S, BLOCK_D]
        new_top = tl.maximum(top, tl.max(lse, 0))
        # Before a part with a key was seen the maximum is -inf; a shift of 0 keeps its weights 0.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp(lse - shift)
        kept = tl.exp(top - shift)
        total = total * kept + tl.sum(weight, 0)
        out = out * kept + tl.sum(weight[:, None] * sums, 0)
        top = new_top
    empty = total == 0
    divisor = tl.where(empty, 1.0, total)
    out = narrow(out / divisor, out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * DIM + dim, out, mask=there)
    merged = tl.where(empty, float("-inf"), top + tl.log(divisor))
    tl.store(lse_ptr + row, merged, mask=tl.program_id(1) == 0)


def merge(
    *, part_out: torch.Tensor, part_lse: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
) -> None:
    """Write `out` and `lse`, contiguous with rows x dim and rows elements, in one launch."""
    rows, splits, dim = part_out.shape
    size = part_out.element_size()
    dims = min(_PIECE_BYTES // size, triton.next_power_of_2(dim))
    parts = min(_TILE_ELEMENTS // dims, triton.next_power_of_2(splits))
    # No more warps than have 16 bytes a thread to load.
    warps = max(1, min(4, parts * dims * size // _WARP_BYTES))
    _merge_parts[(rows, triton.cdiv(dim, dims))](
        part_out, part_lse, out, lse, splits,
        DIM=dim, BLOCK_D=dims, BLOCK_S=parts, num_warps=warps,
    )  # fmt: skip
