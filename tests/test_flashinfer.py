"""The FlashInfer baseline of `tree_attention`, on stand-ins of 0.6.18 and 0.7.4.

Each version gets what it takes, what is planned means what the op means, and the LSE is natural.
"""

import importlib
import importlib.util
import math
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import Case, Inputs, Outputs, _flashinfer, _trees
from kernels import tree_attention_flashinfer as adapter
from kernels._flashinfer import Call
from kernels.tree_attention import OP, Given, Shape
from tests import flashinfer_stand_in as stand_in
from verifyscope.records import Value

TOUCHED = "flashinfer" in sys.modules
VERSIONS = ("0.6.18", "0.7.4")
PLANS = ("flashinfer", "flashinfer_graph")


def case(
    rows: int,
    context: int,
    *,
    tree: str = "eagle4",
    page: int = 16,
    requests: int = 1,
    heads: tuple[int, int] = (6, 2),
) -> Case:
    dims: dict[str, Value] = {
        "rows": rows,
        "requests": requests,
        "context": context,
        "lengths": "ragged",
        "tree": tree,
        "page": page,
        "q_heads": heads[0],
        "kv_heads": heads[1],
        "head_dim": 64,
    }
    return Case(name="point", dims=dims, seed=rows + context)


def drawn(point: Case) -> dict[str, Any]:
    return dict(OP.inputs(point, torch.device("cpu")))


@pytest.fixture(autouse=True)
def _small_and_fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_flashinfer, "WORKSPACE_BYTES", 1024)
    yield
    _flashinfer.workspace.cache_clear()
    _flashinfer._import_failure.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, library: ModuleType) -> ModuleType:
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    monkeypatch.setattr(_flashinfer, "cannot_build", lambda: None)
    _flashinfer._import_failure.cache_clear()
    return library


def shape_for(inputs: dict[str, Any]) -> Shape:
    return Given(**inputs).shape


def assert_right(outputs: Outputs, inputs: Inputs) -> None:
    want = OP.reference(**inputs)
    error = (outputs["out"].double() - want["out"]).norm(dim=-1) / want["out"].norm(dim=-1)
    assert error.max() <= OP.tolerance.row  # NaN fails too
    assert (outputs["lse"] - want["lse"]).abs().max() <= OP.tolerance.absolute["lse"]


# What is called.


@pytest.mark.parametrize("call", adapter.CALLS, ids=lambda call: str(call.function))
@pytest.mark.parametrize("version", VERSIONS)
def test_each_declared_call_fits_both_known_versions(call: Call, version: str) -> None:
    assert call.why_not(stand_in.library(version)) is None


def test_importing_an_adapter_imports_no_flashinfer() -> None:
    assert not TOUCHED


def test_an_argument_that_is_dropped_is_named() -> None:
    call = Call(function="segment_packbits", needed=("x", "indptr"), offered=("bitorder", "speed"))
    accepted = call.accepted(
        stand_in.library("0.7.4"), x=1, indptr=2, bitorder="little", speed="high"
    )
    assert accepted.kwargs == {"x": 1, "indptr": 2, "bitorder": "little"}
    assert accepted.dropped == ("speed",)


def test_an_argument_that_was_not_declared_cannot_slip_past_the_guard() -> None:
    call = Call(function="segment_packbits", needed=("x", "indptr"))
    with pytest.raises(TypeError, match="bitorder"):
        call.accepted(stand_in.library("0.7.4"), x=1, indptr=2, bitorder="little")


def test_a_call_that_takes_any_keyword_drops_none() -> None:
    library = ModuleType("flashinfer")
    vars(library)["decode"] = lambda q, **more: (q, more)
    call = Call(function="decode", needed=("q",), offered=("lse_base",))
    assert call.accepted(library, q=1, lse_base="ln").kwargs == {"q": 1, "lse_base": "ln"}


# What is refused.


@pytest.mark.parametrize(
    ("library", "names"),
    [
        (stand_in.library("0.8.0", without=["custom_mask"]), ["plan", "'custom_mask'"]),
        (stand_in.library("0.8.0", without=["lse", "out"]), ["run", "'out', 'lse'"]),
        (stand_in.library("0.8.0", without=["lse_base"]), ["run", "'lse_base'"]),
        (stand_in.library("0.8.0", asks_for=["kv_split"]), ["plan", "'kv_split'"]),
    ],
)
def test_a_version_that_cannot_be_called_is_refused_with_its_name(
    library: ModuleType, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, library)
    reason = adapter.refuses(case(4, 100))
    assert reason is not None
    assert all(name in reason for name in ["FlashInfer 0.8.0", *names])


def test_preparing_for_such_a_version_raises_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.library("0.8.0", without=["custom_mask"]))
    with pytest.raises(RuntimeError, match=r"plan of FlashInfer 0\.8\.0 does not take"):
        adapter.flashinfer_attention(**drawn(case(4, 20)))


def test_a_function_that_is_gone_is_named() -> None:
    library = stand_in.library("0.8.0")
    del library.BatchPrefillWithPagedKVCacheWrapper
    reason = adapter.PLAN.why_not(library)
    assert reason == "FlashInfer 0.8.0 has no BatchPrefillWithPagedKVCacheWrapper.plan"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_known_version_is_not_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.library(version))
    assert adapter.refuses(case(4, 100)) is None


def test_a_flashinfer_that_does_not_import_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.library("0.7.4"))

    def fail() -> ModuleType:
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(_flashinfer, "library", fail)
    reason = adapter.refuses(case(4, 100))
    assert reason is not None
    assert "does not import: OSError: libcudart.so.13" in reason


def test_a_machine_that_cannot_compile_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    empty = tmp_path_factory.mktemp("empty")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setenv("CUDA_HOME", str(empty))
    monkeypatch.delenv("FLASHINFER_NVCC", raising=False)
    assert "finds no nvcc" in str(_flashinfer.cannot_build())
    (empty / "bin").mkdir()
    (empty / "bin" / "nvcc").touch()
    assert "finds no ninja" in str(_flashinfer.cannot_build())
    (empty / "ninja").touch(mode=0o755)
    assert _flashinfer.cannot_build() is None


@pytest.mark.parametrize(("head_dim", "taken"), [(32, False), (64, True), (96, False), (256, True)])
def test_a_head_dim_that_fa2_lacks_is_refused(
    head_dim: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.library("0.7.4"))
    point = case(4, 100)
    point = Case(name="dim", dims={**point.dims, "head_dim": head_dim})
    reason = adapter.refuses(point)
    assert (reason is None) == taken
    assert taken or str(head_dim) in str(reason)


def test_float32_is_refused() -> None:
    point = case(4, 100)
    assert "float32" in str(
        adapter.refuses(Case(name="wide", dims=point.dims, dtype=torch.float32))
    )


def test_a_mask_whose_bits_do_not_fit_int32_is_refused_before_it_is_made() -> None:
    assert _flashinfer.mask_too_large(2**31 - 1) is None
    assert str(2**31) in str(_flashinfer.mask_too_large(2**31))
    assert "int32" in str(adapter.refuses(case(32, 2**26)))
    with pytest.raises(ValueError, match="int32"):
        adapter.metadata(
            page_table=torch.zeros(1, 1, dtype=torch.int32),
            prefix_lens=torch.tensor([2**30], dtype=torch.int32),
            mask_words=torch.ones(1, 2, dtype=torch.int32),
            page_size=16,
        )


# What is computed.

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
]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("version", "name"), [*zip(VERSIONS, PLANS, strict=True)])
def test_what_is_planned_computes_the_op(
    version: str, name: str, point: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.library(version))
    inputs = drawn(point)
    assert_right(OP.implementations[name].run(inputs), inputs)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_call_gives_base_2_and_convert_the_natural_logarithm(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.library(version))
    inputs = drawn(case(4, 33))
    prepared = adapter.flashinfer_attention(**inputs)
    raw = prepared.call()
    kept = raw["lse"].clone()
    assert_right(prepared.convert(raw), inputs)
    torch.testing.assert_close(raw["lse"], kept, rtol=0, atol=0)
    torch.testing.assert_close(raw["lse"] * math.log(2), prepared.convert(raw)["lse"])
    raw["out"].fill_(float("nan"))
    assert_right(prepared.outputs(), inputs)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_graph_plan_serves_other_lengths_and_trees(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = use(monkeypatch, stand_in.library(version))
    longest = drawn(case(4, 90, requests=3))
    shape = shape_for(longest)
    wrapper = None
    for context, tree in ((90, "eagle4"), (17, "star"), (52, "chain")):
        inputs = drawn(case(4, context, tree=tree, requests=3))
        table = torch.nn.functional.pad(
            inputs["page_table"], (0, shape.width - inputs["page_table"].shape[1]), value=-1
        )
        step = adapter.metadata(
            page_table=table,
            prefix_lens=inputs["prefix_lens"],
            mask_words=inputs["mask_words"],
            page_size=shape.page_size,
        )
        if wrapper is None:
            wrapper = adapter.make_wrapper(library, step, shape=shape, any_lengths=True)
        adapter.plan(
            library, wrapper, step, shape=shape, scale=inputs["scale"], dtype=torch.bfloat16
        )
        out, lse = torch.empty_like(inputs["q"]), torch.empty(inputs["q"].shape[:2])
        cache = (inputs["k_cache"], inputs["v_cache"])
        wrapper.run(inputs["q"], cache, out=out, lse=lse, return_lse=True)
        assert_right({"out": out, "lse": lse * math.log(2)}, inputs)


def test_graph_buffers_hold_what_the_page_table_has_room_for() -> None:
    inputs = drawn(case(5, 90, requests=3))
    shape = shape_for(inputs)
    full = adapter.metadata(
        page_table=torch.zeros_like(inputs["page_table"]),
        prefix_lens=torch.full((3,), shape.most_keys - shape.tokens, dtype=torch.int32),
        mask_words=inputs["mask_words"],
        page_size=shape.page_size,
    )
    wrapper = adapter.make_wrapper(
        library := stand_in.library("0.7.4"), full, shape=shape, any_lengths=True
    )
    adapter.plan(library, wrapper, full, shape=shape, scale=1.0, dtype=torch.bfloat16)
    assert len(full.pages.indices) == len(wrapper.created["paged_kv_indices_buf"])
    assert len(adapter.pack_mask(library, full)) == len(wrapper.created["custom_mask_buf"])


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_gets_what_it_takes_and_the_record_says_so(
    version: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = use(monkeypatch, stand_in.library(version))
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
    graph = "4" if newer else "not taken by this version"
    assert prepared.facts["uniform_q_len"] == (
        graph if name == "flashinfer_graph" else "not needed"
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_row_that_sees_nothing_is_zero_and_minus_infinity(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.library(version))
    inputs = {**drawn(case(3, 0)), "mask_words": torch.tensor([[1, 0, 5]]).int()}
    outputs = adapter.flashinfer_attention(**inputs).outputs()
    assert (outputs["lse"][1] == -math.inf).all()
    assert (outputs["out"][1] == 0).all()
    assert outputs["lse"][[0, 2]].isfinite().all()


def test_base_2_becomes_natural_and_only_old_versions_have_a_finite_infinity() -> None:
    lse = torch.tensor([10.0, -3.0, -49_990.0, -math.inf])
    new = _flashinfer.natural_log(lse, finite_infinity=False)
    assert new.tolist() == pytest.approx([6.931472, -2.0794415, -34_650.43, -math.inf])
    old = _flashinfer.natural_log(lse, finite_infinity=True)
    assert old.tolist() == pytest.approx([6.931472, -2.0794415, -math.inf, -math.inf])


# What is laid out.

lengths = st.lists(st.integers(0, 70), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(committed=lengths, tokens=st.integers(1, 32), name=st.sampled_from(_trees.TREES))
def test_mask_bits_are_little_endian_and_each_request_begins_on_a_byte(
    committed: list[int], tokens: int, name: str
) -> None:
    words = _trees.mask_words(_trees.tree(name, tokens))
    step = adapter.metadata(
        page_table=torch.zeros(len(committed), 110, dtype=torch.int32),
        prefix_lens=torch.tensor(committed, dtype=torch.int32),
        mask_words=torch.tensor([words] * len(committed)).to(torch.int32),
        page_size=1,
    )
    packed = adapter.pack_mask(stand_in.library("0.6.18"), step)
    expected = []
    for length in committed:
        rows = [[True] * length + [bool(word >> j & 1) for j in range(tokens)] for word in words]
        expected.append(np.packbits(np.array(rows).reshape(-1), bitorder="little"))
    np.testing.assert_array_equal(packed.numpy(), np.concatenate(expected))
    assert len(packed) == _flashinfer.packed_mask_bytes(step.request_bits)


@settings(max_examples=60, deadline=None)
@given(kv_lens=st.lists(st.integers(1, 200), min_size=1, max_size=5), page=st.integers(1, 70))
def test_page_lists_name_each_request_s_pages_and_no_cell_beyond(
    kv_lens: list[int], page: int
) -> None:
    counts = [math.ceil(kv_len / page) for kv_len in kv_lens]
    table = torch.full((len(kv_lens), max(counts) + 2), -1, dtype=torch.int32)
    for request, count in enumerate(counts):
        table[request, :count] = torch.arange(count) + 1000 * request
    lists = _flashinfer.page_lists(table, kv_lens=kv_lens, page_size=page)
    assert lists.indices.min() >= 0
    ends = lists.indptr.tolist()
    for request, kv_len in enumerate(kv_lens):
        mine = lists.indices[ends[request] : ends[request + 1]].tolist()
        assert mine == [1000 * request + n for n in range(counts[request])]
        last = int(lists.last_page_len[request])
        assert 1 <= last <= page
        assert (len(mine) - 1) * page + last == kv_len


@pytest.mark.parametrize("kv_len", [0, 33])
def test_lengths_that_the_page_table_does_not_hold_are_refused(kv_len: int) -> None:
    table = torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match=re.escape(f"[{kv_len}] in pages of 16: give 1 to 32")):
        _flashinfer.page_lists(table, kv_lens=[kv_len], page_size=16)
