"""The best draft length, held to sums by hand and to every tree that there is."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifyscope import draft_length, speculation
from verifyscope.draft_length import Costs, Line

TEN_AND_ONE = Costs(line=Line(base_s=10e-3, slope_s=1e-3))


def test_a_chain_of_two_at_one_half_yields_1_75() -> None:
    assert speculation.chain_accepted(0.5, drafts=2) == 1.75
    assert speculation.chain_step_acceptance(1.75, drafts=2) == pytest.approx(0.5)
    assert speculation.chain_accepted(0.3, drafts=0) == 1.0


@settings(deadline=None, derandomize=True)
@given(st.floats(min_value=0, max_value=1), st.integers(min_value=1, max_value=20))
def test_the_acceptance_of_a_step_is_found_again(p: float, drafts: int) -> None:
    accepted = speculation.chain_accepted(p, drafts=drafts)
    found = speculation.chain_step_acceptance(accepted, drafts=drafts)
    assert speculation.chain_accepted(found, drafts=drafts) == pytest.approx(accepted)


def test_chains_at_one_half_on_10_ms_and_1_ms_a_row() -> None:
    """12 ms for 1.5, 13 for 1.75, 14 for 1.875, 15 for 1.9375: 125, 134.6, 133.9, 129.2 tok/s."""
    rates = [one.tokens_per_s for one in draft_length.chains(0.5, TEN_AND_ONE, requests=1, most=4)]
    assert rates == pytest.approx([125.0, 1.75 / 13e-3, 1.875 / 14e-3, 1.9375 / 15e-3])
    best = draft_length.best(draft_length.chains(0.5, TEN_AND_ONE, requests=1))
    assert (best.shape, best.drafted, best.steps, best.accepted) == ("chain", 2, 2, 1.75)
    assert best.cycle_s == pytest.approx(13e-3)


def test_a_draft_step_shortens_the_best_chain() -> None:
    costs = Costs(line=TEN_AND_ONE.line, draft_step_s=2e-3, rest_s=1e-3)
    (one, two, *_) = chains = draft_length.chains(0.5, costs, requests=1)
    assert one.cycle_s == pytest.approx(10e-3 + 2e-3 + 2e-3 + 1e-3)
    assert two.cycle_s == pytest.approx(10e-3 + 3e-3 + 4e-3 + 1e-3)
    assert draft_length.best(chains).drafted == 1


def test_requests_multiply_rows_and_tokens() -> None:
    (one, *_) = draft_length.chains(0.5, TEN_AND_ONE, requests=4)
    assert one.cycle_s == pytest.approx(10e-3 + 8e-3)
    assert one.tokens_per_s == pytest.approx(4 * 1.5 / 18e-3)


def test_plain_rows_grow_with_the_requests_too() -> None:
    """At 4 requests: 10 + 4 x 3 = 22 ms a cycle, 14 ms a plain step: 1.571; at one: 13 / 11."""
    assert TEN_AND_ONE.break_even(1, drafted=2) == pytest.approx(13 / 11)
    assert TEN_AND_ONE.break_even(4, drafted=2) == pytest.approx(22 / 14)
    given_step = Costs(line=TEN_AND_ONE.line, plain_s=12e-3, plain_requests=1)
    assert given_step.break_even(4, drafted=2) == pytest.approx(22 / 15)


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [(1, 12.0), (2, 15.0), (3, 15.5), (4, 16.0), (6, 17.0), (8, 18.0), (10, 20.0), (0.5, 11.5)],
)
def test_known_points_count_as_they_are_and_the_slope_beyond_them(
    rows: float, seconds: float
) -> None:
    line = Line(base_s=11.0, slope_s=1.0, points=((1, 12.0), (2, 15.0), (4, 16.0), (8, 18.0)))
    assert line.seconds(rows) == pytest.approx(seconds)


def test_a_tree_of_three_takes_the_three_likeliest_nodes() -> None:
    """0.6; 0.36 below it; 0.3 beside it: 2.26, two steps deep."""
    nodes = itertools.islice(draft_length.likeliest([0.6, 0.3], deepest=8), 4)
    assert [(round(chance, 4), depth) for chance, depth in nodes] == [
        (0.6, 1),
        (0.36, 2),
        (0.3, 1),
        (0.216, 3),
    ]
    free = Costs(line=Line(base_s=10e-3, slope_s=0.0))
    three = draft_length.trees([0.6, 0.3], free, requests=1, most_rows=4)[2]
    assert (three.drafted, three.steps) == (3, 2)
    assert three.accepted == pytest.approx(2.26)


def test_dear_draft_steps_make_a_flat_tree() -> None:
    dear = Costs(line=Line(base_s=10e-3, slope_s=0.01e-3), draft_step_s=20e-3)
    best = draft_length.best(draft_length.trees([0.5, 0.25, 0.2], dear, requests=1))
    assert (best.steps, best.drafted) == (1, 3)
    assert best.accepted == pytest.approx(1.95)


def test_with_one_candidate_a_tree_is_a_chain() -> None:
    chains = draft_length.chains(0.7, TEN_AND_ONE, requests=2)
    trees = draft_length.trees([0.7], TEN_AND_ONE, requests=2, most_rows=16)
    assert [one.tokens_per_s for one in trees] == pytest.approx([c.tokens_per_s for c in chains])


def _every_tree(nodes: int, wide: int) -> set[frozenset[tuple[int, ...]]]:
    """Every tree of so many nodes, each the ranks on its path; grown one node at a time."""
    grown: set[frozenset[tuple[int, ...]]] = {frozenset()}
    for _ in range(nodes):
        grown = {
            tree | {(*above, rank)}
            for tree in grown
            for above in [(), *tree]
            for rank in range(wide)
            if (*above, rank) not in tree
        }
    return grown


@pytest.mark.parametrize("chances", [(0.6, 0.3), (0.5, 0.5), (0.9, 0.05, 0.04), (0.4, 0.35, 0.2)])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_no_other_tree_of_as_many_nodes_yields_more(chances: tuple[float, ...], nodes: int) -> None:
    def yielded(tree: frozenset[tuple[int, ...]]) -> float:
        total = 1.0
        for path in tree:
            chance = 1.0
            for rank in path:
                chance *= chances[rank]
            total += chance
        return total

    most = max(map(yielded, _every_tree(nodes, len(chances))))
    found = draft_length.trees(
        chances, Costs(line=Line(base_s=1.0, slope_s=0.0)), requests=1, most_rows=nodes + 1
    )
    assert found[-1].accepted == pytest.approx(most)


def test_equal_tries_add_up_to_the_chance_that_any_is_right() -> None:
    chances = draft_length.equal_tries(0.6, candidates=3)
    assert chances == pytest.approx((0.6, 0.24, 0.096))
    assert sum(chances) == pytest.approx(1 - 0.4**3)


@pytest.mark.parametrize("chances", [[], [0.6, 0.5], [-0.1], [1.2], [float("nan")]])
def test_chances_that_are_none_are_refused(chances: list[float]) -> None:
    with pytest.raises(ValueError, match="0 to 1 and at most 1 together"):
        next(draft_length.likeliest(chances, deepest=3))


@pytest.mark.parametrize(("accepted", "drafts"), [(0.9, 2), (3.1, 2), (1.0, 0)])
def test_an_acceptance_that_no_chain_gives_is_refused(accepted: float, drafts: int) -> None:
    with pytest.raises(ValueError, match="drafted tokens yield 1 to"):
        speculation.chain_step_acceptance(accepted, drafts=drafts)
