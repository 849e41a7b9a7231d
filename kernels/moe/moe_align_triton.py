"""`moe_align` in Triton: the kernel that the sorted experts begin with, alone."""

import torch

from kernels import Needs, Outputs, Prepared
from kernels.moe._align_layout import empty_outputs
from kernels.moe._align_triton import align
from kernels.moe.moe_align import OP


@OP.prepared_implementation(
    "triton", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",))
)
def triton_align(*, ids: torch.Tensor, experts: int, block: int) -> Prepared:
    """Allocate the outputs; a call is one launch that places 16 slots a program."""
    outputs = empty_outputs(ids, experts=experts, block=block)

    def call() -> Outputs:
        align(ids, experts=experts, block=block, **outputs)
        return outputs

    return Prepared(call=call, launches=1)
