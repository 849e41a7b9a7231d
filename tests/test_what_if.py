"""Levers alone and together: exact on a made-up pass, and never below the floor of its bytes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs import what_if
from graphs.what_if import Cycle, Lever, Row, Setting, Worth

NOW = Setting(rows=4, launch="eager")


def simulate(setting: Setting) -> float:
    """A pass of 20 ms eager and 12 as a graph, of which 4 are all-reduces and 2 a row's."""
    host = 8.0 if setting.launch == "eager" else 0.0
    return (host + 4 * setting.all_reduce_scale + 2 * setting.rows) / 1e3


def cycle(**more: object) -> Cycle:
    base = Cycle(simulate=simulate, floor_s=lambda rows: (3 + rows) / 1e3)
    return replace(base, **more)  # type: ignore[arg-type]  # whatever a test gives


GRAPH = Lever(name="graph", how="", apply=lambda setting: replace(setting, launch="graph"))
REDUCE = Lever(name="reduce", how="", apply=lambda setting: replace(setting, all_reduce_scale=0.25))
FEWER = Lever(name="fewer", how="", apply=lambda setting: what_if.fewer_rows(setting, 2))
UNKNOWN = Lever(name="unknown", how="not known: give it", apply=None)


def table(*levers: Lever, now: Setting = NOW, **more: object) -> dict[str, Row]:
    return {row.name: row for row in what_if.table(now, levers, cycle(**more))}


def alone(row: Row) -> Worth:
    assert row.alone is not None
    return row.alone


def together(row: Row) -> Worth:
    assert row.together is not None
    return row.together


def test_each_lever_alone_and_together_with_those_above_it() -> None:
    found = table(GRAPH, REDUCE, FEWER)
    assert [alone(row).pass_s for row in found.values()] == pytest.approx(
        [20e-3, 12e-3, 17e-3, 16e-3]
    )
    assert [together(row).pass_s for row in found.values()] == pytest.approx(
        [20e-3, 12e-3, 9e-3, 5e-3]
    )


def test_a_lever_of_unknown_size_is_not_zero_and_does_not_stop_the_others() -> None:
    found = table(UNKNOWN, GRAPH)
    assert (found["unknown"].alone, found["unknown"].together) == (None, None)
    assert found["unknown"].how == "not known: give it"
    assert together(found["graph"]).pass_s == pytest.approx(12e-3)


def test_no_pass_is_below_the_floor_of_its_rows_and_one_that_would_be_says_so() -> None:
    quick = Lever(
        name="quick", how="", apply=lambda s: replace(s, launch="graph", all_reduce_scale=-9.0)
    )
    found = table(quick)
    assert (alone(found["quick"]).pass_s, alone(found["quick"]).held) == (7e-3, True)
    assert not alone(found["now"]).held


def test_what_was_observed_keeps_what_the_simulation_does_not_explain() -> None:
    found = table(GRAPH, observed_s=30e-3)
    assert alone(found["now"]).pass_s == pytest.approx(30e-3)
    assert alone(found["graph"]).pass_s == pytest.approx(22e-3)


def test_tokens_a_second_and_break_even_are_of_the_whole_cycle() -> None:
    # 20 ms are 0.8 of a cycle of 25; as a graph the cycle is 12 + 5 = 17 ms.
    found = table(GRAPH, now=replace(NOW, accepted=2.0), share=0.8, plain_s=lambda _: 10e-3)
    assert alone(found["now"]).tokens_per_s == pytest.approx((80.0, 80.0))
    assert alone(found["now"]).break_even == pytest.approx(2.5)
    assert alone(found["graph"]).tokens_per_s == pytest.approx((2 / 17e-3, 2 / 17e-3))
    assert alone(found["graph"]).break_even == pytest.approx(1.7)


def test_tokens_a_second_are_those_of_all_requests() -> None:
    found = table(GRAPH, now=replace(NOW, accepted=2.0), requests=8)
    assert alone(found["now"]).tokens_per_s == pytest.approx((800.0, 800.0))  # 8 x 2 / 20 ms


def test_without_a_known_acceptance_there_is_a_range_from_1_token_to_all_rows() -> None:
    found = table(FEWER)
    assert alone(found["now"]).tokens_per_s == pytest.approx((50.0, 200.0))
    assert alone(found["fewer"]).tokens_per_s == pytest.approx((1 / 16e-3, 2 / 16e-3))
    assert alone(found["now"]).break_even is None


def test_the_plain_token_may_have_the_same_levers() -> None:
    plain = table(REDUCE, plain_s=lambda s: simulate(replace(s, rows=1)))
    assert alone(plain["reduce"]).break_even == pytest.approx(17 / 11)


def test_a_chain_of_drafts_keeps_its_chance_when_it_is_cut() -> None:
    # p = 1/2: 1 + 1/2 + 1/4 + 1/8 = 1.875 tokens of 4 rows, 1.5 of 2.
    fewer = what_if.fewer_rows(replace(NOW, accepted=1.875), 2)
    assert fewer.rows == 2
    assert fewer.accepted == pytest.approx(1.5)
    assert what_if.fewer_rows(NOW, 8).rows == 4
    with pytest.raises(ValueError, match="3 drafted tokens yield 1 to 4, got 5"):
        what_if.fewer_rows(replace(NOW, accepted=5), 2)


@given(st.floats(-5, 1), st.integers(1, 4), st.sampled_from(["eager", "graph"]), st.floats(0, 60))
def test_whatever_a_lever_does_the_floor_holds(
    scale: float, rows: int, launch: str, observed_ms: float
) -> None:
    anything = Lever(
        name="x",
        how="",
        apply=lambda _: Setting(rows=rows, launch=launch, all_reduce_scale=scale),  # type: ignore[arg-type]  # one of two
    )
    found = table(anything, observed_s=observed_ms / 1e3 or None)["x"]
    assert alone(found).pass_s >= (3 + rows) / 1e3
