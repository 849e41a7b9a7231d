"""What one file says, typed, before it is compared with other files: no text of the file, no names.

Seconds throughout. `line` is where a fact begins, counted from 1. Verify tokens are the rows that
one request has in a verify pass: the drafted tokens and the one before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from verifyscope.records import Finding, Launch, Measurement, Mode
from verifyscope.stats import Summary, summarise
from verifyscope.systems import System

if TYPE_CHECKING:
    from ingest.gpu_findings import Gpu
    from ingest.model_configs import Drafter
    from ingest.trace_facts import TraceFacts
    from verifyscope.models import Model

Role = Literal["cycle", "forward", "draft", "sampling", "host", "plain", "unclassified"]
Severity = Literal["wrong", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Cycles (or plain steps) at one load: their samples, and what is known of the load.

    running: requests; verify_tokens: rows a request; acceptance: tokens a cycle yields; windows:
    how many log lines were counted, of which `seconds` and `contexts` are a sample.
    """

    line: int
    engine: str
    mode: Mode
    seconds: tuple[float, ...]
    running: int | None = None
    verify_tokens: int | None = None
    acceptance: float | None = None
    acceptances: tuple[float, ...] = ()
    contexts: tuple[float, ...] = ()
    launch: Launch | None = None
    windows: int = 1
    flags: tuple[str, ...] = ()

    @property
    def rows(self) -> int | None:
        """Return the rows of one pass: of all requests together."""
        if self.running is None:
            return None
        if self.mode == "decode":
            return self.running
        return None if self.verify_tokens is None else self.running * self.verify_tokens

    @property
    def summary(self) -> Summary:
        """Return median and interval of a cycle."""
        return summarise(self.seconds)

    @property
    def cycle_s(self) -> float:
        """Return the median cycle."""
        return self.summary.median


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One line of a component table, over the times that it was printed.

    share: of the cycle, 0 .. 1; cycles: how many one printed mean is over; spread_s: as printed.
    bound: the text gives an upper limit only.
    """

    line: int
    label: str
    role: Role
    seconds: tuple[float, ...]
    share: float | None = None
    cycles: int | None = None
    spread_s: float | None = None
    printed: int = 1
    approximate: bool = False
    bound: bool = False

    @property
    def summary(self) -> Summary:
        """Return median and interval of the printed means."""
        return summarise(self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a benchmark, as printed."""

    line: int
    index: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Runs that belong together; `announced` is how many the lines say there are.

    plain: True without speculation, False with it, None where the text does not say.
    """

    line: int
    runs: tuple[Run, ...]
    announced: int
    plain: bool | None
    warmups: int = 0

    @property
    def tokens(self) -> list[float]:
        """Return the tokens of each run."""
        return [float(run.tokens) for run in self.runs]

    @property
    def seconds(self) -> list[float]:
        """Return the seconds of each run."""
        return [run.seconds for run in self.runs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A label of an event-timer table: milliseconds an iteration on the GPU and on the host."""

    line: int
    label: str
    iterations: int
    gpu_s: float
    host_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table by load: `axis` such as "requests", `values` in seconds or tokens/s.

    drafted: tokens a cycle, where its name says it; plain: no speculation.
    """

    line: int
    name: str
    axis: str
    unit: Literal["s", "tok/s"]
    values: Mapping[int, float]
    plain: bool
    drafted: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What the file itself says went wrong: the finding's name and the words that show it."""

    line: int
    name: str
    sentence: str
    quote: str
    next_action: str
    severity: Severity = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A listed setting that the file names."""

    line: int
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that one file says about serving, about a model, a trace, or the state of GPUs.

    stated_acceptance: a line and the tokens a cycle that it states, apart from any window.
    summaries: lines of a mean over runs, and its tokens a second. steps_a_window: of SGLang's
    lines. system: what its content names of its system, apart from settings.
    """

    file: str
    system: System = field(default_factory=System)
    steps: tuple[Steps, ...] = ()
    components: tuple[Component, ...] = ()
    runs: tuple[Runs, ...] = ()
    timers: tuple[Timer, ...] = ()
    columns: tuple[Column, ...] = ()
    notices: tuple[Notice, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    stated_acceptance: tuple[int, float] | None = None
    summaries: tuple[tuple[int, float], ...] = ()
    steps_a_window: float | None = None
    model: Model | None = None
    drafter: Drafter | None = None
    traces: tuple[TraceFacts, ...] = ()
    gpus: tuple[Gpu, ...] = ()

    @property
    def all_steps(self) -> tuple[Steps, ...]:
        """Return the steps, with those that the plain columns of its tables say."""
        made = (
            Steps(
                line=column.line,
                engine=column.name,
                mode="decode",
                seconds=(load / rate,),
                running=load,
            )
            for column in self.columns
            if column.plain and column.axis == "requests" and column.unit == "tok/s"
            for load, rate in column.values.items()
        )
        return (*self.steps, *made)

    @property
    def serves(self) -> bool:
        """Say whether the file holds times of serving."""
        return any((self.steps, self.components, self.runs, self.columns))

    @property
    def speculates(self) -> bool:
        """Say whether one of its times is of a verify or of a cycle of it."""
        return any(one.mode == "verify" for one in self.steps) or any(
            one.role == "forward" for one in self.components
        )

    @property
    def empty(self) -> bool:
        """Say whether the file says nothing but settings."""
        found = (self.steps, self.components, self.runs, self.timers, self.columns, self.notices)
        return not any(found) and self.stated_acceptance is None


Read = Measurement | Finding | Facts
