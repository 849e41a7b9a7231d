"""All-reduces that go wrong on rank 1, each in its own way, to be run by real ranks."""

import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from collectives._sweep.collective import Collective
from collectives.operations.all_reduce import ALL_REDUCE

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


CORRUPT = replace(ALL_REDUCE, run=_corrupt)
STALE = replace(ALL_REDUCE, run=_stale)
RAISING = replace(ALL_REDUCE, run=_raise)


def _last_bit(output: "torch.Tensor", source: "torch.Tensor") -> None:
    ALL_REDUCE.run(output, source)
    if _on_wrong_rank():
        import torch

        output[-1:].view(torch.int16).bitwise_xor_(1)


@dataclass(frozen=True)
class _Parent:
    """Starts a process that would outlive its rank, writes down its number, and hangs."""

    child: Path

    def __call__(self, output: "torch.Tensor", source: "torch.Tensor") -> None:
        if _on_wrong_rank():
            self.child.write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(600)


def parent_of(child: Path) -> Collective:
    """Return an all-reduce that hangs, with a child on the wrong rank."""
    return replace(ALL_REDUCE, run=_Parent(child))


LAST_BIT = replace(ALL_REDUCE, run=_last_bit)
