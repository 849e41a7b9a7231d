"""The verdict on what the driver adds, and that all three sides really run."""

import pytest

from collectives import sweep_overhead
from collectives.sweep_overhead import Loop, judged


def test_a_ratio_within_what_two_equal_loops_differ_by_is_inside() -> None:
    bare = [1.0, 1.0, 2.0, 1.0, 1.0]
    again = [1.1, 0.9, 2.0, 1.05, 0.95]
    found = judged(bare, again, [1.05, 1.02, 2.08, 1.0, 1.01])
    assert found.inside
    assert found.ratio == pytest.approx(1.02)
    assert found.low == pytest.approx(0.905)
    assert found.high == pytest.approx(1.095)
    assert not judged(bare, again, [1.2, 1.3, 2.5, 1.2, 1.2]).inside
    assert not judged(bare, again, [0.8, 0.8, 1.6, 0.8, 0.8]).inside


def test_each_side_gives_a_median_a_round_for_both_ways_of_calling() -> None:
    loop = Loop(ranks=2, elements=64, iterations=3, batches=2, depth=2, warmup=1)
    found = sweep_overhead._alternated(loop, 2)
    assert set(found) == {"isolated", "2 in a row"}
    for sides in found.values():
        assert {name: len(medians) for name, medians in sides.items()} == {
            "bare": 2,
            "bare again": 2,
            "driver": 2,
        }
        assert all(0 < median < 60 for medians in sides.values() for median in medians)
