"""The workers of a server: the processes that are a rank of some communicator, by NCCL's word.

A process whose whole environment was replaced on its way logs nothing at all; it shows as a rank
that a communicator has and that no process claims: `silent`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collectives._attest.logs import Logs
from ingest.nccl_facts import Communicator, NcclLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process that is a rank.

    index: in `NcclLog.processes`; number: in the system; rank: in the communicator with most ranks
    of which it is a member; ready: the start of one of its communicators was complete.
    started: the listed settings it was started with, None where nobody looked.
    """

    index: int
    number: int
    node: int
    device: int
    file: str
    rank: int
    ranks: int
    version: str | None
    ready: bool
    started: Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """All workers by rank, and what is known of the others.

    silent: ranks of the largest communicator of which no process is known; elsewhere: they may well
    be on machines whose logs are not here; others: processes that loaded NCCL and are no rank.
    """

    known: tuple[Worker, ...]
    silent: tuple[int, ...]
    elsewhere: bool
    others: tuple[int, ...]

    @property
    def count(self) -> int:
        """Return how many workers there should be."""
        return len(self.known) + len(self.silent)

    def name(self, worker: Worker) -> str:
        """Return what a person calls it, such as "pid 4711"."""
        several = len({one.node for one in self.known}) > 1
        return f"pid {worker.number}" + (f" on node {worker.node}" if several else "")


def workers(logs: Logs, started: Mapping[int, Mapping[str, str]]) -> Workers:
    """Return the workers that the logs tell of.

    started: by the process's number, what it was started with as far as the system told it.
    """
    log = logs.log
    found = [_worker(logs, index, seats, started) for index, seats in sorted(_seats(log).items())]
    ranks = {one.index for one in found}
    largest = log.largest
    return Workers(
        known=tuple(sorted(found, key=lambda one: (-one.ranks, one.rank, one.index))),
        silent=_silent(largest),
        elsewhere=largest is not None and largest.nodes not in (None, 1),
        others=tuple(
            logs.processes[known.index][0] for known in log.processes if known.index not in ranks
        ),
    )


_Seat = tuple[Communicator, int, bool]


def _seats(log: NcclLog) -> dict[int, list[_Seat]]:
    """Return, by process, each communicator with its rank there and whether its start ended."""
    found: dict[int, list[_Seat]] = {}
    for known in log.communicators:
        for member in known.members:
            if member.process is not None:
                seat = (known, member.rank, member.ready)
                found.setdefault(member.process, []).append(seat)
    return found


def _worker(
    logs: Logs, index: int, seats: Sequence[_Seat], started: Mapping[int, Mapping[str, str]]
) -> Worker:
    process = logs.log.processes[index]
    number, file = logs.processes[index]
    largest, rank, _ = max(seats, key=lambda seat: seat[0].ranks)
    return Worker(
        index=index,
        number=number,
        node=process.node,
        device=process.device,
        file=file,
        rank=rank,
        ranks=largest.ranks,
        version=_version(logs.log, index),
        ready=any(ready for _, _, ready in seats),
        started=started.get(number),
    )


def _version(log: NcclLog, process: int) -> str | None:
    """Return what a process loaded; most say nothing, and then the only version there is."""
    own = [one.version for one in log.libraries if one.process == process]
    every = dict.fromkeys(one.version for one in log.libraries)
    return own[0] if own else next(iter(every)) if len(every) == 1 else None


def _silent(largest: Communicator | None) -> tuple[int, ...]:
    if largest is None:
        return ()
    claimed = {member.rank for member in largest.members}
    return tuple(rank for rank in range(largest.ranks) if rank not in claimed)
