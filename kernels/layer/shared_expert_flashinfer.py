"""`shared_expert` composed of FlashInfer's products of few rows and its activation.

`gemm.tinygemm_bf16` (tinygemm2 of TensorRT-LLM: made for up to 8 rows, of more it takes several
tiles), `activation.silu_and_mul`, and the first again: three launches. No single call of FlashInfer
computes a dense gated MLP. Its `cutlass_fused_moe` with one expert would, behind a routing that is
none; `mm_bf16` is the vendor's library by default, which `torch` stands for.

Refused: float16, sizes that its tiles of 64 inputs and 16 outputs do not divide; capability 8.x.

Source: signatures and Python in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels import Case, Needs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.layer.shared_expert import OP, Given

GEMM = Call(function="gemm.tinygemm_bf16", needed=("input", "weight", "out"))
JOIN = Call(function="activation.silu_and_mul", needed=("input", "out"))
CALLS = (GEMM, JOIN)

_INPUTS = 64


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot compute this case."""
    if case.dtype is not torch.bfloat16:
        return f"FlashInfer's tinygemm_bf16 takes bfloat16, not {case.dtype}"
    for dim in ("hidden", "width"):
        if (size := case.number(dim)) % _INPUTS:
            return f"FlashInfer's tinygemm_bf16 takes sizes that {_INPUTS} divides; {dim} is {size}"
    return _flashinfer.why_not(CALLS)


@OP.prepared_implementation(
    "flashinfer",
    kind="baseline-composed",
    needs=Needs(capabilities=(90, 100, 110, 120), packages=("flashinfer",), refuses=refuses),
)
def flashinfer_mlp(**inputs: Any) -> Prepared:
    """Multiply, join, multiply, into memory that is allocated before."""
    given, library = Given(**inputs), _flashinfer.installed()
    x, rows, width = given.x, given.rows, given.width
    gate_up, between, y = (x.new_empty(rows, n) for n in (2 * width, width, given.hidden))
    multiply, join = GEMM.find(library), JOIN.find(library)
    first = GEMM.accepted(library, input=x, weight=given.gate_up, out=gate_up).kwargs
    joined = JOIN.accepted(library, input=gate_up, out=between).kwargs
    second = GEMM.accepted(library, input=between, weight=given.down, out=y).kwargs

    def call() -> Outputs:
        multiply(**first)
        join(**joined)
        multiply(**second)
        return {"y": y}

    return Prepared(call=call, facts={"flashinfer": _flashinfer.version(library)}, launches=3)
