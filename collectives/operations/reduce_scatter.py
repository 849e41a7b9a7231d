"""Reduce-scatter: rank r gets part r of the sum over all ranks, in the dtype of the data.

The size is the input of one rank, n parts for n ranks, as nccl-tests counts it. In place the output
is part r of the input itself.
"""

from typing import TYPE_CHECKING

from collectives._sweep.collective import Collective, from_place, part, whole

if TYPE_CHECKING:
    import torch


def _in_place(buffer: "torch.Tensor", rank: int, ranks: int) -> "tuple[torch.Tensor, torch.Tensor]":
    return buffer.view(ranks, -1)[rank], buffer


def _expected(windows: "torch.Tensor", rank: int, elements: int) -> "torch.Tensor":
    import torch

    total = windows.sum(0, keepdim=True, dtype=torch.float64).to(windows.dtype)
    return from_place(total, rank * part(elements, len(windows)))


def _run(output: "torch.Tensor", source: "torch.Tensor") -> None:
    import torch.distributed as dist

    dist.reduce_scatter_tensor(output, source)


REDUCE_SCATTER = Collective(
    name="reduce_scatter",
    redop="sum",
    split=True,
    input_elements=whole,
    output_elements=part,
    in_place=_in_place,
    repeats=False,
    alike=False,
    expected=_expected,
    run=_run,
)
