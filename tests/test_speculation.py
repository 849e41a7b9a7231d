"""The founding case in numbers: what a cycle costs, where it breaks even, what a lever gives."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifyscope import speculation, stats

PLAIN_TOKEN_S = 1 / 82.5
SLOW_CYCLE_S = speculation.cycle_s(29.49e-3, share=0.970)
TOKENS = [2048, 2048, 2048, 2041, 2048]
SECONDS = [33.88, 31.26, 40.24, 33.21, 34.42]


def test_29_49_ms_of_verify_at_97_percent_are_a_cycle_of_30_4_ms_and_65_8_tokens_a_second() -> None:
    assert round(SLOW_CYCLE_S * 1e3, 1) == 30.4
    assert round(speculation.tokens_per_s(2.0, cycle_s=SLOW_CYCLE_S), 1) == 65.8


def test_break_even_is_2_51_by_the_cycle_and_2_46_by_the_verify_time_alone() -> None:
    by_cycle = speculation.break_even_accepted(SLOW_CYCLE_S, plain_token_s=PLAIN_TOKEN_S)
    by_verify = speculation.break_even_accepted_by_verify(29.49e-3, plain_token_s=12.0e-3)
    assert round(by_cycle, 2) == 2.51
    assert round(by_verify, 2) == 2.46


def test_150_tokens_a_second_need_4_56_accepted_or_78_percent_a_step_of_an_endless_chain() -> None:
    accepted = speculation.accepted_for(150, cycle_s=SLOW_CYCLE_S)
    assert round(accepted, 2) == 4.56
    assert round(speculation.chain_acceptance(accepted), 2) == 0.78


def test_19_04_ms_at_95_05_percent_are_a_cycle_of_20_0_ms_and_about_100_tokens_a_second() -> None:
    cycle_s = speculation.cycle_s(19.04e-3, share=0.9505)
    assert round(cycle_s * 1e3, 1) == 20.0
    assert speculation.tokens_per_s(2.0, cycle_s=cycle_s) == pytest.approx(100, rel=0.005)


def test_five_runs_average_59_6_by_run_and_59_1_by_token() -> None:
    assert round(speculation.average_by_run(TOKENS, SECONDS), 1) == 59.6
    assert round(speculation.average_by_token(TOKENS, SECONDS), 1) == 59.1


def test_the_third_run_is_an_outlier_and_the_second_is_not() -> None:
    scores = speculation.run_z_scores(TOKENS, SECONDS)
    assert round(scores[2], 1) == -6.4
    assert round(scores[1], 1) == 3.4
    assert speculation.outlier_runs(TOKENS, SECONDS) == [2]


def test_the_printed_rounded_rates_would_give_other_scores() -> None:
    printed = [round(n / s, 1) for n, s in zip(TOKENS, SECONDS, strict=True)]
    assert printed == [60.4, 65.5, 50.9, 61.5, 59.5]
    scores = [abs(score) for score in stats.modified_z_scores(printed)]
    assert round(scores[2], 1) == 5.8
    assert round(scores[1], 1) == 3.1


def test_a_lever_is_worth_the_rate_of_the_shorter_cycle() -> None:
    worth = speculation.worth(122 * 50e-6, cycle_s=SLOW_CYCLE_S, accepted=2.0)
    assert worth.before == pytest.approx(65.8, abs=0.05)
    assert worth.after == pytest.approx(2.0 / (SLOW_CYCLE_S - 6.1e-3))
    assert worth.gain == pytest.approx(6.1e-3 / (SLOW_CYCLE_S - 6.1e-3))
    assert speculation.worth(-1e-3, cycle_s=20e-3, accepted=2.0).gain < 0


def test_a_drafter_whose_guesses_are_all_refused_yields_one_token_a_cycle() -> None:
    assert speculation.chain_acceptance(1.0) == 0.0


@settings(deadline=None, derandomize=True)
@given(st.floats(min_value=0, max_value=0.99))
def test_chain_acceptance_undoes_the_sum_of_the_chain(p: float) -> None:
    assert speculation.chain_acceptance(1 / (1 - p)) == pytest.approx(p, abs=1e-9)


@settings(deadline=None, derandomize=True)
@given(st.floats(min_value=1e-4, max_value=1), st.floats(min_value=1e-4, max_value=1))
def test_at_break_even_speculation_is_exactly_as_fast_as_plain_decoding(
    cycle_s: float, plain_s: float
) -> None:
    accepted = speculation.break_even_accepted(cycle_s, plain_token_s=plain_s)
    assert speculation.tokens_per_s(accepted, cycle_s=cycle_s) == pytest.approx(1 / plain_s)
    assert speculation.accepted_for(1 / plain_s, cycle_s=cycle_s) == pytest.approx(accepted)


_REFUSED: list[Callable[[], object]] = [
    lambda: speculation.cycle_s(0, share=0.9),
    lambda: speculation.cycle_s(1, share=97.0),
    lambda: speculation.cycle_s(1, share=0),
    lambda: speculation.tokens_per_s(2, cycle_s=-1),
    lambda: speculation.tokens_per_s(math.nan, cycle_s=1),
    lambda: speculation.chain_acceptance(0.5),
    lambda: speculation.chain_acceptance(math.inf),
    lambda: speculation.worth(1, cycle_s=1, accepted=2),
    lambda: speculation.average_by_run([], []),
    lambda: speculation.average_by_token([1, 2], [1]),
    lambda: speculation.run_z_scores([1, 0], [1, 1]),
]


@pytest.mark.parametrize("call", _REFUSED)
def test_impossible_numbers_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"got|cannot save"):
        call()
