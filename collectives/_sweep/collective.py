"""What a collective is to the sweep: how much it moves, what must come out, and how to call it.

Every rank's data are small whole numbers, so that a sum over all ranks is exact in every dtype and
one wrong bit shows. They repeat with a period: `windows` holds one period (or less) of the data of
each rank for this call, shape (ranks, window).

What comes out is made of equal parts, each with the period of the data. A part is known by its
first elements: all of it, or one period.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verifyscope.parts import PARTS

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective under test; its bus factor is the one of `name` in verifyscope/bandwidth.py.

    redop: the reduction as nccl-tests names it, "none" where nothing is reduced.
    split: the size is that of all ranks together, a part for each; else that of one rank.
    input_elements, output_elements: of the size's elements and the ranks, what one rank holds.
    in_place: of one buffer, rank and ranks, the output and the input in it; None where it can't
        run in place.
    repeats: a call in place leaves its input as it was, so that the next one gives the same.
    alike: every rank gets the same bits.
    out_of_place: what out of place is, where the call is one in place; None where it has both.
    expected: of windows, rank and the size's elements, the right output of that rank, shape
        (parts, window); each part may go on beyond its end.
    run: of output and input, the call that is timed.
    """

    name: str
    redop: str
    split: bool
    input_elements: Callable[[int, int], int]
    output_elements: Callable[[int, int], int]
    in_place: "Callable[[torch.Tensor, int, int], tuple[torch.Tensor, torch.Tensor]] | None"
    repeats: bool
    alike: bool
    out_of_place: str | None = None
    expected: Callable[["torch.Tensor", int, int], "torch.Tensor"]
    run: Callable[["torch.Tensor", "torch.Tensor"], None]

    @property
    def part(self) -> str:
        """Return the part of a pass that its records are of (verifyscope/parts.py)."""
        return self.name if self.name in PARTS else "other_collective"

    def counted(self, elements: int, ranks: int) -> int:
        """Return what nccl-tests has in its column `count`: the elements of one rank's part."""
        return elements // ranks if self.split else elements


def whole(elements: int, ranks: int) -> int:
    """Return the elements of a buffer that has the whole size."""
    return elements


def part(elements: int, ranks: int) -> int:
    """Return the elements of a buffer that has one rank's part of the size."""
    return elements // ranks


def from_place(windows: "torch.Tensor", place: int) -> "torch.Tensor":
    """Return the data of a window from element `place` on: they begin again where they end."""
    import torch

    # As bytes: not every operation knows every dtype.
    turned = windows.view(torch.uint8).roll(-(place * windows.element_size()), -1)
    return turned.view(windows.dtype)
