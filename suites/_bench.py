"""Where a case is timed: `HostBench` is this CPU, `GpuBench` (suites/_gpu_bench.py) a GPU.

A `Bench` turns an implementation and its input sets into `Timing`s: what to time, how, and the run
that shows afterwards that what was timed still computes the right thing. On a CPU the one timing is
warm and says so. On a GPU the first is cold, or flushed, and a warm one stands beside it.
"""

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from kernels import Implementation, Inputs, InputSets, Outputs
from verifyscope.clock import ClockName, HostTimer, Timer
from verifyscope.records import Cache, Launch, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One way to time an implementation: a sample is `calls` calls over `sets` input sets.

    run: computes once more what is timed, and returns what each input set's call gave.
    convert: makes the op's outputs of that.
    facts: further words and numbers for the record's method.
    holds: what a graph reads and writes without owning it, kept alive as long as this is.
    """

    timer: Timer
    run: Callable[[], Sequence[Outputs]]
    convert: Callable[[Outputs], Outputs]
    clock: ClockName
    cache: Cache
    launch: Launch
    calls: int
    sets: int
    facts: Mapping[str, Value] = field(default_factory=dict)
    holds: tuple[object, ...] = ()


class Conditions(Protocol):
    """What is sampled while a case is timed."""

    def summary(self) -> dict[str, Value]:
        """Return it for a record's conditions."""

    def throttled(self) -> tuple[str, ...]:
        """Return the reasons for which a clock was held down."""


class Bench(Protocol):
    """A device to time on."""

    device: torch.device
    cache_bytes: int | None
    # Why times that are taken from now on are in doubt; None while they are not.
    in_doubt: str | None
    # How long the timers of a case run untimed before, and the least rounds that are taken then.
    warm_up_s: float
    fewest_rounds: int

    def input_sets(self, *, touched_bytes: float, set_bytes: int) -> InputSets:
        """Choose how many input sets are walked."""

    def timings(
        self,
        implementation: Implementation,
        sets: Sequence[Inputs],
        *,
        touched_bytes: float,
        why_flushed: str | None,
    ) -> tuple[Timing, ...]:
        """Prepare `implementation` for timing; the first timing is the one that counts."""

    def conditions(self) -> AbstractContextManager[Conditions]:
        """Sample clocks, power and load within the block."""

    def synchronize(self) -> None:
        """Wait for the device; raise if it is lost."""

    def release(self) -> None:
        """Give back the memory of the case before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """The load of a CPU, one-minute average, when the block began: others may be using it too."""

    load: float | None

    def summary(self) -> dict[str, Value]:
        """Return the load, if the system tells it."""
        return {} if self.load is None else {"load_1m": round(self.load, 2)}

    def throttled(self) -> tuple[str, ...]:
        """Return nothing: a CPU does not say."""
        return ()


class HostBench:
    """This CPU: wall time of warm calls."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.cache_bytes = host_cache_bytes()
        self.in_doubt: str | None = None
        self.warm_up_s = 0.0
        self.fewest_rounds = 1

    def input_sets(self, *, touched_bytes: float, set_bytes: int) -> InputSets:
        """Take one: a CPU's rows are warm."""
        return InputSets(count=1)

    def timings(
        self,
        implementation: Implementation,
        sets: Sequence[Inputs],
        *,
        touched_bytes: float,
        why_flushed: str | None,
    ) -> tuple[Timing, ...]:
        """Return one warm timing."""
        prepared = implementation.prepare(sets[0])
        timer = HostTimer.calibrated(prepared.call)
        return (
            Timing(
                timer=timer,
                run=lambda: [prepared.fresh()],
                convert=prepared.convert,
                clock="perf-counter",
                cache="warm",
                launch="eager",
                calls=timer.calls,
                sets=1,
                facts={"threads": torch.get_num_threads()},
            ),
        )

    def conditions(self) -> AbstractContextManager[Conditions]:
        """Note the load."""
        return nullcontext(HostLoad(load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None))

    def synchronize(self) -> None:
        """Return at once: a CPU has nothing pending."""

    def release(self) -> None:
        """Collect what the case before left."""
        gc.collect()


def host_cache_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Return the size of this CPU's largest caches together; None where the system hides them."""
    caches: dict[tuple[int, str], int] = {}
    for index in root.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level = int((index / "level").read_text())
            shared_by = (index / "shared_cpu_list").read_text().strip()
            size = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if size.endswith("K") and size[:-1].isdigit():
            caches[level, shared_by] = int(size[:-1]) * 1024
    last = max((level for level, _ in caches), default=None)
    sizes = [size for (level, _), size in caches.items() if level == last]
    return sum(sizes) or None
