"""`python -m collectives._sweep.fork_server FD`: torch is imported once, ranks are forked from it.

It touches neither CUDA nor NCCL, so each rank is as fresh as a new process, and a job starts in
milliseconds where importing torch takes seconds a rank. It leads a process group of its own that
holds all ranks. It watches them: a rank that dies, raises or hangs ends the job, and all ranks with
it. When the sweep that started it goes away, the ranks and it end.
"""

import contextlib
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

import torch
import torch.distributed  # so that no rank has to import it

from collectives._sweep import worker
from collectives._sweep.messages import (
    CountGpus,
    Done,
    Failed,
    Finished,
    Gpus,
    Progress,
    Raised,
    Ready,
    ending,
)
from collectives._sweep.plan import Job

_TICK_S = 0.5
# When a rank is lost its peers notice at once and fail too: who was first is known after this.
_GRACE_S = 1.0
_LEAVE_S = 5.0
_PROBE_S = 60.0
_SAID_LINES = 3

_context = multiprocessing.get_context("fork")


def main() -> None:
    """Answer what the sweep asks, until it goes away."""
    upstream = Connection(int(sys.argv[1]))
    try:
        upstream.send(Ready(torch=str(torch.__version__)))
        while True:
            request = upstream.recv()
            if isinstance(request, CountGpus):
                upstream.send(_count_gpus())
            else:
                job, folder = request
                _Supervisor(job, Path(folder), upstream).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _count_gpus() -> Gpus:
    """Ask torch in a process of its own: counting may touch CUDA."""
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_send_gpus, args=(sender,))
    process.start()
    sender.close()
    try:
        found = receiver.recv() if receiver.poll(_PROBE_S) else Gpus(0, "the driver hangs")
    except EOFError:
        process.join()
        found = Gpus(0, f"counting them {ending(process.exitcode)}")
    _end([process])
    return found if isinstance(found, Gpus) else Gpus(0)


def _send_gpus(sender: Connection) -> None:
    if torch.version.cuda is None:
        sender.send(Gpus(0, f"torch {torch.__version__} is built without CUDA"))
    elif not torch.distributed.is_nccl_available():
        sender.send(Gpus(0, f"torch {torch.__version__} is built without NCCL"))
    else:
        sender.send(Gpus(torch.cuda.device_count()))


class _Supervisor:
    """The ranks of one job, from their start until all are gone."""

    def __init__(self, job: Job, folder: Path, upstream: Connection) -> None:
        self.job, self.folder, self.upstream = job, folder, upstream
        self.counters = _context.RawArray("q", job.ranks)
        self.processes: list[ForkProcess] = []
        self.pipes: list[Connection] = []
        self.done: set[int] = set()
        self.raised: list[Raised] = []

    def run(self) -> None:
        """Run the job; the last message upstream is `Finished` or `Failed`."""
        try:
            for rank in range(self.job.ranks):
                self._start(rank)
            failed = self._watch()
            if failed is None:
                self._let_leave()
        finally:
            _end(self.processes)
            # The sweep does this too, unless it was killed.
            shutil.rmtree(self.folder, ignore_errors=True)
        self.upstream.send(failed or Finished())

    def _start(self, rank: int) -> None:
        receiver, sender = _context.Pipe(duplex=False)
        process = _context.Process(target=self._rank, args=(rank, sender), name=f"rank {rank}")
        process.start()
        sender.close()
        self.processes.append(process)
        self.pipes.append(receiver)

    def _rank(self, rank: int, pipe: Connection) -> None:
        # Only the fork server may hold this end: the sweep sees at once when it is gone.
        self.upstream.close()
        worker.main(self.job, rank, folder=self.folder, pipe=pipe, progress=self.counters)

    def _watch(self) -> Failed | None:
        """Forward what ranks say until all are done, or one of them has failed."""
        seen, moved_s = list(self.counters), time.monotonic()
        while len(self.done) < self.job.ranks:
            ready = self._wait(min(_TICK_S, self.job.timeout_s))
            if self.raised or self._dead():
                return self._lost()
            if ready or list(self.counters) != seen:
                seen, moved_s = list(self.counters), time.monotonic()
                self.upstream.send(Progress(min(seen) // 2))
            if time.monotonic() - moved_s >= self.job.timeout_s:
                return Failed(kind="hang", reason=self._hung())
        return None

    def _wait(self, timeout_s: float) -> bool:
        """Wait until a rank says something or ends, forward it, and tell whether one did."""
        alive = [process.sentinel for process in self.processes if process.exitcode is None]
        ready = wait([self.upstream, *self.pipes, *alive], timeout_s)
        if self.upstream in ready:
            raise EOFError("the sweep is gone")
        for pipe in list(self.pipes):
            with contextlib.suppress(EOFError):
                while pipe.poll():
                    self._forward(pipe.recv())
                continue
            self.pipes.remove(pipe)
        return bool(ready)

    def _forward(self, message: object) -> None:
        if isinstance(message, Raised):
            self.raised.append(message)
        elif isinstance(message, Done):
            self.done.add(message.rank)
        else:
            self.upstream.send(message)

    def _dead(self) -> dict[int, int]:
        """Return the exit codes of the ranks that ended before they were done, without a word."""
        spoke = self.done | {raised.rank for raised in self.raised}
        codes = {rank: process.exitcode for rank, process in enumerate(self.processes)}
        return {r: code for r, code in codes.items() if code is not None and r not in spoke}

    def _lost(self) -> Failed:
        """Name the rank that was lost first: one that ended in silence, or the first to raise."""
        until_s = time.monotonic() + _GRACE_S
        while (left_s := until_s - time.monotonic()) > 0:
            if all(process.exitcode is not None for process in self.processes):
                break
            self._wait(left_s)
        dead = self._dead()
        if dead:
            reason = ", ".join(f"{self._name(rank)} {ending(code)}" for rank, code in dead.items())
            return Failed(kind="error", reason=reason, said=self._said(min(dead)))
        first = min(self.raised, key=lambda raised: raised.at_s)
        return Failed(kind="error", reason=f"{self._name(first.rank)} raised {first.text}")

    def _hung(self) -> str:
        """Name the ranks that hold up the others: stopped ones, else those that lag behind."""
        limit = f"no progress for {self.job.timeout_s:g} s (--timeout)"
        states = {rank: _state(process.pid) for rank, process in enumerate(self.processes)}
        stopped = [rank for rank, state in states.items() if state in ("T", "t")]
        if stopped:
            return f"{self._names(stopped)} stopped (SIGSTOP or a debugger); {limit}"
        steps = list(self.counters)
        behind = [rank for rank, step in enumerate(steps) if step == min(steps)]
        call = self.job.collective.name
        if len(behind) == self.job.ranks:
            where = f"in {call} call {min(steps) // 2 + 1}" if min(steps) else "joining the group"
            return f"no rank is behind, all of 0 to {self.job.ranks - 1} are {where}; {limit}"
        return f"{self._names(behind)} behind, the others wait in {call}; {limit}"

    def _name(self, rank: int) -> str:
        return f"rank {rank} (pid {self.processes[rank].pid})"

    def _names(self, ranks: Sequence[int]) -> str:
        return " and ".join(map(self._name, ranks)) + (" is" if len(ranks) == 1 else " are")

    def _said(self, rank: int) -> tuple[str, ...]:
        log = self.folder / f"rank-{rank}.log"
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ()
        return tuple(line[:300] for line in lines if line.strip())[-_SAID_LINES:]

    def _let_leave(self) -> None:
        """Give the ranks a moment to take the group down; all is measured."""
        until_s = time.monotonic() + _LEAVE_S
        for process in self.processes:
            process.join(max(0.0, until_s - time.monotonic()))


def _end(processes: Sequence[ForkProcess]) -> None:
    """Kill what still lives: a rank in a kernel or stopped answers no other signal."""
    for process in processes:
        if process.exitcode is None:
            process.kill()
    for process in processes:
        process.join(_LEAVE_S)


def _state(pid: int | None) -> str | None:
    """Return the state letter of a process (T is stopped), or None where that is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[0]


if __name__ == "__main__":
    main()
    os._exit(0)  # taking torch down in order takes seconds, and nothing here needs it
