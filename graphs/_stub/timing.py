"""How passes are timed: by the host's clock on a CPU, where each step stands, or by a GPU's events.

Every rank begins when all have come; a sample is the slowest rank's. What a timer does before the
clock starts is not timed: tensors that passes change in place are put back.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from graphs._stub.ranks import Ranks
from graphs._stub.step import Flow, Step
from graphs.capture import RecordedNothing
from graphs.stub import Pass
from kernels import Stopwatch
from verifyscope.stats import Summary, summarise


class RankLost(BaseException):
    """A rank cannot go on while others wait for it: no timer may swallow this."""


@dataclass(slots=True)
class HostPass:
    """Wall time of one pass of a CPU, whose steps are over when they return.

    own: this rank's times, sample by sample. beat: tells who watches that there is progress.
    """

    passed: Pass
    ranks: Ranks
    beat: Callable[[], None]
    own: list[float] = field(default_factory=list)

    def sample(self) -> float:
        """Time one pass."""
        self.passed.restore()
        return _sample(self.passed.run, ranks=self.ranks, beat=self.beat, own=self.own)


@dataclass(slots=True)
class InContext:
    """A whole pass of a CPU, with the clock read after each step; `by_part` are this rank's."""

    steps: Sequence[Step]
    flow: Flow
    ranks: Ranks
    beat: Callable[[], None]
    own: list[float] = field(default_factory=list)
    by_part: dict[str, list[float]] = field(default_factory=dict)

    def sample(self) -> float:
        """Time one pass."""
        return _sample(self._run, ranks=self.ranks, beat=self.beat, own=self.own)

    def _run(self) -> None:
        sums = dict.fromkeys((step.part for step in self.steps), 0.0)
        before = time.perf_counter()
        for step in self.steps:
            step.run(self.flow)
            now = time.perf_counter()
            sums[step.part] += now - before
            before = now
        for part, seconds in sums.items():
            self.by_part.setdefault(part, []).append(seconds)


def _sample(
    run: Callable[[], object], *, ranks: Ranks, beat: Callable[[], None], own: list[float]
) -> float:
    enabled = gc.isenabled()
    gc.disable()
    try:
        ranks.meet()
        start = time.perf_counter()
        run()
        own.append(time.perf_counter() - start)
    except Exception as error:
        if ranks.count > 1:
            raise RankLost from error
        raise
    finally:
        if enabled:
            gc.enable()
    beat()
    return ranks.slowest(own[-1])


class Runnable(Protocol):
    """A pass, eager or captured."""

    def run(self) -> object:
        """Launch it."""

    def restore(self) -> None:
        """Put back what passes before have changed in place."""


@dataclass(slots=True)
class DevicePass:
    """Device time of a pass right behind another one: the launch is hidden where it can be.

    An eager pass whose launches are slower than its kernels takes the host's time.
    """

    passed: Runnable
    stopwatch: Stopwatch
    ranks: Ranks
    beat: Callable[[], None]
    own: list[float] = field(default_factory=list)

    def sample(self) -> float:
        """Time one pass."""
        try:
            self.passed.restore()
            self.ranks.meet()
            self.own.append(self.stopwatch.seconds(self.passed.run, before=self.passed.run))
        except RecordedNothing:
            raise  # on every rank alike
        except Exception as error:
            if self.ranks.count > 1:
                raise RankLost from error
            raise
        self.beat()
        return self.ranks.slowest(self.own[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The host's seconds to launch a pass on an idle device, and until the device was done."""

    host_s: Summary
    alone_s: Summary


def launched(
    passed: Runnable, *, rounds: int, ranks: Ranks, synchronize: Callable[[], None]
) -> Launched:
    """Launch a pass some times, each on an idle device, by the host's clock."""
    host, alone = [], []
    for _ in range(rounds):
        passed.restore()
        synchronize()
        ranks.meet()
        start = time.perf_counter()
        passed.run()
        host.append(time.perf_counter() - start)
        synchronize()
        alone.append(time.perf_counter() - start)
    return Launched(host_s=summarise(host), alone_s=summarise(alone))
