"""`lse_merge` in CUDA C++ through CuPy: the kernel that split attention ends with, alone."""

import torch

from kernels import Case, Needs, Outputs
from kernels.attention._merge_cupy import merge, why_not_dim
from kernels.attention.lse_merge import OP, empty_outputs, must_fit


def _refuses(case: Case) -> str | None:
    return why_not_dim(case.number("head_dim"), case.dtype)


@OP.implementation(
    "cupy",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",), refuses=_refuses),
    declares=("wide_load",),
)
def cupy_merge(*, part_out: torch.Tensor, part_lse: torch.Tensor) -> Outputs:
    """Launch once; a block takes 128 bytes of each part of a row."""
    must_fit(part_out=part_out, part_lse=part_lse)
    out, lse = empty_outputs(part_out)
    merge(part_out=part_out, part_lse=part_lse, out=out, lse=lse)
    return {"out": out, "lse": lse}
