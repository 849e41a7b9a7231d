"""Routing and sorting by FlashInfer, on a stand-in: what is given, what comes out, what is refused.

`test_flashinfer_wheel.py` holds the stand-in to the wheel that is installed.
"""

import dataclasses
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from kernels import Case, Op, _flashinfer
from kernels._check import check, compare
from kernels.moe import moe_align, moe_routing
from kernels.moe import moe_align_flashinfer as sort
from kernels.moe import moe_routing_flashinfer as deepseek
from kernels.moe import moe_routing_flashinfer_top_k as top_k
from kernels.moe import moe_routing_flashinfer_trtllm as trtllm
from tests import flashinfer_stand_in as stand_in
from tests.flashinfer_cases import CPU, VERSIONS, use

ROUTINGS = {"flashinfer": deepseek, "flashinfer_top_k": top_k, "flashinfer_trtllm": trtllm}


@pytest.fixture(params=VERSIONS)
def library(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    yield use(monkeypatch, stand_in.made(request.param))
    _flashinfer._import_failure.cache_clear()


def changed(op: Op, dtype: torch.dtype = torch.float32, **dims: Any) -> Case:
    """Return a case of the op with other dims."""
    first = op.cases[0]
    return dataclasses.replace(first, dims={**first.dims, **dims}, dtype=dtype)


def served(op: Op, name: str) -> list[Case]:
    """Return the cases of no more than 16 tokens that an implementation takes."""
    refuses = op.implementations[name].needs.refuses
    return [case for case in op.cases if case.number("rows") <= 16 and refuses(case) is None]


@pytest.mark.parametrize("name", ROUTINGS)
def test_routing_by_flashinfer_is_the_ops(library: ModuleType, name: str) -> None:
    cases = served(moe_routing.OP, name)
    if name == "flashinfer_trtllm" and library.__version__.startswith("0.6"):
        assert cases == []
        return
    assert len(cases) > 5
    for case in cases:
        found = check(moe_routing.OP.implementations[name], case, device=CPU)
        assert found.failure is None


def test_sorting_by_flashinfer_is_the_ops(library: ModuleType) -> None:
    cases = served(moe_align.OP, "flashinfer")
    assert any(case.dims["routing"] == "twice" for case in cases)
    for case in cases:
        found = check(moe_align.OP.implementations["flashinfer"], case, device=CPU)
        assert found.failure is None


def test_what_flashinfer_sorts_is_put_in_order_after_the_call(library: ModuleType) -> None:
    """As it comes, it is no stable sort: that is why it is different work."""
    ids = torch.tensor([[0, 1], [0, 1], [0, 3]]).int()
    prepared = sort.flashinfer_align(ids=ids, experts=4, block=4)
    found = prepared.call()
    assert found["places"].tolist() == [[2, 5], [1, 4], [0, 8]]
    want = moe_align.reference(ids=ids, experts=4, block=4)
    got = prepared.convert(found)
    assert not [one for one in compare(got, want, tolerance=moe_align.OP.tolerance) if one.error]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_deepseek_routing_have_the_dtype_of_the_logits(
    library: ModuleType, dtype: torch.dtype
) -> None:
    inputs: Any = moe_routing.inputs(changed(moe_routing.OP, dtype), CPU)
    prepared = deepseek.flashinfer_routing(**inputs)
    assert prepared.call()["weights"].dtype == dtype
    assert prepared.outputs()["weights"].dtype == torch.float32
    assert prepared.facts["weights"] == str(dtype).removeprefix("torch.")


def test_a_row_is_put_in_the_order_of_keys_and_then_of_ids() -> None:
    given = moe_routing.Given(logits=torch.tensor([[1.0, 3, 1, 3, 2]]), top_k=4, renormalise=True)
    ids = torch.tensor([[2, 3, 0, 1]]).int()
    found = moe_routing.in_order(given, {"ids": ids, "weights": ids * 0.5})
    assert found["ids"].tolist() == [[1, 3, 0, 2]]
    assert found["weights"].tolist() == [[0.5, 1.5, 0, 1]]


_DEEPSEEK: dict[str, Any] = {"experts": 256, "top_k": 8, "groups": 8, "top_groups": 4}


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        (_DEEPSEEK, None),
        ({"experts": 384, "top_k": 8}, None),
        ({"experts": 385, "top_k": 8}, ["384", "385"]),
        ({"experts": 384, "top_k": 9}, ["8 experts a token", "9"]),
        ({"scoring": "softmax"}, ["softmax"]),
        ({"renormalise": "no"}, ["renormalises"]),
        ({**_DEEPSEEK, "top_groups": 5}, ["4 of them on top", "with 5"]),
        ({**_DEEPSEEK, "groups": 16}, ["8 groups", "16 of 16"]),
        ({**_DEEPSEEK, "experts": 288}, ["32 experts", "8 of 36"]),
    ],
)
def test_what_fused_topk_deepseek_does_not_hold_is_refused(
    library: ModuleType, dims: dict[str, Any], words: list[str] | None
) -> None:
    reason = deepseek.refuses(changed(moe_routing.OP, **dims))
    assert (reason is None) == (words is None)
    assert all(word in str(reason) for word in words or ())


def test_fused_topk_deepseek_is_not_asked_of_capability_8_0() -> None:
    implementation = moe_routing.OP.implementations["flashinfer"]
    served = [one for one in (75, 80, 86, 89, 90, 100, 103, 120) if implementation.serves(one)]
    assert served == [89, 90, 100, 103, 120]


_SOFTMAX: dict[str, Any] = {"scoring": "softmax", "scaling": 1.0}


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        (_SOFTMAX, None),
        (_DEEPSEEK, None),
        ({**_SOFTMAX, "experts": 512, "top_k": 16}, None),
        ({**_SOFTMAX, "renormalise": "no"}, None),
        ({**_SOFTMAX, "renormalise": "no", "experts": 257}, ["256 experts", "257"]),
        ({**_SOFTMAX, "renormalise": "no", "experts": 64, "top_k": 9}, ["8 a token", "9"]),
        ({**_SOFTMAX, "scaling": 2.0}, ["scale"]),
        ({"renormalise": "no"}, ["renormalises"]),
        ({**_DEEPSEEK, "top_groups": 5}, ["4 top groups", "5 of 32"]),
    ],
)
def test_what_trtllm_gen_routing_does_not_hold_is_refused(
    dims: dict[str, Any], words: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, stand_in.made("0.7.4"))
    reason = trtllm.refuses(changed(moe_routing.OP, **dims))
    assert (reason is None) == (words is None)
    assert all(word in str(reason) for word in words or ())


def test_before_0_7_there_is_no_trtllm_gen_routing(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, stand_in.made("0.6.18"))
    reason = trtllm.refuses(changed(moe_routing.OP, **_SOFTMAX))
    assert reason == "FlashInfer 0.6.18 has no fused_moe.trtllm_gen_routing"


def test_top_k_is_asked_for_softmax_alone(library: ModuleType) -> None:
    assert top_k.refuses(changed(moe_routing.OP, **_SOFTMAX)) is None
    assert "bias" in str(top_k.refuses(changed(moe_routing.OP)))


def test_ids_that_are_no_experts_are_not_given_to_moe_sort(library: ModuleType) -> None:
    assert sort.refuses(changed(moe_align.OP)) is None
    assert "no expert" in str(sort.refuses(changed(moe_align.OP, routing="holes")))
