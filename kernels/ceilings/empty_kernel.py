"""The floor under every kernel: one launch that writes one number.

    y[0] = value[0]

value, y [1] float32. A kernel that did nothing at all could not be shown to have run; this one can.
Its time is reported beside the others and never subtracted from them.
"""

import torch
import triton
import triton.language as tl

from kernels import Case, Cost, Inputs, Needs, Op, Outputs, Prepared, Tolerance


def reference(*, value: torch.Tensor) -> Outputs:
    """Return the value."""
    return {"y": value}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw one normal number."""
    generator = torch.Generator(device).manual_seed(case.seed)
    return {"value": torch.randn(1, generator=generator, device=device)}


def cost(given: Inputs) -> Cost:
    """Move one number."""
    return Cost(flops=0, read_bytes=4, written_bytes=4)


OP = Op(
    name="empty_kernel",
    part="empty_kernel",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(Case(name="one-number", dims={"numbers": 1}, dtype=torch.float32, tiny=True, cpu=True),),
    tolerance=Tolerance(row=0.0, why="the value itself is stored"),
)


@triton.jit
def _one_number(value_ptr, y_ptr):
    tl.store(y_ptr, tl.load(value_ptr))


@OP.prepared_implementation(
    "triton", needs=Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",))
)
def empty_triton(*, value: torch.Tensor) -> Prepared:
    """Launch one program of one warp."""
    y = torch.empty_like(value)

    def call() -> Outputs:
        _one_number[(1,)](value, y, num_warps=1)
        return {"y": y}

    return Prepared(call=call)


@OP.prepared_implementation("torch", kind="baseline-direct")
def empty_torch(*, value: torch.Tensor) -> Prepared:
    """Copy through torch: on a CPU, the floor under every call."""
    y = torch.empty_like(value)
    return Prepared(call=lambda: {"y": y.copy_(value)})
