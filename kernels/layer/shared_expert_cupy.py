"""`shared_expert` in CUDA C++ through CuPy: two launches, both of `_skinny_cupy`.

The first computes gate and up of the same outputs in one block and joins them; where it is cut into
parts, their sums are. The second is cut only where a rank's width is large and its hidden size
small. Refused: hidden sizes and widths that are no multiples of 8, which 16-byte loads cannot read.
"""

from __future__ import annotations

from typing import Any

from kernels import Case, Needs, Prepared
from kernels.layer import _skinny_mlp
from kernels.layer._elementwise_cuda import why_not_width
from kernels.layer._skinny_cupy import plan_for, product
from kernels.layer.shared_expert import OP, Given


def _refuses(case: Case) -> str | None:
    return why_not_width(case.number("hidden")) or why_not_width(case.number("width"))


@OP.prepared_implementation(
    "cupy",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("cupy",), refuses=_refuses),
    declares=("tensor_core", "wide_load"),
)
def cupy_mlp(**inputs: Any) -> Prepared:
    """Compute both products in CUDA C++."""
    return _skinny_mlp.prepared(Given(**inputs), plan_for=plan_for, product=product)
