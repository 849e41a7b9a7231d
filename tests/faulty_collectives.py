"""All-reduces that go wrong on rank 1, each in its own way, to be run by real ranks."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from collectives.all_reduce import ALL_REDUCE

if TYPE_CHECKING:
    import torch

WRONG_RANK = 1
WRONG_ELEMENTS = 3


def _on_wrong_rank() -> bool:
    import torch.distributed as dist

    return dist.get_rank() == WRONG_RANK


def _corrupt(output: "torch.Tensor", source: "torch.Tensor") -> None:
    ALL_REDUCE.run(output, source)
    if _on_wrong_rank():
        output[:WRONG_ELEMENTS] += 1


def _stale(output: "torch.Tensor", source: "torch.Tensor") -> None:
    """Return without having written anything."""


def _raise(output: "torch.Tensor", source: "torch.Tensor") -> None:
    if _on_wrong_rank():
        raise ValueError("no such\nlink")
    ALL_REDUCE.run(output, source)


def _sleep(output: "torch.Tensor", source: "torch.Tensor") -> None:
    if _on_wrong_rank():
        time.sleep(600)
    ALL_REDUCE.run(output, source)


CORRUPT = replace(ALL_REDUCE, run=_corrupt)
STALE = replace(ALL_REDUCE, run=_stale)
RAISING = replace(ALL_REDUCE, run=_raise)
SLEEPING = replace(ALL_REDUCE, run=_sleep)
