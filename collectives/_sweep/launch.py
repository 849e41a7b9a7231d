"""Run a job on N ranks and hand over each result as soon as all ranks have it.

The fork server (fork_server.py beside this) is the one child of this process, in a session of its
own: Ctrl-C reaches this process alone, which then ends the server and with it all ranks. Whatever
way the sweep ends, no process and no temporary file stays.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Literal, Protocol

from collectives._sweep.job import Job, Launch, Timing
from collectives._sweep.messages import (
    Checked,
    CountGpus,
    Failed,
    Finished,
    Forked,
    Gpus,
    Joined,
    Logs,
    Progress,
    Stop,
    Stressed,
    Timed,
)
from collectives._sweep.nccl_library import NcclLibrary
from collectives._sweep.points import Point
from verifyscope.child import Child, Lost, variables
from verifyscope.errors import Failure, UsageError
from verifyscope.rank_processes import variables_of_ranks

_IMPORT_S = 300.0
_LEAVE_S = 5.0
# What the fork server may take beyond a job's own time-out to say who is to blame.
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All ranks have joined, in their order; it took `seconds` from asking for them."""

    ranks: tuple[Joined, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A point that all ranks have checked, eagerly or captured; `wrong` is their sum.

    refused: why it can't run; None where it did.
    """

    point: Point
    launch: Launch
    wrong: int
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One time of a point, of all ranks: a sample is the maximum over ranks; `wrong` is their sum.

    spent_s: what the samples took with their barriers, on the slowest rank.
    """

    point: Point
    timing: Timing
    samples: tuple[float, ...]
    wrong: int | None
    exposed: int
    spent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Integrity:
    """What the stress found at a size, of all ranks."""

    size_bytes: int
    calls: int
    differing: int
    off: int


Found = Group | Probed | Result | Integrity | Progress | Logs


class RankFailed(Exception):
    """A rank died, raised or hung; `reason` names it, and the job ended there."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.reason)
        self.kind: Literal["error", "hang", "unsupported"] = failed.kind
        self.reason = failed.reason
        self.said = failed.said


class Team(Protocol):
    """Who starts the ranks of a job: the fork server of this machine, or of several."""

    def run(self, job: Job) -> Iterator[object]:
        """Yield what the ranks say; the last is `Finished` or `Failed`."""
        ...

    def count_gpus(self) -> Gpus:
        """Return how many GPUs a rank would see."""
        ...


class ForkServer:
    """A started fork server; a new one is started for a job where the last has ended.

    nccl: the library that its ranks use in place of torch's.
    """

    def __init__(self, variables: Mapping[str, str], nccl: NcclLibrary | None = None) -> None:
        self._variables = dict(variables)
        self._nccl = nccl
        self._group: int | None = None
        self._start()

    def _start(self) -> None:
        module = "fork_server" if self._nccl is None else "with_nccl"
        self._child = Child(
            [sys.executable, "-m", f"collectives._sweep.{module}"],
            variables=self._variables,
            who="the process that holds all ranks",
            more=[] if self._nccl is None else [str(self._nccl.path)],
        )
        self._ready = False

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """Return the process of the server that was started last."""
        return self._child.process

    def ready(self) -> None:
        """Wait until torch is imported there; `Failure` where it can't be."""
        if not self._ready:
            first = self._receive(_IMPORT_S, None)
            if isinstance(first, Failed) and self._nccl is not None:
                raise UsageError(
                    f"--nccl: torch could not be loaded with NCCL {self._nccl.version}: "
                    f"{first.reason}; give another version"
                )
            if isinstance(first, Failed):
                raise Failure(f"torch could not be loaded: {first.reason}")
            self._ready = True

    def run(self, job: Job, upstream: Connection | None = None) -> Iterator[object]:
        """Yield what the ranks say; a `Stop` that comes from `upstream` ends them."""
        if self._child.is_gone:
            self.end()
            self._start()
        with tempfile.TemporaryDirectory(
            prefix="verifyscope-", ignore_cleanup_errors=True
        ) as folder:
            self._send((job, folder))
            while True:
                message = self._receive(job.timeout_s + _ANSWER_S, upstream)
                if isinstance(message, Forked):
                    self._group = message.group
                    continue
                yield message
                if isinstance(message, Finished | Failed):
                    self._group = None
                    return

    def count_gpus(self) -> Gpus:
        """Return how many GPUs a rank would see."""
        self._send(CountGpus())
        found = self._receive(_IMPORT_S, None)
        if isinstance(found, Gpus):
            return found
        return Gpus(0, found.reason if isinstance(found, Failed) else None)

    def end(self) -> None:
        """End the server and all of its ranks, whatever they are doing."""
        self._child.end(
            leave_s=_LEAVE_S if self._ready else 0.0,
            groups=[] if self._group is None else [self._group],
        )

    def _send(self, message: object) -> None:
        self.ready()
        self._child.send(message)

    def _receive(self, timeout_s: float, upstream: Connection | None) -> object:
        """Return the next message; `Failed` where the server itself is gone or silent."""
        try:
            message = self._child.receive(timeout_s, also=[] if upstream is None else [upstream])
            if upstream is not None and message is upstream:
                self._child.send(_asked(upstream))
                message = self._child.receive(timeout_s)
            return message
        except Lost as lost:
            return Failed(kind=lost.kind, reason=lost.reason, blame=9)


@contextlib.contextmanager
def fork_server(*, several: bool = False, nccl: NcclLibrary | None = None) -> Iterator[ForkServer]:
    """Start a fork server and end it, with all ranks, when the block is left.

    several: its ranks talk to those of other machines. nccl: what they use in place of torch's.
    """
    server = ForkServer(variables(variables_of_ranks(several=several)), nccl)
    try:
        yield server
    finally:
        server.end()


@dataclass(slots=True)
class _Collected:
    """What has come in so far, by rank."""

    began_s: float
    joined: dict[int, Joined] = field(default_factory=dict)
    parts: dict[tuple[object, ...], dict[int, object]] = field(default_factory=dict)

    def add(self, key: tuple[object, ...], rank: int, part: object, ranks: int) -> list[object]:
        """Keep a rank's part; return all of them once there are `ranks`."""
        known = self.parts.setdefault(key, {})
        known[rank] = part
        return [] if len(known) < ranks else list(self.parts.pop(key).values())


def results(team: Team, job: Job) -> Iterator[Found]:
    """Run `job`; yield the group, then each result as it is there, with progress between.

    `RankFailed` where a rank is lost: within the job's time-out, after all that was measured.
    """
    collected = _Collected(began_s=time.monotonic())
    for message in team.run(job):
        if isinstance(message, Failed):
            raise RankFailed(message)
        found = _collect(message, collected, job)
        if found is not None:
            yield found


def _collect(message: object, collected: _Collected, job: Job) -> Found | None:
    """Keep `message`; return what is now complete."""
    if isinstance(message, Joined):
        collected.joined[message.rank] = message
        if len(collected.joined) == job.ranks:
            ranks = tuple(collected.joined[rank] for rank in range(job.ranks))
            return Group(ranks=ranks, seconds=time.monotonic() - collected.began_s)
    elif isinstance(message, Timed):
        key: tuple[object, ...] = (message.task, message.timing)
        if parts := collected.add(key, message.rank, message, job.ranks):
            return _result(job, [part for part in parts if isinstance(part, Timed)])
    elif isinstance(message, Checked):
        key = (message.task, message.launch)
        if parts := collected.add(key, message.rank, message, job.ranks):
            checked = [part for part in parts if isinstance(part, Checked)]
            return Probed(
                point=job.tasks[message.task].point,
                launch=message.launch,
                wrong=sum(part.wrong for part in checked),
                refused=next((part.refused for part in checked if part.refused), None),
            )
    elif isinstance(message, Stressed):
        key = (message.size_bytes,)
        if parts := collected.add(key, message.rank, message, job.ranks):
            return _integrity([part for part in parts if isinstance(part, Stressed)])
    elif isinstance(message, Progress | Logs):
        return message
    return None


def _result(job: Job, ranks: list[Timed]) -> Result:
    samples = tuple(map(max, zip(*(rank.seconds for rank in ranks), strict=True)))
    wrong = [rank.wrong for rank in ranks if rank.wrong is not None]
    return Result(
        point=job.tasks[ranks[0].task].point,
        timing=ranks[0].timing,
        samples=samples,
        wrong=sum(wrong) if len(wrong) == len(ranks) else None,
        exposed=max(rank.exposed for rank in ranks),
        spent_s=max(rank.spent_s for rank in ranks),
    )


def _integrity(ranks: list[Stressed]) -> Integrity:
    return Integrity(
        size_bytes=ranks[0].size_bytes,
        calls=ranks[0].calls,
        differing=max(rank.differing for rank in ranks),
        off=sum(rank.off for rank in ranks),
    )


def _asked(upstream: Connection) -> object:
    """Return what the sweep's first machine says; `Failure` where it is gone."""
    try:
        return upstream.recv()
    except (EOFError, ConnectionResetError):
        raise Failure("the machine of rank 0 is gone; its own output says why") from None


def stop(connection: Connection) -> None:
    """Ask who is behind `connection` to end its ranks, if it is still there."""
    with contextlib.suppress(OSError):
        connection.send(Stop())
