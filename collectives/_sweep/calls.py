"""Calls in a row on buffers of their own: what one sample runs between its two clock reads.

A verify pass reduces a fresh buffer in each call, and so does a row of calls here, as far as memory
goes: `POOL_BYTES` a rank. Where buffers are too large for that, calls share them, and what an
in-place sum over sums must give is no longer exact: those values are not checked.

Several samples make a volley where there is room: their buffers are filled before the first of them
and compared after the last. What a CPU does between calls changes how fast it is in them.

    slots = Slots(seat, point, depth, samples=volley)
    slots.fill(first)                       data that no call before had, outputs poisoned
    for call in slots.calls[sample]: call()
    slots.wrong(first, samples)             values that are not right, None where that can't be told
"""

import contextlib
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from collectives._sweep.data import Data, mismatches, spread
from collectives._sweep.job import Job
from collectives._sweep.points import Point

POOL_BYTES = {"cpu": 2**26, "cuda": 2**30}
# More buffers take longer to fill and compare than a rank may be silent.
MOST_IN_A_VOLLEY = 256

Call = Callable[[], None]
Run = Callable[[torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What one rank measures with; `why_not` says why a point can't be."""

    job: Job
    rank: int
    device: torch.device
    data: Data
    run: Run
    why_not: Callable[[Point], str | None] = lambda point: None


class Slots:
    """The buffers of samples of `depth` calls of a point, and the calls of each sample.

    samples: the longest volley. On a GPU it is one: the host is no part of the time there.
    """

    def __init__(self, seat: Seat, point: Point, depth: int, *, samples: int = 1) -> None:
        self.seat, self.point, self.depth = seat, point, depth
        collective, ranks = seat.job.collective, seat.job.ranks
        self.held = collective.input_elements(point.elements, ranks)
        self.made = collective.output_elements(point.elements, ranks)
        element = seat.data.numbers.element_size()
        shared = max(self.held, self.made)
        each = (shared if point.in_place else self.held + self.made) * element
        room = max(1, POOL_BYTES[seat.device.type] // max(1, each))
        most = min(room, MOST_IN_A_VOLLEY) // depth
        self.volley = max(1, min(samples if seat.device.type == "cpu" else 1, most))
        self.pairs = [self._pair() for _ in range(min(self.volley * depth, room))]
        every = [self._call(at % len(self.pairs)) for at in range(self.volley * depth)]
        self.calls: Sequence[Sequence[Call]] = [
            every[at * depth : (at + 1) * depth] for at in range(self.volley)
        ]

    @property
    def checkable(self) -> bool:
        """Say whether what comes out is known: not where one buffer is summed up repeatedly."""
        enough = not self.point.in_place or len(self.pairs) >= self.depth
        return enough or self.seat.job.collective.repeats

    def fill(self, first: int) -> None:
        """Give every buffer new data, and poison the outputs; `first` is the next sample."""
        for at, (output, source) in enumerate(self.pairs):
            if output is not source:
                output.fill_(math.nan)
            spread(self._windows(first, at)[self.seat.rank], into=source)

    def wrong(self, first: int, samples: int = 1) -> torch.Tensor | None:
        """Return how many values of the samples from `first` on are wrong, on the device."""
        if not self.checkable:
            return None
        collective, rank = self.seat.job.collective, self.seat.rank
        found = torch.zeros((), dtype=torch.int64, device=self.seat.device)
        for at, (output, _) in enumerate(self.pairs[: samples * self.depth]):
            windows = self._windows(first, at)
            right = collective.expected(windows, rank, self.point.elements)
            for part, expected in zip(output.view(len(right), -1), right, strict=True):
                found += mismatches(part, expected)
        return found

    def _windows(self, first: int, at: int) -> torch.Tensor:
        return self.seat.data.windows(first * self.depth + at, self.held)

    def _pair(self) -> tuple[torch.Tensor, torch.Tensor]:
        collective, ranks = self.seat.job.collective, self.seat.job.ranks
        empty = self.seat.data.numbers.new_empty
        if not self.point.in_place:
            return empty(self.made), empty(self.held)
        if collective.in_place is None:
            raise ValueError(f"{collective.name} does not run in place")
        return collective.in_place(empty(max(self.held, self.made)), self.seat.rank, ranks)

    def _call(self, at: int) -> Call:
        output, source = self.pairs[at]
        run = self.seat.run
        return lambda: run(output, source)


def captured(calls: Sequence[Call]) -> Call:
    """Return the replay of a CUDA graph of `calls`, which have run; RuntimeError if it fails.

    They are warmed up on the stream that captures. A capture that failed leaves torch's allocator
    and stream behind: whoever sees the error measures nothing more in this process.
    """
    current = torch.cuda.current_stream()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch.cuda
    side.wait_stream(current)
    with torch.cuda.stream(side):
        calls[0]()
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with _no_collection():
        try:
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                for call in calls:
                    call()
        except Exception as error:
            torch.cuda.set_stream(current)
            raise RuntimeError(f"capture failed: {error.__context__ or error}") from error
    replay: Call = graph.replay
    replay()  # the first launch uploads the graph, and makes what connections are missing
    torch.cuda.synchronize()
    return replay


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's garbage collector away: what it frees may break a capture."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
