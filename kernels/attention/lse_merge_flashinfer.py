"""`lse_merge` by FlashInfer's `merge_states`, whose LSEs are to base 2.

Parts go in as [rows, splits, 1, dim]: every row is a token of one head. With fewer splits than rows
FlashInfer takes a block for each token and all of its heads, here 16 to 32 threads; it would fill
larger blocks in [tokens, splits, heads, dim], which is not how split attention leaves its parts.

Each call first turns the LSEs to base 2, one small kernel more, for they are inputs: hence
`baseline-composed`. The merged LSE becomes natural in `convert`, which is not timed.

Refused: float32 parts (the wheel's kernel takes float16 and bfloat16), widths other than 64, 128,
256 and 512, and empty parts, which it reads and weighs with 0, so that NaN there spoils the row.

Source: signatures and kernels in the wheel of FlashInfer 0.6.18.post1; 0.7 by `_flashinfer`.
"""

import math

import torch

from kernels import Case, Needs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.attention.lse_merge import OP, must_fit

MERGE = Call(function="merge_states", needed=("v", "s"))
CALLS = (MERGE,)

_HEAD_DIMS = (64, 128, 256, 512)
_DTYPES = (torch.bfloat16, torch.float16)


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot merge these parts."""
    if case.dtype not in _DTYPES:
        return f"FlashInfer's merge_states takes float16 and bfloat16 parts, not {case.dtype}"
    if (dim := case.number("head_dim")) not in _HEAD_DIMS:
        return f"FlashInfer's merge_states takes a head_dim of {_HEAD_DIMS}, not {dim}"
    if case.dims["empty"] == "some":
        return "FlashInfer's merge_states reads what lies in empty parts, and 0 x NaN is NaN"
    return _flashinfer.why_not(CALLS)


@OP.prepared_implementation(
    "flashinfer",
    kind="baseline-composed",
    needs=Needs(capabilities=(80, 90, 100, 110, 120), packages=("flashinfer",), refuses=refuses),
)
def flashinfer_merge(*, part_out: torch.Tensor, part_lse: torch.Tensor) -> Prepared:
    """Prepare a view and room for the LSEs to base 2; a call converts and merges."""
    must_fit(part_out=part_out, part_lse=part_lse)
    library = _flashinfer.installed()
    base_2 = torch.empty_like(part_lse)
    merge = MERGE.find(library)
    given = MERGE.accepted(library, v=part_out[:, :, None], s=base_2[:, :, None]).kwargs

    def call() -> Outputs:
        torch.mul(part_lse, 1 / math.log(2), out=base_2)
        out, lse = merge(**given)
        return {"out": out[:, 0], "lse": lse[:, 0]}

    finite = _flashinfer.has_finite_infinity(library)

    def convert(given: Outputs) -> Outputs:
        return {**given, "lse": _flashinfer.natural_log(given["lse"], finite_infinity=finite)}

    facts = {
        "flashinfer": _flashinfer.version(library),
        "lse": "to base 2 in the call, made natural after it",
    }
    return Prepared(call=call, convert=convert, facts=facts)
