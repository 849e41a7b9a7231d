"""Inputs of real sizes without their gigabytes: what a case touches, counted on any machine.

Lengths, page tables, masks and whatever else is small are drawn as always; a large random tensor
is reserved and not written, so that no memory is used for it, nor for what it is converted to. Its
values mean nothing. An op whose cost depends on such values (how many tokens a draw accepts) is
found by its tiny cases.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernels._registry import Case, Inputs, Op

# Queries stay below, caches and weights are above.
_LARGE = 2**20


_CPU = torch.device("cpu")


def undrawn(op: Op, case: Case) -> Inputs:
    """Return the inputs of `case` on the CPU; only their sizes and what is small may be read."""
    with _Undrawn(_LARGE):
        return op.inputs(case, _CPU)


def sizes_suffice(op: Op) -> bool:
    """Say whether the cost of the tiny cases is the same when no normal tensor is drawn."""
    return all(
        op.cost(_all_undrawn(op, case)) == op.cost(op.inputs(case, _CPU))
        for case in op.cases
        if case.tiny
    )


def _all_undrawn(op: Op, case: Case) -> Inputs:
    with _Undrawn(0):
        return op.inputs(case, _CPU)


class _Undrawn(TorchFunctionMode):
    """Reserves random tensors of more than `most` elements; all of them are zero if that is 0."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in (torch.randn, torch.randint):
            sizes = _sizes(args if func is torch.randn else args[2:])
            if math.prod(sizes) > self._most:
                named.pop("generator", None)
                # Zeros are the same on every call, but they would be written.
                return (torch.empty if self._most else torch.zeros)(sizes, **named)
        large = (
            isinstance(args[0], torch.Tensor) and args[0].numel() > self._most if args else False
        )
        if func is torch.Tensor.uniform_ and large:
            return args[0] if self._most else args[0].zero_()
        if func is torch.Tensor.to and large and self._most:
            return _converted(*args, **named)
        return func(*args, **named)


def _converted(tensor: torch.Tensor, *to: Any, **named: Any) -> torch.Tensor:
    """Return what `tensor.to(...)` would, unwritten: `to` is a dtype or a device, or both."""
    dtypes = [one for one in (*to, *named.values()) if isinstance(one, torch.dtype)]
    return torch.empty_like(tensor, dtype=dtypes[0] if dtypes else tensor.dtype)


def _sizes(args: Sequence[Any]) -> Sequence[int]:
    """Return sizes that are given as one sequence or one by one."""
    return args[0] if args and not isinstance(args[0], int) else args
