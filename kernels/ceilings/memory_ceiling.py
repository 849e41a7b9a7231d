"""What the memory of this device really gives: reading, writing and copying, and nothing else.

    memory_read:   sums[r]  = sum_c x[r, c]
    memory_write:  y[r, c]  = value[0]
    memory_copy:   y[r, c]  = x[r, c]

x, y [rows, COLS] float32, contiguous; value [1], sums [rows] float32. A copy counts its bytes
twice, read and written. The outputs are allocated once: a CPU's page faults are no bandwidth.

The best of the three is the ceiling that other rows are held to; see suites/ceilings.py. Cases are
far above any last-level cache: 1 GiB for a GPU, 256 MiB for a CPU.
"""

import torch
import triton
import triton.language as tl

from kernels import Case, Cost, Inputs, Needs, Op, Outputs, Prepared, Tolerance
from kernels._inputs import number, tensor

COLS = 16384
# Divides COLS, so that no load or store has anything to mask.
_BLOCK = 4096
_ROW_BYTES = 4 * COLS
_GPU = Needs(capabilities=(80, 89, 90, 100, 120), packages=("triton",))


def read_reference(*, x: torch.Tensor) -> Outputs:
    """Sum in float64."""
    return {"sums": x.sum(1, dtype=torch.float64)}


def write_reference(*, value: torch.Tensor, rows: int) -> Outputs:
    """Repeat the value."""
    return {"y": value.expand(rows, COLS)}


def copy_reference(*, x: torch.Tensor) -> Outputs:
    """Return x."""
    return {"y": x}


def _normal_rows(case: Case, device: torch.device) -> Inputs:
    return {"x": _normal(case, device, (_rows(case), COLS))}


def _one_value(case: Case, device: torch.device) -> Inputs:
    return {"value": _normal(case, device, (1,)), "rows": _rows(case)}


def _normal(case: Case, device: torch.device, sizes: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(case.seed)
    return torch.randn(sizes, generator=generator, device=device)


def _rows(case: Case) -> int:
    return case.number("bytes") // _ROW_BYTES


def read_cost(given: Inputs) -> Cost:
    """Read x, write a sum a row."""
    x = tensor(given, "x")
    return Cost(flops=x.numel(), read_bytes=x.nbytes, written_bytes=4 * len(x))


def write_cost(given: Inputs) -> Cost:
    """Write y."""
    return Cost(flops=0, read_bytes=4, written_bytes=number(given, "rows") * _ROW_BYTES)


def copy_cost(given: Inputs) -> Cost:
    """Read x, write y."""
    x = tensor(given, "x")
    return Cost(flops=0, read_bytes=x.nbytes, written_bytes=x.nbytes)


def _cases() -> tuple[Case, ...]:
    return (
        Case(name="3-rows", dims={"bytes": 3 * _ROW_BYTES}, dtype=torch.float32, tiny=True),
        Case(name="256M", dims={"bytes": 2**28}, dtype=torch.float32, cpu=True),
        Case(name="1G", dims={"bytes": 2**30}, dtype=torch.float32),
    )


READ = Op(
    name="memory_read",
    part="memory_ceiling",
    reference=read_reference,
    inputs=_normal_rows,
    cost=read_cost,
    cases=_cases(),
    tolerance=Tolerance(
        row=1e-4,
        why="float32 sums of 16,384 normals round by about 1e-5 where they are as large as usual",
        absolute={"sums": 1e-2},
    ),
)
WRITE = Op(
    name="memory_write",
    part="memory_ceiling",
    reference=write_reference,
    inputs=_one_value,
    cost=write_cost,
    cases=_cases(),
    tolerance=Tolerance(row=0.0, why="the value itself is stored"),
)
COPY = Op(
    name="memory_copy",
    part="memory_ceiling",
    reference=copy_reference,
    inputs=_normal_rows,
    cost=copy_cost,
    cases=_cases(),
    tolerance=Tolerance(row=0.0, why="the values themselves are stored"),
)


@triton.jit
def _read(x_ptr, sums_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, COLS, BLOCK):
        total += tl.load(x_ptr + row * COLS + start + tl.arange(0, BLOCK))  # [BLOCK]
    tl.store(sums_ptr + row, tl.sum(total))


@triton.jit
def _write(value_ptr, y_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    values = tl.zeros([BLOCK], tl.float32) + tl.load(value_ptr)  # [BLOCK]
    for start in range(0, COLS, BLOCK):
        tl.store(y_ptr + row * COLS + start + tl.arange(0, BLOCK), values)


@triton.jit
def _copy(x_ptr, y_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for start in range(0, COLS, BLOCK):
        at = row * COLS + start + tl.arange(0, BLOCK)  # [BLOCK]
        tl.store(y_ptr + at, tl.load(x_ptr + at))


@READ.prepared_implementation("triton", needs=_GPU, declares=("wide_load",))
def read_triton(*, x: torch.Tensor) -> Prepared:
    """Give each row to one program."""
    sums = torch.empty(len(x), device=x.device)

    def call() -> Outputs:
        _read[(len(x),)](x, sums, COLS=COLS, BLOCK=_BLOCK, num_warps=8)
        return {"sums": sums}

    return Prepared(call=call)


@WRITE.prepared_implementation("triton", needs=_GPU)
def write_triton(*, value: torch.Tensor, rows: int) -> Prepared:
    """Give each row to one program."""
    y = torch.empty(rows, COLS, device=value.device)

    def call() -> Outputs:
        _write[(rows,)](value, y, COLS=COLS, BLOCK=_BLOCK, num_warps=8)
        return {"y": y}

    return Prepared(call=call)


@COPY.prepared_implementation("triton", needs=_GPU, declares=("wide_load",))
def copy_triton(*, x: torch.Tensor) -> Prepared:
    """Give each row to one program."""
    y = torch.empty_like(x)

    def call() -> Outputs:
        _copy[(len(x),)](x, y, COLS=COLS, BLOCK=_BLOCK, num_warps=8)
        return {"y": y}

    return Prepared(call=call)


@READ.prepared_implementation("torch", kind="baseline-direct")
def read_torch(*, x: torch.Tensor) -> Prepared:
    """Sum each row."""
    sums = torch.empty(len(x), device=x.device)
    return Prepared(call=lambda: {"sums": torch.sum(x, 1, out=sums)})


@WRITE.prepared_implementation("torch", kind="baseline-direct")
def write_torch(*, value: torch.Tensor, rows: int) -> Prepared:
    """Copy the value everywhere."""
    y = torch.empty(rows, COLS, device=value.device)
    return Prepared(call=lambda: {"y": y.copy_(value)})


@COPY.prepared_implementation("torch", kind="baseline-direct")
def copy_torch(*, x: torch.Tensor) -> Prepared:
    """Copy x."""
    y = torch.empty_like(x)
    return Prepared(call=lambda: {"y": y.copy_(x)})
