"""Measure several things in turn, so that whatever drifts meanwhile meets all of them alike.

Round 0 takes the timers in their order (A B C), round 1 backwards (C B A), round 2 forwards, and so
on: neither the first place nor the last is always the same one's.

Stop: when the 95 % interval of every median is narrow, (high - low) / 2 / median <= target_width,
or when time_cap_s has passed; never before min_rounds. A timer that raises, or gives no positive
number, leaves the rounds with its reason; the others go on. Ctrl-C ends the rounds and keeps them.
"""

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from verifyscope.clock import Timer
from verifyscope.errors import reason_of
from verifyscope.stats import summarise

StoppedBy = Literal["width", "time_cap", "interrupted", "failures"]

# Fewer samples have no interval that could be called narrow.
_FEWEST_FOR_WIDTH = 5
# The interval is worth its bootstrap only when some rounds have been added to it.
_GROWTH = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When to stop: `target_width` is a fraction of the median; `time_cap_s` is for all of them."""

    time_cap_s: float
    target_width: float = 0.01
    min_rounds: int = 5

    def __post_init__(self) -> None:
        if self.time_cap_s <= 0 or self.target_width <= 0 or self.min_rounds < 1:
            raise ValueError(
                f"a stop rule needs a time cap and a width above 0 and at least 1 round, got {self}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternation:
    """The samples of each timer that never failed, in seconds, and why the others have none."""

    samples: Mapping[str, tuple[float, ...]]
    failures: Mapping[str, str]
    rounds: int
    stopped_by: StoppedBy


def warm_up(
    timers: Mapping[str, Timer],
    *,
    seconds: float,
    now: Callable[[], float] = time.perf_counter,
) -> None:
    """Sample `timers` in turn for `seconds` and forget it: clocks rise, and caches are as later.

    What raises is left to `alternate`, which keeps the reason.
    """
    start_s = now()
    while now() - start_s < seconds:
        for timer in timers.values():
            with contextlib.suppress(Exception):
                timer.sample()


def alternate(
    timers: Mapping[str, Timer],
    *,
    rule: StopRule,
    now: Callable[[], float] = time.perf_counter,
) -> Alternation:
    """Sample `timers` round by round until `rule` says stop; every timer gets the same rounds."""
    samples: dict[str, list[float]] = {name: [] for name in timers}
    failures: dict[str, str] = {}
    rounds, next_look = 0, max(rule.min_rounds, _FEWEST_FOR_WIDTH)
    start_s = now()
    stopped_by: StoppedBy | None = None
    try:
        while stopped_by is None:
            order = [name for name in timers if name not in failures]
            for name in order if rounds % 2 == 0 else reversed(order):
                _sample_once(name, timers[name], samples[name], failures)
            rounds += 1
            running = [taken for name, taken in samples.items() if name not in failures]
            if not running:
                stopped_by = "failures"
            elif rounds >= next_look and _narrow(running, rule.target_width):
                stopped_by = "width"
            elif rounds >= rule.min_rounds and now() - start_s >= rule.time_cap_s:
                stopped_by = "time_cap"
            if rounds >= next_look:
                next_look = math.ceil(rounds * _GROWTH)
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    whole = {name: tuple(taken[:rounds]) for name, taken in samples.items() if name not in failures}
    return Alternation(
        samples=whole if rounds else {},
        failures=failures,
        rounds=rounds,
        stopped_by=stopped_by,
    )


def _sample_once(name: str, timer: Timer, taken: list[float], failures: dict[str, str]) -> None:
    try:
        sample = timer.sample()
    except Exception as error:
        failures[name] = reason_of(error)
        return
    if not (math.isfinite(sample) and sample > 0):
        failures[name] = f"the timer gave {sample} s, which is no time"
        return
    taken.append(sample)


def _narrow(running: list[list[float]], target_width: float) -> bool:
    return all(summarise(taken).relative_width <= target_width for taken in running)
