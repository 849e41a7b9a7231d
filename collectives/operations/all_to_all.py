"""All-to-all: rank r gets part r of every rank, one after another.

The size is the input of one rank, n parts for n ranks, as nccl-tests counts it. NCCL has no
all-to-all in place.
"""

from typing import TYPE_CHECKING

from collectives._sweep.collective import Collective, from_place, part, whole

if TYPE_CHECKING:
    import torch


def _expected(windows: "torch.Tensor", rank: int, elements: int) -> "torch.Tensor":
    return from_place(windows, rank * part(elements, len(windows)))


def _run(output: "torch.Tensor", source: "torch.Tensor") -> None:
    import torch.distributed as dist

    dist.all_to_all_single(output, source)


ALL_TO_ALL = Collective(
    name="all_to_all",
    redop="none",
    split=True,
    input_elements=whole,
    output_elements=whole,
    in_place=None,
    repeats=False,
    alike=False,
    expected=_expected,
    run=_run,
)
