"""What ranks, fork server and sweep say to each other, over pipes."""

from dataclasses import dataclass, field
from typing import Literal

from collectives._sweep.job import Launch, Timing


@dataclass(frozen=True, slots=True)
class Ready:
    """The fork server has imported torch."""


@dataclass(frozen=True, slots=True)
class CountGpus:
    """Ask how many GPUs torch sees."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """The answer: a count, and why it is 0 where torch says so."""

    count: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Forked:
    """The ranks of a job were started; `group` is their process group on that machine."""

    group: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask for the end of a job whose ranks on another machine are lost."""


@dataclass(frozen=True, slots=True)
class ConfigurationFile:
    """Listed settings of a file that NCCL reads, by its name without folders."""

    name: str
    settings: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """What is in effect in the process of a rank; `bound` is None where no binding was asked.

    nccl: the version of the library that is called; None where there is none. facts: what a backend
    tells of itself.
    """

    settings: dict[str, str]
    files: tuple[ConfigurationFile, ...]
    bound: str | None
    nccl: str | None = None
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A rank is in the group: its process, its device, and what it read back of its settings.

    loaded_version: the version of NCCL that is loaded; with gloo that of torch, which holds gloo.
    """

    rank: int
    pid: int
    device: int
    bus: str
    name: str
    loaded_version: str
    read_back: ReadBack


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A rank has probed a task: how many of its values were wrong over all calls of a launch.

    refused: why it can't run at all; None where it did.
    """

    rank: int
    task: int
    launch: Launch
    wrong: int
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A rank's own times for one timing of a task, per call, and what was wrong over all calls.

    wrong: None where the values could not be told. exposed: how many times may hold the host's
    launch, because the hold before it was over early. spent_s: in the samples, with their barriers.
    """

    rank: int
    task: int
    timing: Timing
    seconds: tuple[float, ...]
    wrong: int | None
    exposed: int
    spent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stressed:
    """A rank's part of the integrity stress at one size: calls whose bits differ, or are off.

    differing: calls whose bits were not those of rank 0. off: values beyond what rounding explains.
    """

    rank: int
    size_bytes: int
    calls: int
    differing: int
    off: int


@dataclass(frozen=True, slots=True)
class Logs:
    """Files that the ranks of a machine left in a probe: rank, name and content."""

    files: tuple[tuple[int, str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """A rank met a Python error at `at_s` (the machine's monotonic clock).

    unsupported: it is none, but why this can't run here.
    """

    rank: int
    at_s: float
    text: str
    unsupported: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """A rank has measured all points."""

    rank: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How many calls the slowest rank has finished."""

    calls: int


@dataclass(frozen=True, slots=True)
class Finished:
    """All ranks are done and gone."""


@dataclass(frozen=True, slots=True)
class Over:
    """The sweep is over, and this is the status that every machine ends with."""

    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job is over early and all ranks are gone; `reason` names the rank. `said` is its log.

    blame: of several machines the one with the highest knows best who was lost first.
    """

    kind: Literal["error", "hang", "unsupported"]
    reason: str
    said: tuple[str, ...] = ()
    blame: int = 0
