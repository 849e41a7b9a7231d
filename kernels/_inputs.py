"""What an op is given, held to what it takes: one wording for all ops."""

from __future__ import annotations

import torch

from kernels._registry import Inputs


def tensor(given: Inputs, name: str) -> torch.Tensor:
    """Return the tensor `name` of some inputs; TypeError if it is none."""
    value = given[name]
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is {value!r}, not a tensor")
    return value


def number(given: Inputs, name: str) -> int:
    """Return the whole number `name` of some inputs; TypeError if it is none."""
    value = given[name]
    if not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}, not a whole number")
    return value


def must_be(
    value: torch.Tensor,
    name: str,
    sizes: tuple[int | None, ...],
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Raise ValueError unless `value` has these sizes; None stands for any.

    With a dtype it must be of that and contiguous, too.
    """
    given = tuple(value.shape)
    if len(given) != len(sizes) or any(
        size not in (None, at) for at, size in zip(given, sizes, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ValueError(f"{name} is {given}: give [{wanted}]")
    if dtype is not None and (value.dtype != dtype or not value.is_contiguous()):
        what = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"{name} is {value.dtype}, strides {value.stride()}: give a contiguous {what} tensor"
        )
