"""One rank: join the others, build the stub, time its passes, take it apart; say what came of it.

`beats[rank]` goes up with each piece of work, so that one who watches can tell who lags.
"""

import contextlib
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import torch

from graphs._stub import device_measuring, host_measuring
from graphs._stub.asked import Job
from graphs._stub.device import CudaDevice
from graphs._stub.device_measuring import ModeBroke
from graphs._stub.messages import Done, OutOfMemory, Raised, Refused
from graphs._stub.ranks import Alone, Ranks, join
from graphs._stub.timing import RankLost
from verifyscope.errors import UsageError, reason_of
from verifyscope.rank_processes import log_of, redirect

_LONGEST_TEXT = 300
_LEAVE_S = 60.0


class Beats(Protocol):
    """Numbers shared with the process that watches, one a rank."""

    def __setitem__(self, rank: int, value: int) -> None: ...

    def __getitem__(self, rank: int) -> int: ...


def main(job: Job, rank: int, *, folder: Path, pipe: Connection, beats: Beats) -> None:
    """Run rank `rank` of `job` and say over `pipe` what came of it; ends the process."""
    try:
        redirect(log_of(folder, rank))
        _measure(job, rank, folder / "store", _sender(pipe, rank), lambda: _beat(beats, rank))
        pipe.send(Done(rank))
        # Who leaves first takes its connections away from those that are not done yet: who holds
        # the ranks ends them together.
        time.sleep(_LEAVE_S)
    except BaseException as error:
        with contextlib.suppress(OSError):  # where the command is gone nobody listens
            pipe.send(_ending(error, rank))
        # A group that lost a member may wait for it for ever when it is taken down.
        os._exit(1)
    os._exit(0)


def _measure(
    job: Job, rank: int, store: Path, send: Callable[[object], None], beat: Callable[[], None]
) -> None:
    torch.set_num_threads(1)
    device = torch.device(job.device, rank) if job.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        _require_nccl(job)
        torch.cuda.set_device(device)
    ranks: Ranks = Alone()
    if job.joined:
        ranks = join(rank, job.ranks, device=device, store=store, timeout_s=job.timeout_s)
    beat()
    with torch.inference_mode():
        if device.type == "cuda":
            gpu = CudaDevice()
            device_measuring.measure(job, ranks, device=gpu, send=send, beat=beat)
        else:
            host_measuring.measure(job, ranks, device=device, send=send, beat=beat)


def _require_nccl(job: Job) -> None:
    """Raise `UsageError` for collectives that this torch has no NCCL for."""
    if job.joined and not torch.distributed.is_nccl_available():
        raise UsageError(
            f"--all-reduce {job.case.reduce} needs NCCL, and torch {torch.__version__} is built "
            f"without; give --all-reduce none or delay:33us"
        )


def _sender(pipe: Connection, rank: int) -> Callable[[object], None]:
    """Return what sends results; rank 0 speaks for all."""
    return pipe.send if rank == 0 else lambda message: None


def _beat(beats: Beats, rank: int) -> None:
    beats[rank] = beats[rank] + 1


def _ending(error: BaseException, rank: int) -> object:
    if isinstance(error, RankLost) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ModeBroke):
        return error.broke
    if isinstance(error, UsageError):
        return Refused(reason=str(error))
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return OutOfMemory(rank=rank, reason=reason_of(error))
    text = " ".join(reason_of(error).split())[:_LONGEST_TEXT]
    return Raised(rank=rank, at_s=time.monotonic(), text=text)
