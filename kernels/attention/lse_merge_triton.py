"""`lse_merge` in Triton: the kernel that split attention ends with, alone."""

import torch

from kernels import Needs, Outputs
from kernels.attention._merge_triton import merge
from kernels.attention.lse_merge import OP, empty_outputs, must_fit


@OP.implementation(
    "triton",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",)),
    declares=("wide_load",),
)
def triton_merge(*, part_out: torch.Tensor, part_lse: torch.Tensor) -> Outputs:
    """Launch once; a program takes 256 bytes of each part of a row."""
    must_fit(part_out=part_out, part_lse=part_lse)
    out, lse = empty_outputs(part_out)
    merge(part_out=part_out, part_lse=part_lse, out=out, lse=lse)
    return {"out": out, "lse": lse}
