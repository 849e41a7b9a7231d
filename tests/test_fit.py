"""alpha + bytes / beta: the line through measured rows, and what its interval promises."""

import random
from collections.abc import Sequence

import pytest

from collectives._model import fit

US = 1e-6


def test_rows_on_a_line_give_it_back_without_error() -> None:
    line = fit.fit([(size, 20 * US + size / 10e9) for size in (1024, 4096, 65536, 2**20)])
    assert line.alpha_s == pytest.approx(20 * US)
    assert line.bytes_per_s == pytest.approx(10e9)
    assert line.alpha_error_s == pytest.approx(0.0, abs=1e-12)
    low, high = line.bandwidth_interval()
    assert low == pytest.approx(10e9)
    assert high == pytest.approx(10e9)
    assert line.worst == pytest.approx(0.0, abs=1e-9)
    assert (line.rows, line.sizes, line.low_bytes, line.high_bytes) == (4, 4, 1024, 2**20)


def test_a_point_off_the_line_is_named_as_the_worst() -> None:
    rows = [(size, 20 * US + size / 10e9) for size in (1024, 4096, 16384, 65536, 262144)]
    rows[2] = (16384, 2 * rows[2][1])
    line = fit.fit(rows)
    assert line.worst_bytes == 16384
    assert line.worst > fit.BAD_FIT


def test_a_line_for_other_ranks_has_its_latency_and_its_bytes_scaled() -> None:
    line = fit.fit([(1024, 21 * US), (4096, 20 * US), (65536, 30 * US)])
    other = fit.scaled(line, latency=0.5, slope=2.0)
    assert other.alpha_s == pytest.approx(0.5 * line.alpha_s)
    assert other.slope_s == pytest.approx(2.0 * line.slope_s)
    assert other.alpha_error_s == pytest.approx(0.5 * line.alpha_error_s)
    assert other.slope_error_s == pytest.approx(2.0 * line.slope_error_s)


def test_an_interval_of_a_fit_holds_the_truth_nineteen_times_of_twenty() -> None:
    generator = random.Random(7)
    sizes = [2**power for power in range(12, 21)]
    held = {"alpha": 0, "slope": 0, "line": 0}
    trials = 400
    for _ in range(trials):
        truth = [20 * US + size / 10e9 for size in sizes]
        line = fit.fit(
            [(s, t * generator.gauss(1, 0.03)) for s, t in zip(sizes, truth, strict=True)]
        )
        held["alpha"] += abs(line.alpha_s - 20 * US) <= line.alpha_error_s
        held["slope"] += abs(line.slope_s - 1e-10) <= line.slope_error_s
        low, high = line.interval(65536)
        held["line"] += low <= truth[4] <= high
    assert all(0.91 <= count / trials <= 0.985 for count in held.values()), held


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([(1024, 1e-5), (2048, 1e-5)], "2 sizes"),
        ([(1024, 1e-5)] * 9, "1 sizes"),
        ([(1024, 1e-5), (2048, 0.0), (4096, 1e-5)], "above zero"),
    ],
)
def test_too_few_rows_have_no_line(points: Sequence[tuple[int, float]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit.fit(points)


def test_a_line_that_falls_has_no_bandwidth_and_no_negative_time() -> None:
    line = fit.fit([(1024, 30 * US), (4096, 20 * US), (8192, 10 * US)])
    assert line.bytes_per_s is None
    assert line.seconds(10**9) == 0.0
    assert line.interval(10**9)[0] == 0.0
