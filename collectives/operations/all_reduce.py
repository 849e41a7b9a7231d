"""All-reduce: every rank gets the sum over all ranks, in the dtype of the data.

torch.distributed reduces in place only. Out of place is what a serving engine does with it: a copy
into the output, then the all-reduce there; both are inside the timed call.
"""

from typing import TYPE_CHECKING

from collectives._sweep.collective import Collective, whole

if TYPE_CHECKING:
    import torch


def _in_place(buffer: "torch.Tensor", rank: int, ranks: int) -> "tuple[torch.Tensor, torch.Tensor]":
    return buffer, buffer


def _expected(windows: "torch.Tensor", rank: int, elements: int) -> "torch.Tensor":
    import torch

    return windows.sum(0, keepdim=True, dtype=torch.float64).to(windows.dtype)


def _run(output: "torch.Tensor", source: "torch.Tensor") -> None:
    import torch.distributed as dist

    if output is not source:
        output.copy_(source)
    dist.all_reduce(output)


ALL_REDUCE = Collective(
    name="all_reduce",
    redop="sum",
    split=False,
    input_elements=whole,
    output_elements=whole,
    in_place=_in_place,
    repeats=False,
    alike=True,
    out_of_place="copy into the output, then reduced there",
    expected=_expected,
    run=_run,
)
