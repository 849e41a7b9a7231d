"""The clock hands over what was measured, bit for bit; the CPU's timer times whole batches."""

import gc
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifyscope.clock import DeviceClock, HostTimer, calls_for


def rounds_of(clock: DeviceClock, samples: list[float]) -> list[float]:
    """Do what pytest-benchmark's `pedantic` does with a timer."""
    target, taken = clock.play(samples, by="cuda-graph"), []
    for _ in samples:
        start = clock()
        target()
        taken.append(clock() - start)
    return taken


@given(st.lists(st.floats(min_value=1e-12, max_value=1e6), min_size=1, max_size=50))
def test_each_round_is_its_sample_bit_for_bit(samples: list[float]) -> None:
    assert rounds_of(DeviceClock(), samples) == samples


def test_a_sum_of_samples_would_not_be_exact() -> None:
    samples = [0.1, 1e-9, 0.2]
    total, differences = 0.0, []
    for sample in samples:
        differences.append((total + sample) - total)
        total += sample
    assert differences != samples
    assert rounds_of(DeviceClock(), samples) == samples


def test_reading_clears_the_clock() -> None:
    clock = DeviceClock()
    clock.play([2.5], by="cuda-events")()
    assert clock() == 2.5
    assert clock() == 0.0


def test_one_round_too_many_is_refused_and_not_played_as_zero() -> None:
    target = DeviceClock().play([1.0, 2.0], by="perf-counter")
    target()
    target()
    with pytest.raises(RuntimeError, match="all 2 samples are played; give rounds=2"):
        target()


def test_its_name_says_what_measured() -> None:
    clock = DeviceClock()
    clock.play([1.0], by="cuda-graph")
    assert (str(clock), clock.__name__) == ("cuda-graph", "cuda-graph")


def test_the_host_timer_counts_a_batch_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    readings, calls = iter([10.0, 13.0]), []
    monkeypatch.setattr(time, "perf_counter", lambda: next(readings))
    assert HostTimer(lambda: calls.append(gc.isenabled()), calls=4).sample() == 0.75
    assert calls == [False] * 4
    assert gc.isenabled()


def test_the_host_timer_leaves_a_collector_off_that_was_off() -> None:
    gc.disable()
    try:
        HostTimer(lambda: None, calls=1).sample()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_host_timer_turns_the_collector_on_again_after_an_error() -> None:
    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        HostTimer(fail, calls=1).sample()
    assert gc.isenabled()


def test_a_batch_lasts_far_longer_than_the_clock_resolves() -> None:
    assert calls_for(2.5e-4, sample_s=1e-3) == 4
    assert calls_for(3e-4, sample_s=1e-3) == 4
    assert calls_for(5.0, sample_s=1e-3) == 1
    resolution_s = time.get_clock_info("perf_counter").resolution
    assert calls_for(0.0, sample_s=1e-3) == math.ceil(1e-3 / resolution_s)


def test_calibration_warms_up_before_it_chooses_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    now, cost = [0.0], iter([4.0, 4.0, *[2**-12] * 100])

    def call() -> None:
        now[0] += next(cost)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert HostTimer.calibrated(call).calls == 5  # 4.096 calls of 2**-12 s are 1 ms


def test_a_batch_of_no_calls_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        HostTimer(lambda: None, calls=0)
