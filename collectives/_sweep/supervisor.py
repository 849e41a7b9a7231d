"""The ranks of one job on this machine, from their start until all are gone.

A rank that dies, raises or hangs ends the job. What a probe left in its folder is sent before the
last message.
"""

import contextlib
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext
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
)
from verifyscope.child import ending
from verifyscope.rank_processes import RankProcesses

_TICK_S = 0.5
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
        self.job, self.folder, self.upstream = job, folder, upstream
        ranks = range(job.first_rank, job.first_rank + job.local_ranks)
        self.ranks = RankProcesses(ranks, folder=folder, upstream=upstream, context=context)
        self.done: set[int] = set()
        self.raised: list[Raised] = []
        self.stopped = False

    def run(self) -> None:
        """Run the job; the last message upstream is `Finished` or `Failed`."""
        try:
            for rank in self.ranks.ranks:
                self._start(rank)
            self.upstream.send(Forked(self.ranks.group))
            failed = self._watch()
            if failed is None:
                self.ranks.let_leave()  # they take the group down; all is measured
        finally:
            self.ranks.end()
        self.upstream.send(self._logs())
        self.upstream.send(failed or Finished())

    def _start(self, rank: int) -> None:
        def work(pipe: Connection) -> None:
            counters = self.ranks.counters
            worker.main(self.job, rank, folder=self.folder, pipe=pipe, progress=counters)

        self.ranks.start(rank, work)

    def _watch(self) -> Failed | None:
        """Forward what ranks say until all are done, or one of them has failed."""
        counters = self.ranks.counters
        seen, moved_s = list(counters), time.monotonic()
        while len(self.done) < self.job.local_ranks:
            ready = self.ranks.hear(min(_TICK_S, self.job.timeout_s), self._take)
            # A rank lost here is the better reason, though another machine was quicker to say.
            if self.raised or self._dead():
                return self._lost()
            if self.stopped:
                return _STOPPED
            if ready or list(counters) != seen:
                seen, moved_s = list(counters), time.monotonic()
                self.upstream.send(Progress(min(seen) // 2))
            if time.monotonic() - moved_s >= self.job.timeout_s:
                return self._hung()
        return None

    def _take(self, message: object) -> None:
        if isinstance(message, Raised):
            self.raised.append(message)
        elif isinstance(message, Done):
            self.done.add(message.rank)
        elif isinstance(message, Stop):
            self.stopped = True
        else:
            self.upstream.send(message)

    def _dead(self) -> dict[int, int]:
        """Return the exit codes of the ranks that ended before they were done, without a word."""
        spoke = self.done | {raised.rank for raised in self.raised}
        return {rank: code for rank, code in self.ranks.ended().items() if rank not in spoke}

    def _lost(self) -> Failed:
        """Name the rank that was lost first: one that ended in silence, or the first to raise."""
        self.ranks.settle(self._take)
        name = self.ranks.name
        dead = self._dead()
        if dead:
            reason = ", ".join(f"{name(rank)} {ending(code)}" for rank, code in dead.items())
            said = self.ranks.said(min(dead), lines=_SAID_LINES)
            return Failed(kind="error", reason=reason, said=said, blame=_DIED)
        first = min(self.raised, key=lambda raised: raised.at_s)
        if first.unsupported:
            return Failed(kind="unsupported", reason=first.text, blame=_RAISED)
        reason = f"{name(first.rank)} raised {first.text}"
        return Failed(kind="error", reason=reason, blame=_RAISED)

    def _hung(self) -> Failed:
        """Name the ranks that hold up the others: stopped ones, else those that lag behind."""
        limit = f"no progress for {self.job.timeout_s:g} s (--timeout)"
        if stopped := self.ranks.stopped():
            reason = f"{self._names(stopped)} stopped (SIGSTOP or a debugger); {limit}"
            return Failed(kind="hang", reason=reason, blame=_DIED)
        ranks = self.ranks.ranks
        steps = dict(zip(ranks, self.ranks.counters, strict=True))
        least = min(steps.values())
        behind = [rank for rank, step in steps.items() if step == least]
        call = self.job.collective.name
        if len(behind) == len(steps):
            where = f"in {call} call {least // 2 + 1}" if least else "joining the group"
            reason = f"no rank is behind, all of {ranks[0]} to {ranks[-1]} are {where}; {limit}"
            return Failed(kind="hang", reason=reason, blame=_WAITS)
        reason = f"{self._names(behind)} behind, the others wait in {call}; {limit}"
        return Failed(kind="hang", reason=reason, blame=_LAGS)

    def _names(self, ranks: Sequence[int]) -> str:
        names = " and ".join(map(self.ranks.name, ranks))
        return names + (" is" if len(ranks) == 1 else " are")

    def _logs(self) -> Logs:
        """Return what NCCL left in the folder: its log of each rank, topology and graphs."""
        own = [(rank, in_effect.log_file(self.folder, rank)) for rank in self.ranks.ranks]
        first = self.job.first_rank
        dumps = [(first, self.folder / name) for name in (in_effect.TOPOLOGY, in_effect.GRAPHS)]
        found = []
        for rank, path in [*own, *dumps]:
            with contextlib.suppress(OSError), path.open("rb") as file:
                found.append((rank, path.name, file.read(_LONGEST_LOG)))
        return Logs(tuple(found))
