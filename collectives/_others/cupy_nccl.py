"""All-reduce of NCCL through cupy.cuda.nccl: the raw call, without torch's process group.

A communicator of its own beside torch's, from the same library (that of `--nccl` where one is
given, else what is loaded), on torch's current stream, with torch's buffers: what is left of the
time is NCCL and the launch. In place and out of place are both NCCL's own.

NCCL's numbers of its types are those of nccl.h: float8 from 2.24 on.
"""

import importlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from collectives._sweep.backend import Backend, Member, Prepared, Unsupported
from verifyscope.environment import nccl_release
from verifyscope.errors import reason_of

if TYPE_CHECKING:
    import torch

_TYPES = {"float16": 6, "float32": 7, "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11}
_SUM = 0
_FLOAT8_SINCE = 22400
# Before, the name of a communicator is a tuple of C's chars there.
_BYTES_SINCE = 14
_KEY = "cupy-nccl-id"


class Communicator(Protocol):
    """What is called of a communicator."""

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None: ...


class Library(Protocol):
    """What is called of CuPy: version and number are CuPy's and NCCL's."""

    version: str

    def number(self) -> int:
        """Return the number of the NCCL that CuPy calls, such as 22705."""
        ...

    def unique_id(self) -> Sequence[int]:
        """Return a new name of a communicator, as numbers."""
        ...

    def communicator(
        self, ranks: int, unique_id: Sequence[int], rank: int, device: int
    ) -> Communicator:
        """Return a member of it; every rank calls this."""
        ...

    def stream(self) -> int:
        """Return torch's current stream."""
        ...


class _CuPy:
    """CuPy itself; `Unsupported` where it or NCCL can't be loaded."""

    def __init__(self) -> None:
        try:
            self._cupy: Any = importlib.import_module("cupy")
            self._nccl: Any = importlib.import_module("cupy.cuda.nccl")
        except Exception as error:
            raise Unsupported(f"CuPy can't be imported: {reason_of(error)}") from error
        self.version = str(self._cupy.__version__)
        if not hasattr(self._nccl, "get_version"):  # a module that only warns
            raise Unsupported(f"CuPy {self.version} finds no libnccl.so.2")

    def number(self) -> int:
        return int(self._nccl.get_version())

    def unique_id(self) -> Sequence[int]:
        return [number % 256 for number in self._nccl.get_unique_id()]

    def communicator(
        self, ranks: int, unique_id: Sequence[int], rank: int, device: int
    ) -> Communicator:
        self._cupy.cuda.Device(device).use()
        name: bytes | tuple[int, ...] = bytes(unique_id)
        if int(self.version.partition(".")[0]) < _BYTES_SINCE:
            name = tuple(number - 256 if number > 127 else number for number in unique_id)
        made: Communicator = self._nccl.NcclCommunicator(ranks, name, rank)
        return made

    def stream(self) -> int:
        import torch

        return torch.cuda.current_stream().cuda_stream


def prepare(member: Member) -> Prepared:
    """Return the all-reduce of CuPy's NCCL; `Unsupported` says why there is none."""
    return prepared(member, _CuPy())


def prepared(member: Member, library: Library) -> Prepared:
    """Return the all-reduce of a communicator of all ranks."""
    job, number = member.job, library.number()
    if job.dtype.startswith("float8") and number < _FLOAT8_SINCE:
        raise Unsupported(f"NCCL {nccl_release(number)} has no {job.dtype}; 2.24 and later have")
    if member.rank == 0:
        member.store.set(_KEY, json.dumps([*library.unique_id()]))
    unique_id: list[int] = json.loads(member.store.get(_KEY))
    index = member.device.index or 0
    joined = library.communicator(job.ranks, unique_id, member.rank, index)
    return Prepared(
        run=_call(joined, _TYPES[job.dtype], library.stream),
        facts={"cupy": library.version},
        nccl=nccl_release(number),
    )


def _call(
    joined: Communicator, datatype: int, stream: Callable[[], int]
) -> "Callable[[torch.Tensor, torch.Tensor], None]":
    reduce = joined.allReduce

    def run(output: "torch.Tensor", source: "torch.Tensor") -> None:
        reduce(source.data_ptr(), output.data_ptr(), source.numel(), datatype, _SUM, stream())

    return run


BACKEND = Backend(
    name="cupy_nccl",
    torch_name="nccl",
    on_device=True,
    chooses=True,
    iterations=20,
    batches=10,
    prepare=prepare,
)
