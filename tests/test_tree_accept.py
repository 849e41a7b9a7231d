"""Accepting drafts, greedily and by sampling, on every implementation that can be executed here.

That what is emitted is distributed as the target is not estimated but counted: probabilities are
small fractions, all drafts and coins of a grid fine enough for them are gone through, and their
shares must be the probabilities exactly.
"""

import dataclasses
import functools
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import Inputs, _drafts, _execute, _flashinfer, _speculative, _trees, find_op
from kernels import chain_accept_sampled as chain
from kernels import chain_accept_sampled_flashinfer as adapter
from kernels import tree_accept as greedy
from kernels import tree_accept_sampled as sampled
from kernels._check import poisoned
from tests import flashinfer_stand_in as stand_in

ALL = ("torch", "triton", "cupy")
DEVICE = _execute.device()
EXAMPLE = [-1, 0, 0, 1, 1, 2, 3]


def run(op: str, name: str, inputs: Inputs) -> dict[str, Any]:
    """Run on `inputs`; the outputs' memory holds the largest number before."""
    implementation = find_op(op).implementations[name]
    point = dataclasses.replace(find_op(op).cases[0], tiny=True)
    if (chosen := _execute.way(implementation, point, device=DEVICE)).executed is None:
        pytest.skip(chosen.reason or "")
    with poisoned():
        got = implementation.run(inputs)
    assert {value.dtype for value in got.values()} == {torch.int32}
    return {key: value.tolist() for key, value in got.items()}


def wanted(op: str, inputs: Inputs) -> dict[str, Any]:
    return {key: value.tolist() for key, value in find_op(op).reference(**inputs).items()}


def lists(trees: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    return {
        "first_child": _drafts.int32([_trees.first_children(tree) for tree in trees], DEVICE),
        "next_sibling": _drafts.int32([_trees.next_siblings(tree) for tree in trees], DEVICE),
    }


def tokens_of(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    return _drafts.int32(rows, DEVICE)


# --- greedy ---


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


# --- sampling: exactness ---


def coin_grid(count: int) -> list[float]:
    """Return the middles of `count` equal parts of [0, 1): each stands for its part."""
    return [(n + 0.5) / count for n in range(count)]


def fixed(
    trees: Sequence[Sequence[int]],
    drafts: Sequence[Sequence[int]],
    *,
    vocabulary: int,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Return drafts of `trees` with random targets and coins."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    sizes = len(trees), len(trees[0])
    return {
        "draft_ids": tokens_of(drafts),
        **lists(trees),
        "target_probs": torch.randn(*sizes, vocabulary, generator=generator, device=DEVICE)
        .mul_(2)
        .softmax(-1),
        "coins": torch.rand(sizes, generator=generator, device=DEVICE),
        "bonus_coins": torch.rand(sizes[0], generator=generator, device=DEVICE),
    }


def emitted(got: dict[str, Any], drafts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the tokens of each request: those accepted, then the bonus."""
    return [
        (*(ids[node] for node in path[1 : 1 + count]), bonus)
        for path, count, bonus, ids in zip(
            got["path"], got["accepted"], got["bonus"], drafts, strict=True
        )
    ]


Weighted = Sequence[tuple[tuple[int, ...], Fraction]]


def shares(out: Weighted, *, at: int, after: tuple[int, ...] = ()) -> list[Fraction]:
    """Return how the tokens at place `at` are distributed where those before it are `after`."""
    counted: Counter[int] = Counter()
    for tokens, weight in out:
        if len(tokens) > at and tokens[: len(after)] == after:
            counted[tokens[at]] += weight  # type: ignore[assignment]  # a share of a count
    total = sum(counted.values())
    return [Fraction(counted[token], total) for token in range(4)]


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


# --- sampling: edges ---


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("coin", [0.0, 1 - 2**-24, 1.0])
@pytest.mark.parametrize("hot", [0, 2047, 2048, 4096])
def test_a_token_of_no_mass_is_never_drawn_at_any_coin(name: str, coin: float, hot: int) -> None:
    inputs = fixed([[-1, 0]], [[0, 7]], vocabulary=4097)
    inputs["target_probs"].zero_()
    inputs["target_probs"][0, :, hot] = 1.0
    inputs["coins"].fill_(coin)
    inputs["bonus_coins"].fill_(coin)
    got = run("tree_accept_sampled", name, inputs)
    assert got == {"path": [[0, -1]], "accepted": [0], "bonus": [hot]}


@pytest.mark.parametrize("name", ALL)
def test_a_certain_candidate_is_accepted_at_any_coin(name: str) -> None:
    inputs = fixed([[-1, 0]] * 3, [[0, 7]] * 3, vocabulary=9)
    inputs["target_probs"].zero_()
    inputs["target_probs"][:, 0, 7] = 1.0
    inputs["target_probs"][:, 1, 3] = 1.0
    inputs["coins"][:, 0] = torch.tensor([0.0, 1 - 2**-24, 1.0])
    got = run("tree_accept_sampled", name, inputs)
    assert got == {"path": [[0, 1]] * 3, "accepted": [1] * 3, "bonus": [3] * 3}


@pytest.mark.parametrize("name", ALL)
def test_nothing_accepted_draws_without_the_candidates(name: str) -> None:
    inputs = fixed([[-1, 0, 0]], [[0, 1, 3]], vocabulary=5)
    inputs["target_probs"][0, 0] = torch.tensor([2, 1, 2, 1, 2]) / 8
    inputs["coins"].fill_(0.25)  # not below 1/8 + 1/8
    bonus = []
    for coin in coin_grid(3):
        inputs["bonus_coins"].fill_(coin)
        got = run("tree_accept_sampled", name, inputs)
        assert (got["path"], got["accepted"]) == ([[0, -1, -1]], [0])
        bonus += got["bonus"]
    assert bonus == [0, 2, 4]


@pytest.mark.parametrize("name", ALL)
def test_a_token_that_stands_twice_among_siblings_has_its_mass_once(name: str) -> None:
    grid = [*itertools.product(coin_grid(8), [0.5])]  # one token is left
    drafts = [[0, 1, 1, 2]] * len(grid)
    inputs = fixed([[-1, 0, 0, 0]] * len(grid), drafts, vocabulary=4)
    inputs["target_probs"][:] = torch.tensor([2, 3, 1, 2]) / 8
    inputs["target_probs"][:, :, 3], inputs["target_probs"][:, :, 0] = 0.0, 0.5
    inputs["coins"][:, 0] = torch.tensor([one[0] for one in grid])
    inputs["bonus_coins"][:] = torch.tensor([one[1] for one in grid])
    got = run("tree_accept_sampled", name, inputs)
    first = [(tokens, Fraction(1)) for tokens in emitted(got, drafts)]
    assert shares(first, at=0) == eighths(4, 3, 1, 0)
    assert 2 not in [path[1] for path in got["path"]]  # the second of the two


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
def test_a_token_outside_of_the_vocabulary_is_never_accepted_nor_followed(
    name: str, bad: int
) -> None:
    inputs = fixed([[-1, 0, 0]], [[0, bad, 2]], vocabulary=4)
    inputs["target_probs"][0, 0] = torch.tensor([2, 2, 2, 2]) / 8
    inputs["coins"].fill_(0.125)
    inputs["target_probs"][0, 2] = torch.tensor([0, 0, 0, 8]) / 8
    got = run("tree_accept_sampled", name, inputs)
    assert got == {"path": [[0, 2, -1]], "accepted": [1], "bonus": [3]}
    drawn = {
        "draft_ids": tokens_of([[bad]]),
        "draft_probs": torch.full((1, 1, 4), 0.25, device=DEVICE),
        "target_probs": torch.tensor([[[0.25, 0.75, 0, 0], [0.0, 0, 0, 1]]], device=DEVICE),
        "coins": torch.zeros(1, 1, device=DEVICE),
        "bonus_coins": torch.zeros(1, device=DEVICE),
    }
    assert run("chain_accept_sampled", name, drawn) == {"accepted": [0], "bonus": [1]}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("garbage", [float("nan"), 0.0, -1.0])
def test_rows_that_are_no_distribution_give_the_last_token_tried_or_none(
    name: str, garbage: float
) -> None:
    inputs = fixed([[-1, 0, 0], [-1, 0, 0]], [[0, 1, 2], [0, -5, 9]], vocabulary=4)
    inputs["target_probs"].fill_(garbage)
    got = run("tree_accept_sampled", name, inputs)
    assert got == {"path": [[0, -1, -1]] * 2, "accepted": [0, 0], "bonus": [2, -1]}


def test_thresholds_and_weights_are_exact_where_float32_is() -> None:
    p = torch.tensor([1.0, 0.5, 2.0**-14, 0.1, float("nan"), -1.0, 2.0])
    assert _speculative.weights(p).tolist() == [
        2**38, 2**37, 2**24, int(float(torch.tensor(0.1)) * 2**38), 0, 0, 2**38,
    ]  # fmt: skip
    coins = torch.tensor([0.0, 2.0**-24, 1 - 2.0**-24, 1.0, float("nan")])
    assert _speculative.coin_units(coins).tolist() == [0, 1, 2**24 - 1, 2**24 - 1, 0]
    total, units = 163_840 * 2**38 + 12_345, 2**24 - 1
    got = _speculative.thresholds(torch.tensor(total), torch.tensor(units))
    assert int(got) == total * units // 2**24


# --- sampling: all implementations ---


@st.composite
def sampled_blocks(draw: st.DrawFn, most_tokens: int) -> dict[str, torch.Tensor]:
    tokens, requests = draw(st.integers(1, most_tokens)), draw(st.integers(1, 2))
    vocabulary = draw(st.sampled_from([3, 40, 2048, 4100]))
    trees = [
        [-1, *(draw(st.integers(0, node - 1)) for node in range(1, tokens))]
        for _ in range(requests)
    ]
    ids = st.lists(st.integers(-1, min(vocabulary, 40)), min_size=tokens, max_size=tokens)
    inputs = fixed(
        trees, [draw(ids) for _ in trees], vocabulary=vocabulary, seed=draw(st.integers(0, 2**31))
    )
    inputs["coins"] *= draw(st.sampled_from([1.0, 0.2, 0.01]))
    return inputs


@settings(max_examples=12, deadline=None)
@given(sampled_blocks(most_tokens=32))
@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_any_tree_tokens_and_coins_match_the_reference(
    name: str, inputs: dict[str, torch.Tensor]
) -> None:
    assert run("tree_accept_sampled", name, inputs) == wanted("tree_accept_sampled", inputs)


@settings(max_examples=6, deadline=None)
@given(sampled_blocks(most_tokens=9))
def test_trees_tokens_and_coins_match_the_reference_in_triton(
    inputs: dict[str, torch.Tensor],
) -> None:
    assert run("tree_accept_sampled", "triton", inputs) == wanted("tree_accept_sampled", inputs)


@settings(max_examples=8, deadline=None)
@given(
    drafts=st.integers(0, 31),
    requests=st.integers(1, 2),
    vocabulary=st.sampled_from([3, 40, 2048, 4100]),
    sharp=st.sampled_from([0.1, 1.0]),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("name", ALL)
def test_any_chain_matches_the_reference(
    name: str, drafts: int, requests: int, vocabulary: int, sharp: float, seed: int
) -> None:
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def normal(rows: int) -> torch.Tensor:
        return torch.randn(requests, rows, vocabulary, generator=generator, device=DEVICE)

    logits = normal(drafts + 1)
    target_probs = (logits + sharp * normal(drafts + 1)).softmax(-1)
    draft_ids = torch.randint(vocabulary, (requests, drafts), generator=generator, device=DEVICE)
    inputs = {
        "draft_ids": draft_ids.int(),
        "draft_probs": logits[:, :drafts].softmax(-1).contiguous(),
        "target_probs": target_probs,
        "coins": torch.rand(requests, drafts, generator=generator, device=DEVICE),
        "bonus_coins": torch.rand(requests, generator=generator, device=DEVICE),
    }
    assert run("chain_accept_sampled", name, inputs) == wanted("chain_accept_sampled", inputs)


def test_costs_count_the_walk_and_the_rows_that_are_drawn_from() -> None:
    inputs = fixed([[-1, 0, 0]], [[0, 1, 3]], vocabulary=5)
    inputs["target_probs"][0, 0] = torch.tensor([2, 1, 2, 1, 2]) / 8
    inputs["coins"].fill_(0.25)
    cost = sampled.cost(inputs)
    # Node 0: child and coin; two tries: token, probability and sibling; a coin and a row of 5.
    assert cost.read_bytes == 4 * (2 + 2 * 3 + 1 + 5)
    assert cost.written_bytes == 4 * 3 + 8
    drawn = {
        "draft_ids": tokens_of([[1, 2]]),
        "draft_probs": torch.full((1, 2, 4), 0.25, device=DEVICE),
        "target_probs": torch.full((1, 3, 4), 0.25, device=DEVICE),
        "coins": torch.zeros(1, 2, device=DEVICE),
        "bonus_coins": torch.zeros(1, device=DEVICE),
    }
    assert chain.cost(drawn).read_bytes == 4 * (2 * 4 + 1 + 4)
    drawn["target_probs"][0, 0, 1] = 0.0  # rejected at once: p and q of that row
    assert chain.cost(drawn).read_bytes == 4 * (1 * 4 + 1 + 2 * 4)


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


# --- FlashInfer ---


@pytest.fixture(params=["0.6.18", "0.7.4"])
def library(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    found = stand_in.library(request.param)
    monkeypatch.setitem(sys.modules, "flashinfer", found)
    monkeypatch.setattr(_flashinfer, "cannot_build", lambda: None)
    _flashinfer._import_failure.cache_clear()
    yield found
    _flashinfer._import_failure.cache_clear()


def test_flashinfer_gives_the_same_where_no_coin_matters(library: ModuleType) -> None:
    case = next(case for case in chain.OP.cases if case.tiny and case.dims["target"] == "certain")
    for seed in range(4):
        inputs = chain.inputs(dataclasses.replace(case, seed=seed), DEVICE)
        prepared = chain.OP.implementations["flashinfer"].prepare(inputs)
        got = {key: value.tolist() for key, value in prepared.outputs().items()}
        assert got == wanted("chain_accept_sampled", inputs)
    assert prepared.facts["random_numbers"] == "its own"


def test_flashinfer_is_refused_where_its_own_random_numbers_would_decide(
    library: ModuleType,
) -> None:
    reasons = {case.name: adapter.refuses(case) for case in chain.OP.cases}
    assert reasons["t4-b1-v163840-certain"] is None
    assert "own random numbers" in str(reasons["t4-b1-v163840"])
    assert "T = 1" in str(reasons["t1-b1-v163840-certain"])
