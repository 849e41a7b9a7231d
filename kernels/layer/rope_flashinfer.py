"""`rope` by FlashInfer's `apply_rope_with_cos_sin_cache`, which looks up the same table.

Its interleaved kernel loads 16 bytes more than a row of the table has, past the end for the last
position (read in pos_enc.cuh of both wheels): it gets a copy with a row more, made once.

Refused: head dims other than 64, 128, 256 and 512, which it sends through another kernel, and
rotated dims that its 16-byte loads do not divide.

Source: signature and kernels in the wheels of FlashInfer 0.6.18.post1 and 0.7.4.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels import Case, Needs, Outputs, Prepared, _flashinfer
from kernels._flashinfer import Call
from kernels.layer.rope import OP, Given

ROPE = Call(
    function="rope.apply_rope_with_cos_sin_cache",
    needed=("positions", "query", "key", "head_size", "cos_sin_cache", "is_neox"),
)
CALLS = (ROPE,)

_HEAD_DIMS = (64, 128, 256, 512)


def refuses(case: Case) -> str | None:
    """Say why FlashInfer, or the version that is installed, cannot compute this case."""
    dim, rotated = case.number("head_dim"), case.number("rotated")
    if dim not in _HEAD_DIMS:
        return f"FlashInfer's rotary kernel takes a head_dim of {_HEAD_DIMS}, not {dim}"
    step = max(8, dim // 32) * (1 if case.dims["style"] == "interleaved" else 2)
    if rotated % step:
        return f"FlashInfer's rotary kernel takes rotated dims that {step} divides, not {rotated}"
    return _flashinfer.why_not(CALLS)


@OP.prepared_implementation(
    "flashinfer",
    kind="baseline-direct",
    needs=Needs(
        capabilities=(80, 89, 90, 100, 110, 120), packages=("flashinfer",), refuses=refuses
    ),
)
def flashinfer_rope(**inputs: Any) -> Prepared:
    """Call it; it allocates its outputs."""
    given, library = Given(**inputs), _flashinfer.installed()
    rotate, table = ROPE.find(library), given.cos_sin
    if given.interleaved:
        table = torch.cat([table, table[-1:]])[:-1]
    named = ROPE.accepted(
        library,
        positions=given.positions,
        query=given.q,
        key=given.k,
        head_size=given.dim,
        cos_sin_cache=table,
        is_neox=not given.interleaved,
    ).kwargs

    def call() -> Outputs:
        q, k = rotate(**named)
        return {"q_out": q, "k_out": k}

    return Prepared(call=call, facts={"flashinfer": _flashinfer.version(library)}, launches=1)
