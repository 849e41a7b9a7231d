"""Kernels under test. Every public module here declares one Op or adds to one.

The names below are found on first use, so that `python -m kernels --help` needs no torch.
"""

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels._registry import (
        Case,
        Cost,
        Implementation,
        Inputs,
        Needs,
        Op,
        Outputs,
        Prepared,
        Stage,
        Tolerance,
        all_ops,
        find_op,
        implementations,
    )

__all__ = [
    "Case",
    "Cost",
    "Implementation",
    "Inputs",
    "Needs",
    "Op",
    "Outputs",
    "Prepared",
    "Stage",
    "Tolerance",
    "all_ops",
    "find_op",
    "implementations",
]

# Triton 3.10 will turn FP fusion off: say which one we compile with, in one place.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("kernels._registry"), name)
