"""Inputs of real sizes without their gigabytes: what a case touches, counted on any machine.

Lengths, page tables, masks and whatever else is small are drawn as always; a large normal tensor
is reserved and not written, so that no memory is used for it. Its values mean nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernels._registry import Case, Inputs, Op

# Queries stay below, caches and weights are above.
_LARGE = 2**20


def undrawn(op: Op, case: Case) -> Inputs:
    """Return the inputs of `case` on the CPU; only their sizes and what is small may be read."""
    with _Undrawn():
        return op.inputs(case, torch.device("cpu"))


class _Undrawn(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func is torch.randn and math.prod(_sizes(args)) > _LARGE:
            return torch.empty(*args, **{k: v for k, v in named.items() if k != "generator"})
        return func(*args, **named)


def _sizes(args: Sequence[Any]) -> Sequence[int]:
    """Return the sizes that `torch.randn` is given, as one sequence or one by one."""
    return args[0] if args and not isinstance(args[0], int) else args
