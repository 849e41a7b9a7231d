"""One rank: join the group, then for each point check and time every call.

A call gets data that no call before it had, in a poisoned output, and all of its values are
compared afterwards. Only the call between barrier and end is timed. The data of all ranks are known
to each: PERIOD random whole numbers a rank, of which call k starts at another place.

`progress[rank]` goes up before and after each call: who lags can be told from outside.
"""

import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from collectives._sweep.collective import tile
from collectives._sweep.messages import Done, Joined, Raised, Timed
from collectives._sweep.plan import MOST_RANKS, Job
from collectives._sweep.timing import Clock, DeviceClock, HostClock

PERIOD = 65_521
_STEP = 7_919
_SEED = 20_260_801
_LONGEST_TEXT = 300


class Counters(Protocol):
    """Numbers shared with the fork server, one a rank."""

    def __setitem__(self, rank: int, value: int) -> None: ...


def main(job: Job, rank: int, *, folder: Path, pipe: Connection, progress: Counters) -> None:
    """Run rank `rank` of `job` and say over `pipe` what came of it; ends the process."""
    _redirect(folder / f"rank-{rank}.log")
    try:
        device = _join(job, rank, folder / "store")
        pipe.send(_joined(job, rank, device))
        clock: Clock = HostClock() if device.type == "cpu" else DeviceClock(device)
        here = _Rank(
            job=job,
            rank=rank,
            device=device,
            numbers=_numbers(job).to(device),
            clock=clock,
            progress=progress,
        )
        for at in range(len(job.points)):
            pipe.send(_measured(here, at))
        pipe.send(Done(rank))
    except BaseException as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_TEXT]
        pipe.send(Raised(rank=rank, at_s=time.monotonic(), text=text))
        # A group that lost a member may wait for it for ever when it is taken down.
        os._exit(1)
    dist.destroy_process_group()
    os._exit(0)


def _redirect(log: Path) -> None:
    """Keep what libraries print out of the table; someone who debugs NCCL sees it on stderr."""
    if "NCCL_DEBUG" in os.environ:
        os.dup2(2, 1)
        return
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)


def _join(job: Job, rank: int, store: Path) -> torch.device:
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if job.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        job.backend,
        store=dist.FileStore(str(store), job.ranks),  # type: ignore[attr-defined]  # not in __all__
        rank=rank,
        world_size=job.ranks,
        # The fork server ends a job first, and knows who is to blame.
        timeout=timedelta(seconds=job.timeout_s + 60),
        device_id=device if device.type == "cuda" else None,
    )
    return device


def _joined(job: Job, rank: int, device: torch.device) -> Joined:
    if device.type == "cpu":
        bus, name, library = "cpu", platform.machine(), str(torch.__version__)
    else:
        found = torch.cuda.get_device_properties(device)
        parts = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        known = [part for part in parts if part is not None]
        bus = "{:04x}:{:02x}:{:02x}".format(*known) if len(known) == 3 else f"cuda{rank}"
        name, library = found.name, _nccl_version()
    return Joined(
        rank=rank, pid=os.getpid(), device=rank, bus=bus, name=name, library_version=library
    )


def _nccl_version() -> str:
    """Return the version of the library that is loaded, not the one torch was built against."""
    group = getattr(dist, "ProcessGroupNCCL", None)
    loaded: Callable[[], tuple[int, ...]] | None = getattr(group, "get_runtime_nccl_version", None)
    version = loaded() if loaded else torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # torch.cuda has no types
    return ".".join(map(str, version))


def _numbers(job: Job) -> torch.Tensor:
    """Return the data of all ranks, two periods each: any part of one period is then a slice.

    Whole numbers up to MOST_RANKS / ranks in absolute value: every sum is exact in bfloat16.
    """
    generator = torch.Generator().manual_seed(_SEED)
    largest = MOST_RANKS // job.ranks
    shape = (job.ranks, PERIOD)
    numbers = torch.randint(-largest, largest + 1, shape, generator=generator, dtype=torch.int16)
    return torch.cat([numbers, numbers], 1).to(getattr(torch, job.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """What this process measures with; `numbers` has shape (ranks, 2 x PERIOD)."""

    job: Job
    rank: int
    device: torch.device
    numbers: torch.Tensor
    clock: Clock
    progress: Counters


def _measured(here: _Rank, at: int) -> Timed:
    """Check and time all calls of point `at`."""
    job, rank, point = here.job, here.rank, here.job.points[at]
    held = job.collective.input_elements(point.elements, job.ranks)
    made = job.collective.output_elements(point.elements, job.ranks)
    source = torch.empty(held, dtype=here.numbers.dtype, device=here.device)
    output = source if point.in_place else source.new_empty(made)
    wrong = torch.zeros((), dtype=torch.int64, device=here.device)
    seconds: list[float] = []
    exposed = 0
    for iteration in range(job.warmup + job.iterations):
        call = at * (job.warmup + job.iterations) + iteration
        start = call * _STEP % PERIOD
        windows = here.numbers[:, start : start + min(held, PERIOD)]
        output.fill_(math.nan)
        source.copy_(tile(windows[rank], held))
        here.progress[rank] = 2 * call + 1
        taken = here.clock.time(lambda: job.collective.run(output, source))
        here.progress[rank] = 2 * call + 2
        wrong += (output != job.collective.expected(windows, rank, point.elements)).sum()
        if iteration >= job.warmup:
            seconds.append(taken.seconds)
            exposed += taken.exposed
    return Timed(
        rank=rank, point=at, seconds=tuple(seconds), wrong=int(wrong.item()), exposed=exposed
    )
