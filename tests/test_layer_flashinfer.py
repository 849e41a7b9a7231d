"""The FlashInfer baselines of a layer's small ops, on stand-ins of 0.6.18 and 0.7.4.

And on the FlashInfer that is installed, whose own Python hands over to the stand-ins' kernels.
"""

import dataclasses
import importlib
import importlib.util
import re
from types import ModuleType
from typing import Any

import pytest
import torch

from kernels import Case, Inputs, Op, _flashinfer, find_op
from kernels._check import changed, poisoned
from kernels.layer import rms_norm_flashinfer, rope_flashinfer
from tests import flashinfer_stand_in as stand_in
from tests.flashinfer_cases import use
from tests.flashinfer_stand_in_layer import KERNELS
from tests.layer_problems import normal
from tests.op_runs import problems

CPU = torch.device("cpu")
VERSIONS = ("0.6.18", "0.7.4")


def point(op: str, **dims: Any) -> Case:
    """Return a tiny case of `op` with other dims."""
    case = next(case for case in find_op(op).cases if case.tiny)
    return dataclasses.replace(case, name="point", dims={**case.dims, **dims})


POINTS = [
    ("silu_mul", point("silu_mul", rows=3, width=200)),
    ("rms_norm", point("rms_norm", rows=3, width=200, step=200, residual="none")),
    ("rms_norm", point("rms_norm", rows=3, width=512, step=576, residual="none")),
    ("rms_norm", point("rms_norm", rows=3, width=128, heads=5, step=896, residual="none")),
    ("rms_norm", point("rms_norm", rows=3, width=200, step=200, residual="added")),
    ("rope", point("rope", context=509, table=512)),  # up to the last position of the table
    ("rope", point("rope", style="halves", layout="qkv", model="llama-3.1-70b")),
    ("rope", point("rope", head_dim=128, rotated=64, layout="apart", positions="int32")),
    ("shared_expert", point("shared_expert", rows=3, hidden=128, width=64)),
]


@pytest.fixture(params=VERSIONS)
def library(request: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return use(monkeypatch, stand_in.made(request.param))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the real FlashInfer with the stand-ins' kernels in the place of its compiled ones."""
    if importlib.util.find_spec("flashinfer") is None:
        pytest.skip("FlashInfer is not installed")
    found = _flashinfer.installed()
    for module, name in (
        ("activation", "get_act_and_mul_module"),
        ("norm", "get_norm_module"),
        ("rope", "get_rope_module"),
        ("gemm.routergemm", "get_tinygemm2_module"),
    ):
        where = importlib.import_module(f"flashinfer.{module}")
        monkeypatch.setattr(where, name, lambda *_: KERNELS)
        if hasattr(where, "device_support_pdl"):
            monkeypatch.setattr(where, "device_support_pdl", lambda device: False)
    monkeypatch.setattr(found.norm, "_use_cuda_norm", lambda device: True)
    for module in ("utils", "gemm.routergemm"):
        where = importlib.import_module(f"flashinfer.{module}")
        if hasattr(where, "get_compute_capability"):
            monkeypatch.setattr(where, "get_compute_capability", lambda device: (12, 0))
    return found


def run(op: Op, case: Case) -> tuple[Any, Inputs]:
    """Run the baseline twice from one preparation; return the second outputs and the inputs."""
    implementation = op.implementations["flashinfer"]
    assert implementation.needs.refuses(case) is None
    inputs = op.inputs(case, CPU)
    kept = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
    with poisoned():
        prepared = implementation.prepare(inputs)
        prepared.call()  # what computes in place has changed what it computes from
        outputs = prepared.outputs()
    assert changed(kept, inputs) == []
    return outputs, inputs


@pytest.mark.parametrize(("op", "case"), POINTS)
def test_it_computes_the_op_and_leaves_its_inputs(op: str, case: Case, library: ModuleType) -> None:
    outputs, inputs = run(find_op(op), case)
    assert problems(find_op(op), outputs, inputs) == {}


@pytest.mark.parametrize(("op", "case"), POINTS)
def test_the_real_python_hands_its_kernels_what_computes_the_op(
    op: str, case: Case, installed: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_flashinfer, "cannot_build", lambda: None)
    outputs, inputs = run(find_op(op), case)
    assert problems(find_op(op), outputs, inputs) == {}


@pytest.mark.parametrize("op", ["silu_mul", "rms_norm", "rope", "shared_expert"])
def test_the_version_stands_in_the_record(op: str, library: ModuleType) -> None:
    case = next(case for name, case in POINTS if name == op)
    inputs = find_op(op).inputs(case, CPU)
    facts = find_op(op).implementations["flashinfer"].prepare(inputs).facts
    assert facts["flashinfer"] == library.__version__


def test_the_norm_in_place_computes_from_its_own_results_until_they_are_put_back(
    library: ModuleType,
) -> None:
    op = find_op("rms_norm")
    inputs = op.inputs(point("rms_norm", rows=2, width=64, step=64, residual="added"), CPU)
    prepared = op.implementations["flashinfer"].prepare(inputs)
    first = {name: value.clone() for name, value in prepared.outputs().items()}
    again = {name: value.clone() for name, value in prepared.call().items()}
    assert not torch.equal(again["new_residual"], first["new_residual"])
    assert torch.equal(prepared.outputs()["new_residual"], first["new_residual"])


@pytest.mark.parametrize(
    ("cute", "kernels"), [(True, "CUDA C++"), (False, "CuTe DSL"), (None, "not known")]
)
def test_which_kernels_a_wheel_takes_for_norms_stands_in_the_record(
    cute: bool | None, kernels: str, library: ModuleType
) -> None:
    if cute is not None:
        library.norm._USE_CUDA_NORM = cute
    inputs = {"x": normal(2, 64), "weight": normal(64), "eps": 1e-6}
    assert rms_norm_flashinfer.flashinfer_norm(**inputs).facts["kernels"] == kernels


def test_an_interleaved_table_without_a_row_more_is_read_past_its_end(library: ModuleType) -> None:
    op = find_op("rope")
    inputs: dict[str, Any] = dict(op.inputs(point("rope", context=509, table=512), CPU))
    named = {
        "positions": inputs["positions"],
        "query": inputs["q"],
        "key": inputs["k"],
        "head_size": 64,
        "is_neox": False,
    }
    with pytest.raises(IndexError, match="16 bytes behind the table"):
        library.rope.apply_rope_with_cos_sin_cache(**named, cos_sin_cache=inputs["cos_sin"])
    assert problems(op, rope_flashinfer.flashinfer_rope(**inputs).outputs(), inputs) == {}


@pytest.mark.parametrize(
    ("op", "dims", "reason"),
    [
        ("silu_mul", {"width": 20}, "takes widths that 8 divides, not 20"),
        ("rope", {"head_dim": 80}, r"takes a head_dim of \(64, 128, 256, 512\), not 80"),
        ("rope", {"rotated": 24, "style": "halves"}, "rotated dims that 16 divides, not 24"),
        ("rope", {"head_dim": 512, "rotated": 24}, "rotated dims that 16 divides, not 24"),
        ("shared_expert", {"width": 96}, "takes sizes that 64 divides; width is 96"),
        ("shared_expert", {"hidden": 32}, "takes sizes that 64 divides; hidden is 32"),
    ],
)
def test_what_it_cannot_compute_is_refused(
    op: str, dims: dict[str, Any], reason: str, library: ModuleType
) -> None:
    refused = find_op(op).implementations["flashinfer"].needs.refuses(point(op, **dims))
    assert re.search(reason, refused or "")


def test_float16_is_refused_where_only_bfloat16_is_taken(library: ModuleType) -> None:
    case = dataclasses.replace(point("shared_expert", hidden=64, width=64), dtype=torch.float16)
    reason = find_op("shared_expert").implementations["flashinfer"].needs.refuses(case)
    assert reason == "FlashInfer's tinygemm_bf16 takes bfloat16, not torch.float16"


def test_measured_cases_of_bfloat16_are_refused_by_nobody(library: ModuleType) -> None:
    refused = {
        f"{op} {case.name}": reason
        for op in ("silu_mul", "rms_norm", "rope", "shared_expert")
        for case in find_op(op).cases
        if not case.tiny
        and case.dtype is torch.bfloat16
        and (reason := find_op(op).implementations["flashinfer"].needs.refuses(case))
    }
    assert refused == {}
