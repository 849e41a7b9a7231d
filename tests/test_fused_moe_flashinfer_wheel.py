"""The baselines of `fused_moe` against the FlashInfer that is installed, without a GPU.

The wheel's own Python lays weights out and carries a call to its kernel, whose place the stand-in
takes: what arrives there must compute the op. Private names of the wheels are used, those of
0.6.18.post1 and 0.7.4.
"""

import contextlib
import importlib
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from kernels import Case
from kernels.moe import _formats
from kernels.moe import fused_moe_flashinfer_frost as frost
from kernels.moe.fused_moe import OP
from tests import flashinfer_stand_in_frost as frost_kernels
from tests.flashinfer_cases import fresh
from tests.flashinfer_experts import interleaved
from tests.flashinfer_stand_in_experts import compute_cutlass, compute_mxint4
from tests.moe_cases import drawn, error_of, point

BLACKWELL, HOPPER = (10, 0), (9, 0)
KNOWN = ("0.6.18", "0.7.4")
MXINT4_ARGUMENTS = {
    "topk_ids": 2,
    "hidden_states": 4,
    "gemm1_weights": 5,
    "gemm1_weights_scale": 6,
    "gemm2_weights": 11,
    "gemm2_weights_scale": 12,
    "num_experts": 13,
    "top_k": 14,
    "intermediate_size": 17,
    "output": 24,
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if importlib.util.find_spec("flashinfer") is None:
        pytest.skip("FlashInfer is not installed")
    found = importlib.import_module("flashinfer")
    if not found.__version__.startswith(tuple(known.rpartition(".")[0] for known in KNOWN)):
        pytest.skip(f"the stand-ins are {KNOWN}; {found.__version__} is installed")
    fresh(monkeypatch)
    monkeypatch.setattr(found, "autotune", untimed)
    return found


@contextlib.contextmanager
def untimed(tune_mode: bool = True) -> Any:
    """Stand for `autotune`, which asks for a device."""
    yield


def put(monkeypatch: pytest.MonkeyPatch, module: str, **parts: object) -> None:
    owner = importlib.import_module(f"flashinfer.{module}")
    for name, part in parts.items():
        monkeypatch.setattr(owner, name, part)


# ---- cutlass ----


def put_cutlass(monkeypatch: pytest.MonkeyPatch, library: ModuleType) -> list[dict[str, Any]]:
    """Put the stand-in in place of the compiled module; return what reaches it."""
    reached: list[dict[str, Any]] = []

    def kernel(*args: Any, **kwargs: Any) -> None:
        y, x, ids, weights, gate_up, _, down = args[:7]
        y.copy_(compute_cutlass(x, ids, weights, gate_up, down))
        reached.append(kwargs)

    put(
        monkeypatch,
        "fused_moe.core",
        get_compute_capability=lambda device: HOPPER,
        device_support_pdl=lambda device: False,
        get_cutlass_fused_moe_module=lambda arch: SimpleNamespace(cutlass_fused_moe=kernel),
    )
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    # The wheel's asks for a CUDA device by name.
    monkeypatch.setattr(
        library.fused_moe, "cutlass_fused_moe_workspace_size", lambda **sizes: sizes["hidden_size"]
    )
    return reached


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("flashinfer_cutlass", point(4, "bf16", routing="holes")),
        ("flashinfer_cutlass_unpacked", point(3, "int4")),
        ("flashinfer_cutlass_unpacked", point(3, "fp8", sizes=(128, 128))),
    ],
)
def test_the_real_cutlass_hands_its_kernel_what_computes_the_op(
    name: str, case: Case, library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = put_cutlass(monkeypatch, library)
    inputs = drawn(case)
    prepared = OP.implementations[name].prepare(inputs)
    assert error_of(prepared.outputs(), inputs) <= OP.tolerance.row
    assert reached[-1]["use_fused_finalize"] is False
    assert reached[-1]["workspace_buffer"].numel() == 1024
    assert prepared.facts["flashinfer"] == library.__version__
    assert "not_taken" not in prepared.facts


# ---- trtllm-gen ----


def put_mxint4(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put the stand-in in place of the compiled modules; return what reaches the experts."""
    reached: list[dict[str, Any]] = []

    def kernel(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        assert args[0] is None  # no logits: routing is given
        assert all(one is None for one in args[7:11])
        given = {name: args[at] for name, at in MXINT4_ARGUMENTS.items()}
        given["output"].copy_(compute_mxint4(given))
        reached.append(given)
        return [given["output"]]

    experts = SimpleNamespace(trtllm_mxint4_block_scale_moe=kernel)
    put(monkeypatch, "fused_moe.core", get_trtllm_moe_sm100_module=lambda: experts)
    scales = SimpleNamespace(block_scale_interleave_sm100=interleaved)
    put(
        monkeypatch,
        "quantization.fp4_quantization",
        get_compute_capability=lambda device: BLACKWELL,
        get_fp4_quantization_module=lambda arch: scales,
    )
    return reached


@pytest.mark.parametrize(
    "case",
    [
        point(2, "int4", sizes=(512, 256), experts=3),
        point(4, "int4", sizes=(256, 256), experts=3, routing="holes"),
    ],
)
def test_the_real_mxint4_hands_its_kernel_what_computes_the_op(
    case: Case, library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_mxint4(monkeypatch)
    inputs = drawn(case)
    prepared = OP.implementations["flashinfer_mxint4"].prepare(inputs)
    prepared.replan()
    assert error_of(prepared.outputs(), inputs) <= OP.tolerance.row


def test_mxint4_weights_lie_as_the_wheel_lays_out_its_own(
    library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = put_mxint4(monkeypatch)
    prepare = importlib.import_module("flashinfer.fused_moe.prepare")
    generator = torch.Generator().manual_seed(7)
    up_gate, down = (
        torch.randn(2, *sizes, generator=generator).bfloat16() for sizes in ((512, 512), (512, 256))
    )
    own = prepare.prepare_trtllm_mxint4_weights(
        up_gate, down, num_local_experts=2, hidden_size=512, intermediate_size=256
    )
    inputs = drawn(point(1, "int4", sizes=(512, 256), experts=2))
    for name, weights in (("gate_up", up_gate), ("down", down)):
        packed, scales = prepare._mxint4_quantize(weights)
        scales = scales.view(*weights.shape[:2], -1)
        if name == "gate_up":
            packed, scales = _formats.halves_swapped(packed), _formats.halves_swapped(scales)
        inputs |= {name: _formats.flipped(packed), f"{name}_scales": scales}
    OP.implementations["flashinfer_mxint4"].prepare(inputs).call()
    for name in ("gemm1_weights", "gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale"):
        assert torch.equal(reached[-1][name], own[name]), name


# ---- Frost ----


@pytest.fixture
def frost_library(library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Put the stand-in in place of the layer's kernels; this CPU is a device of capability 9.0."""
    if not hasattr(library.fused_moe, "FrostLowLatencyConfig"):
        pytest.skip(f"FlashInfer {library.__version__} has no Frost layer")
    backend = "fused_moe.backends.frost_low_latency"
    runtime = ModuleType(f"flashinfer.{backend}.runtime")
    vars(runtime)["execute"] = execute
    monkeypatch.setitem(sys.modules, runtime.__name__, runtime)
    monkeypatch.setattr(frost, "compiler_version", lambda: "4.8.0")
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True), raising=False)
    put(monkeypatch, f"{backend}.runner", version=lambda name: "4.8.0")
    put(monkeypatch, "fused_moe.layer", get_compute_capability=lambda device: HOPPER)
    put(monkeypatch, "utils", get_compute_capability=lambda device: HOPPER)
    tuner = importlib.import_module("flashinfer.autotuner").AutoTuner
    monkeypatch.setattr(
        tuner, "choose_one", lambda self, custom_op, runners, **given: (runners[0], -1)
    )
    return library


def execute(inputs: list[Any], config: Any, tactic: Any) -> torch.Tensor:
    """Compute what is handed to the two kernels of 4-bit weights."""
    x, first, first_scales, one, second, second_scales, other, ids, scores = inputs[:9]
    assert (one == 1).all()
    assert (other == 1).all()
    assert scores.dtype == torch.float32
    assert inputs[-1] is False  # scores are not narrowed
    view = {
        "fc1_expert_weights": first,
        "fc1_block_scales": first_scales,
        "fc2_expert_weights": second,
        "fc2_block_scales": second_scales,
    }
    y: torch.Tensor = inputs[-2].copy_(frost_kernels.compute(x, ids, scores, view))
    return y


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("flashinfer_frost", point(1, "int4", sizes=(128, 128))),
        ("flashinfer_frost", point(8, "int4", sizes=(256, 96), top_k=3)),
        ("flashinfer_frost", point(3, "int4", sizes=(128, 32), routing="twice")),
        ("flashinfer_frost_twice", point(13, "int4", sizes=(128, 32))),
    ],
)
def test_the_real_frost_layer_hands_its_kernels_what_computes_the_op(
    name: str, case: Case, frost_library: ModuleType
) -> None:
    inputs = drawn(case)
    prepared = OP.implementations[name].prepare(inputs)
    assert error_of(prepared.outputs(), inputs) <= OP.tolerance.row
    assert prepared.facts["flashinfer"] == frost_library.__version__
