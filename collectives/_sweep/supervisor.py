"""The ranks of one job on this machine, from their start until all are gone.

All stand in one process group, so that what a rank started ends with it. A rank that dies, raises
or hangs ends the job. What a probe left in its folder is sent before the last message.
"""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path

from collectives._sweep import in_effect, worker
from collectives._sweep.job import Job
from collectives._sweep.messages import (
    Done,
    Failed,
    Finished,
    Forked,
    Logs,
    Progress,
    Raised,
    Stop,
    ending,
)

_TICK_S = 0.5
# When a rank is lost its peers notice at once and fail too: who was first is known after this.
_GRACE_S = 1.0
_LEAVE_S = 5.0
_SAID_LINES = 3
_LONGEST_LOG = 2**24
_STOPPED = Failed(kind="error", reason="ended because ranks of another machine are lost")
# Whose word counts: a rank that died in silence, one that raised, one that lags, one that waits.
_DIED, _RAISED, _LAGS, _WAITS = 4, 3, 2, 1


class Supervisor:
    """Starts, watches and ends the ranks of `job`; `upstream` is the sweep."""

    def __init__(
        self, job: Job, folder: Path, upstream: Connection, *, context: ForkContext
    ) -> None:
        self.job, self.folder, self.upstream, self.context = job, folder, upstream, context
        self.counters = context.RawArray("q", job.local_ranks)
        self.processes: list[ForkProcess] = []
        self.pipes: list[Connection] = []
        self.done: set[int] = set()
        self.raised: list[Raised] = []
        self.stopped = False

    def run(self) -> None:
        """Run the job; the last message upstream is `Finished` or `Failed`."""
        try:
            for rank in self._ranks():
                self._start(rank)
            self.upstream.send(Forked(self._group()))
            failed = self._watch()
            if failed is None:
                self._let_leave()
        finally:
            self._end()
        self.upstream.send(self._logs())
        self.upstream.send(failed or Finished())

    def _ranks(self) -> range:
        return range(self.job.first_rank, self.job.first_rank + self.job.local_ranks)

    def _group(self) -> int:
        return self.processes[0].pid or 0

    def _start(self, rank: int) -> None:
        receiver, sender = self.context.Pipe(duplex=False)
        process = self.context.Process(target=self._rank, args=(rank, sender), name=f"rank {rank}")
        process.start()
        sender.close()
        self.processes.append(process)
        self.pipes.append(receiver)
        with contextlib.suppress(OSError):  # it has done so itself, or is gone already
            os.setpgid(process.pid or 0, self._group())

    def _rank(self, rank: int, pipe: Connection) -> None:
        with contextlib.suppress(OSError):
            os.setpgid(0, self._group() if self.processes else 0)
        # Only the fork server may hold this end: the sweep sees at once when it is gone.
        self.upstream.close()
        worker.main(self.job, rank, folder=self.folder, pipe=pipe, progress=self.counters)

    def _watch(self) -> Failed | None:
        """Forward what ranks say until all are done, or one of them has failed."""
        seen, moved_s = list(self.counters), time.monotonic()
        while len(self.done) < self.job.local_ranks:
            ready = self._wait(min(_TICK_S, self.job.timeout_s))
            if self.stopped:
                return _STOPPED
            if self.raised or self._dead():
                return self._lost()
            if ready or list(self.counters) != seen:
                seen, moved_s = list(self.counters), time.monotonic()
                self.upstream.send(Progress(min(seen) // 2))
            if time.monotonic() - moved_s >= self.job.timeout_s:
                return self._hung()
        return None

    def _wait(self, timeout_s: float) -> bool:
        """Wait until a rank says something or ends, forward it, and tell whether one did."""
        alive = [process.sentinel for process in self.processes if process.exitcode is None]
        ready = wait([self.upstream, *self.pipes, *alive], timeout_s)
        if self.upstream in ready:
            self.stopped = isinstance(self.upstream.recv(), Stop)  # EOFError: the sweep is gone
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
        codes = dict(zip(self._ranks(), (p.exitcode for p in self.processes), strict=True))
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
            return Failed(kind="error", reason=reason, said=self._said(min(dead)), blame=_DIED)
        first = min(self.raised, key=lambda raised: raised.at_s)
        if first.unsupported:
            return Failed(kind="unsupported", reason=first.text, blame=_RAISED)
        reason = f"{self._name(first.rank)} raised {first.text}"
        return Failed(kind="error", reason=reason, blame=_RAISED)

    def _hung(self) -> Failed:
        """Name the ranks that hold up the others: stopped ones, else those that lag behind."""
        limit = f"no progress for {self.job.timeout_s:g} s (--timeout)"
        states = {
            rank: _state(process.pid)
            for rank, process in zip(self._ranks(), self.processes, strict=True)
        }
        stopped = [rank for rank, state in states.items() if state in ("T", "t")]
        if stopped:
            reason = f"{self._names(stopped)} stopped (SIGSTOP or a debugger); {limit}"
            return Failed(kind="hang", reason=reason, blame=_DIED)
        steps = dict(zip(self._ranks(), self.counters, strict=True))
        least = min(steps.values())
        behind = [rank for rank, step in steps.items() if step == least]
        call = self.job.collective.name
        if len(behind) == len(steps):
            where = f"in {call} call {least // 2 + 1}" if least else "joining the group"
            ranks = f"{self._ranks()[0]} to {self._ranks()[-1]}"
            reason = f"no rank is behind, all of {ranks} are {where}; {limit}"
            return Failed(kind="hang", reason=reason, blame=_WAITS)
        reason = f"{self._names(behind)} behind, the others wait in {call}; {limit}"
        return Failed(kind="hang", reason=reason, blame=_LAGS)

    def _name(self, rank: int) -> str:
        return f"rank {rank} (pid {self.processes[rank - self.job.first_rank].pid})"

    def _names(self, ranks: Sequence[int]) -> str:
        return " and ".join(map(self._name, ranks)) + (" is" if len(ranks) == 1 else " are")

    def _said(self, rank: int) -> tuple[str, ...]:
        log = self.folder / f"rank-{rank}.log"
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ()
        return tuple(line[:300] for line in lines if line.strip())[-_SAID_LINES:]

    def _logs(self) -> Logs:
        """Return what NCCL left in the folder: its log of each rank, topology and graphs."""
        own = [(rank, in_effect.log_file(self.folder, rank)) for rank in self._ranks()]
        first = self.job.first_rank
        dumps = [(first, self.folder / name) for name in (in_effect.TOPOLOGY, in_effect.GRAPHS)]
        found = []
        for rank, path in [*own, *dumps]:
            with contextlib.suppress(OSError), path.open("rb") as file:
                found.append((rank, path.name, file.read(_LONGEST_LOG)))
        return Logs(tuple(found))

    def _let_leave(self) -> None:
        """Give the ranks a moment to take the group down; all is measured."""
        until_s = time.monotonic() + _LEAVE_S
        for process in self.processes:
            process.join(max(0.0, until_s - time.monotonic()))

    def _end(self) -> None:
        """Kill what still lives: a rank in a kernel or stopped answers no other signal."""
        if self.processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group(), signal.SIGKILL)
        end(self.processes)


def end(processes: Sequence[ForkProcess]) -> None:
    """Kill `processes` and wait a moment for each."""
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
