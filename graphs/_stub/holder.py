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
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import get_args

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
    Forked,
    Raised,
    Ready,
)
from verifyscope.child import ending
from verifyscope.rank_processes import RankProcesses

_TICK_S = 0.5

_context = multiprocessing.get_context("fork")


def main() -> None:
    """Run the jobs that the command sends, until it goes away."""
    upstream = Connection(int(sys.argv[1]))
    kernels.all_ops()
    gc.freeze()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        upstream.send(Ready())
        while True:
            job, folder = upstream.recv()
            _Watch(job, Path(folder), upstream).run()


class _Watch:
    """The ranks of one job, from their start until all are gone."""

    def __init__(self, job: Job, folder: Path, upstream: Connection) -> None:
        self.job, self.folder, self.upstream = job, folder, upstream
        self.ranks = RankProcesses(
            range(job.ranks), folder=folder, upstream=upstream, context=_context
        )
        self.done: set[int] = set()
        self.raised: list[Raised] = []
        self.ended: list[object] = []

    def run(self) -> None:
        """Run the job; the last message upstream says how it ended."""
        try:
            for rank in self.ranks.ranks:
                self._start(rank)
            self.upstream.send(Forked(self.ranks.group))
            last = self._watch()
        finally:
            self.ranks.end()
        self.upstream.send(last)

    def _start(self, rank: int) -> None:
        def work(pipe: Connection) -> None:
            worker.main(self.job, rank, folder=self.folder, pipe=pipe, beats=self.ranks.counters)

        self.ranks.start(rank, work)

    def _watch(self) -> object:
        """Forward what ranks say until all are done, or one of them has ended the job."""
        beats = self.ranks.counters
        seen, moved_s = list(beats), time.monotonic()
        while len(self.done) < self.job.ranks:
            ready = self.ranks.hear(min(_TICK_S, self.job.timeout_s), self._take)
            if self.ended:
                return self.ended[0]
            if self.raised or self._dead():
                return self._lost()
            if ready or list(beats) != seen:
                seen, moved_s = list(beats), time.monotonic()
                self.upstream.send(Alive())
            if time.monotonic() - moved_s >= self.job.timeout_s:
                return Failed(kind="hang", reason=self._hung())
        return Finished()

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
        return {rank: code for rank, code in self.ranks.ended().items() if rank not in spoke}

    def _lost(self) -> object:
        """Name the rank that was lost first: one that ended in silence, or the first to raise."""
        self.ranks.settle(self._take)
        if self.ended:
            return self.ended[0]
        name = self.ranks.name
        dead = self._dead()
        if dead:
            rank, code = next(iter(dead.items()))
            words = [f"{name(rank)} {ending(code)}", *self.ranks.said(rank, lines=1)]
            return Failed(kind="error", reason=". ".join(words))
        first = min(self.raised, key=lambda raised: raised.at_s)
        return Failed(kind="error", reason=f"{name(first.rank)} raised {first.text}")

    def _hung(self) -> str:
        """Name the ranks that hold up the others: stopped ones, else those that lag behind."""
        limit = f"no progress for {self.job.timeout_s:g} s (--timeout)"
        if stopped := self.ranks.stopped():
            return f"{self._names(stopped)} stopped (SIGSTOP or a debugger); {limit}"
        beats = {rank: n for rank, n in enumerate(self.ranks.counters) if rank not in self.done}
        behind = [rank for rank, count in beats.items() if count == min(beats.values())]
        if len(behind) == self.job.ranks > 1:
            return f"no rank is behind, all wait for each other; {limit}"
        return f"{self._names(behind)} holds up the others; {limit}"

    def _names(self, ranks: Sequence[int]) -> str:
        return ", ".join(map(self.ranks.name, ranks))


if __name__ == "__main__":
    main()
    os._exit(0)  # taking torch down in order takes seconds, and nothing here needs it
