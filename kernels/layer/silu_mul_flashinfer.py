"""`silu_mul` by FlashInfer's `silu_and_mul`: the same order, float32 to the end.

Refused: widths that are no multiple of 8. The wheel checks 16 bytes of both halves together, and
0.6.18 reads the second one in 16-byte loads wherever it begins.

Source: signature and kernel in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

import torch

from kernels import Case, Needs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.layer.silu_mul import OP, must_fit

SILU = Call(function="activation.silu_and_mul", needed=("input",))
CALLS = (SILU,)

_VECTOR = 8


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot compute this case."""
    if (width := case.number("width")) % _VECTOR:
        return f"FlashInfer's silu_and_mul takes widths that {_VECTOR} divides, not {width}"
    return _flashinfer.why_not(CALLS)


@OP.prepared_implementation(
    "flashinfer",
    kind="baseline-direct",
    needs=Needs(
        capabilities=(80, 89, 90, 100, 110, 120), packages=("flashinfer",), refuses=refuses
    ),
)
def flashinfer_silu_mul(*, gate_up: torch.Tensor) -> Prepared:
    """Call it; it allocates its output."""
    must_fit(gate_up)
    library = _flashinfer.installed()
    silu_and_mul = SILU.find(library)
    given = SILU.accepted(library, input=gate_up).kwargs

    def call() -> Outputs:
        return {"y": silu_and_mul(**given)}

    return Prepared(call=call, facts={"flashinfer": _flashinfer.version(library)}, launches=1)
