"""Run a job on N ranks and hand over each point as soon as all ranks have measured it.

The fork server (fork_server.py beside this) is the one child of this process, in a session of its
own: Ctrl-C reaches this process alone, which then ends the server and with it all ranks. Whatever
way the sweep ends, no process and no temporary file stays.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from collectives._sweep.messages import (
    CountGpus,
    Failed,
    Finished,
    Gpus,
    Joined,
    Progress,
    Timed,
    ending,
)
from collectives._sweep.plan import Job, Point
from verifyscope import stats
from verifyscope.errors import Failure

_ROOT = Path(__file__).resolve().parent.parent
_IMPORT_S = 300.0
_LEAVE_S = 5.0
# What the fork server may take beyond a job's own time-out to say who is to blame.
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All ranks have joined, in their order."""

    ranks: tuple[Joined, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One point of all ranks: a sample is the maximum over ranks; `wrong` is their sum."""

    point: Point
    samples: tuple[float, ...]
    summary: stats.Summary
    wrong: int
    exposed: int


class RankFailed(Exception):
    """A rank died, raised or hung; `reason` names it, and the job ended there."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.reason)
        self.kind: Literal["error", "hang"] = failed.kind
        self.reason = failed.reason
        self.said = failed.said


class ForkServer:
    """A started fork server; `receive` and `send` speak to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "collectives._sweep.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=_environment(),
            )
        self._connection = Connection(ours.detach())
        self._ready = False

    def send(self, message: object) -> None:
        """Ask for something, once torch is imported there."""
        if not self._ready:
            first = self.receive(_IMPORT_S)
            if isinstance(first, Failed):
                raise Failure(f"torch could not be loaded: {first.reason}")
            self._ready = True
        with contextlib.suppress(BrokenPipeError):  # `receive` says what became of the server
            self._connection.send(message)

    def receive(self, timeout_s: float) -> object:
        """Return the next message; `Failed` where the server itself is gone or silent."""
        who = f"the process that holds all ranks (pid {self.process.pid})"
        try:
            if self._connection.poll(timeout_s):
                return self._connection.recv()
        except (EOFError, ConnectionResetError):
            return Failed(kind="error", reason=f"{who} {ending(self.process.wait())}")
        return Failed(kind="hang", reason=f"{who} says nothing for {timeout_s:g} s")

    def end(self) -> None:
        """End the server and all of its ranks, whatever they are doing."""
        self._connection.close()
        try:
            if self._ready:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_LEAVE_S)
        finally:
            if self.process.returncode != 0:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


@contextlib.contextmanager
def fork_server() -> Iterator[ForkServer]:
    """Start a fork server and end it, with all ranks, when the block is left."""
    server = ForkServer()
    try:
        yield server
    finally:
        server.end()


def count_gpus(server: ForkServer) -> Gpus:
    """Return how many GPUs a rank would see."""
    server.send(CountGpus())
    found = server.receive(_IMPORT_S)
    if isinstance(found, Gpus):
        return found
    return Gpus(0, found.reason if isinstance(found, Failed) else None)


@dataclass(slots=True)
class _Collected:
    """What has come in so far."""

    joined: dict[int, Joined] = field(default_factory=dict)
    timed: dict[int, dict[int, Timed]] = field(default_factory=dict)


def results(server: ForkServer, job: Job) -> Iterator[Group | Result | Progress]:
    """Run `job`; yield the group, then each point as it is measured, with progress between.

    `RankFailed` where a rank is lost: within the job's time-out, after all that was measured.
    """
    collected = _Collected()
    with tempfile.TemporaryDirectory(prefix="verifyscope-", ignore_cleanup_errors=True) as folder:
        server.send((job, folder))
        while True:
            message = server.receive(job.timeout_s + _ANSWER_S)
            if isinstance(message, Finished):
                return
            if isinstance(message, Failed):
                raise RankFailed(message)
            found = _collect(message, collected, job)
            if found is not None:
                yield found


def _collect(message: object, collected: _Collected, job: Job) -> Group | Result | Progress | None:
    """Keep `message`; return what is now complete."""
    if isinstance(message, Joined):
        collected.joined[message.rank] = message
        if len(collected.joined) == job.ranks:
            return Group(ranks=tuple(collected.joined[rank] for rank in range(job.ranks)))
    elif isinstance(message, Timed):
        ranks = collected.timed.setdefault(message.point, {})
        ranks[message.rank] = message
        if len(ranks) == job.ranks:
            del collected.timed[message.point]
            return _result(job.points[message.point], list(ranks.values()))
    elif isinstance(message, Progress):
        return message
    return None


def _result(point: Point, ranks: list[Timed]) -> Result:
    samples = tuple(map(max, zip(*(rank.seconds for rank in ranks), strict=True)))
    return Result(
        point=point,
        samples=samples,
        summary=stats.summarise(samples),
        wrong=sum(rank.wrong for rank in ranks),
        exposed=max(rank.exposed for rank in ranks),
    )


def _environment() -> dict[str, str]:
    """Return the environment of the ranks: this one, one thread a rank, and one machine."""
    found = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if Path("/sys/class/net/lo").exists():
        found["GLOO_SOCKET_IFNAME"] = "lo"
    # The folders of this project run from the checkout, whatever the current folder is.
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    return {**found, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
