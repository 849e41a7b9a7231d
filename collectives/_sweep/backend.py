"""What moves the data of a sweep: NCCL between GPUs, gloo between processes of this CPU.

Other implementations are backends, too (collectives/_others). `prepare` is where they make what
they need, and where a backend of the tests misbehaves on purpose: it runs on each rank once the
group stands, and returns the call that is timed.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from collectives._sweep.points import Point
from verifyscope.errors import choose, reason_of

if TYPE_CHECKING:
    import torch

    from collectives._sweep.job import Job

    Run = Callable[[torch.Tensor, torch.Tensor], None]


class Unsupported(Exception):
    """This cannot run here; the message says why. It is a status, and no fault of a rank."""


class Store(Protocol):
    """Where ranks leave words for each other."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A rank whose group stands. alive: in its block a rank counts as moving, up to minutes."""

    job: "Job"
    rank: int
    device: "torch.device"
    store: Store
    alive: Callable[[], AbstractContextManager[None]]


def _takes_all(point: Point) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a rank calls.

    run: of output and input, the call that is timed; both are one tensor where it runs in place.
    why_not: why a point can't run, the same on every rank; None where it can.
    facts: what is in effect beside settings, by name, such as versions.
    nccl: the version of the NCCL that is called, where that is not torch's.
    """

    run: "Run"
    why_not: Callable[[Point], str | None] = _takes_all
    facts: Mapping[str, str] = field(default_factory=dict)
    nccl: str | None = None


def _as_it_is(member: Member) -> Prepared:
    """Call the collective as torch has it."""
    job = member.job
    if job.dtype.startswith("float8") and job.collective.redop != "none":
        _try_to_reduce(member)
    return Prepared(run=job.collective.run)


def _try_to_reduce(member: Member) -> None:
    """Raise `Unsupported` where torch, NCCL or the GPU does not reduce the dtype."""
    import torch
    import torch.distributed as dist

    dtype = getattr(torch, member.job.dtype)
    try:
        dist.all_reduce(torch.zeros(16, device=member.device).to(dtype))
    except (RuntimeError, TypeError) as error:
        raise Unsupported(f"{member.job.dtype} is not reduced here: {reason_of(error)}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A way to move data; all of it can be sent to another process.

    torch_name: what torch.distributed calls it. on_device: it needs GPUs, and has CUDA graphs.
    chooses: it has algorithms and protocols, reads NCCL's settings and logs as NCCL does.
    iterations: the isolated calls that a start times; batches: the samples of calls in a row.
    depth: calls in a row, None for those of a verify pass.
    in_place, out_of_place: what a direction is, where it needs a word.
    """

    name: str
    torch_name: str
    on_device: bool
    chooses: bool
    iterations: int
    batches: int
    depth: int | None = None
    prepare: Callable[[Member], Prepared] = _as_it_is
    in_place: str | None = None
    out_of_place: str | None = None


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
