"""All-gather: every rank gets the parts of all ranks, one after another.

The size is the output of one rank, n parts for n ranks, as nccl-tests counts it. In place rank r
has its part at place r of the output.
"""

from typing import TYPE_CHECKING

from collectives._sweep.collective import Collective, part, whole

if TYPE_CHECKING:
    import torch


def _in_place(buffer: "torch.Tensor", rank: int, ranks: int) -> "tuple[torch.Tensor, torch.Tensor]":
    return buffer, buffer.view(ranks, -1)[rank]


def _expected(windows: "torch.Tensor", rank: int, elements: int) -> "torch.Tensor":
    return windows


def _run(output: "torch.Tensor", source: "torch.Tensor") -> None:
    import torch.distributed as dist

    dist.all_gather_into_tensor(output, source)


ALL_GATHER = Collective(
    name="all_gather",
    redop="none",
    split=True,
    input_elements=part,
    output_elements=whole,
    in_place=_in_place,
    repeats=True,
    alike=True,
    expected=_expected,
    run=_run,
)
