"""y = 2 x, computed rightly, wrongly and not at all: what the suites make of it is what is tested.

x, y [numbers] float32. The implementations that sleep are called once a sample, so that the order
of their calls is the order of measurement; it goes to the file that DOUBLING_LOG names.
"""

import os
import time
from pathlib import Path

import torch

from kernels import Case, Cost, Inputs, Needs, Op, Outputs, Prepared, Stage, Tolerance

_CALL_S = 2e-3


def reference(*, x: torch.Tensor) -> Outputs:
    """Double."""
    return {"y": 2 * x}


def inputs(case: Case, device: torch.device) -> Inputs:
    """Draw a normal x."""
    generator = torch.Generator(device).manual_seed(case.seed)
    return {"x": torch.randn(case.number("numbers"), generator=generator, device=device)}


def cost(given: Inputs) -> Cost:
    """Read x, write y."""
    x = given["x"]
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x is {x!r}, not a tensor")
    return Cost(flops=x.numel(), read_bytes=x.nbytes, written_bytes=x.nbytes)


OP = Op(
    name="doubling",
    part="activation",
    reference=reference,
    inputs=inputs,
    cost=cost,
    cases=(
        Case(name="few", dims={"rows": 1, "numbers": 8}, dtype=torch.float32, cpu=True),
        Case(name="more", dims={"rows": 2, "numbers": 16}, dtype=torch.float32, cpu=True),
        Case(name="huge", dims={"rows": 4, "numbers": 2**40}, dtype=torch.float32),
    ),
    tolerance=Tolerance(row=0.0, why="doubling a float is exact"),
)


def _log(letter: str) -> None:
    if path := os.environ.get("DOUBLING_LOG"):
        with Path(path).open("a") as file:
            file.write(letter)


@OP.implementation("first")
def first(*, x: torch.Tensor) -> Outputs:
    """Add."""
    _log("A")
    time.sleep(_CALL_S)
    return {"y": x + x}


@OP.prepared_implementation("second", kind="baseline-direct")
def second(*, x: torch.Tensor) -> Prepared:
    """Multiply, after a plan."""

    def fill() -> torch.Tensor:
        return torch.full_like(x, 2)

    twice = fill()

    def call() -> Outputs:
        _log("B")
        time.sleep(_CALL_S)
        return {"y": x * twice}

    return Prepared(call=call, facts={"factor": "2"}, stages=(Stage(name="fill", run=fill),))


@OP.implementation("wrong")
def wrong(*, x: torch.Tensor) -> Outputs:
    """Triple."""
    return {"y": 3 * x}


@OP.implementation("raising")
def raising(*, x: torch.Tensor) -> Outputs:
    """Raise, naming a folder that no record may hold."""
    raise OSError("no library in /home/someone/lib/double.so")


@OP.implementation("interrupted", needs=Needs(refuses=lambda case: _why_not_interrupted()))
def interrupted(*, x: torch.Tensor) -> Outputs:
    """Behave as if Ctrl-C was pressed at a call that DOUBLING_INTERRUPT numbers."""
    _CALLS.append(None)
    time.sleep(_CALL_S)
    if len(_CALLS) == int(os.environ["DOUBLING_INTERRUPT"]):
        raise KeyboardInterrupt
    return {"y": 2 * x}


_CALLS: list[None] = []


def _why_not_interrupted() -> str | None:
    return None if "DOUBLING_INTERRUPT" in os.environ else "nobody presses Ctrl-C"


@OP.implementation("gpu", needs=Needs(capabilities=(80, 90)))
def on_a_gpu(*, x: torch.Tensor) -> Outputs:
    """Need what no test machine has."""
    return {"y": 2 * x}
