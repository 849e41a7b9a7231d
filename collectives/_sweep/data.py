"""The data of all ranks: small whole numbers that each rank knows of every other.

PERIOD random numbers a rank, of which each call starts at another place, so that no call gets what
another had. Every sum over the ranks is exact in the dtype, whatever its order, and one wrong bit
shows.
"""

from dataclasses import dataclass

import torch

from collectives._sweep.job import Job
from collectives._sweep.points import MOST_EXACT

PERIOD = 65_521
_STEP = 7_919
_SEED = 20_260_801


@dataclass(frozen=True, slots=True)
class Data:
    """`numbers` has shape (ranks, 2 x PERIOD): any part of one period is then a slice."""

    numbers: torch.Tensor

    def windows(self, call: int, elements: int) -> torch.Tensor:
        """Return one period (or less) of the data of each rank for a call, (ranks, window)."""
        start = call * _STEP % PERIOD
        return self.numbers[:, start : start + min(elements, PERIOD)]


def draw(job: Job, device: torch.device) -> Data:
    """Return the data of a job: whole numbers up to the largest whose sums stay exact."""
    generator = torch.Generator().manual_seed(_SEED)
    largest = max(1, MOST_EXACT[job.dtype] // job.ranks)
    shape = (job.ranks, PERIOD)
    numbers = torch.randint(-largest, largest + 1, shape, generator=generator, dtype=torch.int16)
    wide = torch.cat([numbers, numbers], 1).to(device)
    return Data(wide.to(dtype(job)))


def dtype(job: Job) -> torch.dtype:
    """Return torch's dtype of a job's."""
    found = getattr(torch, job.dtype)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch has no dtype {job.dtype}")
    return found


def mismatches(output: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return how many values differ; torch compares no float8, so those are widened."""
    if output.element_size() == 1:
        output, expected = output.float(), expected.float()
    return (output != expected).sum()
