"""Draft trees from their parents, on every implementation that can be executed here."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import Case, Inputs, _execute, _trees
from kernels.drafts import _drafts
from kernels.drafts import tree_build as op
from kernels.drafts import tree_build_cupy as _cupy  # noqa: F401  # adds an implementation
from kernels.drafts import tree_build_triton as _triton  # noqa: F401  # adds an implementation
from tests import op_runs

ALL = ("torch", "triton", "cupy")
DEVICE = _execute.device()


def batch(trees: Sequence[Sequence[int]], lengths: Sequence[int] | None = None) -> dict[str, Any]:
    return {
        "parents": _drafts.int32(trees, DEVICE),
        "prefix_lens": _drafts.int32([7] * len(trees) if lengths is None else lengths, DEVICE),
    }


def run(name: str, inputs: Inputs) -> dict[str, list[list[int]]]:
    """Run on `inputs`; the outputs' memory holds the largest number before."""
    got = op_runs.run(op.OP, name, inputs)
    assert {value.dtype for value in got.values()} == {torch.int32}
    return {key: value.tolist() for key, value in got.items()}


@pytest.mark.parametrize("name", ALL)
def test_the_worked_example_comes_out_as_written(name: str) -> None:
    got = run(name, batch([[-1, 0, 0, 1, 1, 2, 3]]))
    assert got == {
        "positions": [[7, 8, 8, 9, 9, 9, 10]],
        "mask_words": [[0b1, 0b11, 0b101, 0b1011, 0b10011, 0b100101, 0b1001011]],
        "first_child": [[1, 3, 5, 6, -1, -1, -1]],
        "next_sibling": [[-1, 2, -1, 4, -1, -1, -1]],
    }


@pytest.mark.parametrize("name", ALL)
def test_positions_follow_parents_and_not_the_flat_index(name: str) -> None:
    star = run(name, batch([_trees.tree("star", 6)], [100]))
    assert star["positions"] == [[100, 101, 101, 101, 101, 101]]
    assert star["next_sibling"] == [[-1, 2, 3, 4, 5, -1]]
    assert run(name, batch([_trees.tree("chain", 6)], [100]))["positions"] == [[*range(100, 106)]]


@pytest.mark.parametrize("name", ALL)
def test_a_chain_sees_what_a_causal_mask_shows(name: str) -> None:
    got = run(name, batch([_trees.tree("chain", 32)]))
    words = [word % 2**32 for word in got["mask_words"][0]]
    assert words == [2 ** (node + 1) - 1 for node in range(32)]
    assert got["mask_words"][0][31] == -1  # all 32 bits, the top one is the sign


@pytest.mark.parametrize("name", ALL)
def test_a_root_alone_has_no_child_and_no_sibling(name: str) -> None:
    got = run(name, batch([[-1], [-1]], [0, 2**20]))
    assert got == {
        "positions": [[0], [2**20]],
        "mask_words": [[1], [1]],
        "first_child": [[-1], [-1]],
        "next_sibling": [[-1], [-1]],
    }


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("bad", [-1, -7, 2, 3, 2**31 - 1, -(2**31)])
def test_a_parent_that_is_no_earlier_node_makes_a_root_and_disturbs_no_request(
    name: str, bad: int
) -> None:
    good = [-1, 0, 0, 1]
    got = run(name, batch([good, [-1, 0, bad, 2], good]))
    assert [row[1] for row in got.values()] == [
        [7, 8, 7, 8],
        [0b1, 0b11, 0b100, 0b1100],
        [1, -1, 3, -1],
        [-1, -1, -1, -1],
    ]
    alone = run(name, batch([good]))
    for request in (0, 2):
        assert {key: [rows[request]] for key, rows in got.items()} == alone


def test_the_reference_refuses_what_is_no_tree() -> None:
    with pytest.raises(ValueError, match=r"parents\[2\] is 2: give an earlier node"):
        op.reference(**batch([[-1, 0, 2]]))


@st.composite
def forests(draw: st.DrawFn) -> dict[str, Any]:
    tokens = draw(st.integers(1, 32))
    trees = [
        [-1, *(draw(st.integers(0, node - 1)) for node in range(1, tokens))]
        for _ in range(draw(st.integers(1, 3)))
    ]
    lengths = draw(st.lists(st.integers(0, 2**20), min_size=len(trees), max_size=len(trees)))
    return batch(trees, lengths)


@settings(max_examples=25, deadline=None)
@given(forests())
@pytest.mark.parametrize("name", ALL)
def test_any_tree_of_up_to_32_tokens_matches_the_reference(
    name: str, inputs: dict[str, Any]
) -> None:
    want = {key: value.tolist() for key, value in op.reference(**inputs).items()}
    assert run(name, inputs) == want


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"parents": torch.zeros(1, 33, dtype=torch.int32)}, "33 draft tokens: .* 1 to 32 tokens"),
        ({"parents": torch.zeros(1, 4)}, r"parents is torch\.float32"),
        ({"parents": torch.zeros(4, dtype=torch.int32)}, r"parents is \(4,\): give \[any, any\]"),
        ({"prefix_lens": torch.zeros(2, dtype=torch.int32)}, r"prefix_lens is \(2,\): give \[1\]"),
        ({"prefix_lens": torch.zeros(1, dtype=torch.int64)}, r"prefix_lens is torch\.int64"),
    ],
)
@pytest.mark.parametrize("name", ALL)
def test_inputs_that_do_not_fit_are_named(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op.OP.implementations[name].run(batch([[-1, 0]]) | changed)


def test_cost_counts_the_parents_and_the_four_lists() -> None:
    cost = op.cost(batch([[-1, 0, 0]] * 2))
    assert (cost.read_bytes, cost.written_bytes) == (4 * (6 + 2), 4 * 4 * 6)


def test_one_token_stands_beside_every_batch() -> None:
    def rest(case: Case) -> object:
        return case.dims["requests"]

    measured = [case for case in op.OP.cases if not case.tiny]
    ones = {rest(case) for case in measured if case.dims["rows"] == 1}
    assert {rest(case) for case in measured} == ones
    assert {case.dims["rows"] for case in measured} == {1, 2, 3, 4, 6, 8, 12, 16, 32}
