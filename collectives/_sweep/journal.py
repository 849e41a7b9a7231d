"""What a sweep has done so far, a line at a time: written at once, read again by `--resume`.

It stands beside the records, `records.journal` for `records.jsonl`. Records hold what a row came
to; the journal holds each start, so that a run that was ended goes on where it was. A journal may
hold several sweeps, one after another; the last one is the one that is resumed.
"""

import uuid
from pathlib import Path

import msgspec

from collectives._sweep.job import Launch
from collectives._sweep.spec import Spec
from verifyscope.errors import Failure, UsageError
from verifyscope.records import Status

SUFFIX = ".journal"


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    pass


class Opened(_Event, tag="opened", frozen=True, kw_only=True):
    """The sweep of a collective begins; `run` is in the ids of its rows.

    later: what the same run sweeps after it.
    """

    run: str
    spec: Spec
    later: tuple[Spec, ...] = ()


class Imported(_Event, tag="imported", frozen=True, kw_only=True):
    """The fork server has imported torch."""

    seconds: float


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The device of a rank, as the table's head has it."""

    rank: int
    node: int
    pid: int
    device: int
    bus: str
    name: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the probe says of a point. graph: why there is none, None where there is one."""

    point: int
    status: Status
    reason: str | None = None
    effective: dict[str, str] = {}
    proof: str | None = None


class ProbeDone(_Event, tag="probed", frozen=True, kw_only=True):
    """A combination was probed; no_graph is why graphs are not timed, and the status of those."""

    combination: int
    verdicts: tuple[Verdict, ...]
    loaded_version: str
    devices: tuple[Device, ...]
    join_s: float
    wall_s: float
    no_graph: tuple[Status, str] | None = None
    logs: str | None = None


class StressDone(_Event, tag="stressed", frozen=True, kw_only=True):
    """The integrity of a combination was stressed; `problem` is None where all bits were equal."""

    combination: int
    calls: int
    sizes: int
    problem: str | None = None
    wall_s: float


class RowTimed(_Event, tag="timed", frozen=True, kw_only=True):
    """One time of a point in one start; `start` counts from 0."""

    combination: int
    start: int
    point: int
    launch: Launch
    depth: int
    seconds: tuple[float, ...]
    wrong: int | None
    exposed: int
    spent_s: float


class StartDone(_Event, tag="started", frozen=True, kw_only=True):
    """A start is over: until all had joined, and as a whole."""

    combination: int
    start: int
    join_s: float
    wall_s: float


class Lost(_Event, tag="lost", frozen=True, kw_only=True):
    """A combination ended early; start is None for its probe, -1 for its stress."""

    combination: int
    start: int | None
    status: Status
    reason: str
    point: int | None = None
    wall_s: float


Event = Opened | Imported | ProbeDone | StressDone | RowTimed | StartDone | Lost

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def beside(records: Path) -> Path:
    """Return the journal of a records file."""
    return records.with_suffix(SUFFIX)


def new_run() -> str:
    """Return a name that no other run has."""
    return uuid.uuid4().hex[:12]


class Journal:
    """An open journal; `append` writes a line at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def append(self, event: Event) -> None:
        """Write `event` now; `Failure` where the disk is full."""
        try:
            self._file.write(_encoder.encode(event) + b"\n")
        except OSError as error:
            raise Failure(f"cannot write {self.path}: {error.strerror}; free some") from error

    def close(self) -> None:
        """Close the file; nothing was held back."""
        self._file.close()


def find(run: Path) -> Path:
    """Return the records file of a run that is to be resumed; `UsageError` where there is none."""
    path = run / "records.jsonl" if run.is_dir() else run
    if not beside(path).is_file():
        raise UsageError(
            f"--resume {run}: no {beside(path).name} there; give the folder or the records file of "
            f"a sweep"
        )
    return path


def read(path: Path) -> list[Event]:
    """Return the events of the last sweep of a journal; an incomplete last line does not count."""
    return sweeps(path)[-1]


def sweeps(path: Path) -> list[list[Event]]:
    """Return the events of the last run of a journal, those of each of its sweeps on their own."""
    found: list[list[Event]] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            event = _decoder.decode(line)
        except msgspec.MsgspecError as error:
            if number == len(lines):
                break
            raise UsageError(
                f"{path}:{number}: no event of a sweep ({error}); it was written by another "
                f"version, or damaged: begin a new run"
            ) from None
        if isinstance(event, Opened):
            same = found and isinstance(first := found[0][0], Opened) and first.run == event.run
            found = [*found, [event]] if same else [[event]]
        elif found:
            found[-1].append(event)
    if not found:
        raise UsageError(f"{path} holds no sweep; begin a new run")
    return found
