"""The processes of a stub among themselves: who is slowest, what all have seen, one clock for all.

All ranks make the same calls in the same order, so each decision (another round, the next mode)
must come out alike: times are those of the slowest, and the clock is rank 0's.
"""

import datetime
import time
from pathlib import Path
from typing import Protocol

import torch


class Ranks(Protocol):
    """`count` processes, of which this is `rank`."""

    rank: int
    count: int

    def meet(self) -> None:
        """Wait until all have come here."""

    def slowest(self, seconds: float) -> float:
        """Return the largest of all ranks' seconds."""

    def now(self) -> float:
        """Return rank 0's clock."""

    def gathered(self, values: list[float]) -> list[list[float]]:
        """Return the values of all ranks, of each as many."""

    def agree(self, fine: bool) -> bool:
        """Say whether all are fine."""


class Alone:
    """One process."""

    rank, count = 0, 1

    def meet(self) -> None:
        """Return at once."""

    def slowest(self, seconds: float) -> float:
        """Return it."""
        return seconds

    def now(self) -> float:
        """Return the clock."""
        return time.perf_counter()

    def gathered(self, values: list[float]) -> list[list[float]]:
        """Return the values."""
        return [values]

    def agree(self, fine: bool) -> bool:
        """Return it."""
        return fine


class Group:
    """Several processes, which speak over gloo whatever moves the tensors."""

    def __init__(self, *, rank: int, count: int) -> None:
        import torch.distributed as dist

        self.rank, self.count = rank, count
        self._dist = dist
        self._group = dist.new_group(backend="gloo")

    def meet(self) -> None:
        """Wait until all have come here."""
        self._dist.barrier(self._group)

    def slowest(self, seconds: float) -> float:
        """Return the largest of all ranks' seconds."""
        return max(row[0] for row in self.gathered([seconds]))

    def now(self) -> float:
        """Return rank 0's clock."""
        return self.gathered([time.perf_counter()])[0][0]

    def gathered(self, values: list[float]) -> list[list[float]]:
        """Return the values of all ranks, of each as many."""
        mine = torch.tensor(values, dtype=torch.float64)
        every = [torch.empty_like(mine) for _ in range(self.count)]
        self._dist.all_gather(every, mine, group=self._group)
        return [one.tolist() for one in every]

    def agree(self, fine: bool) -> bool:
        """Say whether all are fine."""
        return all(row[0] > 0 for row in self.gathered([float(fine)]))


def join(rank: int, count: int, *, device: torch.device, store: Path, timeout_s: float) -> Ranks:
    """Join the group of `count` processes over a fresh file: NCCL of GPUs, gloo of a CPU."""
    import torch.distributed as dist

    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.FileStore(str(store), count),  # type: ignore[attr-defined]  # not in __all__
        rank=rank,
        world_size=count,
        # Who holds the ranks ends them first, and knows which one is to blame.
        timeout=datetime.timedelta(seconds=timeout_s + 60),
        device_id=device if device.type == "cuda" else None,
    )
    return Group(rank=rank, count=count)
