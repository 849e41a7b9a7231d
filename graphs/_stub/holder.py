"""`python -m graphs._stub.holder FD`: torch is imported once, the ranks of each job are forked.

It touches no device, so each rank is as fresh as a new process. It watches them: a rank that ends
early, raises, refuses or makes no progress ends the job, and all ranks with it. When the command
that started it goes away, the ranks and it end.
"""

import contextlib
import gc
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import get_args

import torch
import torch.distributed  # so that no rank has to import it

import kernels
from graphs import stub  # noqa: F401  # so that no rank has to import it
from graphs._stub import worker
from graphs._stub.asked import Job
from graphs._stub.messages import (
    Alive,
    Done,
    Ending,
    Failed,
    Finished,
    Raised,
    Ready,
    ending,
)

_TICK_S = 0.5
# When a rank is lost its peers notice at once and fail, too: who was first is known after this.
_GRACE_S = 1.0
_LEAVE_S = 5.0
_SAID = 300

_context = multiprocessing.get_context("fork")


def main() -> None:
    """Run the jobs that the command sends, until it goes away."""
    upstream = Connection(int(sys.argv[1]))
    kernels.all_ops()
    gc.freeze()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        upstream.send(Ready(torch=str(torch.__version__)))
        while True:
            job, folder = upstream.recv()
            _Watch(job, Path(folder), upstream).run()


class _Watch:
    """The ranks of one job, from their start until all are gone."""

    def __init__(self, job: Job, folder: Path, upstream: Connection) -> None:
        self.job, self.folder, self.upstream = job, folder, upstream
        self.beats = _context.RawArray("q", job.ranks)
        self.processes: list[ForkProcess] = []
        self.pipes: list[Connection] = []
        self.done: set[int] = set()
        self.raised: list[Raised] = []
        self.ended: list[object] = []

    def run(self) -> None:
        """Run the job; the last message upstream says how it ended."""
        try:
            for rank in range(self.job.ranks):
                self._start(rank)
            last = self._watch()
        finally:
            for process in self.processes:
                if process.exitcode is None:
                    process.kill()
            for process in self.processes:
                process.join(_LEAVE_S)
        self.upstream.send(last)

    def _start(self, rank: int) -> None:
        receiver, sender = _context.Pipe(duplex=False)
        process = _context.Process(target=self._rank, args=(rank, sender), name=f"rank {rank}")
        process.start()
        sender.close()
        self.processes.append(process)
        self.pipes.append(receiver)

    def _rank(self, rank: int, pipe: Connection) -> None:
        # Only this process may hold this end: the command sees at once when it is gone.
        self.upstream.close()
        worker.main(self.job, rank, folder=self.folder, pipe=pipe, beats=self.beats)

    def _watch(self) -> object:
        """Forward what ranks say until all are done, or one of them has ended the job."""
        seen, moved_s = list(self.beats), time.monotonic()
        while len(self.done) < self.job.ranks:
            ready = self._wait(min(_TICK_S, self.job.timeout_s))
            if self.ended:
                return self.ended[0]
            if self.raised or self._dead():
                return self._lost()
            if ready or list(self.beats) != seen:
                seen, moved_s = list(self.beats), time.monotonic()
                self.upstream.send(Alive())
            if time.monotonic() - moved_s >= self.job.timeout_s:
                return Failed(kind="hang", reason=self._hung())
        return Finished()

    def _wait(self, timeout_s: float) -> bool:
        """Wait until a rank says something or ends, forward it, and tell whether one did."""
        alive = [process.sentinel for process in self.processes if process.exitcode is None]
        ready = wait([self.upstream, *self.pipes, *alive], timeout_s)
        if self.upstream in ready:
            raise EOFError("the command is gone")
        for pipe in list(self.pipes):
            with contextlib.suppress(EOFError):
                while pipe.poll():
                    self._take(pipe.recv())
                continue
            self.pipes.remove(pipe)
        return bool(ready)

    def _take(self, message: object) -> None:
        if isinstance(message, Raised):
            self.raised.append(message)
        elif isinstance(message, Done):
            self.done.add(message.rank)
        elif isinstance(message, get_args(Ending)):
            self.ended.append(message)
        else:
            self.upstream.send(message)

    def _dead(self) -> dict[int, int]:
        """Return the exit codes of the ranks that ended before they were done, without a word."""
        spoke = self.done | {raised.rank for raised in self.raised}
        codes = {rank: process.exitcode for rank, process in enumerate(self.processes)}
        return {r: code for r, code in codes.items() if code is not None and r not in spoke}

    def _lost(self) -> object:
        """Name the rank that was lost first: one that ended in silence, or the first to raise."""
        until_s = time.monotonic() + _GRACE_S
        while (left_s := until_s - time.monotonic()) > 0:
            if all(process.exitcode is not None for process in self.processes):
                break
            self._wait(left_s)
        if self.ended:
            return self.ended[0]
        dead = self._dead()
        if dead:
            rank, code = next(iter(dead.items()))
            reason = f"{self._name(rank)} {ending(code)}"
            return Failed(kind="error", reason=". ".join(filter(None, (reason, self._said(rank)))))
        first = min(self.raised, key=lambda raised: raised.at_s)
        return Failed(kind="error", reason=f"{self._name(first.rank)} raised {first.text}")

    def _hung(self) -> str:
        """Name the ranks that hold up the others."""
        beats = {rank: n for rank, n in enumerate(self.beats) if rank not in self.done}
        behind = [rank for rank, count in beats.items() if count == min(beats.values())]
        limit = f"no progress for {self.job.timeout_s:g} s (--timeout)"
        if len(behind) == self.job.ranks > 1:
            return f"no rank is behind, all wait for each other; {limit}"
        return f"{', '.join(map(self._name, behind))} holds up the others; {limit}"

    def _name(self, rank: int) -> str:
        return f"rank {rank} (pid {self.processes[rank].pid})"

    def _said(self, rank: int) -> str:
        """Return the last line of a rank's own log."""
        with contextlib.suppress(OSError):
            log = (self.folder / f"rank-{rank}.log").read_text(errors="replace")
            lines = [line.strip() for line in log.splitlines() if line.strip()]
            return lines[-1][:_SAID] if lines else ""
        return ""


if __name__ == "__main__":
    main()
    os._exit(0)  # taking torch down in order takes seconds, and nothing here needs it
