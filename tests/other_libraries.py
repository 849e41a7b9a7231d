"""Stand-ins for what other all-reduces call: gloo moves the data, the interface is theirs.

Each misuse that the real thing does not forgive raises here, so that a rank fails.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from collectives._others import cupy_nccl, flashinfer_pcie, symmetric_memory
from collectives._others.entries import Other
from collectives._sweep.backend import Backend, Member, Prepared

NAMES = ("symm_mem_one_shot", "symm_mem_two_shot", "flashinfer_pcie", "cupy_nccl")
# What FlashInfer's stand-in does not take.
REFUSED_BYTES = 2048


def summed(values: torch.Tensor) -> torch.Tensor:
    total = values.clone()
    dist.all_reduce(total)
    return total


class SymmetricMemory:
    """torch's symmetric memory, whose operations are in `offered`."""

    version = "2.99"

    def __init__(self, offered: Sequence[str] = ("one_shot_all_reduce_out",)) -> None:
        self.offered = offered
        self.allocated: list[torch.Tensor] = []
        self.far: str | None = None

    def allocate(self, elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        made = torch.empty(elements, dtype=dtype, device=device)
        self.allocated.append(made)
        return made

    def group(self) -> str:
        return "everybody"

    def reaches(self, device: torch.device, devices: Sequence[int]) -> str | None:
        return self.far

    def operation(self, name: str) -> Callable[..., object] | None:
        return getattr(self, f"_{name}", None) if name in self.offered else None

    def _shared(self, buffer: torch.Tensor) -> torch.Tensor:
        storages = [known.untyped_storage().data_ptr() for known in self.allocated]
        if buffer.untyped_storage().data_ptr() not in storages:
            raise RuntimeError("input must be allocated with symm_mem.empty")
        return buffer

    def _one_shot_all_reduce_out(
        self, buffer: torch.Tensor, op: str, group: str, out: torch.Tensor
    ) -> torch.Tensor:
        if (op, group) != ("sum", self.group()):
            raise RuntimeError(f"{op} of {group}")
        return out.copy_(summed(self._shared(buffer)))

    def _one_shot_all_reduce_copy_out(
        self, buffer: torch.Tensor, source: torch.Tensor, op: str, group: str, out: torch.Tensor
    ) -> torch.Tensor:
        self._shared(buffer).copy_(source)
        return self._one_shot_all_reduce_out(buffer, op, group, out)

    def _two_shot_all_reduce_out(
        self, buffer: torch.Tensor, op: str, group: str, out: torch.Tensor
    ) -> torch.Tensor:
        self._one_shot_all_reduce_out(buffer, op, group, out)
        buffer[: len(buffer) // 2] = out[: len(buffer) // 2]  # as torch leaves it
        return out


class Workspace:
    """FlashInfer's, which knows one stream, and tensors of rows."""

    profile = "rootcplx"
    _tuned_configs_loaded = False

    def __init__(self, elements: int) -> None:
        self.elements, self.bound = elements, False

    def supports(self, inp: torch.Tensor) -> bool:
        return inp.nbytes != REFUSED_BYTES and inp.numel() <= self.elements

    def rebind_stream(self) -> None:
        self.bound = False

    def all_reduce(self, inp: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        if self.bound or inp.dim() != 2 or inp.data_ptr() == out.data_ptr():
            raise RuntimeError("another stream, another shape, or in place")
        self.bound = True
        return out.copy_(summed(inp))


class FlashInfer:
    """FlashInfer, whose kernels are there."""

    version = "0.7.99"

    def build(self) -> None:
        """Compile nothing."""

    def workspace(self, elements: int, dtype: torch.dtype) -> Workspace:
        return Workspace(elements)


class Communicator:
    """CuPy's, which is given addresses."""

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        dtype = {6: torch.float16, 7: torch.float32, 9: torch.bfloat16}[datatype]
        if (op, stream) != (0, 1234):
            raise RuntimeError(f"operation {op} on stream {stream}")
        size = count * torch.empty((), dtype=dtype).element_size()
        sent = torch.frombuffer(bytearray(ctypes.string_at(sendbuf, size)), dtype=dtype)
        dist.all_reduce(sent)
        ctypes.memmove(recvbuf, sent.data_ptr(), size)


class CuPy:
    """CuPy and its NCCL 2.28.3."""

    version = "14.99"

    def number(self) -> int:
        return 22803

    def unique_id(self) -> Sequence[int]:
        return [7, 0, 255]

    def communicator(
        self, ranks: int, unique_id: Sequence[int], rank: int, device: int
    ) -> Communicator:
        if [*unique_id] != [7, 0, 255] or not 0 <= rank < ranks:
            raise RuntimeError(f"rank {rank} of {ranks} in {unique_id}")
        return Communicator()

    def stream(self) -> int:
        return 1234


def prepare_one_shot(member: Member) -> Prepared:
    return symmetric_memory.prepared(member, SymmetricMemory(), symmetric_memory.one_shot)


def prepare_fused(member: Member) -> Prepared:
    library = SymmetricMemory(("one_shot_all_reduce_copy_out",))
    return symmetric_memory.prepared(member, library, symmetric_memory.one_shot)


def prepare_two_shot(member: Member) -> Prepared:
    library = SymmetricMemory(("two_shot_all_reduce_out",))
    return symmetric_memory.prepared(member, library, symmetric_memory.two_shot)


def prepare_without(member: Member) -> Prepared:
    return symmetric_memory.prepared(member, SymmetricMemory(()), symmetric_memory.two_shot)


def prepare_flashinfer(member: Member) -> Prepared:
    return flashinfer_pcie.prepared(member, FlashInfer())


def prepare_cupy(member: Member) -> Prepared:
    return cupy_nccl.prepared(member, CuPy())


def _on_a_cpu(real: Backend, prepare: Callable[[Member], Prepared]) -> Backend:
    return replace(
        real,
        torch_name="gloo",
        on_device=False,
        chooses=False,
        iterations=3,
        batches=2,
        prepare=prepare,
    )


BACKENDS = {
    "symm_mem_one_shot": _on_a_cpu(symmetric_memory.ONE_SHOT, prepare_one_shot),
    "symm_mem_two_shot": _on_a_cpu(symmetric_memory.TWO_SHOT, prepare_two_shot),
    "flashinfer_pcie": _on_a_cpu(flashinfer_pcie.BACKEND, prepare_flashinfer),
    "cupy_nccl": _on_a_cpu(cupy_nccl.BACKEND, prepare_cupy),
}
FUSED = replace(BACKENDS["symm_mem_one_shot"], prepare=prepare_fused)
WITHOUT = replace(BACKENDS["symm_mem_two_shot"], prepare=prepare_without)


def others() -> Sequence[Other]:
    """Return the entries of the stand-ins; the two-shot is one that torch lacks."""
    absent = os.environ.get("SWEEP_ABSENT", "")
    return [
        Other(
            backend=WITHOUT if name == absent else backend,
            worth="a stand-in",
            why_not=lambda setting: None,
        )
        for name, backend in BACKENDS.items()
    ]
