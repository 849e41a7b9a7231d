"""Latent attention at its edges, each on every implementation that this machine can execute.

What the other forms share with `verify` is tested once, on problems that hold all edges together.
"""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from kernels import _trees
from kernels._check import compare
from kernels.attention import mla_verify as op
from kernels.attention import mla_verify_flex as in_flex
from kernels.attention._paged import FP8
from tests.mla_verify_problems import (
    ALL,
    DEVICE,
    DIMS,
    OTHER_FORMS,
    OWN,
    assert_matches,
    gathered,
    problem,
    run,
    with_split,
)
from verifyscope.models import TABLE

MINUS_INFINITY = -math.inf


# --- the tree mask ---


@pytest.mark.parametrize("name", ALL)
def test_a_star_hides_siblings_that_a_causal_mask_would_show(name: str) -> None:
    inputs = problem(tree="star", tokens=6)
    assert_matches(name, inputs)
    chain = problem(tree="chain", tokens=6)
    apart = (op.reference(**inputs)["out"] - op.reference(**chain)["out"]).abs().amax((1, 2))
    assert (apart[:2] == 0).all()
    assert (apart[2:] > 0.01).all()


@pytest.mark.parametrize("name", ALL)
def test_a_chain_is_causal_attention(name: str) -> None:
    inputs = problem(tree="chain", tokens=5)
    latent, rotated = gathered(inputs).double(), gathered(inputs, "kpe_cache").double()
    score = inputs["q_nope"].double() @ latent.T + inputs["q_pe"].double() @ rotated.T
    later = torch.ones(5, 16, dtype=torch.bool, device=DEVICE).triu(12)
    score = (score * inputs["scale"]).masked_fill(later[:, None], MINUS_INFINITY)
    want = {"out": score.softmax(-1) @ latent, "lse": score.logsumexp(-1)}
    got = run(name, inputs)
    errors = compare(got, {key: want[key] for key in got}, tolerance=op.OP.tolerance)
    assert [one.problem for one in errors if not one.passed] == []


@pytest.mark.parametrize("name", ALL)
def test_a_draft_is_one_bit_counted_from_the_lowest(name: str) -> None:
    # With queries of 0 all visible keys weigh the same: out is the mean of the latents a row sees.
    inputs = problem([0], [[0b1, 0b11, 0b101, 0b1001]])
    inputs["q_nope"].zero_()
    inputs["q_pe"].zero_()
    latent = gathered(inputs)
    got = run(name, inputs)["out"].float()
    for row, seen in enumerate(([0], [0, 1], [0, 2], [0, 3])):
        want = latent[seen].mean(0).expand(2, -1)
        torch.testing.assert_close(got[row], want, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("name", ALL)
def test_the_sign_bit_of_a_word_is_the_last_of_32_drafts(name: str) -> None:
    words = [1 << node for node in range(32)]
    inputs = problem([0], [words], heads=1)
    got = run(name, inputs)["out"]
    # Each draft sees itself alone: out is its own latent, to the bit.
    assert torch.equal(got[:, 0].float(), gathered(inputs))


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
    assert_matches(name, problem([length], tokens=tokens, heads=1))


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
    assert_matches(name, problem([length], tokens=5, heads=1))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("heads", "tokens"), [(1, 2), (8, 3), (16, 2), (20, 3), (64, 1), (128, 1)])
def test_any_number_of_heads_is_packed(name: str, heads: int, tokens: int) -> None:
    assert_matches(name, problem([6], tokens=tokens, heads=heads))


@pytest.mark.parametrize("name", ALL)
def test_a_chain_gives_each_token_what_plain_decode_gives_it(name: str) -> None:
    chain = problem(tree="chain")
    together = run(name, chain)["out"].float()
    for token in range(4):
        alone = problem(tree="chain")
        for query in ("q_nope", "q_pe"):
            alone[query] = chain[query][token : token + 1].contiguous()
        alone["prefix_lens"] += token
        alone["mask_words"], alone["draft_tokens"] = chain["mask_words"][:, :1] * 0 + 1, 1
        got = run(name, alone)["out"].float()[0]
        torch.testing.assert_close(got, together[token], rtol=0.01, atol=2e-3)


# --- absorption, scale, forms, dtypes ---


@pytest.mark.parametrize("name", ALL)
def test_absorbed_attention_is_attention_with_the_heads_own_keys_and_values(name: str) -> None:
    # Whole numbers, so that the absorbed queries are exact in bfloat16; 8 dims a head for 32.
    inputs = problem(tree="binary", tokens=5)
    generator = torch.Generator(DEVICE).manual_seed(1)

    def whole(*sizes: int, most: int) -> torch.Tensor:
        return torch.randint(-most, most + 1, sizes, generator=generator, device=DEVICE).double()

    query, up_k, up_v = whole(5, 2, 8, most=2), whole(2, 8, 32, most=1), whole(2, 8, 32, most=2)
    inputs["q_nope"] = torch.einsum("thd,hdc->thc", query, up_k).bfloat16().contiguous()
    inputs["scale"] = 0.125
    latent, rotated = gathered(inputs).double(), gathered(inputs, "kpe_cache").double()
    key, value = (
        torch.einsum("hdc,nc->hnd", up_k, latent),
        torch.einsum("hdc,nc->hnd", up_v, latent),
    )
    score = torch.einsum("thd,hnd->thn", query, key)
    score = 0.125 * (score + inputs["q_pe"].double() @ rotated.T)
    for row, word in enumerate(_trees.mask_words(_trees.tree("binary", 5))):
        hidden = [11 + draft for draft in range(5) if not word >> draft & 1]
        score[row, :, hidden] = MINUS_INFINITY
    want = torch.einsum("thn,hnd->thd", score.softmax(-1), value)

    def projected(out: torch.Tensor) -> torch.Tensor:
        return torch.einsum("thc,hdc->thd", out.double(), up_v)

    torch.testing.assert_close(
        projected(op.reference(**inputs)["out"]), want, rtol=1e-12, atol=1e-12
    )
    got = run(name, inputs)
    assert_matches(name, inputs, got)
    apart = (projected(got["out"]) - want).norm() / want.norm()
    assert apart < op.OP.tolerance.row


def test_the_scale_is_the_models_and_not_of_the_absorbed_dims() -> None:
    inputs = problem(dims=(512, 64), tokens=2, tree="chain")
    assert inputs["scale"] == TABLE["kimi-k2.5"].softmax_scale
    other = op.reference(**{**inputs, "scale": 576**-0.5})["out"]
    apart = (op.reference(**inputs)["out"] - other).norm() / other.norm()
    assert apart > 10 * op.OP.tolerance.row


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_decode_and_extend_forms_compute_what_verify_does(name: str) -> None:
    words = [_trees.mask_words(_trees.tree(tree, 3)) for tree in ("chain", "star")]
    words[1][2] = 0  # and nothing is committed: a row that sees nothing
    inputs = problem([70, 0], words, heads=5)
    got = run(name, inputs)
    assert_matches(name, inputs, got)
    assert (got["out"][5] == 0).all()
    assert (got["lse"][5] == MINUS_INFINITY).all()


@pytest.mark.parametrize("name", [*ALL, *OTHER_FORMS])
def test_an_fp8_cache_has_a_scale_for_latents_and_one_for_rotated_keys(name: str) -> None:
    inputs = problem([13, 6], dims=(32, 32), cache_dtype=FP8)
    assert 1.0 != inputs["ckv_scale"] != inputs["kpe_scale"] != 1.0
    assert_matches(name, inputs)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("triton", torch.bfloat16), ("triton", torch.float16), ("cupy", torch.bfloat16)],
)
def test_every_fp8_number_is_widened_exactly(name: str, dtype: torch.dtype) -> None:
    inputs = problem([0], [[1 << node for node in range(32)]], heads=1, dims=(32, 32))
    codes = torch.arange(256, dtype=torch.uint8, device=DEVICE)
    codes = codes[(codes & 0x7F) != 0x7F].repeat(5)[:1024].view(32, 32)  # without the two NaNs
    for cache in ("ckv_cache", "kpe_cache"):
        wide = codes.new_full((len(inputs[cache]), 4, 32), 0x7F)
        for node in range(32):
            wide[inputs["page_table"][0, node // 4], node % 4] = codes[node]
        inputs[cache] = wide.view(FP8)
    for query in ("q_nope", "q_pe"):
        inputs[query] = inputs[query].to(dtype)
    got = run(name, inputs)["out"]
    assert got.dtype == dtype
    # Each draft sees itself alone.
    assert torch.equal(got[:, 0].float(), codes.view(FP8).float())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_given_the_same_problem() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    words = [_trees.mask_words(_trees.tree(tree, 5)) for tree in ("chain", "star", "binary")]
    words[2][4] = 0
    inputs = problem([9, 2, 0], words, heads=3)
    # Uncompiled: on a CPU torch's compiler knows no LSE.
    got = in_flex.plan(op.Given(**inputs), attend=flex_attention).outputs()
    assert_matches("flex", inputs, got)
    assert (got["lse"][14] == MINUS_INFINITY).all()
    assert (got["out"][14] == 0).all()


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
@pytest.mark.parametrize("count", [1, 3])
def test_nan_in_a_key_is_seen_and_its_part_never_passes_for_an_empty_one(
    name: str, count: int
) -> None:
    inputs = problem([40])
    inputs["ckv_cache"][inputs["page_table"][0, 3], 1] = math.nan
    got = with_split(name, inputs, count=count)
    assert got["out"].isnan().all()
    assert got["lse"].isnan().all()


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(("count", "length"), [(1, 69), (2, 69), (3, 69), (12, 7)])
def test_any_number_of_parts_gives_the_same_even_more_than_keys(
    name: str, count: int, length: int
) -> None:
    inputs = problem([length, 1], heads=1)
    assert_matches(name, inputs, with_split(name, inputs, count=count))


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("parts", [1, 5])  # over tiles of a block, over parts of the merge
def test_what_came_first_is_scaled_down_when_a_later_key_outweighs_it(
    name: str, parts: int
) -> None:
    inputs = problem([150], tokens=1, heads=1)
    for query in ("q_nope", "q_pe"):
        inputs[query].fill_(1.0)
    page = inputs["page_table"][0, 37].item()  # of the last committed keys
    inputs["ckv_cache"][page, 1] = 2.0
    assert_matches(name, inputs, with_split(name, inputs, count=parts))


@pytest.mark.parametrize("name", ALL)
def test_logits_far_below_minus_50000_are_real_values(name: str) -> None:
    inputs = problem(tokens=2, tree="chain")
    inputs["scale"] = 0.125
    for query in ("q_nope", "q_pe"):
        inputs[query].fill_(256.0)
    for cache in ("ckv_cache", "kpe_cache"):
        live = ~inputs[cache].isnan()
        inputs[cache][live] = -64.0
    got = run(name, inputs)
    logit = -256 * 64 * sum(DIMS) * 0.125
    assert logit == -98304.0
    assert (got["out"] == -64.0).all()
    if "lse" in got:
        # A float32 of this size has steps of 1/128, and the ln of the number of keys is added.
        want = torch.tensor([logit + math.log(12), logit + math.log(13)], device=DEVICE)
        assert (got["lse"][:, 0] - want).abs().max() < 0.05


@pytest.mark.parametrize("name", ["torch", *OWN])
def test_the_lse_is_natural(name: str) -> None:
    inputs = problem(tree="star")
    inputs["q_nope"].zero_()
    inputs["q_pe"].zero_()
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
    for cache, offset in (("ckv_cache", 0), ("kpe_cache", stride // 2)):
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
@pytest.mark.parametrize("cache_dtype", [None, FP8])
def test_slots_that_hold_no_key_do_not_matter(name: str, cache_dtype: torch.dtype | None) -> None:
    inputs = problem([5, 13], dims=(32, 32) if cache_dtype else DIMS, cache_dtype=cache_dtype)
    with_nan = run(name, inputs)
    for cache in ("ckv_cache", "kpe_cache"):
        wide = inputs[cache].float()
        assert wide.isnan().any()
        inputs[cache] = wide.nan_to_num(0.0).to(inputs[cache].dtype)
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
    for query in ("q_nope", "q_pe"):
        inputs[query].copy_(other[query])
    for cache in ("ckv_cache", "kpe_cache"):
        inputs[cache][: len(other[cache])] = other[cache]
    assert_matches(name, inputs, prepared.call())


@pytest.mark.parametrize("name", ALL)
def test_latents_and_rotated_keys_may_lie_apart(name: str) -> None:
    inputs = problem([5, 13])
    for cache in ("ckv_cache", "kpe_cache"):
        inputs[cache] = inputs[cache].contiguous()
    assert_matches(name, inputs)


@pytest.mark.parametrize("name", OWN)
def test_two_runs_give_the_same_bytes(name: str) -> None:
    inputs = problem([70], tokens=3, heads=1)
    one, other = (with_split(name, inputs, count=2) for _ in range(2))
    assert all(torch.equal(one[key], other[key]) for key in one)


# --- CUDA graphs ---


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="a CUDA graph needs an NVIDIA GPU")
@pytest.mark.parametrize("name", [*OWN, *OTHER_FORMS])
def test_a_replay_follows_lengths_trees_and_pages(name: str) -> None:
    from kernels._capture import capture
    from kernels._graph import poison

    def drawn(lengths: Sequence[int], tree: str, seed: int = 0) -> dict[str, Any]:
        return problem(lengths, tree=tree, page_size=16, dims=(512, 64), seed=seed)

    inputs = drawn([140, 30, 77], "star")
    captured = capture(op.OP.implementations[name].prepare(inputs).call)
    for lengths, tree in (([6, 131, 9], "chain"), ([0, 0, 143], "binary")):
        other = drawn(lengths, tree, seed=1)
        inputs["prefix_lens"].copy_(other["prefix_lens"])
        inputs["mask_words"].copy_(other["mask_words"])
        inputs["page_table"].fill_(-1)
        inputs["page_table"][:, : other["page_table"].shape[1]] = other["page_table"]
        for cache in ("ckv_cache", "kpe_cache"):
            inputs[cache].fill_(math.nan)
            inputs[cache][: len(other[cache])] = other[cache]
        poison(captured.outputs)
        captured.replay()
        torch.cuda.synchronize()
        eager = run(name, inputs)
        assert all(torch.equal(captured.outputs[key], eager[key]) for key in eager)
        assert_matches(name, inputs, captured.outputs)
