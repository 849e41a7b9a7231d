"""What ranks, fork server and sweep say to each other, over pipes."""

import signal
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The fork server has imported torch, of this version."""

    torch: str


@dataclass(frozen=True, slots=True)
class CountGpus:
    """Ask how many GPUs torch sees."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """The answer: a count, and why it is 0 where torch says so."""

    count: int
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A rank is in the group: its process and its device.

    library_version: the version of NCCL that is loaded; with gloo that of torch, which holds gloo.
    """

    rank: int
    pid: int
    device: int
    bus: str
    name: str
    library_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A rank's own times for one point, and how many of its values were wrong over all calls.

    exposed: how many times may hold the host's launch, because the hold before it was over early.
    """

    rank: int
    point: int
    seconds: tuple[float, ...]
    wrong: int
    exposed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """A rank met a Python error at `at_s` (the machine's monotonic clock)."""

    rank: int
    at_s: float
    text: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job is over early and all ranks are gone; `reason` names the rank. `said` is its log."""

    kind: Literal["error", "hang"]
    reason: str
    said: tuple[str, ...] = ()


def ending(code: int | None) -> str:
    """Say how a process ended: `code` is its exit status, or minus the signal."""
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"
