"""seconds = end - start on one rank, both after a barrier; the sample is the maximum over ranks.

Between the two reads stand the calls and nothing else; the caller divides by their number.

HostClock (CPU processes): the host's performance counter around the calls.

DeviceClock (CUDA): two events around the calls on the current stream, behind an all-reduce of one
element, which no rank passes before all have come. Where the launch is to be hidden, a spin of
about a millisecond stands before it, in which the host enqueues all the rest: the time is the
device's. A call whose spin was over before all of it was enqueued is `exposed`. Without a hidden
launch the host enqueues while the device works, as an engine does. Events have steps of about
0.5 us.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

_HOLD_CYCLES = 2_000_000


@dataclass(frozen=True, slots=True)
class Taken:
    """The time of one run of calls, and whether the host's launch may be in it."""

    seconds: float
    exposed: bool = False


class Clock(Protocol):
    """A way to time calls that every rank makes."""

    def time(self, calls: Sequence[Callable[[], None]], *, hidden: bool) -> Taken:
        """Wait for all ranks, run `calls`, and return what they took on this rank."""
        ...


class HostClock:
    """Time on the host, for calls that are over when they return."""

    def time(self, calls: Sequence[Callable[[], None]], *, hidden: bool) -> Taken:
        """Wait for all ranks, run `calls`, and return what they took on this rank."""
        dist.barrier()
        start = time.perf_counter()
        for call in calls:
            call()
        return Taken(time.perf_counter() - start)


class DeviceClock:
    """Time on `device`, for calls that only enqueue; all ranks make one at once.

    apart: the start line has a communicator of its own, for NCCL_GRAPH_MIXING_SUPPORT=0, which
    forbids eager calls beside a graph on one. Otherwise there is no second one to be in the way.
    """

    def __init__(self, device: torch.device, *, apart: bool) -> None:
        self._line = torch.zeros(1, device=device)
        self._group = dist.new_group() if apart else None
        self._held, self._start, self._end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch.cuda
            for _ in range(3)
        )

    def time(self, calls: Sequence[Callable[[], None]], *, hidden: bool) -> Taken:
        """Wait for all ranks on the device, run `calls`, and return what they took there."""
        if hidden:
            torch.cuda._sleep(_HOLD_CYCLES)  # type: ignore[no-untyped-call]  # has no types
            self._held.record()
        dist.all_reduce(self._line, group=self._group)
        self._start.record()
        for call in calls:
            call()
        self._end.record()
        exposed = hidden and bool(self._held.query())  # type: ignore[no-untyped-call]  # no types
        self._end.synchronize()
        return Taken(self._start.elapsed_time(self._end) * 1e-3, exposed)
