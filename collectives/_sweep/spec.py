"""All that a sweep is asked to do: what a run's journal keeps, so that it can be resumed.

Nothing in it is private: a graph file is named by where it stands in the run's own folder.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from collectives._sweep.combination import Combination
from collectives._sweep.job import Timing
from collectives._sweep.points import Point

FEWEST_STARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A sweep. ranks: of all machines, local_ranks: of each. See `Job` for the others.

    nccl: the version of the library that takes the place of torch's; None is torch's own.
    """

    op: str
    backend: str
    ranks: int
    local_ranks: int
    dtype: str
    points: tuple[Point, ...]
    combinations: tuple[Combination, ...]
    depth: int
    iterations: int
    batches: int
    warmup: int
    starts: int
    timeout_s: float
    stress_calls: int
    nccl: str | None = None

    @property
    def timings(self) -> tuple[Timing, ...]:
        """Return the four times of a row."""
        return (
            Timing(launch="eager", depth=1),
            Timing(launch="eager", depth=self.depth),
            Timing(launch="graph", depth=1),
            Timing(launch="graph", depth=self.depth),
        )

    @property
    def nodes(self) -> int:
        """Return the number of machines."""
        return self.ranks // self.local_ranks

    def launched(self) -> Iterator[int]:
        """Yield the positions of the combinations that are run."""
        return (at for at, known in enumerate(self.combinations) if known.launched)
