"""Wins that hold beyond noise over neighbouring sizes are recommended, and nothing else is."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.sweep_rows import LL, SIZES, SLOW, TOKENS, US, Formula, line, row, sweep
from verifyscope import crossovers, fresh_starts, pass_savings
from verifyscope.contests import Contest, contests
from verifyscope.recommendation import recommend
from verifyscope.records import Measurement


def contest(formulas: Mapping[str, Formula], **options: Any) -> Contest:
    (found,) = contests(sweep(formulas, **options))
    return found


def starts(
    *medians_us: float, low_us: float | None = None, high_us: float | None = None
) -> Measurement:
    generator = np.random.default_rng(0)
    made = row("nccl", 1024, 1.0, generator=generator)
    low, high = low_us or min(medians_us), high_us or max(medians_us)
    method = {f"start_{at}_median_s": one * US for at, one in enumerate(medians_us)}
    middle = sorted(medians_us)[len(medians_us) // 2] * US
    changes = {"median_s": middle, "low_s": low * US, "high_s": high * US, "method": method}
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    ("new", "old", "faster"),
    [
        (starts(20, 21, 22), starts(30, 31, 32), True),
        (starts(30, 31, 32), starts(20, 21, 22), False),
        # the interval of the samples reaches into the other's
        (starts(20, 21, 22, high_us=31), starts(30, 31, 32), False),
        (starts(20, 21, 22), starts(30, 31, 32, low_us=21), False),
        # apart, but one start is far off: the means may be equal
        (starts(20, 20, 20), starts(21, 21, 60), False),
        # apart and steady, but under 2 %
        (starts(20.0, 20.0, 20.1), starts(20.3, 20.3, 20.4), False),
        (starts(20.0, 20.0, 20.1), starts(20.6, 20.6, 20.7), True),
        # two starts say nothing of a spread
        (starts(20, 21), starts(30, 31, 32), False),
        (starts(20, 21, 22), starts(30, 31), False),
    ],
)
def test_faster_means_beyond_the_spread_of_fresh_starts(
    new: Measurement, old: Measurement, faster: bool
) -> None:
    assert fresh_starts.is_faster(new, old) is faster


def test_a_row_without_starts_or_without_a_time_is_never_faster() -> None:
    fast, slow = starts(20, 21, 22), starts(30, 31, 32)
    bare = msgspec.structs.replace(fast, method={})
    assert not fresh_starts.is_faster(bare, slow)
    assert fresh_starts.difference(bare, slow) is None
    lost = msgspec.structs.replace(slow, status="hang", reason="x", median_s=None, low_s=None)
    assert not fresh_starts.is_faster(fast, lost)


def test_a_range_ends_where_the_formulas_meet() -> None:
    found = recommend(contest({"nccl": SLOW, "nccl ring/ll": LL}))
    (only,) = found.ranges
    assert (only.implementation, only.low_bytes) == ("nccl ring/ll", 8192)
    assert only.high_bytes < 890_909
    assert only.sizes == tuple(size for size in SIZES if size <= 524_288)
    assert found.at(57_344) == "nccl ring/ll"
    assert found.at(2**20) is None


@pytest.mark.parametrize("start_noise", [0.002, 0.02, 0.05])
def test_equal_combinations_are_rarely_recommended_whatever_the_noise(start_noise: float) -> None:
    formulas = dict.fromkeys(("nccl", "nccl ring/ll", "nccl tree/ll", "nccl ring/simple"), SLOW)
    sizes = SIZES[:6]
    found = [
        bool(recommend(contest(formulas, seed=seed, sizes=sizes, start_noise=start_noise)).ranges)
        for seed in range(40)
    ]
    assert sum(found) <= 2


def test_a_true_win_of_a_fifth_is_found_in_spite_of_noise() -> None:
    formulas = {"nccl": line(25, 20), "nccl ring/ll": line(20, 20 / 0.8)}
    for seed in range(20):
        found = recommend(contest(formulas, seed=seed, start_noise=0.01, sizes=SIZES[:6]))
        assert [one.sizes for one in found.ranges] == [SIZES[:6]]


def test_a_win_at_a_single_size_is_no_range_and_at_two_neighbours_it_is() -> None:
    def dip(*where: int) -> Formula:
        return lambda size: (20 if size in where else 48) * US

    alone = contest({"nccl": line(48, 1e9), "nccl ring/ll": dip(65_536)})
    assert recommend(alone).ranges == ()
    apart = contest({"nccl": line(48, 1e9), "nccl ring/ll": dip(16_384, 65_536)})
    assert recommend(apart).ranges == ()
    both = contest({"nccl": line(48, 1e9), "nccl ring/ll": dip(57_344, 65_536)})
    assert [one.sizes for one in recommend(both).ranges] == [(57_344, 65_536)]


def test_the_recommendation_changes_where_another_combination_wins_over_neighbours() -> None:
    formulas = {
        "nccl": line(80, 25),
        "nccl tree/ll": line(15, 3),  # meets ring/ll at 10 us / (1/3 - 1/14) ns = 38 kB
        "nccl ring/ll": line(25, 14),  # meets ring/simple at 30 us / (1/14 - 1/30) ns = 788 kB
        "nccl ring/simple": line(55, 30),
    }
    found = recommend(contest(formulas, start_noise=0.001, sample_noise=0.002))
    assert [one.implementation for one in found.ranges] == [
        "nccl tree/ll",
        "nccl ring/ll",
        "nccl ring/simple",
    ]
    first, second, third = found.ranges
    assert first.high_bytes <= 38_182 < second.high_bytes <= 787_500 < third.high_bytes
    assert [*first.sizes, *second.sizes, *third.sizes] == list(SIZES)


def test_of_equal_combinations_one_is_kept_over_all_sizes() -> None:
    def better(size: int) -> float:
        return LL(size) * (0.7 if size == 65_536 else 1.0)

    formulas = {"nccl": line(80, 12), "nccl ring/ll": LL, "nccl tree/ll": better}
    for seed in range(10):
        ranges = recommend(contest(formulas, seed=seed)).ranges
        assert len(ranges) == 1
        assert ranges[0].sizes == SIZES


def test_what_may_corrupt_is_named_and_never_recommended() -> None:
    formulas = {"nccl": SLOW, "nccl ring/ll": line(40, 25), "nccl ring/ll128": line(20, 25)}
    rows = [
        msgspec.structs.replace(one, flags=("unsafe",)) if "128" in one.implementation else one
        for one in sweep(formulas)
    ]
    (found,) = contests(rows)
    known = recommend(found)
    assert {one.implementation for one in known.ranges} == {"nccl ring/ll"}
    assert {one.implementation for one in known.unsafe} == {"nccl ring/ll128"}
    assert known.single is not None
    assert known.single.implementation == "nccl ring/ll"


def test_for_one_setting_of_all_sizes_those_of_the_model_count_and_losses_are_named() -> None:
    formulas = {"nccl": SLOW, "nccl ring/ll": LL, "nccl ring/simple": line(47, 28)}
    single = recommend(contest(formulas)).single
    assert single is not None
    assert single.implementation == "nccl ring/ll"
    assert single.wins == (tuple(size for size in SIZES if size <= 524_288),)
    assert single.losses == (tuple(size for size in SIZES if size > 10**6),)


def test_a_combination_that_has_no_time_at_a_size_of_the_model_is_no_setting_for_all() -> None:
    rows = [*sweep({"nccl": SLOW, "nccl ring/ll": LL})]
    lost = {"status": "hang", "reason": "x", "median_s": None, "low_s": None, "high_s": None}
    rows = [
        msgspec.structs.replace(one, **lost)
        if (one.implementation, one.dims["bytes"]) == ("nccl ring/ll", 57_344)
        else one
        for one in rows
    ]
    (found,) = contests(rows)
    assert recommend(found).single is None
    assert [one.high_bytes for one in recommend(found).ranges] == [32_768, 524_288]


def test_a_saving_without_noise_is_calls_times_the_difference() -> None:
    quiet = {"start_noise": 0.0, "sample_noise": 0.0}
    found = contest({"nccl": line(48.2, 1e9), "nccl ring/ll": line(26.2, 1e9)}, **quiet)
    saved = pass_savings.savings(found, recommend(found))
    assert [one.tokens for one in saved] == list(TOKENS)
    at_4 = saved[2]
    assert (at_4.model, at_4.size_bytes, at_4.calls) == ("kimi-k2.5", 57_344, 122)
    assert at_4.now_s == pytest.approx(122 * 48.2e-6)
    assert at_4.implementation == "nccl ring/ll"
    assert at_4.saved is not None
    assert at_4.saved.value == pytest.approx(2.684e-3)
    assert (at_4.saved.low, at_4.saved.high) == pytest.approx((2.684e-3, 2.684e-3))


def test_the_interval_of_a_saving_holds_the_truth_in_19_of_20_cases() -> None:
    held = 0
    for seed in range(60):
        found = contest(
            {"nccl": line(48, 1e9), "nccl ring/ll": line(26, 1e9)},
            seed=seed,
            sizes=(57_344, 65_536),
            start_noise=0.01,
        )
        (saved,) = pass_savings.savings(found, recommend(found))
        assert saved.saved is not None
        held += saved.saved.low <= 122 * 22e-6 <= saved.saved.high
    assert held >= 52


def test_where_nothing_wins_nothing_is_saved_and_the_pass_has_its_time() -> None:
    found = contest({"nccl": LL, "nccl ring/simple": SLOW}, sizes=(57_344, 65_536))
    (saved,) = pass_savings.savings(found, recommend(found))
    assert (saved.implementation, saved.saved) == (None, None)
    assert saved.now_s == pytest.approx(122 * LL(57_344), rel=0.02)


def test_a_one_shot_crosses_over_where_the_formulas_meet() -> None:
    formulas = {"nccl": SLOW, "nccl ring/ll": LL, "torch one-shot": line(8, 2)}
    found = contest(formulas, start_noise=0.001)  # 12 us / (1/2 - 1/14) ns = 28 kB
    (one,) = crossovers.crossovers(found, recommend(found))
    assert one.implementation == "torch one-shot"
    assert one.between == (16_384, 32_768)
    assert one.near_bytes == pytest.approx(28_000, rel=0.08)
    assert one.wins == ((8192, 14_336, 16_384),)
    assert one.losses[0][-1] == SIZES[-1]


@pytest.mark.parametrize(
    ("formula", "wins", "losses"), [(line(8, 1e3), 1, 0), (line(900, 0.1), 0, 1), (LL, 0, 0)]
)
def test_without_a_change_there_is_no_crossover(formula: Formula, wins: int, losses: int) -> None:
    found = contest({"nccl": LL, "torch one-shot": formula})
    (one,) = crossovers.crossovers(found, recommend(found))
    assert (len(one.wins), len(one.losses)) == (wins, losses)
    assert (one.between, one.near_bytes) == (None, None)


def test_rows_are_held_against_others_of_their_own_mode_only() -> None:
    generator = np.random.default_rng(0)
    modes = [("eager", 1, True), ("graph", 1, True), ("graph", 122, False), ("graph", 122, True)]
    rows = [
        row(
            name,
            size,
            LL(size),
            generator=generator,
            launch=launch,
            depth=depth,
            dims={"bytes": size, "dtype": "bfloat16", "in_place": in_place, "redop": "sum"},
        )
        for launch, depth, in_place in modes
        for name in ("nccl", "nccl ring/ll")
        for size in (8192, 16_384)
    ]
    found = contests(rows)
    assert [(one.mode, one.in_place) for one in found] == [
        ("graph x 122", True),
        ("graph x 122", False),
        ("graph", True),
        ("eager", True),
    ]
    assert all(one.default == "nccl" for one in found)
    assert all(one.combinations == ("nccl ring/ll",) for one in found)
    assert all(one.sizes == (8192, 16_384) for one in found)


def test_of_two_lines_with_one_id_the_later_one_counts() -> None:
    first = row("nccl", 8192, 48 * US, generator=np.random.default_rng(0))
    second = msgspec.structs.replace(first, median_s=20 * US, low_s=19 * US, high_s=21 * US)
    (found,) = contests([first, second])
    assert found.times("nccl")[8192].median_s == 20 * US


@pytest.mark.parametrize(
    ("names", "default", "others"),
    [
        (("nccl", "nccl ring/ll", "torch one-shot"), "nccl", ("torch one-shot",)),
        (("gloo", "gloo ring", "nccl"), "nccl", ("gloo", "gloo ring")),
        (("one-shot", "gloo", "gloo ring"), "gloo", ("one-shot",)),
        (("gloo",), "gloo", ()),
        (("nccl ring/ll",), None, ("nccl ring/ll",)),
    ],
)
def test_the_default_is_the_backend_that_chooses_for_itself(
    names: tuple[str, ...], default: str | None, others: tuple[str, ...]
) -> None:
    found = contest(dict.fromkeys(names, LL), sizes=(8192,))
    assert (found.default, found.others) == (default, others)
