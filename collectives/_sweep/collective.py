"""What a collective is to the sweep: how much it moves, what must come out, and how to call it.

Every rank's data are small whole numbers, so that a sum over all ranks is exact in every dtype and
one wrong bit shows. They repeat with a period: `windows` holds one period (or less) of the data of
each rank for this call, shape (ranks, window).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective under test; its bus factor is the one of `name` in verifyscope/bandwidth.py.

    redop: the reduction as nccl-tests names it, "none" where nothing is reduced.
    input_elements, output_elements: of the size's elements and the ranks, what one rank holds.
    expected: of windows, rank and the size's elements, the right output of that rank; where it has
        the period of the data, one period is enough.
    run: of output and input, the call that is timed; both are one tensor where it runs in place.
    """

    name: str
    redop: str
    input_elements: Callable[[int, int], int]
    output_elements: Callable[[int, int], int]
    expected: Callable[["torch.Tensor", int, int], "torch.Tensor"]
    run: Callable[["torch.Tensor", "torch.Tensor"], None]
