"""The FlashInfer baselines of `mla_verify`, on stand-ins of 0.6.18 and 0.7.4: both of its forms."""

import math

import pytest
import torch

from kernels import Case, _flashinfer
from kernels.attention import _flashinfer_mla
from kernels.attention import mla_verify_flashinfer as composed
from kernels.attention.mla_verify import FORM_COSTS, OP, Given
from tests import flashinfer_stand_in as stand_in
from tests.flashinfer_cases import VERSIONS, assert_right, drawn, mla_case, run_right, use

CHAINS = ("flashinfer_causal", "flashinfer_rows")


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(mla_case(4, 37), id="tree"),
        pytest.param(mla_case(1, 33), id="root-alone"),
        pytest.param(mla_case(7, 40, tree="star", page=1), id="star-page-1"),
        pytest.param(mla_case(5, 61, tree="mixed", requests=5, page=64), id="ragged"),
        pytest.param(mla_case(17, 9), id="drafts-over-two-page-boundaries"),
        pytest.param(mla_case(32, 5, heads=1), id="top-bit"),
        pytest.param(mla_case(4, 0, requests=2), id="no-prefix-at-all"),
        pytest.param(mla_case(4, 1, requests=2), id="no-prefix-of-one-request"),
        pytest.param(mla_case(2, 20, heads=64), id="more-heads-than-a-merge-takes"),
        pytest.param(mla_case(3, 20, heads=20), id="heads-that-divide-no-tile"),
        pytest.param(mla_case(3, 20, kv="fp8"), id="fp8"),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_prefix_and_drafts_merged_are_the_op(
    version: str, point: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made(version))
    run_right(OP, "flashinfer_composed", point)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(mla_case(1, 0, tree="chain"), id="root-alone"),
        pytest.param(mla_case(4, 37, tree="chain", requests=3), id="ragged"),
        pytest.param(mla_case(2, 33, tree="star", page=1), id="star-of-two-is-a-chain"),
        pytest.param(mla_case(17, 9, tree="chain", page=64, heads=8), id="three-tiles"),
        pytest.param(mla_case(3, 20, tree="chain", kv="fp8"), id="fp8"),
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
    assert "star branches" in str(implementation.needs.refuses(mla_case(3, 20, tree="star")))
    with pytest.raises(ValueError, match="no chain"):
        implementation.prepare(drawn(mla_case(3, 20, tree="star")))


def test_rows_are_the_decode_form_and_cost_what_it_costs() -> None:
    rows = OP.implementations["flashinfer_rows"]
    assert (rows.mode, rows.form_cost) == ("decode", FORM_COSTS["decode"])


def test_the_key_that_old_causal_kernels_lose_is_a_reason_and_no_wrong_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 7 tokens of 20 heads: a tile of 128 ends within token 6, whose own key is 10 + 6 = 16.
    use(monkeypatch, stand_in.made("0.6.18"))
    causal = OP.implementations["flashinfer_causal"]
    lost, kept = (mla_case(7, context, tree="chain", heads=20) for context in (10, 11))
    assert "may lose the key of draft 6" in str(causal.needs.refuses(lost))
    run_right(OP, "flashinfer_causal", kept)
    inputs = drawn(lost)
    with pytest.raises(AssertionError):
        assert_right(OP, causal.run(inputs), inputs)
    run_right(OP, "flashinfer_rows", lost)


@pytest.mark.parametrize(("heads", "tokens"), [(8, 16), (16, 8), (64, 4), (20, 6), (128, 4)])
def test_tiles_that_end_with_a_token_lose_nothing(heads: int, tokens: int) -> None:
    for context in range(16):
        point = mla_case(tokens, context, tree="chain", heads=heads)
        assert _flashinfer_mla.drops_a_key(point) is None


@pytest.mark.parametrize(
    ("version", "context", "refused"),
    [("0.6.10", 1, True), ("0.6.10", 0, False), ("0.6.10", 2, False), ("0.6.11", 1, False)],
)
def test_an_empty_prefix_among_others_is_refused_where_kernels_read_in_front_of_it(
    version: str, context: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made(version))
    reason = OP.implementations["flashinfer_composed"].needs.refuses(
        mla_case(3, context, requests=2)
    )
    assert (reason is not None) == refused
    assert not refused or "empty list of pages" in str(reason)


@pytest.mark.parametrize(
    ("dims", "capability", "word"),
    [
        ({"latent": 256}, None, "512 + 64 dims, not 256 + 64"),
        ({"kv": "fp8"}, 120, "capability 9.0 alone"),
        ({"kv": "fp8"}, 90, None),
        ({}, 120, None),
    ],
)
def test_what_the_kernels_were_not_built_for_is_refused(
    dims: dict[str, str | int],
    capability: int | None,
    word: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    monkeypatch.setattr(_flashinfer, "device_capability", lambda: capability)
    point = Case(name="point", dims={**mla_case(3, 20).dims, **dims})
    reason = OP.implementations["flashinfer_composed"].needs.refuses(point)
    assert reason is None if word is None else word in str(reason)


def test_fp8_caches_need_bfloat16_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    dims = mla_case(3, 20, kv="fp8").dims
    point = Case(name="half", dims=dims, dtype=torch.float16)
    reason = OP.implementations["flashinfer_composed"].needs.refuses(point)
    assert "float16" in str(reason)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_is_planned_and_run_in_its_own_form(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = use(monkeypatch, stand_in.made(version))
    inputs = drawn(mla_case(3, 20, tree="chain"))
    OP.implementations["flashinfer_causal"].run(inputs)
    OP.implementations["flashinfer_composed"].run(inputs)
    natural, drafts, prefix = library.mla.BatchMLAPagedAttentionWrapper.made
    for wrapper, mode in ((natural, "basee"), (drafts, "base2"), (prefix, "base2")):
        calls = dict(wrapper.calls)
        assert calls["plan"].get("lse_mode") == (mode if version == "0.7.4" else None)
        assert calls["run"]["return_lse_base_on_e"] == (mode == "basee")
        assert ("metadata" in calls["plan"]) == ("query" in calls["run"]) == (version == "0.7.4")
        assert calls["plan"]["sm_scale"] == inputs["scale"]
    assert [wrapper.planned["causal"] for wrapper in (natural, drafts, prefix)] == [
        True,
        False,
        False,
    ]


def test_a_run_that_asks_for_another_base_than_was_planned_fails_loudly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = use(monkeypatch, stand_in.made("0.7.4"))
    given = Given(**drawn(mla_case(3, 20, tree="chain")))
    lists = composed.prefix_lists(given, given.prefix_lens.tolist())
    attention = _flashinfer_mla.attention(library, given, lists, causal=False, base=2)
    (wrapper,) = library.mla.BatchMLAPagedAttentionWrapper.made
    attention.run()
    asked = {**dict(wrapper.calls)["run"], "return_lse_base_on_e": True}
    with pytest.raises(ValueError, match="LSE mode mismatch: planned base2, got basee"):
        wrapper.run(**asked)
    other = _flashinfer_mla.attention(library, given, lists, causal=False, base=math.e)
    with pytest.raises(ValueError, match="convert them first"):
        _flashinfer.merger(library, attention.state, other=other.state)


def test_each_draft_lists_the_keys_that_it_sees_and_no_other() -> None:
    inputs = drawn(mla_case(4, 30, tree="star", page=16))
    given = Given(**inputs)
    lists = composed.draft_lists(given)
    pages = given.page_table[0].tolist()
    # Drafts are keys 30 .. 33: the last two slots of the second page, the first two of the third.
    slots = [pages[1] * 16 + 14, pages[1] * 16 + 15, pages[2] * 16, pages[2] * 16 + 1]
    assert lists.kv_lens.tolist() == [1, 2, 2, 2]
    assert lists.kv_indptr.tolist() == [0, 1, 3, 5, 7]
    assert lists.kv_indices.tolist() == [
        *slots[:1],
        *(slot for other in slots[1:] for slot in (slots[0], other)),
    ]
    assert lists.qo_indptr.tolist() == [0, 1, 2, 3, 4]


def test_a_cache_that_is_no_row_of_keys_is_not_copied_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    inputs = drawn(mla_case(3, 20))
    pool = inputs["ckv_cache"]
    apart = torch.empty(len(pool), pool.shape[1] + 1, pool.shape[2], dtype=pool.dtype)[:, :-1]
    apart.copy_(pool)
    with pytest.raises(RuntimeError, match="view"):
        OP.implementations["flashinfer_composed"].prepare({**inputs, "ckv_cache": apart})


def test_what_the_composition_repeats_and_records(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    whole = OP.implementations["flashinfer_composed"].prepare(drawn(mla_case(3, 20)))
    assert [stage.name for stage in whole.stages] == ["drafts", "plan_drafts", "indices", "plan"]
    assert (whole.launches, whole.facts["composed_of"]) == (3, "drafts, prefix, merge")
    assert whole.facts["backend"] == "fa2"
    inputs = drawn(mla_case(3, 0))
    alone = OP.implementations["flashinfer_composed"].prepare(inputs)
    assert [stage.name for stage in alone.stages] == ["drafts", "plan_drafts"]
    assert (alone.launches, alone.facts["composed_of"]) == (1, "drafts: there is no prefix")
    alone.replan()
    assert_right(OP, alone.outputs(), inputs)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_row_that_sees_nothing_is_zero_and_minus_infinity_where_nothing_is_merged(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made(version))
    inputs = {**drawn(mla_case(3, 0)), "mask_words": torch.tensor([[1, 0, 5]]).int()}
    outputs = OP.implementations["flashinfer_composed"].run(inputs)
    assert (outputs["lse"][1] == -math.inf).all()
    assert (outputs["out"][1] == 0).all()
    assert outputs["lse"][[0, 2]].isfinite().all()


@pytest.mark.parametrize("name", ["flashinfer_composed", *CHAINS])
def test_every_call_computes_afresh(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.made("0.6.18"))
    inputs = drawn(mla_case(3, 20, tree="chain", requests=2))
    prepared = OP.implementations[name].prepare(inputs)
    for value in prepared.call().values():
        value.fill_(float("nan"))
    prepared.replan()
    assert_right(OP, prepared.outputs(), inputs)
