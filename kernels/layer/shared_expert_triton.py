"""`shared_expert` in Triton: two launches, both of `_skinny_triton`.

The first computes gate and up of the same outputs in one program and joins them; where it is cut
into parts, their sums are. The second is cut only where a rank's width is large and its hidden size
small.
"""

from __future__ import annotations

from typing import Any

from kernels import Needs, Prepared
from kernels.layer import _skinny_mlp
from kernels.layer._skinny_triton import plan_for, product
from kernels.layer.shared_expert import OP, Given


@OP.prepared_implementation(
    "triton",
    needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",)),
    declares=("tensor_core", "wide_load"),
)
def triton_mlp(**inputs: Any) -> Prepared:
    """Compute both products in Triton."""
    return _skinny_mlp.prepared(Given(**inputs), plan_for=plan_for, product=product)
