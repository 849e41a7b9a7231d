"""Draft trees: the definitions, on the worked example and on any tree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import _trees

EXAMPLE = [-1, 0, 0, 1, 1, 2, 3]


@st.composite
def any_tree(draw: st.DrawFn) -> list[int]:
    tokens = draw(st.integers(1, _trees.MOST_TOKENS))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, tokens))]


def ancestors(parents: list[int], node: int) -> set[int]:
    found = {node}
    while (node := parents[node]) != -1:
        found.add(node)
    return found


def test_the_worked_example_has_the_published_positions_children_and_siblings() -> None:
    assert _trees.positions(EXAMPLE, 7) == [7, 8, 8, 9, 9, 9, 10]
    assert _trees.first_children(EXAMPLE) == [1, 3, 5, 6, -1, -1, -1]
    assert _trees.next_siblings(EXAMPLE) == [-1, 2, -1, 4, -1, -1, -1]
    assert _trees.mask_words(EXAMPLE) == [
        0b1, 0b11, 0b101, 0b1011, 0b10011, 0b100101, 0b1001011
    ]  # fmt: skip


def test_a_causal_mask_would_show_ten_cells_too_many_in_the_worked_example() -> None:
    causal = [(1 << node + 1) - 1 for node in range(len(EXAMPLE))]
    extra = [word & ~seen for word, seen in zip(causal, _trees.mask_words(EXAMPLE), strict=True)]
    assert sum(word.bit_count() for word in extra) == 10


@given(any_tree())
def test_a_node_sees_itself_and_its_ancestors_and_nothing_else(parents: list[int]) -> None:
    for node, word in enumerate(_trees.mask_words(parents)):
        seen = {bit for bit in range(_trees.MOST_TOKENS) if word >> bit & 1}
        assert seen == ancestors(parents, node)


@given(any_tree(), st.integers(0, 10**6))
def test_positions_follow_parents_and_not_the_flat_index(
    parents: list[int], committed: int
) -> None:
    positions = _trees.positions(parents, committed)
    assert positions[0] == committed
    assert all(
        positions[node] == positions[parent] + 1
        for node, parent in enumerate(parents)
        if parent != -1
    )
    # A node's depth is also how many others it sees.
    words = _trees.mask_words(parents)
    assert [word.bit_count() - 1 for word in words] == [at - committed for at in positions]


@given(any_tree())
def test_children_and_siblings_visit_every_node_but_the_root_once(parents: list[int]) -> None:
    child, sibling = _trees.first_children(parents), _trees.next_siblings(parents)
    visited = []
    for parent in range(len(parents)):
        node = child[parent]
        while node != -1:
            assert parents[node] == parent
            assert sibling[node] == -1 or sibling[node] > node
            visited.append(node)
            node = sibling[node]
    assert sorted(visited) == list(range(1, len(parents)))


@given(st.integers(1, _trees.MOST_TOKENS))
def test_a_chain_is_the_causal_mask(tokens: int) -> None:
    chain = _trees.tree("chain", tokens)
    assert _trees.mask_words(chain) == [(1 << node + 1) - 1 for node in range(tokens)]
    assert _trees.positions(chain, 5) == [5 + node for node in range(tokens)]


@given(st.integers(1, _trees.MOST_TOKENS))
def test_in_a_star_no_node_sees_another_but_the_root(tokens: int) -> None:
    words = _trees.mask_words(_trees.tree("star", tokens))
    assert words == [1, *(1 << node | 1 for node in range(1, tokens))]


@pytest.mark.parametrize("name", _trees.TREES)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 6, 8, 12, 16, 32])
def test_every_named_tree_is_one_and_lists_its_levels_in_order(name: str, tokens: int) -> None:
    parents = _trees.tree(name, tokens)
    assert len(parents) == tokens
    depths = _trees.depths(parents)
    assert depths == sorted(depths)


@pytest.mark.parametrize(("name", "width"), [("binary", 2), ("eagle4", 4), ("eagle8", 8)])
def test_a_node_has_no_more_children_than_the_tree_is_wide(name: str, width: int) -> None:
    parents = _trees.tree(name, _trees.MOST_TOKENS)
    assert max(parents.count(node) for node in range(len(parents))) == width


def test_eagle_keeps_the_likeliest_nodes_of_a_few_steps() -> None:
    assert _trees.tree("eagle4", 8) == [-1, 0, 0, 0, 1, 1, 2, 4]
    assert max(_trees.depths(_trees.tree("eagle4", 32))) == 5
    assert max(_trees.depths(_trees.tree("eagle8", 32))) == 3


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([], "1 to 32"),
        ([-1] + [0] * 32, "33 tokens"),
        ([0, 0], r"parents\[0\] is 0"),
        ([-1, 1], r"parents\[1\] is 1: give an earlier node, 0 to 0"),
        ([-1, 0, -1], r"parents\[2\] is -1"),
    ],
)
def test_what_is_no_tree_is_named(parents: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _trees.mask_words(parents)


def test_unknown_shapes_and_sizes_are_named() -> None:
    with pytest.raises(ValueError, match="known: chain, star, binary, eagle4, eagle8"):
        _trees.tree("bush", 4)
    with pytest.raises(ValueError, match="33 tokens: give 1 to 32"):
        _trees.tree("chain", 33)
