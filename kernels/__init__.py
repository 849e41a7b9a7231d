"""Kernels under test. Every public module here declares one Op or adds to one.

What other folders may use is named below, by what it is about, and in `__all__` of a family
(`kernels.attention`, ...). The names below are found on first use, so that `python -m kernels
--help` needs no torch.
"""

import importlib
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from verifyscope import lacking

if TYPE_CHECKING:
    from kernels._capture import CaptureFailed as CaptureFailed
    from kernels._capture import upload as upload
    from kernels._check import compare as compare
    from kernels._check import poisoned as poisoned
    from kernels._compile import is_compiled as is_compiled
    from kernels._graph import poison as poison
    from kernels._points import Point as Point
    from kernels._points import Selection as Selection
    from kernels._predict import FOUNDING_GPU as FOUNDING_GPU
    from kernels._predict import predicted as predicted
    from kernels._predict import predicted_measurement as predicted_measurement
    from kernels._registry import Case as Case
    from kernels._registry import Cost as Cost
    from kernels._registry import Implementation as Implementation
    from kernels._registry import Inputs as Inputs
    from kernels._registry import Needs as Needs
    from kernels._registry import Op as Op
    from kernels._registry import Outputs as Outputs
    from kernels._registry import Prepared as Prepared
    from kernels._registry import Stage as Stage
    from kernels._registry import Tolerance as Tolerance
    from kernels._registry import all_ops as all_ops
    from kernels._registry import find_case as find_case
    from kernels._registry import find_op as find_op
    from kernels._registry import implementations as implementations
    from kernels._select import selected_points as selected_points
    from kernels._timing import EVENT_RESOLUTION_S as EVENT_RESOLUTION_S
    from kernels._timing import CudaGpu as CudaGpu
    from kernels._timing import FlushedTimer as FlushedTimer
    from kernels._timing import Gpu as Gpu
    from kernels._timing import GraphTimer as GraphTimer
    from kernels._timing import InputSets as InputSets
    from kernels._timing import ReadFlush as ReadFlush
    from kernels._timing import Stopwatch as Stopwatch
    from kernels._timing import enqueue_seconds as enqueue_seconds
    from kernels._timing import flush_passes as flush_passes
    from kernels._timing import input_sets as input_sets
    from kernels._timing import walks as walks
    from kernels._timing import warm_calls as warm_calls

_IN: Mapping[str, str] = MappingProxyType(
    {
        # How an op is declared and found.
        "_registry": "Case Cost Implementation Inputs Needs Op Outputs Prepared Stage Tolerance "
        "all_ops find_case find_op implementations",
        # Which of its points are asked for, and what can be said of them without running.
        "_points": "Point Selection",
        "_select": "selected_points",
        "_compile": "is_compiled",
        "_predict": "FOUNDING_GPU predicted predicted_measurement",
        # What counts as right.
        "_check": "compare poisoned",
        "_graph": "poison",
        # What counts as time, on a GPU.
        "_timing": "EVENT_RESOLUTION_S CudaGpu FlushedTimer Gpu GraphTimer InputSets ReadFlush "
        "Stopwatch enqueue_seconds flush_passes input_sets walks warm_calls",
        "_capture": "CaptureFailed upload",
    }
)
_HOME: Mapping[str, str] = MappingProxyType(
    {name: f"kernels.{module}" for module, names in _IN.items() for name in names.split()}
)

lacking.watch()

# Triton 3.10 will turn FP fusion off: say which one we compile with, in one place.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
