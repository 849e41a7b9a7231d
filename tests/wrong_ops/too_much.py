"""y = a b, by kernels that take too much, hold too little, or do not compile.

a, b, y: [size, size] float32. An op for the tests of the compile gate alone.
"""

import torch
import triton
import triton.language as tl

from kernels import Case, Cost, Inputs, Needs, Op, Outputs, Tolerance
from kernels._raw import RawKernel

_TRITON = Needs(capabilities=(80, 120), packages=("triton",))
_RAW = Needs(capabilities=(80, 120), packages=("cupy",))


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw normal matrices, the same on every call."""
    generator = torch.Generator(device).manual_seed(case.seed)
    size = case.number("size")
    a, b = (torch.randn(size, size, generator=generator, device=device) for _ in range(2))
    return {"a": a, "b": b}


OP = Op(
    name="too_much",
    part="dense_mlp",
    reference=lambda a, b: {"y": a @ b},
    inputs=inputs,
    cost=lambda inputs: Cost(flops=1, read_bytes=1, written_bytes=1),
    cases=(Case(name="small", dims={"size": 16}, tiny=True),),
    gate_cases=(Case(name="gate-128", dims={"size": 128}),),
    tolerance=Tolerance(row=1e-2, why="products in TF32"),
)


@triton.jit
def _product(a_ptr, b_ptr, y_ptr, SIZE: tl.constexpr):
    n = tl.arange(0, SIZE)
    cell = n[:, None] * SIZE + n[None, :]
    tl.store(y_ptr + cell, tl.dot(tl.load(a_ptr + cell), tl.load(b_ptr + cell)))


@OP.implementation("whole-matrix", needs=_TRITON, declares=("tensor_core",))
def whole_matrix(a: torch.Tensor, b: torch.Tensor) -> Outputs:
    """Hold both matrices in shared memory: 128 KiB for 128 columns."""
    y = torch.empty_like(a)
    _product[(1,)](a, b, y, SIZE=len(a), num_warps=8)
    return {"y": y}


_SPILLING = RawKernel(
    "spilling",
    """
extern "C" __global__ void spilling(const int* a, int* y, int count) {
  int mine[64] = {};
  for (int n = 0; n < count; n++) mine[a[n] & 63] += mine[a[n + 1] & 63] + n;
  y[threadIdx.x] = mine[a[threadIdx.x] & 63];
}
""",
)
_ONE_LOAD = RawKernel(
    "one_load",
    'extern "C" __global__ void one_load(const float* a, float* y) { y[threadIdx.x] = *a; }',
)
_CROWDED = RawKernel(
    "crowded",
    """
extern "C" __global__ void crowded(const float* a, float* y) {
  float mine[96];
#pragma unroll
  for (int n = 0; n < 96; n++) mine[n] = a[n * 1024 + threadIdx.x];
#pragma unroll
  for (int n = 0; n < 96; n++) y[n * 1024 + threadIdx.x] = mine[n] * mine[(n * 37 + 11) % 96];
}
""",
    options=("--maxrregcount=128",),
)
_UNKNOWN = RawKernel(
    "unknown", 'extern "C" __global__ void unknown(float* y) {\n  y[0] = no_such_name;\n}'
)


@OP.implementation("spills", needs=_RAW)
def spills(a: torch.Tensor, b: torch.Tensor) -> Outputs:
    """Index an array by values that are not known, which puts it into local memory."""
    _SPILLING((1,), (32,), a, b, 8)
    return {"y": a}


@OP.implementation("too-many-threads", needs=_RAW)
def too_many_threads(a: torch.Tensor, b: torch.Tensor) -> Outputs:
    """Keep 96 numbers in each of 1,024 threads, which no multiprocessor has registers for."""
    _CROWDED((1,), (1024,), a, b)
    return {"y": a}


@OP.implementation("no-tensor-core", needs=_RAW, declares=("tensor_core", "wide_load"))
def no_tensor_core(a: torch.Tensor, b: torch.Tensor) -> Outputs:
    """Declare what is not there."""
    _ONE_LOAD((1,), (32,), a, b)
    return {"y": a}


@OP.implementation("does-not-compile", needs=_RAW)
def does_not_compile(a: torch.Tensor, b: torch.Tensor) -> Outputs:
    """Name what is not declared."""
    _UNKNOWN((1,), (32,), a)
    return {"y": a}


@OP.implementation("launches-nothing", needs=_RAW)
def launches_nothing(a: torch.Tensor, b: torch.Tensor) -> Outputs:
    """Leave it to torch."""
    return {"y": a @ b}
