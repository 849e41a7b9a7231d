"""All-reduce of FlashInfer over PCIe (PcieIpcAllReduceWorkspace, 0.7): kernels that push to peers.

Its workspace shares memory of all ranks by CUDA IPC. It is made once, for the largest point up to
LARGEST_BYTES: its halves lie further apart the larger it is, which costs time at small sizes. It
reduces out of place; in place is reduced into another buffer and copied back, both timed. What its
own tuning has left in its cache is used, which is made for tokens x hidden: a size of a model is
given in that shape. Nothing is tuned here. 2, 4 or 8 ranks, bfloat16 and float16.

A workspace serves one stream at a time. A capture warms up on a stream of its own, in order with
the others, so each call says anew which stream it is on. Source: flashinfer/comm/pcie_ipc_ar.py of
0.7.4; its kernels are compiled at first use, which may take minutes.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from collectives._sweep.backend import Backend, Member, Prepared, Unsupported
from collectives._sweep.points import Point
from verifyscope.errors import reason_of

if TYPE_CHECKING:
    import torch

WORKSPACE = "PcieIpcAllReduceWorkspace"
DTYPES = ("bfloat16", "float16")
RANKS = (2, 4, 8)
LARGEST_BYTES = 8 * 2**20
_PACK_BYTES = 16


class Workspace(Protocol):
    """What is called of FlashInfer's workspace."""

    profile: str

    def supports(self, inp: "torch.Tensor") -> bool: ...
    def all_reduce(self, inp: "torch.Tensor", *, out: "torch.Tensor") -> object: ...


class Library(Protocol):
    """What is called of FlashInfer."""

    version: str

    def build(self) -> None:
        """Compile the kernels, where they are not; this may take minutes."""
        ...

    def workspace(self, elements: int, dtype: "torch.dtype") -> Workspace:
        """Return a workspace of all ranks, which all call alike."""
        ...


class _FlashInfer:
    """FlashInfer itself; `Unsupported` where it can't be imported or has no such workspace."""

    def __init__(self) -> None:
        try:
            self._comm = importlib.import_module("flashinfer.comm")
            self.version = str(importlib.import_module("flashinfer").__version__)
        except Exception as error:
            raise Unsupported(f"FlashInfer can't be imported: {reason_of(error)}") from error
        if not hasattr(self._comm, WORKSPACE):
            raise Unsupported(f"FlashInfer {self.version} has no {WORKSPACE}; 0.7 has")

    def build(self) -> None:
        module = importlib.import_module("flashinfer.comm.pcie_ipc_ar")
        build: Callable[[], object] | None = getattr(module, "get_pcie_ipc_comm_module", None)
        if build is not None:
            build()

    def workspace(self, elements: int, dtype: "torch.dtype") -> Workspace:
        import torch.distributed as dist

        make: Callable[..., Workspace] = getattr(self._comm, WORKSPACE)
        return make(group=dist.group.WORLD, max_numel=elements, dtype=dtype)


def prepare(member: Member) -> Prepared:
    """Return FlashInfer's all-reduce; `Unsupported` says why there is none."""
    return prepared(member, _FlashInfer())


def prepared(member: Member, library: Library) -> Prepared:
    """Return the all-reduce of a workspace for the largest point that it is to take."""
    import torch

    job = member.job
    dtype = getattr(torch, job.dtype)
    element = torch.empty((), dtype=dtype).element_size()
    sizes = [task.point.size_bytes for task in job.tasks]
    most = min(max(sizes), LARGEST_BYTES)
    packs = -(-most // _PACK_BYTES) * _PACK_BYTES // element
    try:
        with member.alive():
            library.build()
        workspace = library.workspace(packs, dtype)
    except Exception as error:
        raise Unsupported(f"FlashInfer {library.version}: {reason_of(error)}") from error
    own = torch.empty(packs, dtype=dtype, device=member.device)
    rows = {task.point.elements: task.point.tokens or 1 for task in job.tasks}
    return Prepared(
        run=_call(workspace, own, rows),
        why_not=_limits(library, workspace, own, rows),
        facts=_facts(library, workspace),
    )


def _call(
    workspace: Workspace, own: "torch.Tensor", rows: dict[int, int]
) -> "Callable[[torch.Tensor, torch.Tensor], None]":
    rebind: Callable[[], None] = getattr(workspace, "rebind_stream", lambda: None)

    def run(output: "torch.Tensor", source: "torch.Tensor") -> None:
        shape = (rows[source.numel()], -1)
        rebind()
        if output is not source:
            workspace.all_reduce(source.view(shape), out=output.view(shape))
            return
        sums = own[: source.numel()]
        workspace.all_reduce(source.view(shape), out=sums.view(shape))
        source.copy_(sums)

    return run


def _limits(
    library: Library, workspace: Workspace, own: "torch.Tensor", rows: dict[int, int]
) -> Callable[[Point], str | None]:
    def why_not(point: Point) -> str | None:
        if point.size_bytes > LARGEST_BYTES:
            return f"its workspace is made for {LARGEST_BYTES} B at most"
        shape = (rows[point.elements], -1)
        if workspace.supports(own[: point.elements].view(shape)):
            return None
        return f"FlashInfer {library.version} does not take {point.size_bytes} B"

    return why_not


def _facts(library: Library, workspace: Workspace) -> dict[str, str]:
    """Return what decides which kernel runs; whether it was tuned is told by a private name."""
    tuned = getattr(workspace, "_tuned_configs_loaded", None)
    found = {"flashinfer": library.version, "flashinfer_profile": str(workspace.profile)}
    return found if tuned is None else found | {"flashinfer_tuned": "yes" if tuned else "no"}


BACKEND = Backend(
    name="flashinfer_pcie",
    torch_name="nccl",
    on_device=True,
    chooses=False,
    iterations=20,
    batches=10,
    prepare=prepare,
    in_place="reduced into another buffer, then copied back",
)
