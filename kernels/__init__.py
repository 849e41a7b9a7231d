"""Kernels under test. Every public module here declares one Op or adds to one."""

import os

from kernels._registry import (
    Case,
    Cost,
    Implementation,
    Inputs,
    Needs,
    Op,
    Outputs,
    Prepared,
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
    "Tolerance",
    "all_ops",
    "find_op",
    "implementations",
]

# Triton 3.10 will turn FP fusion off: say which one we compile with, in one place.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
