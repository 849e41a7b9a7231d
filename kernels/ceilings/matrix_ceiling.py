"""What the matrix units of this device really give: one large square product.

    c[m, n] = sum_k a[m, k] b[k, n]

a, b, c [size, size], contiguous, of the case's dtype; sums in float32. 2 size^3 flops. The best
time for a dtype is the peak that rows of that dtype are held to; see suites/ceilings.py.
"""

import torch

from kernels import Case, Cost, Inputs, Op, Outputs, Prepared, Tolerance
from kernels._inputs import tensor
from verifyscope.records import Value


def reference(*, a: torch.Tensor, b: torch.Tensor) -> Outputs:
    """Multiply in float64 on a CPU, in float32 on a GPU, where float64 is slow and large."""
    wide = torch.float32 if a.is_cuda else torch.float64
    return {"c": a.to(wide) @ b.to(wide)}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw a and b normal."""
    generator = torch.Generator(device).manual_seed(case.seed)
    size = case.number("size")

    def normal() -> torch.Tensor:
        return torch.randn(size, size, generator=generator, device=device, dtype=case.dtype)

    return {"a": normal(), "b": normal()}


def cost(given: Inputs) -> Cost:
    """Count each multiply-add as 2 flops; read a and b, write c."""
    a = tensor(given, "a")
    return Cost(flops=2 * len(a) ** 3, read_bytes=2 * a.nbytes, written_bytes=a.nbytes)


def _case(size: int, dtype: torch.dtype, *, cpu: bool = False, tiny: bool = False) -> Case:
    name = str(dtype).removeprefix("torch.")
    dims: dict[str, Value] = {"size": size, "dtype": name}
    return Case(name=f"{size}-{name}", dims=dims, dtype=dtype, cpu=cpu, tiny=tiny)


OP = Op(
    name="matrix_ceiling",
    part="matrix_ceiling",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(
        _case(48, torch.float32, tiny=True),
        _case(1024, torch.float32, cpu=True),
        _case(8192, torch.bfloat16),
        _case(8192, torch.float16),
    ),
    tolerance=Tolerance(
        row=1e-2,
        why="c is rounded once to at least 8 bits, which moves a row by 2**-8 at most; the rest is "
        "room for float16 and bfloat16 sums that a library may split",
    ),
)


@OP.prepared_implementation("torch", kind="baseline-direct")
def matrix_torch(*, a: torch.Tensor, b: torch.Tensor) -> Prepared:
    """Call the vendor's library through torch."""
    c = torch.empty_like(a)
    return Prepared(call=lambda: {"c": torch.matmul(a, b, out=c)})
