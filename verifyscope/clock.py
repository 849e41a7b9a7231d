"""A clock that hands measured samples to pytest-benchmark bit for bit, and a CPU's timer.

`DeviceClock` is pytest-benchmark's timer: reading it returns the seconds played since the last read
and clears them. So a round that plays one sample starts at 0.0 and ends at the sample, and the
difference is the sample itself.

A `Timer` measures: each `sample()` is seconds per call. `HostTimer` is the one for a CPU; those for
a GPU need torch and stand in kernels/_timing.py, above this floor, which imports none.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

ClockName = Literal["cuda-graph", "cuda-events", "perf-counter"]

SHORTEST_SAMPLE_S = 1e-3
_WARMUP_CALLS = 2


class Timer(Protocol):
    """Measures one thing, again at each `sample`."""

    def sample(self) -> float:
        """Return the seconds that one call takes."""


class DeviceClock:
    """Seconds that were measured before and are played now, by what `name` says.

        benchmark.pedantic(clock.play(samples, by="cuda-graph"), rounds=len(samples), iterations=1)

    pytest-benchmark reads it before and after each round. Only `pedantic` works with it: a clock
    that does not advance by itself cannot be calibrated.
    """

    def __init__(self) -> None:
        # pytest-benchmark writes a timer's __name__ into its JSON.
        self.__name__ = "unread"
        self._played_s = 0.0

    def __str__(self) -> str:
        return self.__name__

    def __call__(self) -> float:
        """Return the seconds played since the last reading, and start again from 0."""
        played_s, self._played_s = self._played_s, 0.0
        return played_s

    def play(self, samples: Sequence[float], *, by: str) -> Callable[[], None]:
        """Return a target whose n-th call advances this clock by the n-th sample.

        by: what took the samples, a `ClockName` as a rule; it becomes the name of this clock.
        A call beyond the last sample is a `RuntimeError`.
        """
        self.__name__ = by
        remaining: Iterator[float] = iter(samples)

        def target() -> None:
            for sample in remaining:
                self._played_s += sample
                return
            raise RuntimeError(f"all {len(samples)} samples are played; give rounds={len(samples)}")

        return target


class HostTimer:
    """Wall time of `calls` calls in a row, per call, with the garbage collector off."""

    def __init__(self, call: Callable[[], object], *, calls: int) -> None:
        if calls < 1:
            raise ValueError(f"calls must be at least 1, got {calls}")
        self.calls = calls
        self._call = call

    @classmethod
    def calibrated(cls, call: Callable[[], object]) -> "HostTimer":
        """Warm `call` up and choose how many calls make a sample that the clock resolves well."""
        for _ in range(_WARMUP_CALLS):
            call()
        once = cls(call, calls=1)
        return cls(call, calls=calls_for(min(once.sample() for _ in range(3))))

    def sample(self) -> float:
        """Time one batch: seconds a call."""
        call, enabled = self._call, gc.isenabled()
        gc.disable()
        try:
            start = time.perf_counter()
            for _ in range(self.calls):
                call()
            return (time.perf_counter() - start) / self.calls
        finally:
            if enabled:
                gc.enable()


def calls_for(call_s: float, *, sample_s: float = SHORTEST_SAMPLE_S) -> int:
    """Return how many calls of `call_s` seconds last at least `sample_s`; at least 1."""
    resolution_s = time.get_clock_info("perf_counter").resolution
    return max(1, math.ceil(sample_s / max(call_s, resolution_s)))
