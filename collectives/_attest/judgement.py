"""For each setting that was asked for and each worker: did it reach, and how is that known?

    reached       NCCL says in this process that it read this value
    environment   the process was started with it; NCCL has not said that it read it, nor need it
    other         NCCL read another value
    missing       NCCL would have said it, and did not, or the process was started without it
    unknown       nothing here can tell

NCCL says each of `PRINTED` as soon as a communicator starts, and any other setting when it first
uses it: that one worker names it and another does not counts as missing, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from collectives._attest.logs import Logs
from collectives._attest.requested import is_of_nccl
from collectives._attest.workers import Worker, Workers
from ingest.nccl_conf import Configured
from ingest.nccl_facts import NcclLog, Setting
from ingest.nccl_setting_findings import PRINTED

State = Literal["reached", "environment", "other", "missing", "unknown"]
Source = Literal["environment", "configuration file", "plugin", "the program"]
REACHED: tuple[State, ...] = ("reached", "environment")
# NCCL prints a distance by its name, whatever was given: ncclTopoGetLevel of NCCL 2.18 and later.
_DISTANCES = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one worker says of one setting. `values` are what NCCL read there, first to last.

    line: the first of them, counted through all logs.
    """

    name: str
    worker: Worker
    state: State
    values: tuple[str, ...]
    source: Source | None
    line: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A setting that was asked for, and what each worker says of it."""

    name: str
    value: str
    seen: tuple[Seen, ...]

    @property
    def arrived(self) -> int:
        """Return how many workers it reached."""
        return sum(one.state in REACHED for one in self.seen)

    @property
    def text(self) -> str:
        """Return NAME=VALUE."""
        return f"{self.name}={self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What was there when the server was started: its environment, and NCCL's configuration files.

    Both are empty where logs are read that somebody kept; then NCCL's word "environment" stands.
    """

    requested: Mapping[str, str]
    environment: Mapping[str, str] | None
    configured: Mapping[str, Configured]


def judge(logs: Logs, workers: Workers, start: Start) -> tuple[Judged, ...]:
    """Return each setting that was asked for, in the order in which it was."""
    return tuple(
        Judged(
            name=name,
            value=value,
            seen=tuple(_seen(logs.log, workers, start, one, name) for one in workers.known),
        )
        for name, value in start.requested.items()
    )


def unasked(logs: Logs, worker: Worker, start: Start) -> Iterator[Seen]:
    """Yield what NCCL read in a worker though nobody asked for it, by name."""
    for name in sorted(logs.log.effective(worker.index)):
        said = _said(logs.log, worker, name)
        if said and name not in start.requested and not name.startswith("NCCL_DEBUG"):
            yield Seen(
                name=name,
                worker=worker,
                state="other",
                values=_values(said),
                source=_source(logs.log, worker, start, said[0]),
                line=said[0].line,
                why="not asked for",
            )


def _seen(log: NcclLog, workers: Workers, start: Start, worker: Worker, name: str) -> Seen:
    said = _said(log, worker, name)
    if said:
        wanted = start.requested[name]
        same = all(same_value(name, wanted, one.value) for one in said)
        return Seen(
            name=name,
            worker=worker,
            state="reached" if same else "other",
            values=_values(said),
            source=_source(log, worker, start, said[0]),
            line=said[0].line,
            why="" if same else "NCCL read another value",
        )
    state, why = _silent(log, workers, start, worker, name)
    return Seen(name=name, worker=worker, state=state, values=(), source=None, line=None, why=why)


def _silent(
    log: NcclLog, workers: Workers, start: Start, worker: Worker, name: str
) -> tuple[State, str]:
    """Judge a setting that NCCL does not name in this worker."""
    began = None if worker.started is None else worker.started.get(name)
    if began is not None and not same_value(name, start.requested[name], began):
        return "other", f"it was started with {began}"
    said_always = _is_always_said(log, worker, name) and worker.ready
    if _was_dropped(start, worker, name):
        return "missing", "it was started without it: a launcher dropped it"
    if said_always and began is not None:
        return "missing", "it was started with it, and the program took it out"
    if said_always:
        return "missing", "NCCL names it wherever it is set"
    if is_of_nccl(name) and worker.ready and _others_say(log, workers, worker, name):
        return "missing", "NCCL names it in other workers"
    if began is not None:
        return "environment", "it was started with it; NCCL does not name it"
    if not worker.ready:
        return "unknown", "the start of its communicator is not complete"
    return "unknown", "NCCL does not name it"


def _was_dropped(start: Start, worker: Worker, name: str) -> bool:
    """Say whether the server was started with a setting and the worker without."""
    given = start.environment is not None and name in start.environment
    kept = worker.started is None or name in worker.started
    return given and not kept and name not in start.configured


def _is_always_said(log: NcclLog, worker: Worker, name: str) -> bool:
    """Say whether NCCL names the setting as soon as a communicator has started."""
    if name == "NCCL_P2P_LEVEL":  # it is not looked at where direct access is off anyway
        off = log.effective(worker.index).get("NCCL_P2P_DISABLE")
        return off is None or off.value != "1"
    return name in PRINTED


def _others_say(log: NcclLog, workers: Workers, worker: Worker, name: str) -> bool:
    return any(_said(log, one, name) for one in workers.known if one.index != worker.index)


def _said(log: NcclLog, worker: Worker, name: str) -> list[Setting]:
    """Return NCCL's own lines on a setting in a worker: what it read, not what a plugin did."""
    return [
        known
        for known in log.settings
        if known.name == name and known.process == worker.index and known.origin != "plugin"
    ]


def _values(said: Sequence[Setting]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(known.value for known in said))


def _source(log: NcclLog, worker: Worker, start: Start, said: Setting) -> Source:
    """Return who set what NCCL read; NCCL itself calls all of it the environment."""
    name, value = said.name, said.value
    injected = [known.value for known in log.settings if _is_injected(known, worker, name)]
    if any(same_value(name, one, value) for one in injected):
        return "plugin"
    if start.environment is None:
        return "environment"
    given = (start.environment.get(name), start.requested.get(name))
    if any(one is not None and same_value(name, one, value) for one in given):
        return "environment"
    configured = start.configured.get(name)
    if configured is not None and same_value(name, configured.value, value):
        return "configuration file"
    return "the program"


def _is_injected(known: Setting, worker: Worker, name: str) -> bool:
    ours = known.process in (worker.index, None)
    return known.origin == "plugin" and known.name == name and ours


def same_value(name: str, one: str, other: str) -> bool:
    """Say whether two values of a setting mean the same to NCCL: numbers, names and their case."""
    return _meaning(name, one) == _meaning(name, other)


def _meaning(name: str, value: str) -> str | int:
    text = value.strip()
    if name == "NCCL_HOSTID":  # a record hides it
        return ""
    try:
        number = int(text, 0)
    except ValueError:
        return text.casefold().replace(" ", "")
    if name == "NCCL_P2P_LEVEL" and 0 <= number < len(_DISTANCES):
        return _DISTANCES[number].casefold()
    return number
