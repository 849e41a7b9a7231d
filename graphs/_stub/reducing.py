"""The collectives of a pass as a stub has them: of real ranks, of one, a delay, or none.

    all_reduce(x)   in place, the sum over ranks        all_gather(x)   [ranks, ...] of every rank's

real: torch.distributed in the group that the ranks have joined: NCCL, or gloo for CPU processes.
one-rank: the same calls in a group of one; what is launched is there, no peer is. delay: a kernel
(on a CPU a loop) that lasts as long as was asked for and moves nothing, for each all-reduce; the
all-gather, of another size, is left out. none: no call at all.
"""

import time
from collections.abc import Callable

import torch

from graphs._stub.asked import Reduce

InPlace = Callable[[torch.Tensor], object]
Gather = Callable[[torch.Tensor], torch.Tensor]


def all_reduce(given: Reduce, device: torch.device) -> InPlace | None:
    """Return what reduces a tensor in place; None where nothing does."""
    if given.kind == "none":
        return None
    if given.kind == "delay":
        return _delay(given.delay_s or 0.0, device)
    import torch.distributed as dist

    return dist.all_reduce


def all_gather(given: Reduce, *, ranks: int, like: torch.Tensor) -> Gather | None:
    """Return what gathers tensors like `like` of all ranks; None where nothing does."""
    if given.kind in ("none", "delay"):
        return None
    import torch.distributed as dist

    whole = like.new_empty(ranks * len(like), *like.shape[1:])

    def gather(x: torch.Tensor) -> torch.Tensor:
        dist.all_gather_into_tensor(whole, x)
        return whole

    return gather


def _delay(seconds: float, device: torch.device) -> InPlace:
    if device.type == "cuda":
        from graphs._stub import delay_kernel

        return delay_kernel.delay(seconds, device)

    def wait(x: torch.Tensor) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    return wait
