"""One rank: set what its combination asks for, join the group, then probe, time or stress.

A call gets data that no call before it had, in a poisoned output, and all of its values are
compared afterwards. Only the calls between barrier and end are timed.

`progress[rank]` goes up before and after each sample: who lags can be told from outside.
"""

import contextlib
import functools
import gc
import os
import platform
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # not in __all__
    FileStore,
    PrefixStore,
    TCPStore,
)
from torch.distributed import (  # type: ignore[attr-defined]  # not in __all__
    Store as Rendezvous,
)

from collectives._sweep import calls, data, in_effect, stress
from collectives._sweep.backend import Member, Store, Unsupported
from collectives._sweep.calls import Seat, Slots
from collectives._sweep.job import Job, Launch, Timing
from collectives._sweep.messages import Checked, Done, Joined, Raised, ReadBack, Timed
from collectives._sweep.points import Point
from collectives._sweep.timing import Clock, DeviceClock, HostClock
from verifyscope.privacy import redacted_words
from verifyscope.rank_processes import log_of, redirect

_LONGEST_TEXT = 300
_LONGEST_SILENCE_S = 600


class Counters(Protocol):
    """Numbers shared with the fork server, one a rank of this machine."""

    def __setitem__(self, rank: int, value: int) -> None: ...


def main(job: Job, rank: int, *, folder: Path, pipe: Connection, progress: Counters) -> None:
    """Run rank `rank` of `job` and say over `pipe` what came of it; ends the process."""
    try:
        redirect(log_of(folder, rank))
        in_effect.prepare(job, rank, folder)
        store = _meet(job, folder)
        device = _join(job, rank, store)
        bound = in_effect.bind(job, rank, device)
        alive = functools.partial(_kept_alive, progress, rank - job.first_rank)
        prepared = job.backend.prepare(
            Member(job=job, rank=rank, device=device, store=store, alive=alive)
        )
        pipe.send(_joined(job, rank, device, in_effect.read_back(bound, prepared)))
        seat = Seat(
            job=job,
            rank=rank,
            device=device,
            data=data.draw(job, device),
            run=prepared.run,
            why_not=prepared.why_not,
        )
        _Rank(seat, pipe, progress).work(store)
        pipe.send(Done(rank))
    except BaseException as error:
        unsupported = isinstance(error, Unsupported)
        said = str(error) if unsupported else f"{type(error).__name__}: {error}"
        text = redacted_words(said)[:_LONGEST_TEXT]
        raised = Raised(rank=rank, at_s=time.monotonic(), text=text, unsupported=unsupported)
        with contextlib.suppress(OSError):  # where the sweep is gone nobody listens
            pipe.send(raised)
        # A group that lost a member may wait for it for ever when it is taken down.
        os._exit(1)
    dist.destroy_process_group()
    os._exit(0)


@contextlib.contextmanager
def _kept_alive(progress: Counters, at: int) -> Iterator[None]:
    """Count up meanwhile, for a few minutes at most: a compiler says nothing for long."""
    over = threading.Event()

    def count() -> None:
        for second in range(_LONGEST_SILENCE_S):
            if over.wait(1.0):
                return
            progress[at] = second + 1

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        progress[at] = 0


def _meet(job: Job, folder: Path) -> Rendezvous:
    """Return where the ranks find each other: a file, or the store of a launcher."""
    if job.meeting is None:
        return FileStore(str(folder / "store"), job.ranks)
    limit = timedelta(seconds=job.timeout_s)
    store = TCPStore(job.meeting.host, job.meeting.port, is_master=False, timeout=limit)
    return PrefixStore(job.meeting.name, store)


def _join(job: Job, rank: int, store: Rendezvous) -> torch.device:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if job.backend.on_device:
        local, order = rank - job.first_rank, job.combination.gpu_order
        device = torch.device("cuda", order[local] if order else local)
        torch.cuda.set_device(device)
    dist.init_process_group(
        job.backend.torch_name,
        store=store,
        rank=rank,
        world_size=job.ranks,
        # The fork server ends a job first, and knows who is to blame.
        timeout=timedelta(seconds=job.timeout_s + 60),
        device_id=device if device.type == "cuda" else None,
    )
    return device


def _joined(job: Job, rank: int, device: torch.device, read_back: ReadBack) -> Joined:
    if device.type == "cpu":
        bus, name, library = "cpu", platform.machine(), str(torch.__version__)
    else:
        found = torch.cuda.get_device_properties(device)
        parts = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        known = [part for part in parts if part is not None]
        bus = "{:04x}:{:02x}:{:02x}".format(*known) if len(known) == 3 else f"cuda{device.index}"
        name, library = found.name, read_back.nccl or "not known"
    return Joined(
        rank=rank,
        pid=os.getpid(),
        device=rank - job.first_rank if device.index is None else device.index,
        bus=bus,
        name=name,
        loaded_version=library,
        read_back=read_back,
    )


@dataclass(slots=True)
class _Rank:
    """The work of this process, sample by sample."""

    seat: Seat
    pipe: Connection
    progress: Counters
    steps: int = 0

    def work(self, store: Store) -> None:
        """Do what the job is for, and send each result as it comes."""
        job = self.seat.job
        if job.purpose == "stress":
            for found in stress.run(self.seat, store, self.step):
                self.pipe.send(found)
            return
        if job.purpose == "probe":
            self._probe_all("eager")
            if job.backend.on_device:
                self._probe_all("graph")
            return
        clock: Clock = HostClock()
        if job.backend.on_device:
            apart = ("graph-mixing", "0") in job.combination.launch
            clock = DeviceClock(self.seat.device, apart=apart)
        for at, task in enumerate(job.tasks):
            for timing in task.timings:
                self.pipe.send(self.timed(clock, at, task.point, timing))

    def step(self) -> None:
        """Tell the fork server that this rank has come further."""
        self.steps += 1
        self.progress[self.seat.rank - self.seat.job.first_rank] = self.steps

    def _probe_all(self, launch: Launch) -> None:
        """Check each point, eagerly and then captured: a capture that fails ends the process."""
        for at, task in enumerate(self.seat.job.tasks):
            refused = self.seat.why_not(task.point)
            if refused is not None:
                told = Checked(
                    rank=self.seat.rank, task=at, launch=launch, wrong=0, refused=refused
                )
                self.pipe.send(told)
                continue
            slots = Slots(self.seat, task.point, 1)
            to_run = self._launched(slots, launch)[0]
            wrong = 0
            for sample in range(2):
                slots.fill(sample)
                self.step()
                for call in to_run:
                    call()
                self.step()
                found = slots.wrong(sample)
                wrong += 0 if found is None else int(found.item())
            self.pipe.send(Checked(rank=self.seat.rank, task=at, launch=launch, wrong=wrong))

    def _launched(self, slots: Slots, launch: Launch) -> Sequence[Sequence[calls.Call]]:
        """Return the calls of each sample of a volley; a graph is captured, and is one call."""
        if launch == "eager":
            return slots.calls
        slots.fill(0)
        slots.calls[0][0]()
        return [[calls.captured(slots.calls[0])]]

    def timed(self, clock: Clock, at: int, point: Point, timing: Timing) -> Timed:
        """Check and time all samples of one time of a point, volley by volley."""
        job = self.seat.job
        total = job.samples(timing, point)
        volley = total if timing.launch == "eager" else 1
        slots = Slots(self.seat, point, timing.depth, samples=volley)
        to_run = self._launched(slots, timing.launch)
        hidden = timing.depth == 1 or timing.launch == "graph"
        seconds: list[float] = []
        wrong = torch.zeros((), dtype=torch.int64, device=self.seat.device)
        exposed, spent_s = 0, 0.0
        gc.disable()  # a collection inside a sample would be measured
        for first in range(0, total, slots.volley):
            several = min(slots.volley, total - first)
            slots.fill(first)
            for place in range(several):
                self.step()
                began = time.perf_counter()
                taken = clock.time(to_run[place], hidden=hidden)
                spent_s += time.perf_counter() - began
                self.step()
                if first + place >= job.warmup:
                    seconds.append(taken.seconds / timing.depth)
                    exposed += taken.exposed
            found = slots.wrong(first, several)
            wrong += 0 if found is None else found
        gc.enable()
        return Timed(
            rank=self.seat.rank,
            task=at,
            timing=timing,
            seconds=tuple(seconds),
            wrong=int(wrong.item()) if slots.checkable else None,
            exposed=exposed,
            spent_s=spent_s,
        )
