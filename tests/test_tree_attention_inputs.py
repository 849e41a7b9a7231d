"""Tree attention before a kernel runs: reference, inputs, cost, cases, tile tables, bad input."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels import Case, _execute, _target, _trees, all_ops
from kernels._splits import split_count
from kernels.attention import _tree_attention_plan as plans
from kernels.attention import tree_attention as op
from kernels.attention._forms import FORMS
from kernels.attention._split_plan import Plan
from kernels.attention._tiles import Tile
from kernels.attention.tree_attention_cupy_fma import tile_for as fma_tile_for
from tests.tree_attention_problems import problem
from verifyscope.hardware import SHARED_BYTES_PER_MULTIPROCESSOR
from verifyscope.records import Mode

DEVICE = _execute.device()
ALL = tuple(
    name
    for name in all_ops()["tree_attention"].implementations
    if not name.startswith("flashinfer")
)


def test_the_reference_equals_a_softmax_written_out() -> None:
    inputs = problem([2], tokens=3, heads=(1, 1))
    inputs["scale"] = 0.5
    q = inputs["q"][:, 0].double()
    key = torch.arange(5)
    at = inputs["page_table"][0].long().cpu()[key // 4], key % 4
    k, v = (inputs[name].cpu()[at][:, 0].double() for name in ("k_cache", "v_cache"))
    got = op.reference(**inputs)
    words = _trees.mask_words(_trees.tree("eagle4", 3))
    for row in range(3):
        seen = [0, 1, *(2 + draft for draft in range(3) if words[row] >> draft & 1)]
        weights = [math.exp(0.5 * float(q[row].cpu() @ k[n])) for n in seen]
        want = sum(w * v[n] for w, n in zip(weights, seen, strict=True)) / sum(weights)
        torch.testing.assert_close(got["out"][row, 0].cpu(), want, rtol=1e-12, atol=1e-12)
        assert float(got["lse"][row, 0]) == pytest.approx(math.log(sum(weights)), abs=1e-12)


def test_inputs_are_the_same_on_every_call_and_another_seed_keeps_their_places() -> None:
    case = next(case for case in op.OP.cases if case.tiny and case.number("requests") == 2)
    one, same = (op.inputs(case, DEVICE) for _ in range(2))
    other = op.inputs(dataclasses.replace(case, seed=1), DEVICE)
    for name, value in one.items():
        if not isinstance(value, torch.Tensor):
            assert value == same[name] == other[name]
            continue
        again, changed = same[name], other[name]
        assert isinstance(again, torch.Tensor)
        assert isinstance(changed, torch.Tensor)
        assert torch.equal(value.nan_to_num(), again.nan_to_num())
        assert torch.equal(value.nan_to_num(), changed.nan_to_num()) is (value.dtype == torch.int32)
        assert torch.equal(value.isnan(), changed.isnan())


def test_pages_are_used_once_and_the_rest_of_the_table_names_none() -> None:
    inputs = problem([5, 13, 0])
    table, pages = inputs["page_table"], len(inputs["k_cache"])
    used = [table[request, :count].tolist() for request, count in enumerate((3, 5, 1))]
    flat = [page for one in used for page in one]
    assert len(set(flat)) == 9
    assert all(0 <= page < pages for page in flat)
    assert flat != sorted(flat)
    tails = [table[request, count:] for request, count in enumerate((3, 5, 1))]
    assert all(tail.numel() >= 2 for tail in tails)
    assert all(((tail < 0) | (tail >= pages)).all() for tail in tails)
    unused = [page for page in range(pages) if page not in flat]
    assert inputs["k_cache"][unused].isnan().all()
    assert inputs["k_cache"][table[0, 2], 1:].isnan().all()  # 9 keys: one in the third page
    assert not inputs["k_cache"][table[0, 2], :1].isnan().any()


def test_cost_counts_each_key_once_and_what_the_masks_let_through() -> None:
    inputs = problem([5, 13], [[0b1, 0b11, 0b101], [0b1, 0b11, 0b111]], heads=(4, 2))
    cost = op.cost(inputs)
    keys = 8 + 16
    cache_bytes = 2 * keys * 2 * 16 * 2  # k and v, key heads, dims, bytes
    q_bytes = 6 * 4 * 16 * 2
    cells = 2 + 4  # of the page table
    assert cost.read_bytes == cache_bytes + q_bytes + 4 * (cells + 2 + 6)
    assert cost.written_bytes == q_bytes + 4 * 6 * 4
    assert cost.flops == 4 * 16 * 4 * (3 * 5 + 5 + 3 * 13 + 6)


def test_cost_takes_no_notice_of_the_pool_around() -> None:
    inputs = problem([5])
    large = dict(inputs)
    for cache in ("k_cache", "v_cache"):
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
        ("q_heads", {1, 8, 16, 20, 28, 32, 64, 128}),
        ("head_dim", {64, 128, 256}),
        ("kv", {"bf16", "fp16", "fp8"}),
    ):
        assert {case.dims[axis] for case in measured} == wanted
    groups = {case.number("q_heads") // case.number("kv_heads") for case in measured}
    assert groups == {1, 2, 4, 5, 7, 8, 16}


@pytest.mark.parametrize("context", [1024, 131072])
def test_the_tokens_are_an_axis_of_short_and_of_long_contexts(context: int) -> None:
    plain = [
        case.number("rows")
        for case in op.OP.cases
        if case.number("context") == context
        and case.number("requests") == 1
        and case.dims["kv"] == "bf16"
    ]
    assert {1, 4, 8, 16} <= set(plain)


@pytest.mark.parametrize("capability", SHARED_BYTES_PER_MULTIPROCESSOR)
@pytest.mark.parametrize("language", ["triton", "cuda"])
def test_the_gate_builds_every_entry_of_the_tile_tables(
    language: plans.Language, capability: int
) -> None:
    table = plans.table(language, capability)
    built = set()
    with _target.compiling_for(capability):
        for case in op.OP.gate_cases:
            rows = case.number("rows") * case.number("q_heads") // case.number("kv_heads")
            entry = plans.tile_for(language, rows=rows, head_dim=case.number("head_dim"))
            built |= {key for key, tile in table.items() if tile is entry}
    assert built == set(table)


@pytest.mark.parametrize("capability", SHARED_BYTES_PER_MULTIPROCESSOR)
@pytest.mark.parametrize("language", ["triton", "cuda"])
def test_the_blocks_that_a_tile_counts_on_share_an_sm(
    language: plans.Language, capability: int
) -> None:
    for tile in plans.table(language, capability).values():
        threads = 32 * tile.warps * tile.blocks_per_sm
        assert threads * tile.registers <= 65536
        assert tile.registers >= 128
    if language == "cuda":
        for (head_dim, _), tile in plans.table(language, capability).items():
            block = plans.shared_bytes(tile, head_dim=head_dim) + 1024
            assert block * tile.blocks_per_sm <= SHARED_BYTES_PER_MULTIPROCESSOR[capability]


@pytest.mark.parametrize(
    ("capability", "as_for"), [(86, 89), (87, 80), (89, 89), (103, 100), (121, 120)]
)
def test_a_gpu_without_a_table_takes_that_of_its_shared_memory(
    capability: int, as_for: int
) -> None:
    with _target.compiling_for(capability, multiprocessors=84):
        tile = plans.tile_for("triton", rows=8, head_dim=128)
    assert tile is plans.table("triton", as_for)[128, 16]


def test_smaller_shared_memory_takes_smaller_tiles() -> None:
    for (head_dim, rows), tile in plans.table("triton", 120).items():
        large = plans.table("triton", 90)[head_dim, rows]
        assert tile.keys * tile.blocks_per_sm <= large.keys * large.blocks_per_sm


@pytest.mark.parametrize(
    ("rows", "cache_bytes", "tile"), [(8, 2, (8, 16)), (4, 2, (4, 32)), (8, 1, (4, 32))]
)
def test_without_tensor_cores_registers_decide_the_rows(
    rows: int, cache_bytes: int, tile: tuple[int, int]
) -> None:
    chosen = fma_tile_for(shape_with(rows=rows), cache_bytes=cache_bytes)
    assert (chosen.rows, chosen.keys) == tile


def shape_with(*, rows: int, head_dim: int = 128, requests: int = 1, width: int = 8) -> op.Shape:
    return op.Shape(
        requests=requests,
        tokens=1,
        q_heads=rows,
        kv_heads=1,
        head_dim=head_dim,
        page_size=16,
        width=width,
    )


@given(st.integers(1, 5000), st.integers(0, 10**6), st.integers(1, 1024), st.integers(1, 600))
def test_parts_fill_a_gpu_at_most_once_and_are_never_too_small(
    blocks: int, most_keys: int, least_keys: int, slots: int
) -> None:
    count = split_count(blocks=blocks, most_keys=most_keys, least_keys=least_keys, slots=slots)
    assert count >= 1
    assert count == 1 or count * blocks <= slots
    assert count == 1 or (count - 1) * least_keys < most_keys


def plan(shape: op.Shape, mode: Mode = "verify") -> Plan:
    tile = Tile(rows=16, keys=32, warps=4, blocks_per_sm=2)
    return plans.plan_for(shape, mode, tile=tile, sms=188)


def test_one_request_of_a_long_context_is_cut_into_as_many_parts_as_there_are_places() -> None:
    chosen = plan(shape_with(rows=8, width=2048))  # 32k keys
    assert (chosen.splits, chosen.least_keys) == (376, 64)
    assert plan(shape_with(rows=8, width=2)).splits == 1


def test_each_form_launches_its_own_blocks() -> None:
    shape = dataclasses.replace(shape_with(rows=8, width=2048), tokens=5)
    # 40 rows in 3 tiles; 5 tokens of 8 heads; 8 heads of 5 tokens, unsplit.
    blocks = {mode: (plan(shape, mode).blocks, plan(shape, mode).splits) for mode in FORMS}
    assert blocks == {"verify": (3, 125), "decode": (5, 75), "extend": (8, 1)}


# --- bad input ---


def bad(**changed: Any) -> dict[str, Any]:
    return problem() | changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"draft_tokens": 33}, "draft_tokens is 33: give 1 to 32"),
        ({"draft_tokens": 3}, r"mask_words is \(1, 4\): give \[1, 3\]"),
        (
            {"q": torch.zeros(4, 2, 16)},
            "give all bfloat16, all float16, or caches of float8_e4m3fn",
        ),
        ({"q": torch.zeros(4, 16, dtype=torch.bfloat16)}, r"q is \(4, 16\)"),
        ({"q": torch.zeros(8, 2, 16, dtype=torch.bfloat16)}, "1 requests x 4 tokens"),
        (
            {"v_cache": torch.zeros(7, 4, 1, 32, dtype=torch.bfloat16)},
            r"v_cache is \(7, 4, 1, 32\)",
        ),
        ({"prefix_lens": torch.zeros(2, dtype=torch.int32)}, r"prefix_lens is \(2,\): give \[1\]"),
        ({"page_table": torch.zeros(1, 6, dtype=torch.int64)}, "page_table is torch.int64"),
        ({"mask_words": torch.ones(4, 1, dtype=torch.int32).T.expand(1, 4)[:, ::2]}, "mask_words"),
    ],
)
@pytest.mark.parametrize("name", ALL)
def test_inputs_that_do_not_fit_are_named(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op.OP.implementations[name].prepare(bad(**changed))


def test_heads_that_do_not_share_evenly_are_named() -> None:
    inputs = problem(heads=(4, 2))
    inputs["q"] = inputs["q"][:, :3].contiguous()
    with pytest.raises(ValueError, match="3 query heads do not share 2 key heads evenly"):
        op.OP.implementations["torch"].prepare(inputs)


def test_a_cache_that_is_not_aligned_is_named() -> None:
    inputs = problem()
    shape = inputs["k_cache"].shape
    flat = torch.zeros(inputs["k_cache"].numel() + 1, dtype=torch.bfloat16, device=DEVICE)
    inputs["k_cache"] = flat[1:].view(shape)
    for name in ("cupy", "cupy_decode", "cupy_extend", "cupy_fma"):
        with pytest.raises(ValueError, match=r"k_cache starts at an address .* 16 bytes"):
            op.OP.implementations[name].run(inputs)


@pytest.mark.parametrize("name", ["triton_extend", "cupy_decode", "cupy_fma"])
def test_a_head_dim_without_a_tile_is_refused_with_a_reason(name: str) -> None:
    case = dataclasses.replace(op.OP.cases[0], dims={**op.OP.cases[0].dims, "head_dim": 96})
    assert "head_dim is 96" in str(op.OP.implementations[name].needs.refuses(case))


def test_more_rows_than_plain_arithmetic_is_fast_with_are_refused_with_a_reason() -> None:
    refuses = op.OP.implementations["cupy_fma"].needs.refuses
    few, many = (next(c for c in op.OP.cases if c.name.startswith(t)) for t in ("t1-", "t2-"))
    assert refuses(few) is None
    assert refuses(many) == ("16 rows share a key head; beyond 8 take 'cupy', on tensor cores")


def test_a_torch_without_the_lse_of_flex_attention_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuses = op.OP.implementations["flex"].needs.refuses
    assert refuses(op.OP.cases[0]) is None
    monkeypatch.setattr(torch, "__version__", "2.8.0a1+cu12")
    assert "needs torch 2.9 or newer" in str(refuses(op.OP.cases[0]))
