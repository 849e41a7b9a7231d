"""Tree attention at its edges, each on every implementation that this machine can execute.

Without a GPU Triton's kernels run in its interpreter and CUDA C++ on the CPU (tests/conftest.py).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from kernels import Inputs, Outputs, _execute, _trees
from kernels import tree_attention as op
from kernels import tree_attention_cupy as in_cupy
from kernels import tree_attention_sdpa as _sdpa  # noqa: F401  # adds an implementation
from kernels import tree_attention_triton as in_triton
from kernels._check import compare, poisoned

ALL = ("torch", "sdpa", "triton", "cupy")
OWN = ("triton", "cupy")
DEVICE = _execute.device()
MINUS_INFINITY = -math.inf


def problem(
    lengths: Sequence[int] = (11,),
    words: Sequence[Sequence[int]] | None = None,
    *,
    tree: str = "eagle4",
    tokens: int = 4,
    heads: tuple[int, int] = (2, 1),
    page_size: int = 4,
    seed: int = 0,
) -> dict[str, Any]:
    """Draw a small problem: by default one request, two heads of 16 dims, pages of 4."""
    if words is None:
        words = [_trees.mask_words(_trees.tree(tree, tokens))] * len(lengths)
    return dict(
        op.draw(
            lengths=lengths,
            words=words,
            page_size=page_size,
            heads=heads,
            head_dim=16,
            dtype=torch.bfloat16,
            seed=seed,
            device=DEVICE,
        )
    )


def run(name: str, inputs: Inputs) -> Outputs:
    """Run on `inputs`; the outputs' memory is NaN before."""
    implementation = op.OP.implementations[name]
    point = dataclasses.replace(op.OP.cases[0], tiny=True)
    if (chosen := _execute.way(implementation, point, device=DEVICE)).executed is None:
        pytest.skip(chosen.reason or "")
    with poisoned():
        return implementation.run(inputs)


def assert_matches(name: str, inputs: Inputs, got: Outputs | None = None) -> None:
    """Hold what `name` computes to the reference, within the op's tolerance."""
    got = run(name, inputs) if got is None else got
    omitted = op.OP.implementations[name].omits
    want = {key: value for key, value in op.OP.reference(**inputs).items() if key not in omitted}
    errors = compare(got, want, tolerance=op.OP.tolerance)
    assert {one.output: one.problem for one in errors if not one.passed} == {}


def with_split(name: str, inputs: dict[str, Any], *, count: int) -> Outputs:
    """Run one of our own with this number of parts, each of at least one key."""
    given = op.Given(**inputs)
    with poisoned():
        if name == "cupy":
            plan = in_cupy.Plan(rows=8, at_once=2, splits=count, least_keys=1)
            return in_cupy.attend(given, plan=plan)
        split = in_triton.Split(count=count, least_keys=1)
        return in_triton.attend(given, tile=in_triton.tile_for(given.shape), split=split)


def gathered(inputs: Inputs) -> torch.Tensor:
    """Return the values of request 0, in the order of its keys: [keys, kv_heads, head_dim]."""
    table, cache = inputs["page_table"], inputs["v_cache"]
    lengths, tokens = inputs["prefix_lens"], inputs["draft_tokens"]
    assert isinstance(table, torch.Tensor)
    assert isinstance(cache, torch.Tensor)
    assert isinstance(lengths, torch.Tensor)
    assert isinstance(tokens, int)
    key = torch.arange(int(lengths[0]) + tokens, device=cache.device)
    return cache[table[0].long()[key // cache.shape[1]], key % cache.shape[1]].float()


# --- the tree mask ---


@pytest.mark.parametrize("name", ALL)
def test_earlier_drafts_that_are_no_ancestors_are_hidden(name: str) -> None:
    # A star: below the diagonal lies what a causal mask would show.
    inputs = problem(tree="star", tokens=6)
    assert_matches(name, inputs)
    chain = problem(tree="chain", tokens=6)
    apart = (op.reference(**inputs)["out"] - op.reference(**chain)["out"]).abs().amax((1, 2))
    assert (apart[:2] == 0).all()
    assert (apart[2:] > 0.01).all()


@pytest.mark.parametrize("name", ALL)
def test_a_draft_is_one_bit_counted_from_the_lowest(name: str) -> None:
    # With q = 0 all visible keys weigh the same: out is the mean of the values that a row sees.
    inputs = problem([0], [[0b1, 0b11, 0b101, 0b1001]])
    inputs["q"].zero_()
    value = gathered(inputs)[:, 0]
    got = run(name, inputs)["out"].float()
    for row, seen in enumerate(([0], [0, 1], [0, 2], [0, 3])):
        want = value[seen].mean(0).expand(2, -1)
        torch.testing.assert_close(got[row], want, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("name", ALL)
def test_the_sign_bit_of_a_word_is_the_last_of_32_drafts(name: str) -> None:
    words = [1 << node for node in range(32)]
    inputs = problem([0], [words], heads=(1, 1))
    got = run(name, inputs)["out"]
    # Each draft sees itself alone: out is its own value, to the bit.
    assert torch.equal(got[:, 0].float(), gathered(inputs)[:, 0])


@pytest.mark.parametrize("name", ALL)
def test_tokens_that_are_not_one_more_than_the_depth_keep_requests_apart(name: str) -> None:
    parents = _trees.tree("eagle8", 6)
    assert max(_trees.depths(parents)) + 1 < 6
    assert_matches(name, problem([7, 0, 5], tree="eagle8", tokens=6))


@pytest.mark.parametrize("name", ALL)
def test_each_request_has_its_own_tree_and_length(name: str) -> None:
    words = [_trees.mask_words(_trees.tree(tree, 5)) for tree in ("chain", "star", "binary")]
    assert_matches(name, problem([9, 2, 14], words))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("length", "tokens"), [(63, 1), (64, 1), (60, 4), (62, 4), (47, 17)])
def test_keys_and_rows_need_not_fill_their_tiles(name: str, length: int, tokens: int) -> None:
    assert_matches(name, problem([length], tokens=tokens, heads=(1, 1)))


@pytest.mark.parametrize("name", OWN)
def test_a_tree_that_changes_between_calls_is_not_remembered(name: str) -> None:
    inputs = problem(tree="star")
    run(name, inputs)
    prepared = op.OP.implementations[name].prepare(inputs)
    prepared.call()
    inputs["mask_words"].copy_(problem(tree="chain")["mask_words"])
    assert_matches(name, inputs, prepared.call())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("length", [8, 9, 11])  # 0, 1 and -1 modulo the page
def test_drafts_may_cross_a_page(name: str, length: int) -> None:
    assert_matches(name, problem([length], tokens=5, heads=(1, 1)))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("heads", "tokens"), [((8, 1), 3), ((12, 4), 3), ((20, 1), 4)])
def test_heads_need_not_divide_a_tile(name: str, heads: tuple[int, int], tokens: int) -> None:
    assert_matches(name, problem([6], tokens=tokens, heads=heads))


@pytest.mark.parametrize("name", ALL)
def test_a_chain_gives_each_token_what_plain_decode_gives_it(name: str) -> None:
    chain = problem(tree="chain")
    together = run(name, chain)["out"].float()
    for token in range(4):
        alone = problem(tree="chain")
        alone["q"] = chain["q"][token : token + 1].contiguous()
        alone["prefix_lens"] += token
        alone["mask_words"], alone["draft_tokens"] = chain["mask_words"][:, :1] * 0 + 1, 1
        got = run(name, alone)["out"].float()[0]
        torch.testing.assert_close(got, together[token], rtol=0.01, atol=2e-3)


# --- masked and empty softmax, log-sum-exp ---


@pytest.mark.parametrize("name", ALL)
def test_a_row_that_sees_nothing_gives_zero_and_minus_infinity(name: str) -> None:
    inputs = problem([0], [[0b1, 0, 0b101, 0]])
    got = run(name, inputs)
    assert (got["out"][[1, 3]] == 0).all()
    if "lse" in got:
        assert (got["lse"][[1, 3]] == MINUS_INFINITY).all()
    assert_matches(name, inputs, got)


@pytest.mark.parametrize("name", OWN)
def test_a_split_row_that_sees_nothing_gives_zero_and_minus_infinity(name: str) -> None:
    inputs = problem([0], [[0b1, 0, 0b101, 0]])
    got = with_split(name, inputs, count=3)
    assert (got["out"][[1, 3]] == 0).all()
    assert (got["lse"][[1, 3]] == MINUS_INFINITY).all()
    assert_matches(name, inputs, got)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_any_number_of_parts_gives_the_same_even_more_than_keys(name: str, count: int) -> None:
    inputs = problem([29, 1], heads=(1, 1))
    assert_matches(name, inputs, with_split(name, inputs, count=count))


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(("length", "parts"), [(300, 1), (1100, 18)])  # tiles, rounds of the merge
def test_what_came_first_is_scaled_down_when_a_later_key_outweighs_it(
    name: str, length: int, parts: int
) -> None:
    inputs = problem([length], tokens=1, heads=(1, 1), page_size=64)
    inputs["q"].fill_(1.0)
    inputs["k_cache"][inputs["page_table"][0, length // 64].item(), length % 64] = 2.0
    assert_matches(name, inputs, with_split(name, inputs, count=parts))


@pytest.mark.parametrize("name", ALL)
def test_logits_far_below_minus_50000_are_real_values(name: str) -> None:
    inputs = problem(tokens=2, tree="chain")
    inputs["q"].fill_(256.0)
    live = ~inputs["k_cache"].isnan()
    inputs["k_cache"][live] = -128.0
    got = run(name, inputs)
    logit = -256 * 128 * 16 * inputs["scale"]
    assert logit == -131072.0
    mean = torch.stack([gathered(inputs)[: 12 + row, 0].mean(0) for row in range(2)])
    torch.testing.assert_close(got["out"].float()[:, 0], mean, rtol=0.01, atol=2e-3)
    if "lse" in got:
        # A float32 of this size has steps of 1/128, and the ln of the number of keys is added.
        want = torch.tensor([logit + math.log(12), logit + math.log(13)], device=DEVICE)
        assert (got["lse"][:, 0] - want).abs().max() < 0.05


@pytest.mark.parametrize("name", ["torch", *OWN])
def test_the_lse_is_natural(name: str) -> None:
    inputs = problem(tree="star")
    inputs["q"].zero_()
    want = [math.log(11 + seen) for seen in (1, 2, 2, 2)]
    for got in (run(name, inputs), *([with_split(name, inputs, count=3)] if name in OWN else [])):
        assert got["lse"][:, 0].tolist() == pytest.approx(want, abs=1e-5)
        assert got["lse"].dtype == torch.float32


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("tokens", [1, 4])
def test_nothing_committed_leaves_the_drafts_alone(name: str, tokens: int) -> None:
    assert_matches(name, problem([0, 0], tokens=tokens))


# --- indices, sizes, and what lies where no key is ---


@pytest.mark.parametrize("name", ALL)
def test_page_offsets_beyond_32_bits_reach_their_pages(name: str) -> None:
    if name == "cupy" and DEVICE.type == "cpu":
        pytest.skip("the host runner copies the memory that an argument spans, here 5 GB")
    inputs, far, stride = problem(), 600, 2**22
    assert far * stride > 2**31
    try:
        pool = torch.empty((far + 16) * stride, dtype=torch.bfloat16, device=DEVICE)
    except RuntimeError as error:
        pytest.skip(f"no address space for a pool of 5 GB: {error}")
    for cache, offset in (("k_cache", 0), ("v_cache", stride // 2)):
        small = inputs[cache]
        strides = (stride, *small.stride()[1:])
        large = pool.as_strided((far + len(small), *small.shape[1:]), strides, offset)
        large[far:] = small
        inputs[cache] = large
    inputs["page_table"] = torch.where(inputs["page_table"] < 0, -1, inputs["page_table"] % 2**30)
    inputs["page_table"] = (inputs["page_table"] + far).to(torch.int32)
    assert_matches(name, inputs)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("poison", [-1, 2**31 - 1])
def test_the_tail_of_the_page_table_is_never_followed(name: str, poison: int) -> None:
    inputs = problem([5, 13])
    clean = run(name, inputs)
    inputs["page_table"][0, 3:] = poison  # 5 + 4 keys are in 3 pages
    inputs["page_table"][1, 5:] = poison
    got = run(name, inputs)
    assert all(torch.equal(got[key], clean[key]) for key in clean)


@pytest.mark.parametrize("name", ALL)
def test_slots_that_hold_no_key_do_not_matter(name: str) -> None:
    inputs = problem([5, 13])
    assert inputs["k_cache"].isnan().any()
    assert inputs["v_cache"].isnan().any()
    with_nan = run(name, inputs)
    for cache in ("k_cache", "v_cache"):
        inputs[cache].nan_to_num_(0.0)
    got = run(name, inputs)
    assert all(torch.equal(got[key], with_nan[key]) for key in got)
    assert not with_nan["out"].isnan().any()


@pytest.mark.parametrize("name", OWN)
def test_lengths_pages_and_values_that_change_between_calls_are_followed(name: str) -> None:
    inputs = problem([14, 3])
    run(name, inputs)
    prepared = op.OP.implementations[name].prepare(inputs)
    prepared.call()
    other = problem([6, 11], seed=1)
    width = other["page_table"].shape[1]
    inputs["prefix_lens"].copy_(other["prefix_lens"])
    inputs["page_table"][:, :width] = other["page_table"]
    inputs["q"].copy_(other["q"])
    for cache in ("k_cache", "v_cache"):
        inputs[cache][: len(other[cache])] = other[cache]
    assert_matches(name, inputs, prepared.call())


@pytest.mark.parametrize("name", ALL)
def test_keys_and_values_may_lie_in_one_tensor(name: str) -> None:
    inputs = problem([5, 13])
    both = torch.stack([inputs["k_cache"], inputs["v_cache"]], dim=1)  # [pages, 2, page, heads, d]
    inputs["k_cache"], inputs["v_cache"] = both[:, 0], both[:, 1]
    assert_matches(name, inputs)


@pytest.mark.parametrize("name", OWN)
def test_two_runs_give_the_same_bytes(name: str) -> None:
    inputs = problem([70], tokens=3, heads=(1, 1), page_size=64)
    one, other = (with_split(name, inputs, count=2) for _ in range(2))
    assert all(torch.equal(one[key], other[key]) for key in one)


# --- CUDA graphs ---


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="a CUDA graph needs an NVIDIA GPU")
@pytest.mark.parametrize("name", OWN)
def test_a_replay_follows_lengths_trees_and_pages(name: str) -> None:
    from kernels._capture import capture
    from kernels._graph import poison

    inputs = problem([140, 30, 77], tree="star", page_size=16)
    captured = capture(op.OP.implementations[name].prepare(inputs).call)
    for lengths, tree in (([6, 131, 9], "chain"), ([0, 0, 143], "binary")):
        other = problem(lengths, tree=tree, page_size=16, seed=1)
        inputs["prefix_lens"].copy_(other["prefix_lens"])
        inputs["mask_words"].copy_(other["mask_words"])
        inputs["page_table"].fill_(-1)
        inputs["page_table"][:, : other["page_table"].shape[1]] = other["page_table"]
        for cache in ("k_cache", "v_cache"):
            inputs[cache].fill_(math.nan)
            inputs[cache][: len(other[cache])] = other[cache]
        poison(captured.outputs)
        captured.replay()
        torch.cuda.synchronize()
        eager = run(name, inputs)
        assert all(torch.equal(captured.outputs[key], eager[key]) for key in eager)
        assert_matches(name, inputs, captured.outputs)
