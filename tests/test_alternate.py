"""Timers take turns, forwards and backwards; a narrow interval or the cap ends it."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from verifyscope.alternate import StopRule, alternate, warm_up
from verifyscope.stats import summarise

ROUNDS_5 = StopRule(time_cap_s=5.0, target_width=1e-9, min_rounds=1)


@dataclass
class Fake:
    """A timer that takes its samples from `values`, notes each in `log`, and costs a second."""

    name: str
    values: Iterator[float]
    log: list[str]
    clock: list[float] = field(default_factory=lambda: [0.0])
    cost_s: float = 1.0

    def sample(self) -> float:
        self.log.append(self.name)
        self.clock[0] += self.cost_s
        return next(self.values)


def noisy(*values: float) -> Iterator[float]:
    return itertools.cycle(values)


def fakes(log: list[str], clock: list[float], **values: Iterator[float]) -> dict[str, Fake]:
    return {name: Fake(name, given, log, clock) for name, given in values.items()}


def reading(clock: list[float]) -> Callable[[], float]:
    return lambda: clock[0]


def test_the_order_turns_around_each_round() -> None:
    log: list[str] = []
    clock = [0.0]
    timers = fakes(log, clock, a=noisy(1, 2), b=noisy(1, 2), c=noisy(1, 2))
    rule = StopRule(time_cap_s=12.0, target_width=1e-9, min_rounds=1)
    done = alternate(timers, rule=rule, now=reading(clock))
    assert "".join(log) == "abccbaabccba"
    assert done.rounds == 4
    assert done.stopped_by == "time_cap"
    assert clock == [12.0]


def test_each_sample_stays_with_its_timer_in_the_order_it_was_taken() -> None:
    clock = [0.0]
    timers = fakes([], clock, a=iter([1.0, 2.0, 3.0]), b=iter([10.0, 20.0, 30.0]))
    rule = StopRule(time_cap_s=6.0, target_width=1e-9, min_rounds=1)
    done = alternate(timers, rule=rule, now=reading(clock))
    assert done.samples == {"a": (1.0, 2.0, 3.0), "b": (10.0, 20.0, 30.0)}
    assert done.failures == {}


def test_it_stops_when_every_interval_is_narrow() -> None:
    clock = [0.0]
    timers = fakes([], clock, steady=noisy(1.0), wide=noisy(1.0, 1.0, 1.0, 1.0, 1.3))
    rule = StopRule(time_cap_s=1e9, target_width=0.01, min_rounds=5)
    done = alternate(timers, rule=rule, now=reading(clock))
    assert done.stopped_by == "width"
    assert summarise(done.samples["wide"]).relative_width <= 0.01
    assert len(done.samples["steady"]) == len(done.samples["wide"]) == done.rounds
    assert summarise(done.samples["wide"][:5]).relative_width > 0.01


def test_a_steady_timer_stops_at_the_least_rounds() -> None:
    rule = StopRule(time_cap_s=1e9, target_width=0.01, min_rounds=7)
    clock = [0.0]
    done = alternate(fakes([], clock, a=noisy(1.0)), rule=rule, now=reading(clock))
    assert (done.rounds, done.stopped_by) == (7, "width")


def test_one_round_has_no_interval_that_could_be_narrow() -> None:
    clock = [0.0]
    rule = StopRule(time_cap_s=1e9, target_width=0.01, min_rounds=1)
    done = alternate(fakes([], clock, a=noisy(1.0)), rule=rule, now=reading(clock))
    assert (done.rounds, done.stopped_by) == (5, "width")


def test_the_cap_waits_for_the_least_rounds() -> None:
    clock = [0.0]
    rule = StopRule(time_cap_s=0.5, target_width=1e-9, min_rounds=3)
    done = alternate(fakes([], clock, a=noisy(1, 2)), rule=rule, now=reading(clock))
    assert (done.rounds, done.stopped_by) == (3, "time_cap")


def failing_at(number: int, error: Exception) -> Iterator[float]:
    yield from [1.0] * (number - 1)
    raise error


def test_a_failure_in_the_middle_keeps_its_reason_and_the_others_go_on() -> None:
    log: list[str] = []
    clock = [0.0]
    timers = fakes(
        log,
        clock,
        a=noisy(1, 2),
        bad=failing_at(2, ValueError("no such page\nat x")),
        c=noisy(1, 2),
    )
    rule = StopRule(time_cap_s=10.0, target_width=1e-9, min_rounds=1)
    done = alternate(timers, rule=rule, now=reading(clock))
    assert log == ["a", "bad", "c", "c", "bad", "a", "a", "c", "c", "a"]
    assert done.failures == {"bad": "ValueError: no such page"}
    assert set(done.samples) == {"a", "c"}
    assert len(done.samples["a"]) == len(done.samples["c"]) == 4


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_a_failure_and_never_a_sample(value: float) -> None:
    clock = [0.0]
    timers = fakes([], clock, bad=noisy(value), good=noisy(1.0))
    done = alternate(timers, rule=ROUNDS_5, now=reading(clock))
    assert done.failures == {"bad": f"the timer gave {value} s, which is no time"}
    assert set(done.samples) == {"good"}


def test_when_all_fail_it_ends_at_once() -> None:
    clock = [0.0]
    timers = fakes([], clock, a=failing_at(1, OSError("gone")), b=failing_at(1, OSError("too")))
    done = alternate(timers, rule=ROUNDS_5, now=reading(clock))
    assert (done.rounds, done.stopped_by, done.samples) == (1, "failures", {})
    assert done.failures == {"a": "OSError: gone", "b": "OSError: too"}


def interrupted_at(number: int) -> Iterator[float]:
    yield from [1.0, 2.0, 3.0, 4.0][: number - 1]
    raise KeyboardInterrupt


def test_an_interrupt_keeps_the_whole_rounds() -> None:
    clock = [0.0]
    timers = fakes([], clock, a=iter([1.0, 2.0, 3.0]), b=interrupted_at(3))
    done = alternate(timers, rule=ROUNDS_5, now=reading(clock))
    assert done.stopped_by == "interrupted"
    assert done.samples == {"a": (1.0, 2.0), "b": (1.0, 2.0)}
    assert done.rounds == 2


def test_an_interrupt_in_the_first_round_leaves_no_sample() -> None:
    clock = [0.0]
    timers = fakes([], clock, a=iter([1.0]), b=interrupted_at(1))
    assert alternate(timers, rule=ROUNDS_5, now=reading(clock)).samples == {}


@pytest.mark.parametrize("given", [{"time_cap_s": 0.0}, {"target_width": 0.0}, {"min_rounds": 0}])
def test_a_rule_that_never_stops_or_never_starts_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a stop rule needs"):
        StopRule(**({"time_cap_s": 1.0} | given))  # type: ignore[arg-type]


def test_a_warm_up_takes_whole_turns_and_leaves_failures_to_what_follows() -> None:
    log: list[str] = []
    clock = [0.0]
    timers = fakes(log, clock, a=noisy(1.0), bad=failing_at(1, ValueError("no")))
    warm_up(timers, seconds=3.0, now=reading(clock))
    assert log == ["a", "bad", "a", "bad"]
    warm_up(timers, seconds=0.0, now=reading(clock))
    assert len(log) == 4
