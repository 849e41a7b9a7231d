"""The data of all ranks: small whole numbers that each rank knows of every other.

PERIOD random numbers a rank, of which each call starts at another place, so that no call gets what
another had. Every sum over the ranks is exact in the dtype, whatever its order, so bits are
compared and one that is wrong shows: whole numbers whose sums stay within MOST_EXACT.
"""

from dataclasses import dataclass

import torch

from collectives._sweep.job import Job
from collectives._sweep.points import MOST_EXACT

PERIOD = 65_528
_STEP = 7_919
_SEED = 20_260_801
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


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
    summed = 1 if job.collective.redop == "none" else job.ranks
    largest = max(1, MOST_EXACT[job.dtype] // summed)
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


def spread(window: torch.Tensor, *, into: torch.Tensor) -> None:
    """Fill `into` with `window`, repeated as often as that takes."""
    whole, rest = divmod(len(into), len(window))
    into[: whole * len(window)].view(whole, len(window)).copy_(window)
    into[whole * len(window) :].copy_(window[:rest])


def mismatches(output: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return how many values have other bits than expected, which repeats where it is shorter."""
    whole, rest = divmod(len(output), len(expected))
    first, last = output[: whole * len(expected)], output[whole * len(expected) :]
    rows = first.view(whole, len(expected))
    return _differing(rows, expected) + _differing(last, expected[:rest])


def _differing(output: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Compare bits. A CPU looks at eight bytes at once, and counts only where they differ."""
    words = _WORDS[output.element_size()]
    output, expected = output.view(words), expected.view(words)
    long = 8 // output.element_size()
    if output.device.type == "cpu" and expected.numel() % long == 0 and _aligned(output, expected):
        same = torch.eq(output.view(torch.int64), expected.view(torch.int64)).all()
        if bool(same):
            return torch.zeros((), dtype=torch.int64)
    return torch.count_nonzero(output != expected)


def _aligned(*tensors: torch.Tensor) -> bool:
    return all(
        tensor.storage_offset() * tensor.element_size() % 8 == 0 and tensor.stride(-1) == 1
        for tensor in tensors
    )
