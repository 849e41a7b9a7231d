"""What stochastic acceptance emits is distributed as the target: counted, not estimated.

Probabilities are small fractions, all drafts and coins of a grid fine enough for them are gone
through, and their shares must be the probabilities exactly. That the kernels emit what the
reference emits is in tests/test_accept_sampled.py.
"""

import functools
import itertools
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch

from tests.accept_problems import coin_grid, emitted, fixed, run, wanted
from tests.op_runs import DEVICE

Weighted = Sequence[tuple[tuple[int, ...], Fraction]]


def shares(out: Weighted, *, at: int, after: tuple[int, ...] = ()) -> list[Fraction]:
    """Return how the tokens at place `at` are distributed where those before it are `after`."""
    counted = [Fraction(0)] * 4
    for tokens, weight in out:
        if len(tokens) > at and tokens[: len(after)] == after:
            counted[tokens[at]] += weight
    return [count / sum(counted) for count in counted]


def share_of(out: Weighted, *, accepted: int) -> Fraction:
    """Return the share of the outcomes with at least this many accepted drafts."""
    return Fraction(sum(w for tokens, w in out if len(tokens) > accepted), sum(w for _, w in out))


def eighths(*parts: int) -> list[Fraction]:
    return [Fraction(part, 8) for part in parts]


TREE = [-1, 0, 0, 1, 1]
TREE_TOKENS = [0, 1, 2, 0, 3]
TREE_TARGETS = [
    eighths(1, 3, 2, 2),  # children 1 and 2: accepted with 5/8
    eighths(4, 2, 1, 1),  # children 0 and 3
    eighths(2, 2, 2, 2),
    eighths(0, 0, 8, 0),
    eighths(2, 2, 4, 0),
]


@functools.cache
def all_of_the_tree(by: str) -> Weighted:
    """Go through all coins of the nodes with children, and of the bonus."""
    grid = [*itertools.product(coin_grid(8), coin_grid(8), coin_grid(12))]
    one = fixed([TREE], [TREE_TOKENS], vocabulary=4)
    inputs = {key: value.expand(len(grid), *value.shape[1:]).clone() for key, value in one.items()}
    inputs["target_probs"][:] = torch.tensor([[float(p) for p in row] for row in TREE_TARGETS])
    inputs["coins"][:, :2] = torch.tensor([one[:2] for one in grid])
    inputs["bonus_coins"][:] = torch.tensor([one[2] for one in grid])
    op = "tree_accept_sampled"
    got = wanted(op, inputs) if by == "reference" else run(op, by, inputs)
    return [(tokens, Fraction(1)) for tokens in emitted(got, [TREE_TOKENS] * len(grid))]


@pytest.mark.parametrize("by", ["reference", "torch"])
def test_what_a_tree_emits_is_distributed_as_the_target_exactly(by: str) -> None:
    out = all_of_the_tree(by)
    assert shares(out, at=0) == TREE_TARGETS[0]
    assert shares(out, at=1, after=(1,)) == TREE_TARGETS[1]
    assert shares(out, at=1, after=(2,)) == TREE_TARGETS[2]
    assert shares(out, at=2, after=(1, 0)) == TREE_TARGETS[3]
    assert shares(out, at=2, after=(1, 3)) == TREE_TARGETS[4]
    # A child's token comes from the child alone, never as the bonus of a rejection.
    assert all(len(tokens) > 1 for tokens, _ in out if tokens[0] in (1, 2))


@pytest.mark.parametrize("by", ["reference", "torch"])
def test_a_node_of_a_tree_accepts_with_the_mass_of_its_children(by: str) -> None:
    out = all_of_the_tree(by)
    assert share_of(out, accepted=1) == Fraction(5, 8)
    # Node 1 is reached with 3/8 and accepts with 4/8 + 1/8; node 2 has no children.
    assert share_of(out, accepted=2) == Fraction(3, 8) * Fraction(5, 8)


CHAIN_DRAFTS = [eighths(4, 2, 1, 1), eighths(1, 1, 2, 4)]
CHAIN_TARGETS = [eighths(1, 3, 3, 1), eighths(2, 2, 2, 2), eighths(4, 2, 0, 2)]


@functools.cache
def all_of_the_chain(by: str) -> Weighted:
    """Go through all drafts, each with the share that it is drawn with, and all coins."""
    drafts = [*itertools.product(range(4), range(4))]
    coins = [*itertools.product(coin_grid(4), coin_grid(4), coin_grid(12))]
    grid = torch.tensor([(*pair, *three) for pair in drafts for three in coins])
    draft_probs, target_probs = (
        torch.tensor([[float(p) for p in row] for row in rows])
        for rows in (CHAIN_DRAFTS, CHAIN_TARGETS)
    )
    inputs = {
        "draft_ids": grid[:, :2].int().contiguous().to(DEVICE),
        "draft_probs": draft_probs.expand(len(grid), 2, 4).contiguous().to(DEVICE),
        "target_probs": target_probs.expand(len(grid), 3, 4).contiguous().to(DEVICE),
        "coins": grid[:, 2:4].contiguous().to(DEVICE),
        "bonus_coins": grid[:, 4].contiguous().to(DEVICE),
    }
    op = "chain_accept_sampled"
    got = wanted(op, inputs) if by == "reference" else run(op, by, inputs)
    return [
        ((*ids[:count], bonus), CHAIN_DRAFTS[0][ids[0]] * CHAIN_DRAFTS[1][ids[1]])
        for ids, count, bonus in zip(
            inputs["draft_ids"].tolist(), got["accepted"], got["bonus"], strict=True
        )
    ]


@pytest.mark.parametrize("by", ["reference", "torch"])
def test_what_a_chain_emits_is_distributed_as_the_target_exactly(by: str) -> None:
    out = all_of_the_chain(by)
    assert shares(out, at=0) == CHAIN_TARGETS[0]
    for first in range(4):
        assert shares(out, at=1, after=(first,)) == CHAIN_TARGETS[1]
    for first, second in itertools.product(range(4), range(4)):
        assert shares(out, at=2, after=(first, second)) == CHAIN_TARGETS[2]


@pytest.mark.parametrize("by", ["reference", "torch"])
def test_a_chain_accepts_with_the_overlap_of_draft_and_target(by: str) -> None:
    out = all_of_the_chain(by)
    overlap = [
        sum(min(p, q) for p, q in zip(*rows, strict=True))
        for rows in zip(CHAIN_TARGETS, CHAIN_DRAFTS, strict=False)
    ]
    assert overlap == [Fraction(5, 8), Fraction(6, 8)]
    assert share_of(out, accepted=1) == overlap[0]
    assert share_of(out, accepted=2) == overlap[0] * overlap[1]


def test_a_chain_of_chosen_candidates_accepts_with_the_target_alone() -> None:
    # The tree's algorithm on a chain: p(x), not min(1, p(x) / q(x)); the bonus is never x again.
    inputs = fixed([[-1, 0]] * 64, [[0, 2]] * 64, vocabulary=4)
    inputs["target_probs"][:] = torch.tensor([1, 2, 3, 2]) / 8
    grid = [*itertools.product(coin_grid(8), coin_grid(8))]
    inputs["coins"][:, 0] = torch.tensor([one[0] for one in grid])
    inputs["bonus_coins"][:] = torch.tensor([one[1] for one in grid])
    got = wanted("tree_accept_sampled", inputs)
    assert sum(got["accepted"]) == 64 * 3 // 8
    assert 2 not in [
        bonus for bonus, n in zip(got["bonus"], got["accepted"], strict=True) if n == 0
    ]
