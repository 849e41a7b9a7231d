"""Verdicts on many rows: silent on two runs of one configuration, and 3 % are found."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from reports._comparison import verdicts
from reports._comparison.verdicts import Level

Noise = Callable[[np.random.Generator, int], np.ndarray]
MOVED = ("slower", "faster")


def normal(generator: np.random.Generator, count: int) -> np.ndarray:
    return 1 + 0.01 * generator.standard_normal(count)


def spiky(generator: np.random.Generator, count: int) -> np.ndarray:
    """One sample in ten takes half as long again."""
    return normal(generator, count) * np.where(generator.random(count) < 0.1, 1.5, 1.0)


def two_states(generator: np.random.Generator, count: int) -> np.ndarray:
    """Half of the samples take 4 % longer, whichever half it is."""
    return normal(generator, count) + np.where(generator.random(count) < 0.5, 0.04, 0.0)


def coarse(generator: np.random.Generator, count: int) -> np.ndarray:
    """A clock of steps of 1 %."""
    return np.round(normal(generator, count), 2)


def of(samples: Sequence[float] | np.ndarray) -> Level:
    values = [float(one) for one in samples]
    return verdicts.level(float(np.median(values)), samples=values)


@pytest.mark.parametrize("noise", [normal, spiky, two_states, coarse])
@pytest.mark.parametrize("count", [3, 10, 30])
def test_two_resamples_of_one_run_trip_in_under_2_percent_of_rows(noise: Noise, count: int) -> None:
    generator = np.random.default_rng(20_260_901)
    flagged, rows, comparisons, tripped = 0, 60, 6, 0
    for _ in range(comparisons):
        pairs = []
        for _ in range(rows):
            run = noise(generator, count)
            a, b = (generator.choice(run, count) for _ in range(2))
            pairs.append((of(a), of(b)))
        moved = sum(one.verdict in MOVED for one in verdicts.changes(pairs))
        flagged, tripped = flagged + moved, tripped + (moved > 0)
    assert flagged / (rows * comparisons) < 0.02
    assert tripped <= 1


@pytest.mark.parametrize("noise", [normal, spiky, coarse])
def test_3_percent_in_one_row_of_100_is_found_at_1_percent_of_noise(noise: Noise) -> None:
    generator = np.random.default_rng(7)
    found: Counter[str] = Counter()
    for _ in range(10):
        pairs = [(of(noise(generator, 30)), of(noise(generator, 30))) for _ in range(99)]
        pairs.append((of(noise(generator, 30)), of(1.03 * noise(generator, 30))))
        found[verdicts.changes(pairs)[-1].verdict] += 1
    assert found["slower"] >= 8, found
    assert not found["faster"]


def starts(generator: np.random.Generator, noise: float, *, factor: float = 1.0) -> Level:
    values = [float(one) for one in factor * np.exp(noise * generator.standard_normal(3))]
    return verdicts.level(sorted(values)[1], starts=values)


def test_sweeps_of_three_fresh_starts_stay_silent_and_10_percent_are_found() -> None:
    generator = np.random.default_rng(11)
    flagged, found, sweeps = 0, 0, 30
    for _ in range(sweeps):
        a, b = ([starts(generator, 0.01) for _ in range(39)] for _ in range(2))
        a.append(starts(generator, 0.01))
        b.append(starts(generator, 0.01, factor=1.1))
        pairs = list(zip(verdicts.borrowed(a), verdicts.borrowed(b), strict=True))
        *same, slow = verdicts.changes(pairs)
        flagged += sum(one.verdict in MOVED for one in same)
        found += slow.verdict == "slower"
    assert flagged / (39 * sweeps) < 0.005
    assert found >= 0.9 * sweeps


def test_few_starts_borrow_the_spread_of_the_other_rows() -> None:
    """Variances of logs 0, 0.01 and 0.02 of 2 degrees each, mean 0.01, weighed 4 to 2."""
    spreads = (0.0, 0.1, math.sqrt(0.02))
    given = [verdicts.level(1.0, starts=[math.exp(-one), 1.0, math.exp(one)]) for one in spreads]
    assert [one.spread**2 * 3 for one in given] == pytest.approx([0, 0.01, 0.02])
    shared = verdicts.borrowed(given)
    assert [one.spread**2 * 3 for one in shared] == pytest.approx(
        [(4 * 0.01 + 2 * own) / 6 for own in (0.0, 0.01, 0.02)]
    )
    assert [one.degrees for one in shared] == [6, 6, 6]
    assert verdicts.borrowed(given[:1]) == given[:1]


def test_samples_that_drift_say_less_than_as_many_that_do_not() -> None:
    """Two runs of one drift of 8 %, a fifth of it apart in phase: no change, and no verdict."""
    generator = np.random.default_rng(3)
    drift = 1 + 0.04 * np.sin(np.linspace(0, 6, 100)) + 0.001 * generator.standard_normal(100)
    later = 1 + 0.04 * np.sin(np.linspace(1.2, 7.2, 100)) + 0.001 * generator.standard_normal(100)
    assert of(drift).spread > 2 * of(generator.permutation(drift)).spread
    assert (of(drift).degrees, of(generator.permutation(drift)).degrees) == (4, 99)
    assert verdicts.changes([(of(drift), of(later))])[0].verdict == "unsure"
    # Blocks of 1, 2, 3, 4, 5: the deviation of their logarithms over the root of 5.
    assert verdicts.drift([1, 1, 2, 2, 3, 3, 4, 4, 5, 5]) == pytest.approx(
        float(np.std(np.log([1, 2, 3, 4, 5]), ddof=1)) / math.sqrt(5)
    )
    assert verdicts.drift([1.0] * 9) == 0.0


def test_the_surest_source_of_a_spread_is_taken() -> None:
    known = verdicts.level(
        1.0, starts=[1.0, 1.1], samples=[1.0] * 8, interval=(0.9, 1.1), count=8, p90_s=1.2
    )
    assert known.basis == "starts"
    known = verdicts.level(1.0, samples=[1.0] * 8, interval=(0.9, 1.1), count=8, p90_s=1.2)
    assert known.basis == "samples"
    interval = verdicts.level(1.0, interval=(math.exp(-0.0196), math.exp(0.0196)), count=8)
    assert (interval.basis, interval.degrees) == ("interval", 7)
    assert interval.spread == pytest.approx(0.01)
    tail = verdicts.level(1.0, count=100, p90_s=math.exp(0.12816))
    assert tail.basis == "tail"
    assert tail.spread == pytest.approx(0.1 * math.sqrt(math.pi / 2) / 10)
    assert verdicts.level(1.0).basis == "assumed"


def test_few_values_that_agree_are_not_believed() -> None:
    printed = verdicts.level(19.04, interval=(18.99, 19.09), count=2)
    assert printed.basis == "assumed"
    assert printed.spread == pytest.approx(0.05 / math.sqrt(2))
    assert of([1.0, 1.0, 1.0]).spread == pytest.approx(0.05 / math.sqrt(2))
    assert of([1.0] * 5).spread == 0.0


def test_several_processes_that_were_started_once_differ_by_more_from_run_to_run() -> None:
    """5 % of quiet samples: ten times what one process differs by, under two deviations of many."""
    generator = np.random.default_rng(2)
    old, new = ([float(x) for x in factor * normal(generator, 40)] for factor in (1.0, 1.05))
    for several, expected in ((False, "slower"), (True, "unsure")):
        a, b = (
            verdicts.level(float(np.median(one)), samples=one, several=several)
            for one in (old, new)
        )
        (change,) = verdicts.changes([(a, b)])
        assert change.verdict == expected
    started = verdicts.level(1.0, starts=[1.0, 1.01, 0.99], several=True)
    assert started.between == verdicts.RUN_TO_RUN


def test_19_against_29_printed_milliseconds_are_slower_and_19_against_20_unsure() -> None:
    old = verdicts.level(19.04, interval=(18.99, 19.09), count=2)
    new = verdicts.level(29.48, interval=(29.47, 29.49), count=2)
    (change,) = verdicts.changes([(old, new)])
    assert (change.verdict, change.basis) == ("slower", "assumed")
    assert change.ratio == pytest.approx(29.48 / 19.04)
    # 5 % on the ratio and 0.5 % from run to run.
    spread = math.hypot(0.05, 0.005)
    assert change.high / change.ratio == pytest.approx(math.exp(1.96 * spread))
    (change,) = verdicts.changes([(old, verdicts.level(20.0))])
    assert change.verdict == "unsure"


def test_equal_samples_are_the_same_and_a_change_within_the_band_is_no_change() -> None:
    quiet = of([1.0] * 20)
    (change,) = verdicts.changes([(quiet, quiet)])
    assert (change.verdict, change.ratio) == ("same", 1.0)
    band = of([1.0 + 1e-6 * n for n in range(20)]), of([1.019 + 1e-6 * n for n in range(20)])
    assert verdicts.changes([band])[0].verdict == "unsure"
    assert verdicts.changes([band], same_within=0.01)[0].verdict == "slower"
    assert verdicts.changes([band[::-1]], same_within=0.01)[0].verdict == "faster"


def test_chances_are_held_to_their_rank_among_all() -> None:
    """0.01 / 5 x rank: 0.002, 0.004, 0.006: the third is above its own, the first two are below."""
    assert verdicts.largest_chance([0.0039, 0.5, 0.001, 0.0061, 0.9], rate=0.01) == 0.0039
    # The second is above its rank's limit, yet below that of the third, which counts.
    assert verdicts.largest_chance([0.001, 0.0041, 0.0059, 0.5, 0.9], rate=0.01) == 0.0059
    assert verdicts.largest_chance([0.011], rate=0.01) == -1.0
    assert verdicts.largest_chance([], rate=0.01) == -1.0


@pytest.mark.parametrize(("degrees", "score"), [(4, 2.776), (10, 2.228), (30, 2.042)])
def test_chances_are_those_of_students_t(degrees: float, score: float) -> None:
    assert verdicts._chance(score, degrees) == pytest.approx(0.05, abs=0.001)
    assert verdicts._chance(-1.96, None) == pytest.approx(0.05, abs=1e-4)


def test_ranks_that_overlap_are_no_change_whatever_the_medians_say() -> None:
    a = [1.0] * 5 + [2.0] * 4
    b = [1.0] * 4 + [2.0] * 5
    assert verdicts.chance_of_ranks(a, b) > 0.5
    assert verdicts.changes([(of(a), of(b))])[0].verdict == "unsure"
    assert verdicts.chance_of_ranks([1.0, 2.0, 3.0], [2.5, 4.0, 5.0]) == 1.0
    assert verdicts.chance_of_ranks([1.0, 2.0, 3.0], [3.5, 4.0, 5.0]) == 0.0
    assert verdicts.chance_of_ranks([1.0] * 9, [1.0] * 9) == 1.0
    # 64 of 64 comparisons but one pair: U = 63, mean 32, variance 64 x 17 / 12.
    low, high = [float(n) for n in range(8)], [float(n) for n in range(8, 16)]
    low[7], high[0] = 8.0, 7.0
    expected = math.erfc(31 / math.sqrt(2 * 64 * 17 / 12))
    assert verdicts.chance_of_ranks(low, high) == pytest.approx(expected)


def test_a_mean_of_rows_finds_what_no_row_shows() -> None:
    generator = np.random.default_rng(5)
    noisy = 1 + 0.04 * generator.standard_normal((2, 60, 10))
    pairs = [(of(a), of(1.03 * b)) for a, b in zip(*noisy, strict=True)]
    rows = verdicts.changes(pairs)
    assert sum(one.verdict == "slower" for one in rows) < 5
    pooled = verdicts.pooled(rows)
    assert pooled is not None
    (mean,) = verdicts.judged([pooled])
    assert mean.verdict == "slower"
    assert mean.low < 1.03 < mean.high
    # From run to run all rows may differ together: that does not average out.
    assert math.log(mean.high / mean.ratio) >= 1.96 * verdicts.RUN_TO_RUN
    assert verdicts.pooled([]) is None
