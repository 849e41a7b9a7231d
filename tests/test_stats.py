"""Medians and their intervals, outliers, and a verdict that says unsure when it is."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifyscope import stats

_times = st.lists(st.floats(min_value=1e-7, max_value=10), min_size=1, max_size=40)


def test_a_known_set_has_the_median_and_percentiles_of_the_textbook() -> None:
    summary = stats.summarise(range(1, 102))
    assert (summary.median, summary.p90, summary.p99, summary.count) == (51, 91, 100, 101)
    assert summary.low < 51 < summary.high
    assert stats.summarise([4.0, 1.0, 3.0, 2.0]).median == 2.5


def test_with_fewer_than_five_samples_the_interval_is_minimum_to_maximum() -> None:
    assert stats.summarise([7.0]).relative_width == 0
    few = stats.summarise([3.0, 1.0, 2.0, 9.0])
    assert (few.low, few.high) == (1.0, 9.0)
    assert few.relative_width == pytest.approx(8 / 2 / 2.5)


def test_the_interval_covers_the_true_median_in_about_95_of_100_experiments() -> None:
    generator = np.random.default_rng(20_260_901)
    true_median, covered, experiments = 1.0, 0, 300
    for _ in range(experiments):
        samples = generator.lognormal(mean=0.0, sigma=0.3, size=25)
        summary = stats.summarise(samples.tolist())
        covered += summary.low <= true_median <= summary.high
    assert 0.91 <= covered / experiments <= 0.99


def test_more_samples_than_are_drawn_at_once_still_give_a_narrow_honest_interval() -> None:
    samples = np.random.default_rng(5).normal(10, 1, size=20_000)
    summary = stats.summarise(samples.tolist())
    assert summary.low < 10 < summary.high
    assert summary.high - summary.low < 0.15


def test_the_same_samples_give_the_same_interval() -> None:
    samples = [1.0, 1.1, 0.9, 1.2, 1.05, 0.95]
    assert stats.summarise(samples) == stats.summarise(samples)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(_times)
def test_a_summary_is_ordered_and_lies_within_the_samples(samples: list[float]) -> None:
    summary = stats.summarise(samples)
    assert min(samples) <= summary.low <= summary.median <= summary.high <= max(samples)
    slack = 1e-12 * max(samples)  # numpy interpolates percentiles
    assert summary.median <= summary.p90 + slack <= summary.p99 + 2 * slack
    assert summary.count == len(samples)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(_times, st.floats(min_value=1e-3, max_value=1e3))
def test_a_change_of_unit_scales_a_summary_and_nothing_else(
    samples: list[float], scale: float
) -> None:
    one, other = stats.summarise(samples), stats.summarise([x * scale for x in samples])
    for name in ("median", "low", "high", "p90", "p99"):
        assert getattr(other, name) == pytest.approx(getattr(one, name) * scale)


@pytest.mark.parametrize("samples", [[], [math.nan], [1.0, math.inf], [[1.0]]])
def test_nan_infinity_and_nothing_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="non-empty list of finite numbers"):
        stats.summarise(samples)
    with pytest.raises(ValueError, match="non-empty list of finite numbers"):
        stats.compare(samples, [1.0])
    with pytest.raises(ValueError, match="non-empty list of finite numbers"):
        stats.modified_z_scores(samples)


def _noisy(median: float, *, count: int = 30, noise: float = 0.01, seed: int = 0) -> list[float]:
    generator = np.random.default_rng(seed)
    return [float(x) for x in median * (1 + noise * generator.standard_normal(count))]


def test_ten_percent_beyond_one_percent_noise_is_faster_and_the_reverse_slower() -> None:
    old, new = _noisy(1e-3, seed=1), _noisy(0.9e-3, seed=2)
    faster, slower = stats.compare(new, old), stats.compare(old, new)
    assert faster.verdict == "faster"
    assert faster.ratio == pytest.approx(0.9, rel=0.01)
    assert faster.low < 0.9 < faster.high
    assert slower.verdict == "slower"
    assert slower.ratio == pytest.approx(1 / faster.ratio)


def test_equal_times_with_little_noise_are_the_same_and_with_much_noise_unsure() -> None:
    assert stats.compare(_noisy(1.0, seed=3), _noisy(1.0, seed=4)).verdict == "same"
    wild = stats.compare(_noisy(1.0, noise=0.3, seed=5), _noisy(1.0, noise=0.3, seed=6))
    assert wild.verdict == "unsure"


def test_two_sets_of_the_same_noise_are_told_apart_in_fewer_than_5_of_100_experiments() -> None:
    sets = [_noisy(1.0, count=10, noise=0.1, seed=seed) for seed in range(400)]
    pairs = zip(sets[::2], sets[1::2], strict=True)
    verdicts = [stats.compare(new, old).verdict for new, old in pairs]
    assert len(verdicts) == 200
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) < 10


def test_two_samples_on_a_side_are_never_enough() -> None:
    assert stats.compare([1.0, 1.0], [2.0] * 50).verdict == "unsure"
    assert stats.compare([1.0] * 50, [2.0, 2.0]).verdict == "unsure"
    assert stats.compare([1.0] * 3, [2.0] * 3).verdict == "faster"


def test_a_difference_at_the_edge_of_the_band_is_unsure_and_the_band_can_be_set() -> None:
    old, new = _noisy(1.0, seed=7), _noisy(1.02, seed=8)
    assert stats.compare(new, old).verdict == "unsure"
    assert stats.compare(new, old, same_within=0.05).verdict == "same"
    assert stats.compare(new, old, same_within=0.005).verdict == "slower"


@pytest.mark.parametrize(("new", "old"), [([1.0], [0.0]), ([-1.0], [1.0]), ([1.0, 0.0], [1.0])])
def test_a_time_of_zero_or_less_cannot_be_compared(new: list[float], old: list[float]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        stats.compare(new, old)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(_times)
def test_nothing_is_faster_or_slower_than_itself(samples: list[float]) -> None:
    comparison = stats.compare(samples, samples)
    assert comparison.verdict in ("same", "unsure")
    assert comparison.ratio == 1.0


def test_a_z_score_is_the_distance_from_the_median_in_units_of_the_mad() -> None:
    scores = stats.modified_z_scores([1.0, 2.0, 3.0, 4.0, 10.0])
    assert scores == pytest.approx([-1.349, -0.6745, 0.0, 0.6745, 4.7215])
    assert stats.outliers([1.0, 2.0, 3.0, 4.0, 10.0]) == [4]


def test_where_most_values_are_equal_any_other_is_an_outlier() -> None:
    assert stats.modified_z_scores([5.0, 5.0, 5.0, 4.0]) == [0.0, 0.0, 0.0, -math.inf]
    assert stats.outliers([5.0, 5.0, 5.0, 4.0, 6.0]) == [3, 4]
    assert stats.outliers([5.0, 5.0]) == []


@pytest.mark.parametrize("count", [5, 6, 11, 40])
def test_medians_of_resamples_are_drawn_as_if_each_resample_had_been(count: int) -> None:
    values = np.random.default_rng(3).normal(size=count)
    drawn = np.concatenate([stats._resampled_medians(values, seed) for seed in range(40)])
    picks = np.random.default_rng(4).integers(0, count, (len(drawn), count))
    resampled = np.median(values[picks], axis=1)
    for percent in (2.5, 25, 50, 75, 97.5):
        # A percentile of 40,000 draws is off by about half a percent of them.
        near = np.percentile(resampled, [percent - 0.7, percent + 0.7])
        assert near[0] <= np.percentile(drawn, percent) <= near[1]


def test_students_t_is_that_of_the_tables() -> None:
    assert stats.student_t(1) == pytest.approx(12.71)
    assert stats.student_t(4) == pytest.approx(2.776)
    assert stats.student_t(31) == pytest.approx(2.0395, abs=1e-3)


@pytest.mark.parametrize(
    ("new", "old", "value", "width"),
    [
        ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 3.0, 2.776 * (2 / 3) ** 0.5),
        # Variances 1 and 25: (26 / 3)^2 / ((1 / 9 + 625 / 9) / 2) = 2.15 degrees, so 2.
        ([1.0, 2.0, 3.0], [5.0, 10.0, 15.0], 8.0, 4.303 * (26 / 3) ** 0.5),
        ([2.0, 2.0], [5.0, 5.0, 5.0], 3.0, 0.0),
        ([5.0, 5.0], [2.0, 2.0], -3.0, 0.0),
    ],
)
def test_the_interval_of_a_difference_is_welchs(
    new: list[float], old: list[float], value: float, width: float
) -> None:
    found = stats.difference_of_means(new, old)
    assert found.value == pytest.approx(value)
    assert found.high - found.value == pytest.approx(width)
    assert found.value - found.low == pytest.approx(width)


def test_a_mean_without_a_second_sample_has_no_spread() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        stats.difference_of_means([1.0], [2.0, 3.0])
