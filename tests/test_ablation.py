"""Parts add up to the whole, and what they do not explain is shown."""

from collections.abc import Mapping, Sequence

import pytest

from graphs.ablation import Account, account
from verifyscope.alternate import Alternation, StopRule, alternate


def _rounds(
    samples: Mapping[str, Sequence[float]], failures: Mapping[str, str] | None = None
) -> Alternation:
    return Alternation(
        samples={name: tuple(times) for name, times in samples.items()},
        failures=failures or {},
        rounds=len(next(iter(samples.values()))),
        stopped_by="time_cap",
    )


def _two_parts(drift: Sequence[float] = (0.0,) * 5, **more: Sequence[float]) -> Account:
    """Return attention of 3, MoE of 4 and 1 that belongs to neither, with a drift a round."""
    times = {
        "whole": 8.0,
        "nothing": 0.5,
        "without attention": 5.0,
        "without moe": 4.0,
        "only attention": 3.5,
        "only moe": 4.5,
    }
    samples = {name: [base + one for one in drift] for name, base in times.items()}
    return account(_rounds(samples | more), ("attention", "moe"))


def test_a_marginal_cost_is_what_the_pass_loses_without_the_part() -> None:
    found = _two_parts()
    marginal = {cost.part: cost.marginal for cost in found.parts}
    assert marginal["attention"] is not None
    assert marginal["attention"].median == 3.0
    assert marginal["moe"] is not None
    assert marginal["moe"].median == 4.0


def test_an_isolated_cost_is_the_pass_of_that_part_alone_and_nothing_is_subtracted() -> None:
    found = _two_parts()
    assert [cost.isolated and cost.isolated.median for cost in found.parts] == [3.5, 4.5]
    assert found.nothing is not None
    assert found.nothing.median == 0.5


def test_what_the_parts_do_not_explain_is_left_with_its_share() -> None:
    found = _two_parts()
    assert found.marginal is not None
    assert found.marginal.sum.median == 7.0
    assert found.marginal.unexplained.median == 1.0
    assert found.marginal.share == 1 / 8
    assert found.isolated is not None
    assert found.isolated.unexplained.median == 0.0


def test_a_drift_that_meets_all_passes_of_a_round_alike_is_in_no_difference() -> None:
    found = _two_parts(drift=(0.0, 50.0, 3.0, 200.0, 7.0))
    marginal = found.parts[0].marginal
    assert marginal is not None
    assert (marginal.low, marginal.median, marginal.high) == (3.0, 3.0, 3.0)
    assert found.marginal is not None
    # Each difference is free of the drift, the whole is not.
    assert found.marginal.unexplained.median == pytest.approx(1.0 + 7.0)


def test_a_part_that_saves_time_has_a_marginal_cost_below_zero() -> None:
    found = _two_parts(**{"without moe": [9.0] * 5})
    assert found.parts[1].marginal is not None
    assert found.parts[1].marginal.median == -1.0
    assert found.marginal is not None
    assert found.marginal.unexplained.median == 8.0 - 3.0 + 1.0


def test_a_part_that_failed_has_its_reason_and_the_sum_is_not_known() -> None:
    samples = {"whole": [8.0] * 5, "only attention": [3.0] * 5, "without attention": [5.0] * 5}
    rounds = _rounds(samples, {"without moe": "OutOfMemoryError: x", "only moe": "lost"})
    found = account(rounds, ("attention", "moe"))
    assert found.parts[1].why_not == "without moe: OutOfMemoryError: x; only moe: lost"
    assert found.parts[1].marginal is None
    assert found.marginal is None
    assert found.isolated is None
    assert found.nothing is None


def test_costs_in_context_of_as_many_rounds_are_paired_with_them() -> None:
    samples = {"whole": [8.0, 18.0, 8.0, 28.0, 8.0]}
    context = {"attention": [3.0, 8.0, 3.0, 13.0, 3.0], "moe": [4.0, 9.0, 4.0, 14.0, 4.0]}
    found = account(_rounds(samples), ("attention", "moe"), in_context=context)
    assert found.in_context is not None
    assert found.in_context.unexplained.median == 1.0
    assert found.in_context.unexplained.high == 1.0


def test_costs_in_context_of_other_passes_are_held_against_the_median() -> None:
    samples = {"whole": [7.0, 8.0, 9.0]}
    context = {"attention": [3.0, 3.0], "moe": [4.0, 4.5]}
    found = account(_rounds(samples), ("attention", "moe"), in_context=context)
    assert found.in_context is not None
    assert found.in_context.unexplained.median == 8.0 - 7.25
    assert found.in_context.unexplained.low == 7.0 - 7.5
    assert found.in_context.unexplained.high == 9.0 - 7.0


def test_a_whole_without_a_time_is_refused() -> None:
    with pytest.raises(ValueError, match="the whole pass has no time: out of memory"):
        account(_rounds({"only moe": [1.0]}, {"whole": "out of memory"}), ("moe",))


def test_passes_are_measured_in_turn_and_the_turn_is_reversed() -> None:
    order: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def sample(self) -> float:
            order.append(self.name)
            return 1.0

    names = ("whole", "without moe", "only moe")
    rule = StopRule(time_cap_s=1e-9, min_rounds=2)
    alternate({name: Named(name) for name in names}, rule=rule)
    assert order == [*names, *reversed(names)]
