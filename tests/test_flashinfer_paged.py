"""The FlashInfer baselines of `tree_attention`, on stand-ins of 0.6.18 and 0.7.4.

Each version gets what it takes, what is planned means what the op means, and the LSE is natural.
"""

import math
from typing import Any

import pytest
import torch

from kernels import Case, Outputs, _flashinfer
from kernels.attention import _flashinfer_lists, _flashinfer_paged
from kernels.attention import tree_attention_flashinfer as prefill
from kernels.attention import tree_attention_flashinfer_xqa as xqa
from kernels.attention.tree_attention import FORM_COSTS, OP, Given
from kernels.drafts.mask_expand import expand_with_torch
from tests import flashinfer_stand_in as stand_in
from tests.flashinfer_cases import VERSIONS, assert_right, case, drawn, run_right, use

PLANS = ("flashinfer", "flashinfer_graph")
CHAINS = ("flashinfer_causal", "flashinfer_decode", "flashinfer_rows")


def right(outputs: Outputs, inputs: dict[str, Any]) -> None:
    assert_right(OP, outputs, inputs)


POINTS = [
    pytest.param(case(tokens, context, page=page), id=f"t{tokens}-l{context}-p{page}")
    for tokens, context, page in [
        *((4, context, 16) for context in (0, 1, 15, 16, 17, 31, 32, 40)),
        *((4, context, 1) for context in (0, 1, 7, 16)),
        *((4, context, 64) for context in (0, 1, 63, 64, 65, 130)),
        (1, 0, 16),  # the root alone
        (1, 33, 16),
        (17, 9, 16),  # the draft block crosses two page boundaries
        (32, 11, 16),  # the top bit of a word is set
    ]
] + [
    pytest.param(case(7, 37, tree="star"), id="star"),
    pytest.param(case(6, 45, tree="chain"), id="chain"),
    pytest.param(case(5, 61, tree="mixed", requests=5), id="ragged-lengths-and-trees"),
    pytest.param(case(3, 50, tree="binary", requests=3, page=1), id="ragged-page-1"),
    pytest.param(case(4, 129, requests=4, page=64, heads=(8, 1)), id="ragged-page-64"),
    pytest.param(case(2, 20, tree="chain", requests=2, heads=(5, 5)), id="no-groups"),
    pytest.param(case(4, 20, requests=2, dim=128, kv="fp8"), id="fp8"),
]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("version", "name"), [*zip(VERSIONS, PLANS, strict=True)])
def test_what_is_planned_computes_the_op(
    version: str, name: str, point: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made(version))
    run_right(OP, name, point)


@pytest.mark.parametrize("point", [p for p in POINTS if p.values[0].dims["page"] != 1])  # type: ignore[union-attr]  # a Case
def test_xqa_computes_the_op_but_its_lse(point: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    run_right(OP, "flashinfer_xqa", point)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(case(1, 0, tree="chain"), id="root-alone"),
        pytest.param(case(1, 40, tree="chain", heads=(6, 1), requests=3), id="decode"),
        pytest.param(case(1, 40, tree="chain", heads=(16, 1), page=1), id="decode-group-16"),
        pytest.param(case(2, 33, tree="star"), id="star-of-two-is-a-chain"),
        pytest.param(case(4, 61, tree="chain", requests=3, page=1), id="ragged-page-1"),
        pytest.param(case(17, 31, tree="chain", requests=2, page=64), id="t17"),
        pytest.param(case(3, 20, tree="chain", requests=2, dim=128, kv="fp8"), id="fp8"),
    ],
)
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("version", VERSIONS)
def test_forms_without_a_mask_compute_chains(
    version: str, name: str, point: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made(version))
    run_right(OP, name, point)


@pytest.mark.parametrize("name", CHAINS)
def test_forms_without_a_mask_refuse_trees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    implementation = OP.implementations[name]
    assert implementation.needs.refuses(case(3, 20, tree="star")) == (
        "it takes no tree mask and so serves chains alone: star branches"
    )
    with pytest.raises(ValueError, match="no chain"):
        implementation.prepare(drawn(case(3, 20, tree="star")))


def test_rows_are_the_decode_form_and_cost_what_it_costs() -> None:
    rows = OP.implementations["flashinfer_rows"]
    inputs = drawn(case(4, 64, tree="chain"))
    assert (rows.mode, rows.form_cost) == ("decode", FORM_COSTS["decode"])
    assert FORM_COSTS["decode"](inputs).read_bytes > 3 * OP.cost(inputs).read_bytes


@pytest.mark.parametrize(
    ("tokens", "heads", "used"),
    [(1, (3, 1), False), (1, (4, 1), True), (2, (2, 2), True)],
)
def test_tensor_cores_are_used_where_rows_fill_them_or_nothing_else_serves(
    tokens: int, heads: tuple[int, int], used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = use(monkeypatch, stand_in.made("0.7.4"))
    point = case(tokens, 20, tree="chain", heads=heads)
    prepared = OP.implementations["flashinfer_decode"].prepare(drawn(point))
    (wrapper,) = library.BatchDecodeWithPagedKVCacheWrapper.made
    assert wrapper.use_tensor_cores == used
    assert prepared.facts["tensor_cores"] == str(used).lower()
    assert prepared.facts["q_len_per_req"] == str(tokens)


@pytest.mark.parametrize(
    ("point", "word"),
    [
        (case(4, 20, page=1), "pages of (16, 32, 64, 128), not 1"),
        (case(4, 20, dim=72), "not 72"),
        (case(4, 20, dim=512), "not 512"),
    ],
)
def test_xqa_refuses_what_it_was_not_built_for(
    point: Case, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    assert word in str(xqa.refuses(point))


@pytest.mark.parametrize(
    ("capability", "tokens", "served"),
    [(90, 1, False), (90, 4, True), (90, 8, True), (90, 9, False), (120, 1, True), (120, 9, True)],
)
def test_xqa_refuses_fp8_caches_where_it_would_round_more_than_them(
    capability: int, tokens: int, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    monkeypatch.setattr(_flashinfer, "device_capability", lambda: capability)
    reason = xqa.refuses(case(tokens, 20, heads=(8, 2), dim=128, kv="fp8"))
    assert (reason is None) == served
    assert served or "rounded to fp8" in str(reason)
    assert xqa.refuses(case(tokens, 20, heads=(8, 2), dim=128)) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_call_gives_base_2_and_convert_the_natural_logarithm(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made(version))
    inputs = drawn(case(4, 33))
    prepared = prefill.flashinfer_attention(**inputs)
    raw = prepared.call()
    kept = raw["lse"].clone()
    right(prepared.convert(raw), inputs)
    torch.testing.assert_close(raw["lse"], kept, rtol=0, atol=0)
    torch.testing.assert_close(raw["lse"] * math.log(2), prepared.convert(raw)["lse"])
    raw["out"].fill_(float("nan"))
    right(prepared.outputs(), inputs)


def test_an_lse_to_base_e_that_is_taken_for_base_2_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    inputs = drawn(case(4, 33))
    prepared = prefill.flashinfer_attention(**inputs)
    mixed = {name: value.clone() for name, value in prepared.call().items()}
    mixed["lse"] *= math.log(2)
    with pytest.raises(AssertionError):
        right(prepared.convert(mixed), inputs)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_graph_plan_serves_other_lengths_and_trees(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = use(monkeypatch, stand_in.made(version))
    width = Given(**drawn(case(4, 90, requests=3))).shape.width
    wrapper = None
    for context, tree in ((90, "eagle4"), (17, "star"), (52, "chain")):
        inputs = drawn(case(4, context, tree=tree, requests=3))
        table = inputs["page_table"]
        pad = (0, width - table.shape[1])
        inputs["page_table"] = torch.nn.functional.pad(table, pad, value=-1)
        step = Given(**inputs)
        if wrapper is None:
            wrapper = prefill.make_wrapper(
                library, step.shape, device=step.q.device, any_lengths=True
            )
        plan_for(library, wrapper, step)
        out, lse = torch.empty_like(step.q), torch.empty(step.q.shape[:2])
        cache = (step.k_cache, step.v_cache)
        wrapper.run(step.q, cache, out=out, lse=lse, return_lse=True)
        right({"out": out, "lse": lse * math.log(2)}, inputs)


def test_graph_buffers_hold_what_the_page_table_has_room_for() -> None:
    inputs = drawn(case(5, 90, requests=3))
    shape = Given(**inputs).shape
    inputs["page_table"].zero_()
    inputs["prefix_lens"].fill_(shape.most_keys - shape.tokens)
    library = stand_in.made("0.7.4")
    wrapper = prefill.make_wrapper(library, shape, device=torch.device("cpu"), any_lengths=True)
    plan_for(library, wrapper, Given(**inputs))
    planned = wrapper.planned
    assert len(planned["paged_kv_indices"]) == len(wrapper.created["paged_kv_indices_buf"])
    bits = _flashinfer_lists.countable_bits(inputs["prefix_lens"].tolist(), shape.tokens)
    packed = prefill.pack_mask(library, planned["custom_mask"], bits=bits)
    assert len(packed) == len(wrapper.created["custom_mask_buf"])


def plan_for(library: Any, wrapper: Any, step: Given) -> None:
    lengths = step.prefix_lens.tolist()
    prefill.plan(
        library,
        wrapper,
        step,
        lists=prefill.index_lists(
            step.page_table,
            prefix_lens=lengths,
            tokens=step.draft_tokens,
            page_size=step.shape.page_size,
        ),
        custom_mask=expand_with_torch(
            step.mask_words,
            step.prefix_lens,
            mask_bits=sum(_flashinfer_lists.countable_bits(lengths, step.draft_tokens)),
        ),
    )


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_gets_what_it_takes_and_the_record_says_so(
    version: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = use(monkeypatch, stand_in.made(version))
    inputs = drawn(case(4, 33, requests=2))
    prepared = OP.implementations[name].prepare(inputs)
    prepared.call()
    (wrapper,) = library.BatchPrefillWithPagedKVCacheWrapper.made
    calls = dict(wrapper.calls)
    assert calls["__init__"]["backend"] == "fa2"
    assert calls["__init__"]["kv_layout"] == "NHD"
    assert calls["__init__"]["use_cuda_graph"] == (name == "flashinfer_graph")
    assert calls["plan"]["sm_scale"] == inputs["scale"]
    assert calls["plan"]["custom_mask"].dtype == torch.bool
    assert "packed_custom_mask" not in calls["plan"]
    newer = version == "0.7.4"
    assert calls["plan"].get("uniform_q_len") == (4 if newer else None)
    assert calls["run"].get("lse_base") == ("log2" if newer else None)
    assert prepared.facts["flashinfer"] == version
    assert prepared.facts["backend"] == "fa2"
    assert prepared.facts["query_tile"] == "16"
    assert prepared.facts.get("not_taken") == (None if newer else "uniform_q_len")
    graph = "4" if newer else "not taken by this version"
    assert prepared.facts["uniform_q_len"] == (
        graph if name == "flashinfer_graph" else "not needed"
    )


def test_the_causal_form_records_the_backend_that_was_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = use(monkeypatch, stand_in.made("0.6.18"))
    prepared = OP.implementations["flashinfer_causal"].prepare(drawn(case(3, 20, tree="chain")))
    (wrapper,) = library.BatchPrefillWithPagedKVCacheWrapper.made
    assert dict(wrapper.calls)["__init__"]["backend"] == "auto"
    assert prepared.facts["backend"] == "fa2"


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        *((name, ["indices", "mask", "pack", "plan"]) for name in PLANS),
        *((name, ["indices", "plan"]) for name in CHAINS),
        ("flashinfer_xqa", ["lengths"]),
    ],
)
def test_what_an_engine_repeats_can_be_repeated_and_changes_nothing(
    name: str, stages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = use(monkeypatch, stand_in.made("0.7.4"))
    inputs = drawn(case(3, 20, tree="chain", requests=2))
    prepared = OP.implementations[name].prepare(inputs)
    assert [stage.name for stage in prepared.stages] == stages
    assert [stage.name for stage in prepared.stages if stage.within == "plan"] == (
        ["pack"] if "pack" in stages else []
    )
    for _ in range(2):
        prepared.replan()
    right(prepared.outputs(), inputs)
    made = [
        *library.BatchPrefillWithPagedKVCacheWrapper.made,
        *library.BatchDecodeWithPagedKVCacheWrapper.made,
    ]
    assert len(made) == (0 if name == "flashinfer_xqa" else 1)  # constructed once, planned again


@pytest.mark.parametrize("version", VERSIONS)
def test_a_row_that_sees_nothing_is_zero_and_minus_infinity(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made(version))
    inputs = {**drawn(case(3, 0)), "mask_words": torch.tensor([[1, 0, 5]]).int()}
    outputs = prefill.flashinfer_attention(**inputs).outputs()
    assert (outputs["lse"][1] == -math.inf).all()
    assert (outputs["out"][1] == 0).all()
    assert outputs["lse"][[0, 2]].isfinite().all()


def test_values_of_an_fp8_cache_are_scaled_after_the_kernel_and_the_record_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    point = case(2, 20, dim=128, kv="fp8")
    assert "v_scale" in prefill.flashinfer_attention(**drawn(point)).facts
    assert "v_scale" not in prefill.flashinfer_attention(**drawn(case(2, 20))).facts
    assert _flashinfer_paged.refuses(point) is None
