"""The processes of the ranks of one job on this machine: forked, heard, and ended whatever they do.

All stand in one process group, so that what a rank started ends with it, and each is killed when
the process that forked it is: that may have no time to say so. Ranks speak over a pipe each, and
count up in `counters` as they come further.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path

from verifyscope.child import die_with_parent, signal_group
from verifyscope.privacy import redacted_words

# When a rank is lost its peers notice at once and fail too: who was first is known after this.
_GRACE_S = 1.0
_LEAVE_S = 5.0
_LONGEST_LINE = 300


class RankProcesses:
    """The ranks `ranks` of a job, whose logs are in `folder`; `upstream` is who asked for it."""

    def __init__(
        self, ranks: range, *, folder: Path, upstream: Connection, context: ForkContext
    ) -> None:
        self.ranks, self.folder = ranks, folder
        self.counters = context.RawArray("q", len(ranks))
        self._upstream, self._context = upstream, context
        self._processes: dict[int, ForkProcess] = {}
        self._pipes: list[Connection] = []

    @property
    def group(self) -> int:
        """Return the process group of all ranks that were started; 0 before."""
        return self._processes[self.ranks[0]].pid or 0 if self._processes else 0

    def start(self, rank: int, work: Callable[[Connection], object]) -> None:
        """Fork a rank; `work` gets what it speaks over."""
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=self._run, args=(work, sender), name=f"rank {rank}")
        process.start()
        sender.close()
        self._processes[rank] = process
        self._pipes.append(receiver)
        with contextlib.suppress(OSError):  # it has done so itself, or is gone already
            os.setpgid(process.pid or 0, self.group)

    def _run(self, work: Callable[[Connection], object], pipe: Connection) -> None:
        die_with_parent()
        with contextlib.suppress(OSError):
            os.setpgid(0, self.group)
        # Only the process that forks may hold this end: who asked sees at once when it is gone.
        self._upstream.close()
        work(pipe)

    def hear(self, timeout_s: float, take: Callable[[object], None]) -> bool:
        """Give `take` what ranks and `upstream` say; tell whether anybody did, or a rank ended.

        EOFError where upstream is gone.
        """
        alive = [one.sentinel for one in self._processes.values() if one.exitcode is None]
        ready = wait([self._upstream, *self._pipes, *alive], timeout_s)
        if self._upstream in ready:
            take(self._upstream.recv())
        for pipe in list(self._pipes):
            with contextlib.suppress(EOFError):
                while pipe.poll():
                    take(pipe.recv())
                continue
            self._pipes.remove(pipe)
            pipe.close()
        return bool(ready)

    def settle(self, take: Callable[[object], None]) -> None:
        """Hear what is still said while the peers of a lost rank notice it."""
        until_s = time.monotonic() + _GRACE_S
        while (left_s := until_s - time.monotonic()) > 0:
            if all(process.exitcode is not None for process in self._processes.values()):
                break
            self.hear(left_s, take)

    def ended(self) -> dict[int, int]:
        """Return the exit codes of the ranks that have ended."""
        codes = {rank: process.exitcode for rank, process in self._processes.items()}
        return {rank: code for rank, code in codes.items() if code is not None}

    def stopped(self) -> list[int]:
        """Return the ranks that are stopped, by a signal or a debugger."""
        states = {rank: _state(process.pid) for rank, process in self._processes.items()}
        return [rank for rank, state in states.items() if state in ("T", "t")]

    def name(self, rank: int) -> str:
        """Return how a person finds the process of a rank."""
        return f"rank {rank} (pid {self._processes[rank].pid})"

    def said(self, rank: int, *, lines: int) -> tuple[str, ...]:
        """Return the last lines of a rank's log, fit for a record: no folder, no address."""
        try:
            text = log_of(self.folder, rank).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ()
        spoken = [line for line in text.splitlines() if line.strip()][-lines:]
        return tuple(redacted_words(line)[:_LONGEST_LINE] for line in spoken)

    def let_leave(self) -> None:
        """Give the ranks a moment to end by themselves."""
        until_s = time.monotonic() + _LEAVE_S
        for process in self._processes.values():
            process.join(max(0.0, until_s - time.monotonic()))

    def end(self) -> None:
        """Kill what still lives: a rank in a kernel or stopped answers no other signal."""
        if self._processes:
            signal_group(self.group, signal.SIGKILL)
        end(list(self._processes.values()))


def end(processes: Sequence[ForkProcess]) -> None:
    """Kill `processes` and wait a moment for each."""
    for process in processes:
        if process.exitcode is None:
            process.kill()
    for process in processes:
        process.join(_LEAVE_S)


def log_of(folder: Path, rank: int) -> Path:
    """Return where a rank's output goes."""
    return folder / f"rank-{rank}.log"


def redirect(log: Path) -> None:
    """In a rank: keep what libraries print out of the tables."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)


def variables_of_ranks(*, several: bool = False) -> Mapping[str, str]:
    """Return what is set for ranks where nothing is: one thread each, and one machine."""
    found = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if not several and Path("/sys/class/net/lo").exists():
        found["GLOO_SOCKET_IFNAME"] = "lo"
    return {name: os.environ.get(name, value) for name, value in found.items()}


def _state(pid: int | None) -> str | None:
    """Return the state letter of a process (T is stopped), or None where that is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[0]
