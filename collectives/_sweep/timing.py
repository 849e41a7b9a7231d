"""seconds = end - start on one rank, both after a barrier; the sample is the maximum over ranks.

HostClock (CPU processes): the host's performance counter around the call.

DeviceClock (CUDA): two events around the call on the current stream. Each call stands behind a spin
of about a millisecond, in which the host enqueues all the rest, and behind an all-reduce of one
element, which no rank passes before all have come: the time is the device's, without the host's
launch. A call whose spin was over before all of it was enqueued is `exposed`. Events have steps of
about 0.5 us.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

_HOLD_CYCLES = 2_000_000


@dataclass(frozen=True, slots=True)
class Taken:
    """The time of one call, and whether the host's launch may be in it."""

    seconds: float
    exposed: bool = False


class Clock(Protocol):
    """A way to time one call that every rank makes."""

    def time(self, call: Callable[[], None]) -> Taken:
        """Wait for all ranks, run `call`, and return what it took on this rank."""
        ...


class HostClock:
    """Time on the host, for a call that is over when it returns."""

    def time(self, call: Callable[[], None]) -> Taken:
        """Wait for all ranks, run `call`, and return what it took on this rank."""
        dist.barrier()
        start = time.perf_counter()
        call()
        return Taken(time.perf_counter() - start)


class DeviceClock:
    """Time on `device`, for a call that only enqueues."""

    def __init__(self, device: torch.device) -> None:
        self._line = torch.zeros(1, device=device)
        self._held, self._start, self._end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch.cuda
            for _ in range(3)
        )

    def time(self, call: Callable[[], None]) -> Taken:
        """Wait for all ranks on the device, run `call`, and return what it took on this rank."""
        torch.cuda._sleep(_HOLD_CYCLES)  # type: ignore[no-untyped-call]  # has no types
        self._held.record()
        dist.all_reduce(self._line)
        self._start.record()
        call()
        self._end.record()
        exposed = self._held.query()  # type: ignore[no-untyped-call]  # has no types
        self._end.synchronize()
        return Taken(self._start.elapsed_time(self._end) * 1e-3, exposed)
