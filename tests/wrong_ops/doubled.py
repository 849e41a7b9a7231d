"""y = 2 x, and every way to get it wrong: what the checks and their workers must survive and name.

x, y: [rows, cols] float32. An op for the tests alone.
"""

import os
import signal
import time

import torch

from kernels import Case, Cost, Inputs, Needs, Op, Outputs, Tolerance


def reference(x: torch.Tensor) -> Outputs:
    """Double in float32; the sums of rows beside it."""
    return {"y": 2 * x, "sum": 2 * x.sum(-1)}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw a normal x, the same on every call."""
    generator = torch.Generator(device).manual_seed(case.seed)
    return {"x": torch.randn(case.number("rows"), 8, generator=generator, device=device)}


OP = Op(
    name="doubled",
    part="norms",
    reference=reference,
    inputs=inputs,
    cost=lambda inputs: Cost(flops=1, read_bytes=1, written_bytes=1),
    cases=(Case(name="small", dims={"rows": 3}, tiny=True),),
    tolerance=Tolerance(row=1e-6, absolute={"sum": 1e-5}, why="float32 throughout"),
)


@OP.implementation("right")
def right(x: torch.Tensor) -> Outputs:
    """Nothing wrong here."""
    return reference(x)


@OP.implementation("no-sum", omits=("sum",))
def no_sum(x: torch.Tensor) -> Outputs:
    """Say that an output is left out."""
    return {"y": 2 * x}


@OP.implementation("one-row-off")
def one_row_off(x: torch.Tensor) -> Outputs:
    """Get one row wrong by a tenth."""
    y = 2 * x
    y[1] *= 1.1
    return {"y": y, "sum": 2 * x.sum(-1)}


@OP.implementation("last-column-unwritten")
def last_column_unwritten(x: torch.Tensor) -> Outputs:
    """Forget a column."""
    y = torch.empty_like(x)
    y[:, :-1] = 2 * x[:, :-1]
    return {"y": y, "sum": 2 * x.sum(-1)}


@OP.implementation("writes-its-input")
def writes_its_input(x: torch.Tensor) -> Outputs:
    """Double in place."""
    x *= 2
    return {"y": x.clone(), "sum": x.sum(-1)}


@OP.implementation("raises")
def raises(x: torch.Tensor) -> Outputs:
    """Fail as a kernel's launcher does."""
    raise RuntimeError(f"no tiles\nfor {len(x)} rows")


@OP.implementation("crashes")
def crashes(x: torch.Tensor) -> Outputs:
    """End the process as a wild pointer does."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return reference(x)


@OP.implementation("hangs")
def hangs(x: torch.Tensor) -> Outputs:
    """Never come back."""
    time.sleep(600)
    return reference(x)


@OP.implementation("refuses", needs=Needs(refuses=lambda case: f"not for {case.name} cases"))
def refuses(x: torch.Tensor) -> Outputs:
    """Be asked for what it cannot do."""
    return reference(x)
