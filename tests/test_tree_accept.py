"""Accepting drafts greedily, and what greedy and stochastic acceptance promise in common."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import _trees, find_op
from kernels.drafts import tree_accept as greedy
from tests.accept_problems import ALL, fixed, lists, run, tokens_of, wanted

EXAMPLE = [-1, 0, 0, 1, 1, 2, 3]


def block(
    tree: Sequence[int], drafts: Sequence[int], targets: Sequence[int], *, requests: int = 1
) -> dict[str, torch.Tensor]:
    return {
        "draft_ids": tokens_of([drafts] * requests),
        "target_ids": tokens_of([targets] * requests),
        **lists([tree] * requests),
    }


@pytest.mark.parametrize("name", ALL)
def test_the_worked_example_takes_two_drafts_and_the_bonus(name: str) -> None:
    got = run("tree_accept", name, block(EXAMPLE, [9, 1, 2, 3, 4, 5, 6], [2, 0, 5, 0, 0, 77, 0]))
    assert got == {"path": [[0, 2, 5, -1, -1, -1, -1]], "accepted": [2], "bonus": [77]}


@pytest.mark.parametrize("name", ALL)
def test_nothing_accepted_gives_the_root_s_token_and_never_index_minus_one(name: str) -> None:
    got = run("tree_accept", name, block(EXAMPLE, [9, 1, 2, 3, 4, 5, 6], [8, 1, 2, 3, 4, 5, 6]))
    assert got == {"path": [[0, -1, -1, -1, -1, -1, -1]], "accepted": [0], "bonus": [8]}
    alone = run("tree_accept", name, block([-1], [5], [5]))
    assert alone == {"path": [[0]], "accepted": [0], "bonus": [5]}


@pytest.mark.parametrize("name", ALL)
def test_the_root_s_own_draft_is_not_looked_at(name: str) -> None:
    got = run("tree_accept", name, block([-1, 0], [4, 9], [4, 4]))
    assert got == {"path": [[0, -1]], "accepted": [0], "bonus": [4]}


@pytest.mark.parametrize("name", ALL)
def test_of_siblings_with_one_token_the_first_is_taken(name: str) -> None:
    got = run("tree_accept", name, block([-1, 0, 0, 0, 2], [0, 7, 5, 5, 6], [5, 1, 6, 1, 9]))
    assert got == {"path": [[0, 2, 4, -1, -1]], "accepted": [2], "bonus": [9]}


@pytest.mark.parametrize("name", ALL)
def test_a_whole_chain_may_be_accepted(name: str) -> None:
    tree = _trees.tree("chain", 32)
    got = run("tree_accept", name, block(tree, range(32), range(1, 33)))
    assert got == {"path": [[*range(32)]], "accepted": [31], "bonus": [32]}


BAD = [0, 1, -7, 4, 2**31 - 1]


@pytest.mark.parametrize("op", ["tree_accept", "tree_accept_sampled"])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("bad", BAD)
def test_a_list_that_goes_nowhere_ends_the_walk_and_disturbs_no_request(
    op: str, name: str, bad: int
) -> None:
    tree = [-1, 0, 1, 1]
    if op == "tree_accept":
        inputs: dict[str, torch.Tensor] = block(tree, [0, 1, 2, 3], [1, 3, 0, 9], requests=3)
    else:
        inputs = fixed([tree] * 3, [[0, 1, 2, 3]] * 3, vocabulary=5)
        inputs["coins"].fill_(0.3)
    good = run(op, name, inputs)
    inputs["first_child"][1, 1] = bad
    inputs["next_sibling"][1, 1] = bad
    got = run(op, name, inputs)
    for request in (0, 2):
        assert [rows[request] for rows in got.values()] == [rows[request] for rows in good.values()]
    assert all(0 <= node < 4 or node == -1 for node in got["path"][1])
    assert 0 <= got["accepted"][1] < 4


@st.composite
def greedy_blocks(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    tokens = draw(st.integers(1, 32))
    requests = draw(st.integers(1, 3))
    ids = st.lists(st.integers(0, 3), min_size=tokens, max_size=tokens)
    trees = [
        [-1, *(draw(st.integers(0, node - 1)) for node in range(1, tokens))]
        for _ in range(requests)
    ]
    return {
        "draft_ids": tokens_of([draw(ids) for _ in trees]),
        "target_ids": tokens_of([draw(ids) for _ in trees]),
        **lists(trees),
    }


@settings(max_examples=12, deadline=None)
@given(greedy_blocks())
@pytest.mark.parametrize("name", ALL)
def test_any_tree_and_tokens_match_the_reference(
    name: str, inputs: dict[str, torch.Tensor]
) -> None:
    assert run("tree_accept", name, inputs) == wanted("tree_accept", inputs)


def test_cost_counts_the_cells_of_the_walk_alone() -> None:
    cost = greedy.cost(block(EXAMPLE, [9, 1, 2, 3, 4, 5, 6], [2, 0, 5, 0, 0, 77, 0]))
    # Nodes 0, 2, 5: target and first child. Tries 1, 2, 5: a token; of 1 also the sibling.
    assert cost.read_bytes == 4 * (3 * 2 + 3 + 1)
    assert cost.written_bytes == 4 * 7 + 8


@pytest.mark.parametrize("op", ["tree_accept", "tree_accept_sampled", "chain_accept_sampled"])
def test_one_token_stands_beside_every_batch_and_vocabulary(op: str) -> None:
    measured = [case for case in find_op(op).cases if not case.tiny]
    axes = ("requests", "vocabulary", "target")

    def rest(case: Any) -> tuple[object, ...]:
        return tuple(case.dims.get(axis) for axis in axes)

    single = {rest(case) for case in measured if case.dims["rows"] == 1}
    assert {rest(case) for case in measured} == single
    assert {1, 4, 16, 64} <= {case.dims["requests"] for case in measured}
    assert op == "tree_accept" or 163_840 in {case.dims["vocabulary"] for case in measured}


WRONG = [
    ("tree_accept", {"draft_ids": torch.zeros(1, 33, dtype=torch.int32)}, "33 draft tokens"),
    ("tree_accept", {"target_ids": torch.zeros(1, 2, dtype=torch.int32)}, r"give \[1, 3\]"),
    ("tree_accept_sampled", {"coins": torch.zeros(1, 3).double()}, r"coins is torch\.float64"),
    ("tree_accept_sampled", {"target_probs": torch.zeros(1, 2, 5)}, r"give \[1, 3, any\]"),
    ("tree_accept_sampled", {"target_probs": torch.zeros(1, 3, 0)}, "0 tokens: give 1 to"),
    ("tree_accept_sampled", {"first_child": torch.zeros(1, 3)}, r"first_child is torch\.float32"),
]


@pytest.mark.parametrize(("op", "changed", "message"), WRONG)
@pytest.mark.parametrize("name", ALL)
def test_inputs_that_do_not_fit_are_named(
    op: str, name: str, changed: dict[str, Any], message: str
) -> None:
    if op == "tree_accept":
        inputs: dict[str, Any] = dict(block([-1, 0, 0], [0, 1, 2], [1, 1, 1]))
    else:
        inputs = dict(fixed([[-1, 0, 0]], [[0, 1, 2]], vocabulary=5))
    with pytest.raises(ValueError, match=message):
        find_op(op).implementations[name].run(inputs | changed)
