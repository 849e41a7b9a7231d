"""Ranks on several machines, started by torchrun: rank 0 drives, one process a machine follows.

    torchrun --nnodes 2 --nproc-per-node 8 ... -m collectives.sweep ...

torchrun starts a process for each rank, but every combination needs fresh ones. So of its processes
the first of each machine holds a fork server for that machine's ranks, and the others leave at
once. The one of rank 0 plans, records and prints; it tells the other machines over a connection of
its own which job comes next, and hears from them what their ranks say. Whoever may read torchrun's
store may join: the connection is opened with a secret from there.
"""

import contextlib
import json
import multiprocessing.connection as transport
import os
import secrets
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import Protocol

from collectives._sweep import launch
from collectives._sweep.job import Job, Meeting
from collectives._sweep.launch import ForkServer
from collectives._sweep.messages import (
    CountGpus,
    Failed,
    Finished,
    Gpus,
    Over,
    Progress,
    Stop,
)
from verifyscope.errors import Failure, UsageError, reason_of

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_ARRIVE_S = 300.0
# What another machine may take beyond a job's own time-out until its answer is here.
_ANSWER_S = 30.0
# What a machine that has come may take to say who it is.
_GREETING_S = 30
_GONE = 9


class _Store(Protocol):
    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What torchrun says of this process; `try_name` differs after a restart."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    host: str
    port: int
    agent_has_store: bool
    try_name: str

    @property
    def node(self) -> int:
        """Return the number of this machine."""
        return self.rank // self.local_ranks

    @property
    def nodes(self) -> int:
        """Return how many machines there are."""
        return self.ranks // self.local_ranks

    @property
    def leads(self) -> bool:
        """Say whether this process starts the ranks of its machine."""
        return self.local_rank == 0


def launched(environment: Mapping[str, str]) -> Launched | None:
    """Return how torchrun started this process, None where it did not."""
    if not all(name in environment for name in _NAMES):
        return None
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        if not environment[name].isdigit():
            raise UsageError(f"{name}={environment[name]!r} is no number; start with torchrun")
        numbers[name] = int(environment[name])
    if numbers["WORLD_SIZE"] % numbers["LOCAL_WORLD_SIZE"]:
        raise UsageError(
            f"{numbers['WORLD_SIZE']} ranks are no multiple of the {numbers['LOCAL_WORLD_SIZE']} "
            f"of this machine; give every machine the same --nproc-per-node"
        )
    return Launched(
        rank=numbers["RANK"],
        ranks=numbers["WORLD_SIZE"],
        local_rank=numbers["LOCAL_RANK"],
        local_ranks=numbers["LOCAL_WORLD_SIZE"],
        host=environment["MASTER_ADDR"],
        port=numbers["MASTER_PORT"],
        agent_has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        try_name=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def meet(place: Launched) -> "_Store":
    """Return torchrun's store; rank 0 opens one where torchrun has none."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in __all__

    found: _Store = TCPStore(
        place.host,
        place.port,
        is_master=place.rank == 0 and not place.agent_has_store,
        timeout=timedelta(seconds=_ARRIVE_S),
    )
    return found


def _cause(failures: Sequence[Failed]) -> Failed:
    """Return the failure that the others follow from; `failures` are in the order of arrival.

    A machine that gives up waiting ends its ranks, and those of the others then raise.
    """
    hung = [one for one in failures if one.kind == "hang"] if failures[0].kind == "hang" else []
    return max(hung or failures, key=lambda failed: failed.blame)


class Machines:
    """The machines of a sweep, as one team. The ranks here are those of rank 0's machine."""

    def __init__(self, place: Launched, connections: list[Connection]) -> None:
        self.place, self.connections = place, connections
        self.jobs = 0

    def run(self, job: Job) -> Iterator[object]:
        """Yield what the ranks of all machines say; the last is `Finished` or `Failed`."""
        self.jobs += 1
        for node, connection in enumerate(self.connections):
            self._send(connection, self._part(job, node))
        waiting = dict(enumerate(self.connections))
        calls: dict[int, int] = {}
        failures: list[Failed] = []
        while waiting:
            ready = transport.wait(list(waiting.values()), job.timeout_s + _ANSWER_S)
            for node, connection in [*waiting.items()]:
                if ready and connection not in ready:
                    continue
                message = self._said(node, connection, silent=not ready)
                if isinstance(message, Finished | Failed):
                    del waiting[node]
                if isinstance(message, Failed):
                    failures.append(message)
                    for other in waiting.values():
                        launch.stop(other)
                elif isinstance(message, Progress):
                    calls[node] = message.calls
                    if len(calls) == len(self.connections):
                        yield Progress(min(calls.values()))
                elif not isinstance(message, Finished):
                    yield message
        yield _cause(failures) if failures else Finished()

    def count_gpus(self) -> Gpus:
        """Return the GPUs of the machine that has the fewest: none where one does not answer."""
        found = []
        for node, connection in enumerate(self.connections):
            self._send(connection, CountGpus())
            silent = not transport.wait([connection], _ARRIVE_S + _ANSWER_S)
            message = self._said(node, connection, silent=silent)
            reason = message.reason if isinstance(message, Failed) else None
            found.append(message if isinstance(message, Gpus) else Gpus(0, reason))
        return min(found, key=lambda gpus: gpus.count)

    def over(self, status: int) -> None:
        """Let the other machines end with this status."""
        for connection in self.connections:
            self._send(connection, Over(status))
            connection.close()

    def _part(self, job: Job, node: int) -> Job:
        place = self.place
        return replace(
            job,
            first_rank=node * place.local_ranks,
            local_ranks=place.local_ranks,
            meeting=Meeting(
                host=place.host,
                port=place.port,
                name=f"verifyscope-{place.try_name}-{self.jobs}",
            ),
        )

    def _said(self, node: int, connection: Connection, *, silent: bool) -> object:
        if silent:
            return Failed(kind="hang", reason=f"machine {node} says nothing", blame=_GONE)
        try:
            return connection.recv()
        except (EOFError, OSError):
            return Failed(kind="error", reason=f"machine {node} is gone", blame=_GONE)

    def _send(self, connection: Connection, message: object) -> None:
        with contextlib.suppress(OSError):  # who is gone is noticed when it should answer
            connection.send(message)


@contextlib.contextmanager
def lead(place: Launched, server: ForkServer) -> Iterator[Machines]:
    """Gather the other machines; they are let go when the block is left, 1 for an error in it."""
    store = meet(place)
    ours, theirs = socket.socketpair()
    own = Connection(ours.detach())
    relay = threading.Thread(target=follow, args=(server, Connection(theirs.detach())), daemon=True)
    relay.start()
    machines = Machines(place, [own, *_arrivals(place, store)])
    status = 1
    try:
        yield machines
        status = 0
    finally:
        machines.over(status)


def _arrivals(place: Launched, store: "_Store") -> list[Connection]:
    """Wait for a connection from each other machine."""
    if place.nodes == 1:
        return []
    secret = secrets.token_hex(32)
    with _listening(place.host) as listener:
        listener.settimeout(_ARRIVE_S)
        said = json.dumps({"port": listener.getsockname()[1], "secret": secret})
        store.set(f"verifyscope-{place.try_name}", said)
        found: dict[int, Connection] = {}
        while len(found) < place.nodes - 1:
            try:
                arrived, _ = listener.accept()
            except TimeoutError:
                raise Failure(
                    f"{place.nodes - 1 - len(found)} of {place.nodes} machines did not come within "
                    f"{_ARRIVE_S:g} s; see what torchrun says there"
                ) from None
            greeted = _greeted(arrived, secret)
            if greeted is not None:
                found[greeted[0]] = greeted[1]
    return [found[node] for node in sorted(found)]


def _greeted(arrived: socket.socket, secret: str) -> tuple[int, Connection] | None:
    """Return which machine has come, and the connection to it; None of who knows no secret."""
    arrived.setblocking(True)
    _let_read(arrived, seconds=_GREETING_S)
    connection = Connection(os.dup(arrived.fileno()))
    try:
        transport.deliver_challenge(connection, secret.encode())
        transport.answer_challenge(connection, secret.encode())
        node = int(connection.recv())
    except (AuthenticationError, EOFError, OSError):
        connection.close()
        return None
    else:
        _let_read(arrived, seconds=0)
        return node, connection
    finally:
        arrived.close()


def _let_read(opened: socket.socket, *, seconds: int) -> None:
    """Let a read wait so long, for ever with 0, before it is an OSError."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


def _listening(host: str) -> socket.socket:
    """Listen where torchrun's own store is reached, else on every address."""
    try:
        return socket.create_server((host, 0))
    except OSError:
        return socket.create_server(("", 0))


def arrive(place: Launched) -> Connection:
    """Connect to the machine of rank 0."""
    try:
        said = json.loads(meet(place).get(f"verifyscope-{place.try_name}"))
        opened = socket.create_connection((place.host, said["port"]), timeout=_ARRIVE_S)
    except (OSError, RuntimeError) as error:  # torch's errors of a store are RuntimeErrors
        raise Failure(
            f"the machine of rank 0 does not answer ({reason_of(error)}); its own output says why"
        ) from error
    opened.setblocking(True)
    connection = Connection(opened.detach())
    try:
        transport.answer_challenge(connection, said["secret"].encode())
        transport.deliver_challenge(connection, said["secret"].encode())
        connection.send(place.node)
    except (AuthenticationError, EOFError, OSError) as error:
        raise Failure(
            f"the machine of rank 0 let this one go ({reason_of(error)}); its own output says why"
        ) from error
    return connection


def follow(server: ForkServer, upstream: Connection) -> int:
    """Run the jobs that come from the machine of rank 0; return the status to end with."""
    try:
        while True:
            request = upstream.recv()
            if isinstance(request, Over):
                return request.status
            if isinstance(request, CountGpus):
                upstream.send(server.count_gpus())
            elif isinstance(request, Job):
                for message in server.run(request, upstream):
                    upstream.send(message)
            elif not isinstance(request, Stop):  # one that came after its job was over
                raise TypeError(f"no request: {request}")
    except (EOFError, OSError, Failure):
        return 1


def here() -> Launched | None:
    """Return how torchrun started this process, None where it did not."""
    return launched(os.environ)
