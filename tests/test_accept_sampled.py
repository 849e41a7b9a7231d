"""Stochastic acceptance at its edges, on every implementation that can be executed here."""

import dataclasses
import itertools
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.drafts import _speculative
from kernels.drafts import chain_accept_sampled as chain
from kernels.drafts import chain_accept_sampled_flashinfer as adapter
from kernels.drafts import tree_accept_sampled as sampled
from tests import flashinfer_stand_in as stand_in
from tests.accept_problems import ALL, coin_grid, emitted, fixed, run, tokens_of, wanted
from tests.flashinfer_cases import use
from tests.op_runs import DEVICE


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
    first = Counter(tokens[0] for tokens in emitted(got, drafts))
    assert first == {0: 4, 1: 3, 2: 1}  # eighths
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


# --- all trees and chains ---


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


# --- FlashInfer ---


@pytest.fixture(params=["0.6.18", "0.7.4"])
def library(request: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return use(monkeypatch, stand_in.made(request.param))


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
