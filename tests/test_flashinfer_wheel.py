"""The FlashInfer baselines against the FlashInfer that is installed, without a GPU.

Each declared call is bound to the real signature, and the real wrapper's own Python carries a plan
to its kernel, whose place the stand-in takes: what arrives there must compute the op.
"""

import importlib
import importlib.util
import inspect
import math
import pkgutil
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import kernels
from kernels import Case, _flashinfer
from kernels._flashinfer import Call
from kernels.tree_attention import OP
from tests import flashinfer_stand_in as stand_in
from tests.test_flashinfer import PLANS, VERSIONS, assert_right, case, drawn

ADAPTERS = [
    importlib.import_module(f"kernels.{info.name}")
    for info in pkgutil.iter_modules(kernels.__path__)
    if info.name.endswith("_flashinfer") and not info.name.startswith("_")
]
CALLS = [
    pytest.param(call, id=f"{module.__name__.removeprefix('kernels.')}-{call.function}-{number}")
    for module in ADAPTERS
    for number, call in enumerate(module.CALLS)
]


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


@pytest.mark.parametrize("call", CALLS)
def test_each_declared_call_binds(call: Call, installed: ModuleType) -> None:
    assert call.why_not(installed) is None
    accepted = call.accepted(installed, **dict.fromkeys([*call.needed, *call.offered]))
    signature = inspect.signature(call.find(installed))
    bound = signature.bind(*(["self"] if "self" in signature.parameters else []), **accepted.kwargs)
    assert set(call.needed) <= set(bound.arguments)


@pytest.mark.parametrize("call", CALLS)
def test_the_stand_in_has_the_real_signatures(
    call: Call, installed: ModuleType, known: str
) -> None:
    mine = inspect.signature(call.find(stand_in.library(known))).parameters
    theirs = inspect.signature(call.find(installed)).parameters
    assert {name: (p.kind, p.default) for name, p in mine.items()} == {
        name: (p.kind, p.default) for name, p in theirs.items()
    }


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(case(1, 0), id="root-alone"),
        pytest.param(case(4, 63, page=64), id="page-64"),
        pytest.param(case(5, 61, tree="mixed", requests=5), id="ragged"),
        pytest.param(case(3, 50, tree="star", requests=3, page=1), id="ragged-page-1"),
    ],
)
@pytest.mark.parametrize("name", PLANS)
def test_the_real_wrapper_hands_its_kernel_what_computes_the_op(
    name: str, point: Case, installed: ModuleType, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = _Kernel(-5e4 if known.startswith("0.6") else -math.inf)
    _instead_of_a_gpu(monkeypatch, kernel)
    inputs = drawn(point)
    prepared = OP.implementations[name].prepare(inputs)
    assert_right(prepared.outputs(), inputs)
    if name == "flashinfer_graph" and known.startswith("0.7"):
        assert point.number("rows") in kernel.planned[-2:]  # uniform_q_len reached the planner


class _Kernel:
    """Stands where the compiled module is: it sees the arguments that the kernel would."""

    workspace_size = None

    def __init__(self, empty: float) -> None:
        self.infinity, self.planned = -empty, tuple[Any, ...]()

    def plan(self, *args: object) -> list[int]:
        self.planned = args
        return [0, 0, 0, 16]

    def paged_run(self, *args: Any) -> None:
        q, k_cache, v_cache, qo_indptr, indptr, indices, last_page_len, out, lse, mask = args[3:13]
        assert mask == 2  # custom
        me = SimpleNamespace(
            infinity=self.infinity,
            planned={
                "page_size": k_cache.shape[1],
                "num_qo_heads": q.shape[1],
                "num_kv_heads": k_cache.shape[2],
                "sm_scale": args[23],
            },
            lists={
                "paged_kv_indptr": indptr,
                "paged_kv_indices": indices,
                "paged_kv_last_page_len": last_page_len,
                "custom_mask": args[16],
                "mask_indptr": args[17],
            },
        )
        ends = qo_indptr.tolist()
        for request in range(len(ends) - 1):
            rows = slice(ends[request], ends[request + 1])
            out[rows], lse[rows] = stand_in.attend(me, request, q[rows], k_cache, v_cache)


def _instead_of_a_gpu(monkeypatch: pytest.MonkeyPatch, kernel: _Kernel) -> None:
    """Replace what asks for a device: pinned memory and the two compiled modules."""
    prefill = importlib.import_module("flashinfer.prefill")
    packbits = importlib.import_module(
        inspect.getmodule(inspect.unwrap(prefill.segment_packbits)).__name__  # type: ignore[union-attr]  # it has a module
    )
    allocate = torch.empty

    def pageable(*size: Any, pin_memory: bool = False, **given: Any) -> torch.Tensor:
        return allocate(*size, **given)

    def pack(x: torch.Tensor, indptr: torch.Tensor, _: object, order: str, y: torch.Tensor) -> None:
        y.copy_(stand_in.segment_packbits(x, indptr, order)[0])

    monkeypatch.setattr(torch, "empty", pageable)
    monkeypatch.setattr(_flashinfer, "WORKSPACE_BYTES", 1024)
    _flashinfer.workspace.cache_clear()
    monkeypatch.setattr(
        packbits, "get_quantization_module", lambda: SimpleNamespace(segment_packbits=pack)
    )
    monkeypatch.setattr(prefill, "get_batch_prefill_module", lambda *_: kernel)
    monkeypatch.setattr(prefill, "device_support_pdl", lambda device: False)
    monkeypatch.setattr(prefill, "_get_cache_alibi_slopes_buf", lambda heads, device: None)
