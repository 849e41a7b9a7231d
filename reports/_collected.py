"""What the named files hold, sorted into what the sections of a report show.

A record that is met twice (a file and its copy) counts once, by its id; of two lines with one id,
as a sweep that was resumed leaves them, the later one counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verifyscope import passes
from verifyscope.parts import class_of
from verifyscope.predictions import WHOLE
from verifyscope.records import (
    TRACE_OPS,
    Compiled,
    Environment,
    Finding,
    Measurement,
    read,
)

_COLLECTIVES = ("all_reduce", "other_collective")
# What a sweep itself took: starting processes, and all the rest.
_SWEEP_OPS = ("process_start", "sweep")
_PASS_OPS = (passes.FORWARD, "graph_")


@dataclass(frozen=True, slots=True)
class Collected:
    """The records of a report; each list is in the order in which they were read.

    environments: by id, the first of each; letters: what a report calls them, by id; runs: every
    one, for when and by which command.
    kernels, collectives, traces and passes (of the stub) were measured or imported and have a time;
    what has none is in not_run.
    predicted are the parts of passes, predicted_kernels what one kernel would take, believed what
    NCCL's own model or a fit says of a call. sweeping is what sweeps themselves took.
    """

    paths: tuple[Path, ...]
    environments: dict[str, Environment] = field(default_factory=dict)
    letters: dict[str, str] = field(default_factory=dict)
    runs: list[Environment] = field(default_factory=list)
    kernels: list[Measurement] = field(default_factory=list)
    collectives: list[Measurement] = field(default_factory=list)
    traces: list[Measurement] = field(default_factory=list)
    passes: list[Measurement] = field(default_factory=list)
    not_run: list[Measurement] = field(default_factory=list)
    predicted: list[Measurement] = field(default_factory=list)
    predicted_passes: list[Measurement] = field(default_factory=list)
    predicted_kernels: list[Measurement] = field(default_factory=list)
    believed: list[Measurement] = field(default_factory=list)
    sweeping: list[Measurement] = field(default_factory=list)
    compiled: list[Compiled] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def letter(self, environment: str | None) -> str:
        """Return the letter that a report calls an environment by."""
        return self.letters.get(environment or "", "?")

    def on_cpu(self, measured: Measurement) -> bool:
        """Say whether a measurement was made without a GPU."""
        if measured.source == "imported":
            return measured.method.get("backend", measured.implementation) == "gloo"
        environment = self.environments.get(measured.environment)
        return environment is not None and not environment.gpus


def collect(paths: Sequence[Path]) -> Collected:
    """Read files and folders of records."""
    found = Collected(paths=tuple(paths))
    measurements: dict[str, Measurement] = {}
    for record in read(paths, found.warnings):
        if isinstance(record, Measurement):
            measurements[record.id] = record
        elif isinstance(record, Environment):
            if record.id not in found.environments:
                found.letters[record.id] = _letters(len(found.environments))
                found.environments[record.id] = record
            found.runs.append(record)
        elif isinstance(record, Compiled):
            found.compiled.append(record)
        else:
            found.findings.append(record)
    for one in measurements.values():
        _place(one, found)
    return found


def is_collective(measured: Measurement) -> bool:
    """Say whether several ranks took part: a row of a sweep and not of a kernel."""
    return "in_place" in measured.dims or class_of(measured.part) in _COLLECTIVES


def _letters(number: int) -> str:
    """Return A to Z, then AA."""
    letters = ""
    while number >= 0:
        number, rest = divmod(number, 26)
        letters, number = chr(ord("A") + rest) + letters, number - 1
    return letters


def _place(record: Measurement, found: Collected) -> None:
    if record.source == "predicted" and "algorithm" in record.dims:
        found.believed.append(record)  # collectives/predict.py: no part of a pass
    elif record.source == "predicted" and "calls" not in record.dims:
        found.predicted_kernels.append(record)
    elif record.source == "predicted" and record.part == WHOLE:
        found.predicted_passes.append(record)
    elif record.source == "predicted":
        found.predicted.append(record)
    elif record.median_s is None:
        found.not_run.append(record)
    elif record.op in _SWEEP_OPS and record.part == "host":
        found.sweeping.append(record)
    elif record.implementation == passes.STUB and record.op.startswith(_PASS_OPS):
        found.passes.append(record)
    elif record.op in TRACE_OPS:
        found.traces.append(record)
    elif is_collective(record):
        found.collectives.append(record)
    else:
        found.kernels.append(record)
