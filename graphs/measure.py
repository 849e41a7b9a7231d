"""`python -m graphs.replay --device cpu`: passes of a stub, measured, taken apart and recorded.

`Asked` holds the options as they were typed; `measure` makes cases of them, runs each on fresh
ranks and writes records as they come. A capture that breaks ends its processes: the mode is
recorded with the op that broke it, and the case begins again without that mode. What runs out of
memory, dies or hangs costs its case alone; everything measured before is kept, and the command ends
with status 1. What cannot be asked for here ends with status 2.
"""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from graphs._stub import asked, growth, launch, printing, shrunken
from graphs._stub.asked import Case, DeviceName, Job, PassMode, Reduce
from graphs._stub.growth import Growth, Point
from graphs._stub.messages import (
    Ablated,
    Broke,
    Built,
    Failed,
    Finished,
    Graphed,
    OutOfMemory,
    Passed,
    Planned,
    Profiled,
    Refused,
    Replayed,
)
from graphs._stub.records import Line, Writer
from graphs.ablation import Account
from verifyscope import cli, driver, passes, runs, units
from verifyscope.errors import Failure, UsageError, choose
from verifyscope.models import Model, find_model
from verifyscope.records import Status
from verifyscope.runs import Run

_CPU_TP, _CPU_CONTEXT = "2", "256"
_TP, _CONTEXT = "1", "8k"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of a measurement, as text; None where one was not given."""

    device: str
    model: str
    rows: str
    requests: str
    tp: str | None = None
    context: str | None = None
    gpus: str | None = None
    layers: str | None = None
    quant: str | None = None
    tree: str | None = None
    attention: str = "verify"
    moe: str = "auto"
    impl: str = ""
    all_reduce: str | None = None
    modes: str | None = None
    weight_sets: str | None = None
    ablate: bool = True
    seconds: float = 2.0
    timeout: float = 180.0
    records: Path | None = None
    json: Path | None = None


def measure(given: Asked) -> None:
    """Measure every number of rows at every context, with every delay."""
    jobs = list(_jobs(given))
    _require_device(jobs[0])
    told: list[dict[str, Any]] = []
    problems: list[str] = []
    refused: list[str] = []
    points: list[Point] = []
    with runs.start(given.records, "replay") as run, launch.holder() as holder:
        for job in jobs:
            printing.begin(job.case, device=job.device, ranks=job.ranks)
            one = _Case(job, run)
            one.run(holder)
            told.append(one.told)
            points += one.points
            problems += one.problems
            refused += one.refused
            last = one
        _tell_growth(points, last)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_bytes(msgspec.json.encode(told) + b"\n")
    cli.note(f"records: {run.path}")
    first, *others = dict.fromkeys([*problems, *refused]) or [""]
    for other in others:
        cli.note(other)
    if problems:
        raise Failure(first)
    if refused:
        raise UsageError(first)


def _tell_growth(points: list[Point], last: "_Case") -> None:
    """Print and record the lines through passes of several rows or contexts."""
    for found in growth.growths(points):
        cli.print_remark(f"{growth.sentence(found)}")
        last.fitted(found)


class _Case:
    """One case while it is measured: attempts on fresh ranks until nothing breaks."""

    def __init__(self, job: Job, run: Run) -> None:
        self._job, self._run = job, run
        self._writer = Writer(job, run.environment)
        self.told: dict[str, Any] = {"case": job.case.dims()}
        self.problems: list[str] = []
        self.refused: list[str] = []
        self.points: list[Point] = []
        self._profiled: list[Profiled] = []
        self._accounts: dict[PassMode, Account] = {}
        self._op = passes.FORWARD

    def run(self, holder: launch.Holder) -> None:
        """Run it; what goes wrong is kept in `problems` and `refused`."""
        self._attempts(holder)
        for one in self._profiled:
            printing.profiled(self._job.case, one, self._accounts.get(one.mode))

    def _attempts(self, holder: launch.Holder) -> None:
        while True:
            for message in holder.run(self._job):
                if isinstance(message, Broke):
                    self._broke(message)
                    break
                if isinstance(message, Finished):
                    return
                if isinstance(message, Refused | OutOfMemory | Failed):
                    self._ended(message)
                    return
                self._take(message)

    def _broke(self, message: Broke) -> None:
        self._append(self._writer.broke(message))
        text = f"{message.mode}: capture failed at {message.op}: {message.reason}"
        cli.print_remark(f"{text}")
        self.problems.append(f"{self._job.case.name}: {text}")
        self._job = replace(self._job, without=(*self._job.without, message.mode))

    def _ended(self, message: Refused | OutOfMemory | Failed) -> None:
        """Record that there is no more of this case."""
        status: Status = message.kind if isinstance(message, Failed) else "skipped"
        reason = message.reason
        if isinstance(message, OutOfMemory):
            reason = (
                f"rank {message.rank} needs more memory than is free: {reason}; give fewer "
                f"--weight-sets, --layers or --requests"
            )
        self._append(
            self._writer.without_time(
                self._op, "forward", mode="eager", reason=reason, status=status
            )
        )
        if isinstance(message, Refused):
            self.refused.append(reason)
        else:
            self.problems.append(f"{self._job.case.name}: {reason}")

    def _take(self, message: object) -> None:
        kind = type(message).__name__.lower()
        self.told.setdefault(kind, []).append(msgspec.to_builtins(message))
        case = self._job.case
        if isinstance(message, Built):
            self._writer.know(message.facts)
            printing.built(message)
        elif isinstance(message, Passed):
            self._op = passes.ACCOUNT  # what is measured of a case after its passes
            self.points.append(Point(case=case, mode=message.mode, samples=message.samples))
            printing.passed(case, message)
            self._append(self._writer.passed(message))
        elif isinstance(message, Ablated):
            self._accounts[message.mode] = message.account
            printing.taken_apart(case, message)
            self._append(*self._writer.taken_apart(message))
        elif isinstance(message, Profiled):
            self._profiled.append(message)  # shown at the end, beside the parts
            self._append(*self._writer.profiled(message))
        elif isinstance(message, Graphed):
            printing.graphed(message)
            self._append(*self._writer.graphed(message))
            found = self._writer.captured(message)
            if found is not None:
                self._run.append(found)
        elif isinstance(message, Planned):
            printing.planned(message)
            self._append(self._writer.planned(message))
        elif isinstance(message, Replayed):
            self._replayed(message)

    def _replayed(self, message: Replayed) -> None:
        printing.replayed(message)
        wrong = self._writer.replayed(message)
        if wrong is not None:
            self._append(wrong)
            self.problems.append(f"{self._job.case.name}: {wrong.record.reason}")

    def fitted(self, found: Growth) -> None:
        """Record a line through passes of several cases, this one's among them."""
        self._append(self._writer.fitted(found))

    def _append(self, *lines: Line) -> None:
        for line in lines:
            self._run.append(line.record, line.samples)


def _jobs(given: Asked) -> Iterator[Job]:
    device: DeviceName = (
        "cpu" if choose("--device", given.device, ["cpu", "cuda"]) == "cpu" else "cuda"
    )
    _require_seconds(given)
    tp = _tp(given, device)
    reduces = asked.reduces(given.all_reduce or _default_reduce(given, device, tp))
    ranks = _ranks(given, tp, reduces)
    modes = _modes(given, device, reduces)
    for case in _cases(given, device, tp, reduces):
        yield Job(
            case=case,
            device=device,
            ranks=ranks,
            modes=modes,
            ablate=given.ablate,
            time_cap_s=given.seconds,
            timeout_s=given.timeout,
        )


def _modes(given: Asked, device: DeviceName, reduces: list[Reduce]) -> tuple[PassMode, ...]:
    """Return the modes; by default pieces between the collectives only where calls are made."""
    calls = reduces[0].kind in ("one-rank", "real")
    usual = asked.PASS_MODES if calls else asked.PASS_MODES[:-1]
    modes = asked.modes(given.modes or ("eager" if device == "cpu" else ",".join(usual)))
    if device == "cpu" and modes != ("eager",):
        raise UsageError("--device cpu runs eager passes only; leave --modes out")
    if "collectives-outside" in modes and reduces[0].kind == "none":
        raise UsageError(
            "--modes collectives-outside has no collectives to leave outside; give --all-reduce"
        )
    return modes


def _cases(given: Asked, device: DeviceName, tp: int, reduces: list[Reduce]) -> Iterator[Case]:
    model, found = _model(given, device), []
    rows = units.parse_list(given.rows, units.parse_count)
    asked.require_rows(rows)
    contexts = given.context or (_CPU_CONTEXT if device == "cpu" else _CONTEXT)
    for reduce in reduces:
        for context in units.parse_list(contexts, units.parse_count):
            for count in rows:
                case = Case(
                    model=model,
                    tp=tp,
                    rows=count,
                    context=context,
                    requests=units.parse_count(given.requests),
                    tree=_tree(given, count),
                    attention=_form(given.attention),
                    path=_path(given.moe),
                    reduce=reduce,
                    impl=asked.implementations(given.impl),
                    weight_sets=None
                    if given.weight_sets is None
                    else units.parse_count(given.weight_sets),
                    shrunk=device == "cpu",
                )
                case.forward()  # what cannot be split is known before anything starts
                found.append(case)
    yield from found


def _model(given: Asked, device: DeviceName) -> Model:
    model = asked.quantised(find_model(given.model), given.quant)
    layers = None if given.layers is None else units.parse_count(given.layers)
    if device == "cuda":
        return asked.cut(model, layers)
    asked.cut(model, layers)  # as many as the model has, also where they are small
    return shrunken.shrunken(model, layers=layers)


def _tp(given: Asked, device: DeviceName) -> int:
    default = given.gpus or (_CPU_TP if device == "cpu" else _TP)
    return units.parse_count(given.tp or default)


def _default_reduce(given: Asked, device: DeviceName, tp: int) -> str:
    several = device == "cpu" or units.parse_count(given.gpus or "1") > 1
    return "real" if tp > 1 and several else "none"


def _ranks(given: Asked, tp: int, reduces: list[Reduce]) -> int:
    real = reduces[0].kind == "real"
    ranks = units.parse_count(given.gpus) if given.gpus else tp if real else 1
    if real and ranks != tp:
        raise UsageError(
            f"--all-reduce real needs a process a rank; give --gpus {tp} with --tp {tp}"
        )
    if real and tp == 1:
        raise UsageError("--all-reduce real needs ranks to reduce over; give --tp 2 or more")
    if not real and ranks > 1:
        raise UsageError(
            f"--all-reduce {reduces[0]} is of one process; leave --gpus out, or give real"
        )
    return ranks


def _tree(given: Asked, rows: int) -> str:
    from kernels.drafts import TREES

    return choose("--tree", given.tree or asked.tree_for(rows), list(TREES))


def _require_seconds(given: Asked) -> None:
    for option, value in (("--seconds", given.seconds), ("--timeout", given.timeout)):
        if not 0 < value <= 86_400:
            raise UsageError(f"{option} {value:g} is out of range; give seconds above 0, to a day")


def _form(text: str) -> Any:
    return choose("--attention", text, list(asked.FORMS))


def _path(text: str) -> Any:
    return choose("--moe", text, list(asked.PATHS))


def _require_device(job: Job) -> None:
    """Raise `UsageError` where torch or a GPU lacks, before anything is loaded."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError("torch is not installed here; run `make setup`, or use its environment")
    if job.device == "cpu":
        return
    found = driver.look()
    count = 0 if found is None else len(found.gpus)
    if count < job.ranks:
        present = {0: "no NVIDIA GPU was", 1: "1 NVIDIA GPU was"}.get(count, f"{count} GPUs were")
        raise UsageError(
            f"--device cuda needs {job.ranks} GPU{'s' * (job.ranks > 1)}, but {present} found; "
            f"give --device cpu for a shrunken stub, or --predict GPU for what bytes and flops give"
        )
