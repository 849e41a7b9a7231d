"""What moves the data of a sweep: NCCL between GPUs, gloo between processes of this CPU.

`prepare` is where a backend of the tests misbehaves on purpose: it runs on each rank once the group
stands, and returns the call that is timed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verifyscope.errors import choose

if TYPE_CHECKING:
    import torch

    from collectives._sweep.job import Job

    Run = Callable[[torch.Tensor, torch.Tensor], None]


def _as_it_is(job: "Job", rank: int) -> "Run":
    return job.collective.run


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A way to move data; all of it can be sent to another process.

    torch_name: what torch.distributed calls it. on_device: it needs GPUs, and has CUDA graphs.
    chooses: it has algorithms and protocols, reads NCCL's settings and logs as NCCL does.
    iterations: the isolated calls that a start times; batches: the samples of calls in a row.
    depth: calls in a row, None for those of a verify pass.
    """

    name: str
    torch_name: str
    on_device: bool
    chooses: bool
    iterations: int
    batches: int
    depth: int | None = None
    prepare: Callable[["Job", int], "Run"] = _as_it_is


NCCL = Backend(
    name="nccl", torch_name="nccl", on_device=True, chooses=True, iterations=20, batches=10
)
# Eight processes on a few cores take tens of milliseconds a call: fewer calls in a row.
GLOO = Backend(
    name="gloo",
    torch_name="gloo",
    on_device=False,
    chooses=False,
    iterations=10,
    batches=3,
    depth=8,
)
_KNOWN = {"gloo": GLOO, "nccl": NCCL}


def register(backend: Backend) -> None:
    """Make `backend` one that can be named: this is for tests."""
    _KNOWN[backend.name] = backend


def find(name: str) -> Backend:
    """Return the backend of this name; `UsageError` lists those that there are."""
    return _KNOWN[choose("backend", name, list(_KNOWN))]
