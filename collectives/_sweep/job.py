"""One start of fresh workers: what all ranks do, in one combination, from joining to leaving."""

from dataclasses import dataclass
from typing import Literal

from collectives._sweep.backend import Backend
from collectives._sweep.collective import Collective
from collectives._sweep.combination import Combination
from collectives._sweep.points import Point

FULL_BYTES = 4 * 2**20
FEWEST_BATCHES = 3

Purpose = Literal["probe", "time", "stress"]
Launch = Literal["eager", "graph"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One of the four times of a row: how calls are launched, and how many stand in a row."""

    launch: Launch
    depth: int

    @property
    def name(self) -> str:
        """Return "eager" or "graph x 122"."""
        return self.launch if self.depth == 1 else f"{self.launch} x {self.depth}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A point and the times of it that are wanted."""

    point: Point
    timings: tuple[Timing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where ranks of several machines meet: the store of a launcher, and a name of this start."""

    host: str
    port: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all ranks do. `timeout_s` is the longest time in which no rank gets any further.

    ranks: of all machines; this one starts `local_ranks` of them, from `first_rank` on.
    iterations: isolated calls a point, batches: samples of calls in a row, both timed; warmup: of
    each before them. stress_calls: of each size, where that is the purpose. nccl: the version that
    the ranks must have in place of torch's.
    """

    purpose: Purpose
    collective: Collective
    backend: Backend
    combination: Combination
    ranks: int
    dtype: str
    tasks: tuple[Task, ...]
    iterations: int
    batches: int
    warmup: int
    timeout_s: float
    stress_calls: int = 0
    first_rank: int = 0
    local_ranks: int
    meeting: Meeting | None = None
    nccl: str | None = None

    @property
    def calls(self) -> int:
        """Return how many samples each rank takes, warm-up included."""
        if self.purpose == "probe":
            return len(self.tasks)
        return sum(
            self.samples(timing, task.point) for task in self.tasks for timing in task.timings
        )

    def samples(self, timing: Timing, point: Point) -> int:
        """Return the samples of one time of a point, warm-up included.

        Rows of calls on buffers beyond FULL_BYTES take long and vary little: they are fewer.
        """
        if timing.depth == 1:
            return self.warmup + self.iterations
        fewer = self.batches * FULL_BYTES // max(FULL_BYTES, point.size_bytes)
        return self.warmup + max(min(self.batches, FEWEST_BATCHES), fewer)
