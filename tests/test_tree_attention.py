"""Tree attention at its edges, each on every implementation that this machine can execute.

Without a GPU Triton's kernels run in its interpreter and CUDA C++ on the CPU (tests/conftest.py).
"""

import math
import warnings

import pytest
import torch

from kernels import _trees
from kernels.attention import tree_attention as op
from kernels.attention import tree_attention_flex as in_flex
from kernels.attention._paged import FP8
from tests.tree_attention_problems import (
    ALL,
    DEVICE,
    FEW_ROWS,
    OTHER_FORMS,
    OWN,
    assert_matches,
    gathered,
    problem,
    run,
    with_split,
    wrong,
)

MINUS_INFINITY = -math.inf


# --- the tree mask ---


@pytest.mark.parametrize("name", [*ALL, *OTHER_FORMS])
def test_earlier_drafts_that_are_no_ancestors_are_hidden(name: str) -> None:
    # A star: below the diagonal lies what a causal mask would show.
    inputs = problem(tree="star", tokens=6)
    assert_matches(name, inputs)
    chain = problem(tree="chain", tokens=6)
    apart = (op.reference(**inputs)["out"] - op.reference(**chain)["out"]).abs().amax((1, 2))
    assert (apart[:2] == 0).all()
    assert (apart[2:] > 0.01).all()


@pytest.mark.parametrize("name", [*ALL, FEW_ROWS])
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


@pytest.mark.parametrize("name", [*ALL, *OTHER_FORMS, FEW_ROWS])
def test_each_request_has_its_own_tree_and_length(name: str) -> None:
    words = [_trees.mask_words(_trees.tree(tree, 5)) for tree in ("chain", "star", "binary")]
    assert_matches(name, problem([9, 2, 14], words, heads=(3, 1)))


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


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_a_form_finds_the_token_and_the_head_of_each_of_its_rows(name: str) -> None:
    # Groups of 5 and 3 tokens: no unit fills a tile, and no count divides another.
    assert_matches(name, problem([6, 0], tokens=3, heads=(10, 2)))


@pytest.mark.parametrize("name", ["triton", "cupy"])
def test_more_rows_than_the_largest_tile_take_several(name: str) -> None:
    assert_matches(name, problem([3], tokens=5, heads=(20, 1)))


@pytest.mark.parametrize("name", [*ALL, *OTHER_FORMS])
def test_a_chain_is_causal_attention(name: str) -> None:
    inputs = problem(tree="chain", tokens=3, heads=(1, 1))
    k, v = (gathered(inputs, cache)[None, :, 0].double() for cache in ("k_cache", "v_cache"))
    causal = torch.ones(3, 14, device=DEVICE).tril(11).bool()  # its corner is the last draft's
    want = torch.nn.functional.scaled_dot_product_attention(
        inputs["q"][None, :, 0].double(), k, v, attn_mask=causal, scale=inputs["scale"]
    )
    assert wrong({"out": run(name, inputs)["out"][:, 0]}, {"out": want[0]}) == {}


@pytest.mark.parametrize("name", ["torch", *OWN])
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


@pytest.mark.parametrize("name", [*ALL, *OTHER_FORMS])
def test_a_row_that_sees_nothing_gives_zero_and_minus_infinity(name: str) -> None:
    inputs = problem([0], [[0b1, 0, 0b101, 0]])
    got = run(name, inputs)
    assert (got["out"][[1, 3]] == 0).all()
    if "lse" in got:
        assert (got["lse"][[1, 3]] == MINUS_INFINITY).all()
    assert_matches(name, inputs, got)


@pytest.mark.parametrize("name", [*OWN, FEW_ROWS])
def test_a_split_row_that_sees_nothing_gives_zero_and_minus_infinity(name: str) -> None:
    inputs = problem([0], [[0b1, 0, 0b101, 0]])
    got = with_split(name, inputs, count=3)
    assert (got["out"][[1, 3]] == 0).all()
    assert (got["lse"][[1, 3]] == MINUS_INFINITY).all()
    assert_matches(name, inputs, got)


@pytest.mark.parametrize("name", [*OWN, FEW_ROWS])
@pytest.mark.parametrize("count", [1, 3])
def test_nan_in_a_key_is_seen_and_its_part_never_passes_for_an_empty_one(
    name: str, count: int
) -> None:
    inputs = problem([40])
    inputs["k_cache"][inputs["page_table"][0, 3], 1] = math.nan
    got = with_split(name, inputs, count=count)
    assert got["out"].isnan().all()
    assert got["lse"].isnan().all()


@pytest.mark.parametrize("name", [*OWN, FEW_ROWS])
@pytest.mark.parametrize("count", [2, 7])
def test_any_number_of_parts_gives_the_same(name: str, count: int) -> None:
    # Parts are whole tiles of 64 keys in Triton, and of any size where keys come one by one.
    inputs = problem([159, 1], tokens=2, tree="chain", heads=(1, 1), page_size=64)
    assert_matches(name, inputs, with_split(name, inputs, count=count))


@pytest.mark.parametrize("name", [*OWN, FEW_ROWS])
def test_more_parts_than_keys_leave_the_rest_empty(name: str) -> None:
    inputs = problem([3, 0], tokens=2, tree="chain", heads=(1, 1), page_size=64)
    assert_matches(name, inputs, with_split(name, inputs, count=9))


@pytest.mark.parametrize("name", ["triton_decode", "cupy_decode"])
def test_units_of_decode_form_are_split_and_merged_each_for_itself(name: str) -> None:
    inputs = problem([140, 9], tokens=3, heads=(2, 1), page_size=64)
    assert_matches(name, inputs, with_split(name, inputs, count=3))


@pytest.mark.parametrize("name", [*OWN, FEW_ROWS])
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


def test_an_lse_to_base_2_fails_the_check() -> None:
    inputs = problem()
    want = op.reference(**inputs)
    base_2 = {"out": want["out"], "lse": want["lse"] / math.log(2)}
    assert list(wrong(base_2, want)) == ["lse"]


def test_merging_by_an_lse_to_base_2_fails_the_check() -> None:
    inputs = problem([70], page_size=64)
    want = op.reference(**inputs)
    # The first 64 keys as a prefix that all rows see, and the rest as a problem of its own.
    table, words = inputs["page_table"], inputs["mask_words"]
    shorter = {"prefix_lens": inputs["prefix_lens"] - 64, "page_table": table[:, 1:].contiguous()}
    rest = op.reference(**inputs | shorter)
    whole = {"prefix_lens": inputs["prefix_lens"] * 0 + 60, "mask_words": words * 0 + 15}
    first = op.reference(**inputs | whole)

    def merged(log: float) -> dict[str, torch.Tensor]:
        lse = torch.stack([part["lse"] / log for part in (first, rest)])
        out = torch.stack([part["out"] for part in (first, rest)])
        total = lse.logsumexp(0)
        return {"out": ((lse - total).exp()[..., None] * out).sum(0), "lse": total}

    assert wrong(merged(1.0), want) == {}
    assert set(wrong(merged(math.log(2)), want)) == {"out", "lse"}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("tokens", [1, 4])
def test_nothing_committed_leaves_the_drafts_alone(name: str, tokens: int) -> None:
    assert_matches(name, problem([0, 0], tokens=tokens))


# --- indices, sizes, and what lies where no key is ---


@pytest.mark.parametrize("name", ALL)
def test_page_offsets_beyond_32_bits_reach_their_pages(name: str) -> None:
    if name.startswith("cupy") and DEVICE.type == "cpu":
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


@pytest.mark.parametrize("name", [*ALL, FEW_ROWS])
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


@pytest.mark.parametrize("name", [*ALL, "triton_extend", "cupy_decode", FEW_ROWS])
def test_fp8_caches_are_scaled_each_by_its_own_scale(name: str) -> None:
    inputs = problem([5, 70], tokens=2, tree="chain", page_size=64, cache_dtype=FP8)
    assert inputs["k_scale"] != inputs["v_scale"]
    assert inputs["v_cache"].isnan().any()
    assert_matches(name, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*OWN, FEW_ROWS])
def test_every_number_of_an_fp8_cache_is_read_exactly(name: str, dtype: torch.dtype) -> None:
    # With q = 0 and one visible key a token, out is that key's value: 16 of e4m3's 254 numbers.
    numbers = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(FP8).float()
    numbers = numbers[~numbers.isnan()]
    numbers = torch.cat([numbers, numbers[:2]]).reshape(16, 16)
    words = [1 << node for node in range(16)]
    inputs = problem([0], [words], heads=(1, 1), page_size=64, dtype=dtype, cache_dtype=FP8)
    page = int(inputs["page_table"][0, 0])
    inputs["v_cache"][page, :16, 0] = numbers.to(FP8)
    inputs["v_scale"] = 0.5
    assert torch.equal(run(name, inputs)["out"][:, 0].float(), numbers * 0.5)


def test_flex_attention_is_asked_for_the_same(recwarn: pytest.WarningsRecorder) -> None:
    # Compiled it needs a GPU; uncompiled it computes the same with the same mask and packing.
    warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
    from torch.nn.attention.flex_attention import flex_attention

    words = [[0b1, 0b11, 0b101, 0], _trees.mask_words(_trees.tree("star", 4)), [0] * 4]
    inputs = problem([9, 150, 0], words, heads=(6, 2), cache_dtype=FP8)
    got = in_flex.plan(op.Given(**inputs), attend=flex_attention).call()
    assert_matches("flex", inputs, got)
    assert (got["lse"][8:] == MINUS_INFINITY).all()


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
@pytest.mark.parametrize("name", [*OWN, *OTHER_FORMS, FEW_ROWS])
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
