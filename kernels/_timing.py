"""How a GPU's time is taken: which cache state, how many input sets, which timer.

Cold: one CUDA graph walks N distinct input sets with N x touched bytes >= 3 x L2, N at most 512,
several times over where one walk is short against an event's resolution; a sample is one replay /
its calls. Flushed: where that many sets are too many or do not fit in memory, one
call between two events after reads of 2 x L2, which leave clean lines. Warm: a graph of calls on
one set. Touched bytes are counted (`Op.cost`), not tensor sizes.

Before each timed replay runs an untimed one, and before each timed call the flush: it brings the
cache to its state and keeps the GPU busy until the host has enqueued what is timed, so that no
launch latency is counted. Nothing is subtracted. Seconds throughout.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from kernels import _capture
from kernels._capture import Captured
from verifyscope.units import bytes_

T = TypeVar("T")

CACHES_TO_WALK = 3
CACHES_TO_FLUSH = 2
MOST_INPUT_SETS = 512
MOST_FLUSH_PASSES = 16
EVENT_RESOLUTION_S = 0.5e-6
MOST_CALLS = 2048
# 600 times an event's resolution, and far longer than the launch that the replay before hides.
SHORTEST_REPLAY_S = 300e-6
_FEWEST_WARM_CALLS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSets:
    """How many distinct input sets a cold measurement walks, or why it flushes instead (one)."""

    count: int
    why_flushed: str | None = None


def input_sets(
    *, touched_bytes: float, set_bytes: int, cache_bytes: int, free_bytes: int
) -> InputSets:
    """Choose between walking sets and flushing.

    set_bytes: memory that one set takes, its tensors whole. Half of `free_bytes` may be used.
    """
    wanted = MOST_INPUT_SETS + 1
    if touched_bytes > 0:
        wanted = max(1, math.ceil(CACHES_TO_WALK * cache_bytes / touched_bytes))
    if wanted > MOST_INPUT_SETS:
        return InputSets(
            count=1,
            why_flushed=f"{MOST_INPUT_SETS} input sets of {bytes_(touched_bytes)} are less than "
            f"{CACHES_TO_WALK} x the L2 of {bytes_(cache_bytes)}",
        )
    if wanted * set_bytes > free_bytes / 2:
        return InputSets(
            count=1,
            why_flushed=f"{wanted} input sets of {bytes_(set_bytes)} are more than half of the "
            f"free {bytes_(free_bytes)}",
        )
    return InputSets(count=wanted)


def warm_calls(call_s: float) -> int:
    """Return how many calls make a warm graph that is long enough to be timed."""
    wanted = math.ceil(SHORTEST_REPLAY_S / call_s) if call_s > 0 else MOST_CALLS
    return min(max(wanted, _FEWEST_WARM_CALLS), MOST_CALLS)


def walks(replay_s: float, *, calls: int, call_bytes: int, free_bytes: int) -> int:
    """Return how often a graph walks its sets, so that it is long enough to be timed.

    replay_s: the time of one walk of `calls` calls. Every call keeps `call_bytes` of its own in the
    graph, and all of them may use a quarter of `free_bytes`.
    """
    wanted = math.ceil(SHORTEST_REPLAY_S / replay_s) if replay_s > 0 else MOST_CALLS
    fitting = free_bytes // (4 * calls * call_bytes) if call_bytes > 0 else wanted
    return max(1, min(wanted, fitting, MOST_CALLS // calls))


def flush_passes(*, enqueue_s: float, pass_s: float) -> tuple[int, bool]:
    """Return how many flush reads outlast the host's enqueue of the timed call, and if they do."""
    wanted = math.ceil(1.5 * enqueue_s / pass_s) + 1
    return min(wanted, MOST_FLUSH_PASSES), wanted <= MOST_FLUSH_PASSES


class Stopwatch(Protocol):
    """Takes the device time of what is enqueued between a start and an end."""

    def seconds(self, timed: Callable[[], object], *, before: Callable[[], object]) -> float:
        """Enqueue `before`, then `timed`; return the seconds of `timed` alone."""


class CudaEvents:
    """Two CUDA events on the current stream. They resolve about 0.5 us."""

    def __init__(self) -> None:
        self._start, self._end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )

    def seconds(self, timed: Callable[[], object], *, before: Callable[[], object]) -> float:
        """Return what the events say; `elapsed_time` does not wait, so the end is waited for."""
        before()
        self._start.record()
        timed()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTimer:
    """One replay of a graph of `calls` calls, right behind another; per call."""

    replay: Callable[[], object]
    calls: int
    stopwatch: Stopwatch

    def sample(self) -> float:
        """Time one replay."""
        return self.stopwatch.seconds(self.replay, before=self.replay) / self.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedTimer:
    """One eager call behind `passes` reads that push everything else out of the cache."""

    call: Callable[[], object]
    flush: Callable[[], object]
    passes: int
    stopwatch: Stopwatch

    def sample(self) -> float:
        """Time one call."""
        return self.stopwatch.seconds(self.call, before=self._flush_all)

    def _flush_all(self) -> None:
        for _ in range(self.passes):
            self.flush()


class ReadFlush:
    """Reads a buffer of twice the cache: what was there is gone, and no line is left dirty."""

    def __init__(self, cache_bytes: int, device: torch.device) -> None:
        self._buffer = torch.zeros(CACHES_TO_FLUSH * cache_bytes // 4, device=device)
        self._sum = torch.zeros((), device=device)

    def __call__(self) -> None:
        """Enqueue one read."""
        torch.sum(self._buffer, dim=0, out=self._sum)


def enqueue_seconds(call: Callable[[], object], *, synchronize: Callable[[], None]) -> float:
    """Return the host's time to enqueue `call`, the least of three."""
    taken = []
    for _ in range(3):
        synchronize()
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    synchronize()
    return min(taken)


class Gpu(Protocol):
    """What timing asks of a GPU: the one seam between the rules above and torch.cuda."""

    device: torch.device
    l2_bytes: int

    def free_bytes(self) -> int:
        """Return what can still be allocated."""

    def allocated_bytes(self) -> int:
        """Return what tensors hold now."""

    def synchronize(self) -> None:
        """Wait for all that is enqueued."""

    def empty_cache(self) -> None:
        """Give back memory that no tensor uses."""

    def stopwatch(self) -> Stopwatch:
        """Return what takes device time."""

    def why_not_capturable(self, call: Callable[[], object]) -> str | None:
        """Say what in `call` would break a capture; None if nothing is known to."""

    def capture(self, body: Callable[[], T]) -> Captured[T]:
        """Capture `body` into a graph."""


class CudaGpu:
    """The current CUDA device through torch."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.l2_bytes = int(torch.cuda.get_device_properties(self.device).L2_cache_size)

    def free_bytes(self) -> int:
        """Return what is free on the device, and what torch has cached and does not use."""
        free, _ = torch.cuda.mem_get_info(self.device)
        unused = torch.cuda.memory_reserved(self.device) - self.allocated_bytes()
        return int(free) + int(unused)

    def allocated_bytes(self) -> int:
        """Return what tensors hold now."""
        return int(torch.cuda.memory_allocated(self.device))

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.device)

    def empty_cache(self) -> None:
        """Let torch give back what it caches."""
        torch.cuda.empty_cache()

    def stopwatch(self) -> Stopwatch:
        """Return a pair of events."""
        return CudaEvents()

    def why_not_capturable(self, call: Callable[[], object]) -> str | None:
        """Ask torch, in an eager run."""
        return _capture.why_not_capturable(call)

    def capture(self, body: Callable[[], T]) -> Captured[T]:
        """Capture after one more call: whatever is compiled or tuned is so already."""
        return _capture.capture(body, warmup_calls=1)
