"""What the tests of the FlashInfer baselines share: cases, a stand-in in place, a comparison."""

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

import kernels
from kernels import Case, Inputs, Op, Outputs, _flashinfer
from kernels._flashinfer import Call
from kernels._registry import modules
from kernels.attention import mla_verify, tree_attention
from kernels.attention import tree_attention_flashinfer_xqa as xqa
from verifyscope.records import Value

VERSIONS = ("0.6.18", "0.7.4")
CPU = torch.device("cpu")
ADAPTERS = [
    importlib.import_module(name) for name in modules(kernels.__path__) if "_flashinfer" in name
]


def calls_of(adapter: ModuleType, library: ModuleType) -> tuple[Call, ...]:
    """Return the calls that an adapter makes of this version; none before its `SINCE`."""
    if _flashinfer.is_before(library, getattr(adapter, "SINCE", ())):
        return ()
    calls: tuple[Call, ...] = adapter.CALLS if hasattr(adapter, "CALLS") else adapter.calls(library)
    return calls


def case(
    rows: int,
    context: int,
    *,
    tree: str = "eagle4",
    page: int = 16,
    requests: int = 1,
    heads: tuple[int, int] = (6, 2),
    dim: int = 64,
    kv: str = "bf16",
) -> Case:
    """Return a point of `tree_attention`."""
    dims: dict[str, Value] = {
        "rows": rows,
        "requests": requests,
        "context": context,
        "lengths": "ragged",
        "tree": tree,
        "page": page,
        "q_heads": heads[0],
        "kv_heads": heads[1],
        "head_dim": dim,
        "kv": kv,
    }
    return Case(name="point", dims=dims, seed=rows + context)


def mla_case(
    rows: int,
    context: int,
    *,
    tree: str = "eagle4",
    page: int = 16,
    requests: int = 1,
    heads: int = 4,
    kv: str = "bf16",
) -> Case:
    """Return a point of `mla_verify`."""
    dims: dict[str, Value] = {
        "rows": rows,
        "requests": requests,
        "context": context,
        "lengths": "ragged",
        "tree": tree,
        "page": page,
        "heads": heads,
        "latent": 512,
        "rope": 64,
        "kv": kv,
    }
    return Case(name="point", dims=dims, seed=rows + context)


def drawn(point: Case) -> dict[str, Any]:
    """Draw the inputs of a point of either op."""
    op = mla_verify.OP if "latent" in point.dims else tree_attention.OP
    return dict(op.inputs(point, CPU))


def use(monkeypatch: pytest.MonkeyPatch, library: ModuleType) -> ModuleType:
    """Let `library` be the FlashInfer of this test, with little scratch memory."""
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    monkeypatch.setattr(_flashinfer, "cannot_build", lambda: None)
    fresh(monkeypatch)
    return library


def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what was cached of another FlashInfer, for this test."""
    monkeypatch.setattr(_flashinfer, "WORKSPACE_BYTES", 1024)
    for module, name in (
        (_flashinfer, "workspace"),
        (_flashinfer, "_import_failure"),
        (xqa, "semaphores"),
    ):
        cached = getattr(module, name)
        monkeypatch.setattr(module, name, functools.cache(cached.__wrapped__))


def assert_right(op: Op, outputs: Outputs, inputs: Inputs) -> None:
    """Hold what `outputs` has to the reference."""
    want = op.reference(**inputs)
    error = (outputs["out"].double() - want["out"]).norm(dim=-1) / want["out"].norm(dim=-1)
    assert error.max() <= op.tolerance.row  # NaN fails too
    if "lse" in outputs:
        assert (outputs["lse"] - want["lse"]).abs().max() <= op.tolerance.absolute["lse"]


def run_right(op: Op, name: str, point: Case) -> None:
    """Run an implementation that must serve `point`, and hold it to the reference."""
    implementation = op.implementations[name]
    assert implementation.needs.refuses(point) is None
    inputs = drawn(point)
    outputs = implementation.run(inputs)
    assert set(outputs) == {"out", "lse"} - set(implementation.omits)
    assert_right(op, outputs, inputs)
