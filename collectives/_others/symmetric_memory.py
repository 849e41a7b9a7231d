"""All-reduce through torch's symmetric memory: GPUs read each other's buffers, without NCCL.

    one shot    every rank reads the buffers of all others and sums: one step, n times the bytes
    two shot    every rank sums its part of all buffers, then reads the parts of the others

The tensors are ordinary ones, as most of an engine's are. So each call copies its input into one
buffer of symmetric memory and gives the sum in the output, which in place is the input itself: the
copy is inside the timed call. The kernels end with a barrier over all ranks, so that the buffer is
free for the next call. bfloat16 and float32 alone, at multiples of 4 bytes, with access between all
GPUs. What is called by version: torch/distributed/_symmetric_memory and torch.ops.symm_mem of torch
2.5 to 2.14; all of it is private there, so what is missing is a reason and no error.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from collectives._sweep.backend import Backend, Member, Prepared, Unsupported
from collectives._sweep.points import Point
from verifyscope.errors import reason_of

if TYPE_CHECKING:
    import torch

    Sum = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]

DTYPES = ("bfloat16", "float32")
TWO_SHOT_RANKS = (2, 4, 8)
_ALIGNED_BYTES = 4
_STAGED = "copy into symmetric memory, then reduced into the {}"


class Library(Protocol):
    """What is called of torch: each name that is missing there is a reason why it can't run."""

    version: str

    def allocate(
        self, elements: int, dtype: "torch.dtype", device: "torch.device"
    ) -> "torch.Tensor":
        """Return memory of this rank that all others can read; every rank calls it alike."""
        ...

    def operation(self, name: str) -> "Callable[..., object] | None":
        """Return torch.ops.symm_mem's operation of this name, None where there is none."""
        ...

    def group(self) -> str:
        """Return the name of the group of all ranks."""
        ...

    def reaches(self, device: "torch.device", devices: Sequence[int]) -> str | None:
        """Return why memory of `devices` can't be read from one of them, None where it can."""
        ...


class _Torch:
    """torch itself."""

    def __init__(self) -> None:
        import torch

        self.version = str(torch.__version__)

    def allocate(
        self, elements: int, dtype: "torch.dtype", device: "torch.device"
    ) -> "torch.Tensor":
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symmetric

        made = symmetric.empty(elements, dtype=dtype, device=device)
        world = dist.group.WORLD
        if world is None:
            raise RuntimeError("there is no group")
        symmetric.rendezvous(made, world)
        return made

    def operation(self, name: str) -> "Callable[..., object] | None":
        import torch

        found: Callable[..., object] | None = getattr(torch.ops.symm_mem, name, None)
        return found

    def group(self) -> str:
        import torch.distributed as dist

        return str(dist.group.WORLD.group_name)  # type: ignore[union-attr]  # it stands

    def reaches(self, device: "torch.device", devices: Sequence[int]) -> str | None:
        import torch

        others = (other for other in devices if other != device.index)
        far = [o for o in others if not torch.cuda.can_device_access_peer(device, o)]
        if not far:
            return None
        return f"GPU {device.index} has no access to GPU {', '.join(map(str, far))}"


def one_shot(library: Library) -> "Sum":
    """Return the sum of all ranks' inputs; where torch can, the kernel itself copies."""
    group = library.group()
    fused = library.operation("one_shot_all_reduce_copy_out")
    if fused is not None:
        return lambda shared, source, output: _drop(fused(shared, source, "sum", group, output))
    plain = _needed(library, "one_shot_all_reduce_out")

    def call(shared: "torch.Tensor", source: "torch.Tensor", output: "torch.Tensor") -> None:
        shared.copy_(source)
        plain(shared, "sum", group, output)

    return call


def two_shot(library: Library) -> "Sum":
    """Return the sum of all ranks' inputs; torch leaves parts of it in the shared buffer."""
    group = library.group()
    plain = _needed(library, "two_shot_all_reduce_out")

    def call(shared: "torch.Tensor", source: "torch.Tensor", output: "torch.Tensor") -> None:
        shared.copy_(source)
        plain(shared, "sum", group, output)

    return call


def _drop(result: object) -> None:
    """Take no notice of what an operation returns: it is its own output."""


def _needed(library: Library, name: str) -> "Callable[..., object]":
    found = library.operation(name)
    if found is None:
        raise Unsupported(f"torch {library.version} has no symm_mem.{name}")
    return found


def prepared(member: Member, library: Library, make: "Callable[[Library], Sum]") -> Prepared:
    """Return the all-reduce of `make` with one shared buffer for the largest point."""
    import torch

    job = member.job
    call = make(library)
    devices = job.combination.gpu_order or range(job.ranks)
    if why_not := library.reaches(member.device, devices):
        raise Unsupported(why_not)
    most = max(task.point.elements for task in job.tasks)
    dtype = getattr(torch, job.dtype)
    try:
        buffer = library.allocate(most, dtype, member.device)
    except (RuntimeError, ImportError, AttributeError, TypeError) as error:
        raise Unsupported(f"no symmetric memory here: {reason_of(error)}") from error

    def run(output: "torch.Tensor", source: "torch.Tensor") -> None:
        call(buffer[: source.numel()], source, output)

    return Prepared(run=run, why_not=_why_not, facts={"torch": library.version})


def _why_not(point: Point) -> str | None:
    if point.size_bytes % _ALIGNED_BYTES == 0:
        return None
    return f"torch's symmetric memory takes multiples of {_ALIGNED_BYTES} B"


def prepare_one_shot(member: Member) -> Prepared:
    """Return torch's one-shot all-reduce; `Unsupported` says why there is none."""
    return prepared(member, _Torch(), one_shot)


def prepare_two_shot(member: Member) -> Prepared:
    """Return torch's two-shot all-reduce; `Unsupported` says why there is none."""
    return prepared(member, _Torch(), two_shot)


def _backend(name: str, prepare: Callable[[Member], Prepared]) -> Backend:
    return Backend(
        name=name,
        torch_name="nccl",
        on_device=True,
        chooses=False,
        iterations=20,
        batches=10,
        prepare=prepare,
        in_place=_STAGED.format("input"),
        out_of_place=_STAGED.format("output"),
    )


ONE_SHOT = _backend("symm_mem_one_shot", prepare_one_shot)
TWO_SHOT = _backend("symm_mem_two_shot", prepare_two_shot)
