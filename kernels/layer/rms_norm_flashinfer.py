"""`rms_norm` by FlashInfer: `rmsnorm`, and with a residual `fused_add_rmsnorm`, which is in place.

What that overwrites are copies of x and of the residual, put back before each call whose result is
looked at and never while it is timed: then the residual grows by what each call adds to it, float16
in the end to infinity. No time depends on it.

Which kernels a wheel takes (CUDA C++, or CuTe DSL where nvidia-cutlass-dsl is installed) stands in
the record.

Source: signatures and kernels in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from kernels import Case, Needs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.layer.rms_norm import OP, Given

NORM = Call(function="norm.rmsnorm", needed=("input", "weight", "eps"))
ADD_NORM = Call(function="norm.fused_add_rmsnorm", needed=("input", "residual", "weight", "eps"))
CALLS = (NORM, ADD_NORM)


def refuses(case: Case) -> str | None:
    """Say why the FlashInfer here cannot compute this case."""
    return _flashinfer.why_not((ADD_NORM if case.dims["residual"] == "added" else NORM,))


@OP.prepared_implementation(
    "flashinfer",
    kind="baseline-direct",
    needs=Needs(
        capabilities=(80, 89, 90, 100, 110, 120), packages=("flashinfer",), refuses=refuses
    ),
)
def flashinfer_norm(**inputs: Any) -> Prepared:
    """Call one of the two; without a residual it allocates its output."""
    given, library = Given(**inputs), _flashinfer.installed()
    facts = {"flashinfer": _flashinfer.version(library), "kernels": _kernels_of(library)}
    if given.residual is not None:
        return _in_place(given, given.residual, library=library, facts=facts)
    norm = NORM.find(library)
    named = NORM.accepted(library, input=given.x, weight=given.weight, eps=given.eps).kwargs

    def call() -> Outputs:
        return {"y": norm(**named)}

    return Prepared(call=call, facts=facts, launches=1)


def _in_place(
    given: Given, added: torch.Tensor, *, library: ModuleType, facts: Mapping[str, str]
) -> Prepared:
    x, residual = given.x.clone(memory_format=torch.contiguous_format), added.clone()
    add_norm = ADD_NORM.find(library)
    named = ADD_NORM.accepted(
        library, input=x, residual=residual, weight=given.weight, eps=given.eps
    ).kwargs

    def call() -> Outputs:
        add_norm(**named)
        return {"y": x, "new_residual": residual}

    def restore() -> None:
        x.copy_(given.x)
        residual.copy_(added)

    return Prepared(call=call, restore=restore, facts=facts, launches=1)


def _kernels_of(library: ModuleType) -> str:
    if not hasattr(library.norm, "_USE_CUDA_NORM"):
        return "not known"
    return "CUDA C++" if library.norm._USE_CUDA_NORM else "CuTe DSL"
