"""The FlashInfer baselines against the FlashInfer that is installed, without a GPU.

Each declared call is bound to the real signature, and the real wrappers' own Python carries a plan
to its kernel, whose place the stand-in takes: what arrives there must compute the op.
"""

import importlib
import importlib.util
import inspect
import math
from types import ModuleType

import pytest
import torch

from kernels import Case
from kernels.attention import mla_verify, tree_attention
from kernels.attention import tree_attention_flashinfer_decode as decode
from tests import flashinfer_stand_in as stand_in
from tests.flashinfer_cases import ADAPTERS, VERSIONS, assert_right, calls_of, case, drawn, mla_case
from tests.flashinfer_kernels import DecodeKernel, Kernels, MlaKernel, put_in_place
from tests.flashinfer_stand_in_decode import PLAN_OPTIONS


def name_of(module: ModuleType) -> str:
    return module.__name__.removeprefix("kernels.")


@pytest.fixture
def installed() -> ModuleType:
    if importlib.util.find_spec("flashinfer") is None:
        pytest.skip("FlashInfer is not installed")
    return importlib.import_module("flashinfer")


@pytest.fixture
def known(installed: ModuleType) -> str:
    for version in VERSIONS:
        if installed.__version__.startswith(version.rpartition(".")[0]):
            return version
    pytest.skip(f"the stand-ins are {VERSIONS}; {installed.__version__} is installed")


@pytest.mark.parametrize("adapter", ADAPTERS, ids=name_of)
@pytest.mark.parametrize("version", VERSIONS)
def test_each_declared_call_fits_both_known_versions(adapter: ModuleType, version: str) -> None:
    library = stand_in.made(version)
    assert calls_of(adapter, library) or hasattr(adapter, "SINCE")
    for call in calls_of(adapter, library):
        assert call.why_not(library) is None


@pytest.mark.parametrize("adapter", ADAPTERS, ids=name_of)
def test_each_declared_call_binds(adapter: ModuleType, installed: ModuleType) -> None:
    for call in calls_of(adapter, installed):
        assert call.why_not(installed) is None
        accepted = call.accepted(installed, **dict.fromkeys([*call.needed, *call.offered]))
        signature = inspect.signature(call.find(installed))
        me = ["self"] if "self" in signature.parameters else []
        bound = signature.bind(*me, **accepted.kwargs)
        assert set(call.needed) <= {*bound.arguments, *bound.arguments.get("kwargs", {})}


@pytest.mark.parametrize("adapter", ADAPTERS, ids=name_of)
def test_the_stand_in_has_the_real_signatures(
    adapter: ModuleType, installed: ModuleType, known: str
) -> None:
    for call in calls_of(adapter, installed):
        mine = inspect.signature(call.find(stand_in.made(known))).parameters
        theirs = inspect.signature(call.find(installed)).parameters
        assert {name: (p.kind, plain(p.default)) for name, p in mine.items()} == {
            name: (p.kind, plain(p.default)) for name, p in theirs.items()
        }, call.function


def plain(default: object) -> object:
    """Return a default that can be compared; one object of the library's own is as another."""
    known = (str, int, float, tuple, torch.dtype, type(None), type)
    return default if isinstance(default, known) else "an object"


def test_what_a_decode_plan_takes_as_any_keyword_is_taken_behind_it(installed: ModuleType) -> None:
    behind = inspect.signature(installed.BatchDecodeWithPagedKVCacheWrapper._plan_impl).parameters
    assert set(PLAN_OPTIONS) <= set(behind)
    assert {*decode.SEVERAL_PLAN.needed} <= set(behind)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(case(1, 0), id="root-alone"),
        pytest.param(case(4, 63, page=64), id="page-64"),
        pytest.param(case(5, 61, tree="mixed", requests=5), id="ragged"),
        pytest.param(case(3, 50, tree="star", requests=3, page=1), id="ragged-page-1"),
        pytest.param(case(3, 20, tree="star", dim=128, kv="fp8"), id="fp8"),
    ],
)
@pytest.mark.parametrize("name", ["flashinfer", "flashinfer_graph"])
def test_the_real_prefill_hands_its_kernel_what_computes_the_op(
    name: str, point: Case, installed: ModuleType, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernels(5e4 if known.startswith("0.6") else math.inf)
    put_in_place(monkeypatch, installed, kernel)
    inputs = drawn(point)
    prepared = tree_attention.OP.implementations[name].prepare(inputs)
    prepared.replan()
    assert_right(tree_attention.OP, prepared.outputs(), inputs)
    if name == "flashinfer_graph" and known.startswith("0.7"):
        assert point.number("rows") in kernel.planned[-2:]  # uniform_q_len reached the planner


@pytest.mark.parametrize(
    ("name", "tokens", "heads"),
    [
        ("flashinfer_causal", 4, (8, 2)),
        ("flashinfer_decode", 4, (4, 2)),
        ("flashinfer_decode", 1, (8, 2)),
        ("flashinfer_decode", 1, (6, 2)),  # without tensor cores
        ("flashinfer_rows", 4, (6, 2)),
        ("flashinfer_rows", 4, (8, 2)),
    ],
)
def test_the_real_chains_hand_their_kernel_what_computes_the_op(
    name: str,
    tokens: int,
    heads: tuple[int, int],
    installed: ModuleType,
    known: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_in_place(monkeypatch, installed, DecodeKernel(math.inf))
    inputs = drawn(case(tokens, 61, tree="chain", requests=3, heads=heads))
    prepared = tree_attention.OP.implementations[name].prepare(inputs)
    prepared.replan()
    assert_right(tree_attention.OP, prepared.outputs(), inputs)
    assert prepared.facts["backend"] == "fa2"


@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("flashinfer_composed", mla_case(5, 61, tree="mixed", requests=5)),
        ("flashinfer_composed", mla_case(3, 1, requests=2)),
        ("flashinfer_composed", mla_case(3, 0, page=1)),
        ("flashinfer_causal", mla_case(5, 61, tree="chain", requests=3)),
        ("flashinfer_rows", mla_case(5, 61, tree="chain", requests=3)),
    ],
)
def test_the_real_mla_wrapper_hands_its_kernel_what_computes_the_op(
    name: str, point: Case, installed: ModuleType, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch, installed, MlaKernel(math.inf))
    inputs = drawn(point)
    prepared = mla_verify.OP.implementations[name].prepare(inputs)
    prepared.replan()
    assert_right(mla_verify.OP, prepared.outputs(), inputs)
    assert prepared.facts["backend"] == "fa2"
    assert prepared.facts["flashinfer"] == installed.__version__
