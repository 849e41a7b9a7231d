"""Latent attention before a kernel runs: reference, inputs, cost, cases, tile tables, bad input."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels import Case, _trees
from kernels.attention import mla_verify as op
from kernels.attention._mla_verify_tiles import TABLES, plan_for, tile_for
from kernels.attention._paged import FP8
from tests.mla_verify_problems import ALL, DEVICE, OTHER_FORMS, problem
from verifyscope.records import Mode

WIDE = (32, 32)


def shape_of(*, heads: int = 8, tokens: int = 1, requests: int = 1, keys: int = 8192) -> op.Shape:
    return op.Shape(
        requests=requests,
        tokens=tokens,
        heads=heads,
        latent=512,
        rope=64,
        page_size=64,
        width=-(-keys // 64),
    )


@pytest.mark.parametrize("cache_dtype", [None, FP8])
def test_the_reference_equals_a_softmax_written_out(cache_dtype: torch.dtype | None) -> None:
    inputs = problem([2], tokens=3, heads=1, dims=WIDE, cache_dtype=cache_dtype)
    inputs["scale"] = 0.5
    key = torch.arange(5)
    at = inputs["page_table"][0].long().cpu()[key // 4], key % 4
    latent = inputs["ckv_cache"].cpu()[at].double() * inputs["ckv_scale"]
    rotated = inputs["kpe_cache"].cpu()[at].double() * inputs["kpe_scale"]
    nope, pe = (inputs[name][:, 0].cpu().double() for name in ("q_nope", "q_pe"))
    got = op.reference(**inputs)
    words = _trees.mask_words(_trees.tree("eagle4", 3))
    for row in range(3):
        seen = [0, 1, *(2 + draft for draft in range(3) if words[row] >> draft & 1)]
        logits = [float(nope[row] @ latent[n] + pe[row] @ rotated[n]) for n in seen]
        weights = [math.exp(0.5 * logit) for logit in logits]
        want = sum(w * latent[n] for w, n in zip(weights, seen, strict=True)) / sum(weights)
        torch.testing.assert_close(got["out"][row, 0].cpu(), want, rtol=1e-12, atol=1e-12)
        assert float(got["lse"][row, 0]) == pytest.approx(math.log(sum(weights)), abs=1e-12)


def test_scores_vary_as_they_do_in_a_model() -> None:
    case = next(case for case in op.OP.cases if case.tiny and case.dims["latent"] == 512)
    inputs: Any = op.inputs(case, DEVICE)
    given_ = op.Given(**inputs)
    live = ~given_.ckv_cache.isnan().any(-1)
    score = given_.q_nope.float() @ given_.ckv_cache[live].float().T
    score = (score + given_.q_pe.float() @ given_.kpe_cache[live].float().T) * given_.scale
    assert 0.8 < float(score.std()) < 1.25


def test_both_caches_are_one_pool_and_only_keys_in_it_are_numbers() -> None:
    inputs = problem([5, 13, 0], dims=WIDE)
    latent, rotated, table = inputs["ckv_cache"], inputs["kpe_cache"], inputs["page_table"]
    assert latent.stride() == rotated.stride() == (4 * 64, 64, 1)
    assert rotated.data_ptr() - latent.data_ptr() == 32 * latent.element_size()
    used = [table[request, :count].tolist() for request, count in enumerate((3, 5, 1))]
    flat = [page for one in used for page in one]
    assert len(set(flat)) == 9
    for cache in (latent, rotated):
        unused = [page for page in range(len(cache)) if page not in flat]
        assert cache[unused].isnan().all()
        assert cache[table[0, 2], 1:].isnan().all()  # 9 keys: one in the third page
        assert not cache[table[0, 2], :1].isnan().any()


def test_cost_counts_each_latent_once_and_what_the_masks_let_through() -> None:
    words = [[0b1, 0b11, 0b101], [0b1, 0b11, 0b111]]
    inputs = problem([5, 13], words, heads=3, dims=WIDE)
    cost = op.cost(inputs)
    keys, rows, cells = 8 + 16, 6 * 3, 2 + 4  # cells of the page table
    assert cost.read_bytes == keys * 64 * 2 + rows * 64 * 2 + 4 * (cells + 2 + 6)
    assert cost.written_bytes == rows * 32 * 2 + 4 * rows
    assert cost.flops == 2 * (32 + 32 + 32) * 3 * (3 * 5 + 5 + 3 * 13 + 6)


@pytest.mark.parametrize(("mode", "times"), [("verify", 1), ("decode", 4), ("extend", 2)])
def test_a_form_reads_the_latents_once_a_token_or_once_a_head(mode: Mode, times: int) -> None:
    inputs = problem([5], dims=WIDE, cache_dtype=FP8)
    once, form = op.cost(inputs), op.FORM_COSTS[mode](inputs)
    assert form.read_bytes - once.read_bytes == (times - 1) * 9 * 64
    assert (form.flops, form.written_bytes) == (once.flops, once.written_bytes)


def test_cost_takes_no_notice_of_the_pool_around() -> None:
    inputs = problem([5])
    large = dict(inputs)
    for cache in ("ckv_cache", "kpe_cache"):
        large[cache] = torch.cat([inputs[cache]] * 3)
    assert op.cost(large) == op.cost(inputs)


def test_one_token_stands_beside_every_other_number_of_tokens() -> None:
    def rest(case: Case) -> tuple[object, ...]:
        dims = {name: dim for name, dim in case.dims.items() if name not in ("rows", "tree")}
        return (*dims.items(), case.dtype)

    measured = [case for case in op.OP.cases if not case.tiny]
    single = {rest(case) for case in measured if case.dims["rows"] == 1}
    assert {case.name for case in measured if rest(case) not in single} == set()
    for axis, wanted in (
        ("rows", {1, 2, 3, 4, 6, 8, 12, 16}),
        ("requests", {1, 2, 4, 8, 16, 32, 64}),
        ("context", {0, 1, 127, 1024, 8192, 32768, 131072, 1048576}),
        ("page", {1, 16, 64}),
        ("heads", {1, 8, 16, 20, 64, 128}),
        ("kv", {"bf16", "fp16", "fp8"}),
    ):
        assert {case.dims[axis] for case in measured} == wanted


# --- tiles and parts ---


@pytest.mark.parametrize("capability", TABLES)
def test_the_gate_builds_every_entry_of_the_tile_tables(capability: int) -> None:
    built = set()
    for case in op.OP.gate_cases:
        rows = case.number("rows") * case.number("heads")
        width = 1 if case.dims["kv"] == "fp8" else 2
        tile = tile_for(rows=rows, element_bytes=width, capability=capability)
        built |= {key for key, entry in TABLES[capability].items() if entry is tile}
    assert built == set(TABLES[capability])


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 103, 120, 121])
@pytest.mark.parametrize("element_bytes", [1, 2])
def test_every_gpu_has_a_tile_for_any_rows(capability: int, element_bytes: int) -> None:
    for rows in (1, 16, 17, 32, 33, 64, 65, 4096):
        tile = tile_for(rows=rows, element_bytes=element_bytes, capability=capability)
        largest = max(size for width, size in TABLES[80] if width == element_bytes)
        assert tile.rows >= min(rows, 32 if capability in (86, 89, 120, 121) else largest)
        assert tile.warps * 32 * tile.blocks_per_sm * tile.registers <= 65536


def test_one_request_of_a_long_context_is_cut_into_as_many_parts_as_there_are_places() -> None:
    def parts(capability: int, sms: int, **shape: int) -> int:
        given_ = shape_of(**shape)
        rows = given_.form("verify").rows
        tile = tile_for(rows=rows, element_bytes=2, capability=capability)
        return plan_for(given_, "verify", tile=tile, element_bytes=2, sms=sms).splits

    assert parts(120, 188, keys=131072) == 188
    assert parts(90, 132, keys=131072) == 264  # two blocks an SM
    assert parts(120, 188, keys=131072, tokens=8) == 94  # two tiles of 32 rows beside each other
    assert parts(90, 132, keys=131072, tokens=8) == 132  # one tile of 64 rows, one block an SM
    assert parts(120, 188, requests=64) == 2
    # Of 8 rows a part has 64 keys at least; of 64 rows, 114: fewer cost more to merge than to read.
    assert parts(120, 188, keys=640) == 10
    assert parts(90, 132, keys=1140, tokens=8) == 11


def test_extend_is_not_split_and_decode_is_split_for_each_token() -> None:
    shape = shape_of(tokens=4, keys=131072)
    tile = tile_for(rows=8, element_bytes=2, capability=120)
    plans = {
        mode: plan_for(shape, mode, tile=tile, element_bytes=2, sms=188) for mode in op.FORM_COSTS
    }
    assert (plans["extend"].splits, plans["extend"].blocks) == (1, 8)
    assert (plans["decode"].splits, plans["decode"].blocks) == (47, 4)


@given(
    st.integers(1, 64), st.integers(1, 32), st.sampled_from([1, 8, 16, 20, 64, 128]),
    st.integers(1, 2**20), st.sampled_from([*TABLES]), st.sampled_from([1, 2]),
)  # fmt: skip
def test_parts_fill_a_gpu_at_most_once_and_a_requests_sums_fit_32_bits(
    requests: int, tokens: int, heads: int, keys: int, capability: int, element_bytes: int
) -> None:
    shape = shape_of(requests=requests, tokens=tokens, heads=heads, keys=keys)
    for mode in op.FORM_COSTS:
        form = shape.form(mode)
        tile = tile_for(rows=form.rows, element_bytes=element_bytes, capability=capability)
        plan = plan_for(shape, mode, tile=tile, element_bytes=element_bytes, sms=188)
        assert plan.splits >= 1
        if plan.splits > 1:
            assert plan.splits * plan.blocks * requests <= 188 * tile.blocks_per_sm
            assert (plan.splits - 1) * plan.least_keys < shape.most_keys
        # The kernel adds these as 32-bit numbers to a request's own pointer.
        assert tokens * heads * plan.splits * shape.latent < 2**31


# --- bad input ---


def bad(**changed: Any) -> dict[str, Any]:
    return problem(dims=WIDE) | changed


def test_a_scale_of_zero_is_refused() -> None:
    inputs = problem(cache_dtype=FP8) | {"ckv_scale": 0.0}
    with pytest.raises(ValueError, match=r"scales \(0.0, 1.375\): .* were divided by, not 0"):
        op.Given(**inputs)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"draft_tokens": 33}, "draft_tokens is 33: give 1 to 32"),
        ({"draft_tokens": 3}, r"mask_words is \(1, 4\): give \[1, 3\]"),
        ({"q_nope": torch.zeros(4, 2, 32)}, "q_nope is torch.float32, q_pe torch.bfloat16"),
        ({"q_pe": torch.zeros(4, 1, 32, dtype=torch.bfloat16)}, r"q_pe is \(4, 1, 32\)"),
        ({"kpe_cache": torch.zeros(7, 4, 32)}, "give all bfloat16, all float16, or caches of"),
        ({"kpe_cache": torch.zeros(9, 4, 32, dtype=torch.bfloat16)}, r"kpe_cache is \(9, 4, 32\)"),
        ({"ckv_scale": 2.0}, r"scales \(2.0, 1.0\) of a cache that is not fp8: give 1.0"),
        ({"prefix_lens": torch.zeros(2, dtype=torch.int32)}, r"prefix_lens is \(2,\): give \[1\]"),
        ({"page_table": torch.zeros(1, 6, dtype=torch.int64)}, "page_table is torch.int64"),
    ],
)
@pytest.mark.parametrize("name", [*ALL, *OTHER_FORMS])
def test_inputs_that_do_not_fit_are_named(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op.OP.implementations[name].prepare(bad(**changed))


def test_queries_of_another_number_of_tokens_are_named() -> None:
    inputs = problem()
    for name in ("q_nope", "q_pe"):
        inputs[name] = inputs[name].repeat(2, 1, 1)
    with pytest.raises(ValueError, match=r"q_nope is .* 1 requests x 4 tokens"):
        op.OP.implementations["triton"].prepare(inputs)


def test_an_fp8_cache_of_odd_strides_is_named() -> None:
    inputs = problem(dims=WIDE, cache_dtype=FP8)
    wide = torch.zeros(*inputs["kpe_cache"].shape[:2], 33, dtype=torch.uint8, device=DEVICE)
    inputs["kpe_cache"] = wide.view(FP8)[..., :32]
    with pytest.raises(ValueError, match=r"kpe_cache .* odd strides \(132, 33\): fp8 is read in"):
        op.OP.implementations["triton"].prepare(inputs)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"latent": 96}, "latent is 96; its tiles are powers of two from 16 to 512"),
        ({"rope": 128}, "rope is 128; its tiles are powers of two from 16 to 64"),
        ({"rope": 16, "kv": "fp8"}, "rope is 16; its tiles are powers of two from 32 to 64"),
    ],
)
def test_dims_without_a_tile_are_refused_with_a_reason(
    dims: dict[str, int | str], message: str
) -> None:
    case = dataclasses.replace(op.OP.cases[0], dims={**op.OP.cases[0].dims, **dims})
    assert op.OP.implementations["triton"].needs.refuses(case) == message
