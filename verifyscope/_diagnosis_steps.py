"""The steps of a diagnosis: what is run on this machine, for which share of the minutes.

    steps(Asked(model="kimi-k2.5", tp=8, ...), Here(gpus=(), entry=None, ...), Folder(...))

What cannot run here is a step all the same, with the reason. Without a GPU the sweep runs over
processes of the CPU, the stub is a shrunken one and kernels are timed where a CPU can: that shows
that it all works, and is no time of a GPU. Commands run in the checkout.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verifyscope import _diagnosis_shares as shares
from verifyscope import systems, units
from verifyscope._diagnosis_shares import SHARES, Name
from verifyscope.errors import UsageError
from verifyscope.job import Step, python
from verifyscope.models import TABLE, Gqa, Model
from verifyscope.passes import PUBLIC_ALL_REDUCE_US
from verifyscope.records import Measurement, read

FOUNDING_GPU = "rtx-pro-6000-server"
# What every step needs, but torch and what is named with it.
BASE = ("msgspec", "numpy", "typer")
_TORCH = ("torch", "triton")
_PYTEST = (*_TORCH, "pytest", "pytest_benchmark")
_REPORT = ("jinja2", "markdown_it", "matplotlib")
# On eight GPUs a combination takes about four starts of ten seconds.
_EVERY_COMBINATION_S, _THREE_COMBINATIONS_S = 360.0, 100.0
# Eight processes on a few cores measure their scheduler: few calls show that all of it works.
_FEW_CALLS = ("--depth", "4", "--iterations", "5", "--batches", "1", "--warmup", "1")
_MOST_PROCESSES = 8
_TIMED_ROWS = (1, 2, 3, 4, 6, 8, 12, 16)  # what ops have cases of
_TIMED_CONTEXTS = ("1k", "8k", "32k", "128k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the person said: times in milliseconds as they were typed, None where nothing was."""

    model: str
    tp: int
    rows: int = 4
    context: str = "8k"
    requests: int = 1
    minutes: float = 10.0
    gpu: str | None = None
    logs: tuple[str, ...] = ()
    observed_ms: str | None = None
    earlier_ms: str | None = None
    plain_ms: str | None = None
    accept_length: str | None = None
    look_only: bool = False
    compile: tuple[str, ...] = ()
    expression: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What this machine has: its GPUs, and the first one's entry in verifyscope/hardware.py."""

    gpus: tuple[str, ...] = ()
    entry: str | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of the run: where it is, and what commands in the checkout call it."""

    path: Path
    name: str

    def file(self, name: str) -> str:
        """Return what a command calls a file of it."""
        return f"{self.name}/{name}"

    @property
    def records(self) -> Path:
        """Return the file of all records."""
        return self.path / "records.jsonl"


def steps(asked: Asked, here: Here, folder: Folder, model: Model) -> list[Step]:
    """Return the steps in order; `UsageError` where there is no time for any."""
    plan = _Plan(asked, here, folder, model)
    made = {name: _DRAFTS[name](plan) for name in shares.NAMES}
    drafts = {name: draft for name, draft in made.items() if draft is not None}
    wanted = [name for name, draft in drafts.items() if not draft.why_not]
    limits = shares.divide(wanted, budget_s=asked.minutes * 60)
    return [
        _step(draft, limits.get(name), SHARES[name].least_s, enough=shares.minutes_for(wanted))
        for name, draft in drafts.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A step but for its time; `command` may depend on that."""

    title: str
    command: Callable[[float], Iterable[str]]
    packages: tuple[str, ...] = ()
    why_not: str = ""
    output: str | None = None
    more: Callable[[], Sequence[str]] = tuple
    may_be_cut: bool = False
    skip_statuses: Mapping[int, str] | None = None


def _step(draft: _Draft, limit_s: float | None, least_s: float, *, enough: float) -> Step:
    why_not = draft.why_not
    if not why_not and limit_s is None:
        why_not = f"no time for it: --minutes {enough:g} has time for all"
    module, *arguments = draft.command(limit_s or 0.0)
    return Step(
        name=draft.title,
        command=python(module, *arguments),
        limit_s=limit_s or 0.0,
        least_s=least_s,
        packages=(*BASE, *draft.packages),
        why_not=why_not,
        output=draft.output,
        more=draft.more,
        may_be_cut=draft.may_be_cut,
        skip_statuses=draft.skip_statuses or {},
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What every step is made from."""

    asked: Asked
    here: Here
    folder: Folder
    model: Model

    @property
    def several(self) -> bool:
        return len(self.here.gpus) > 1

    @property
    def records(self) -> tuple[str, str]:
        return "--records", self.folder.file("records.jsonl")

    @property
    def predicted(self) -> str | None:
        """Return the GPU to predict for, None where this one is not in the table."""
        if self.asked.gpu is not None or self.here.gpus:
            return self.asked.gpu or self.here.entry
        return FOUNDING_GPU

    @property
    def touch(self) -> str:
        """Return why the GPUs are left alone, "" if they are not."""
        return "--look-only touches no GPU" if self.asked.look_only and self.here.gpus else ""


def _machine(plan: _Plan) -> _Draft:
    return _Draft(
        title="what this machine is",
        command=lambda limit_s: ("verifyscope", "--json", plan.folder.file("machine.json")),
        output="machine.txt",
    )


def _log(plan: _Plan) -> _Draft | None:
    asked = plan.asked
    if not asked.logs:
        return None
    plain = ("--plain-ms", asked.plain_ms) if asked.plain_ms else ()
    return _Draft(
        title="the logs that were given",
        command=lambda limit_s: ("ingest", *asked.logs, *plain, *plan.records),
        output="logs.txt",
    )


def _host(plan: _Plan) -> _Draft:
    return _Draft(
        title="links between GPUs, and a first all-reduce",
        command=lambda limit_s: (
            *("collectives.host", *(("--look-only",) if plan.asked.look_only else ())),
            *plan.records,
        ),
        packages=_TORCH,
        why_not="" if plan.here.gpus else "needs a GPU",
        output="host.txt",
    )


def _sweep(plan: _Plan) -> _Draft:
    asked, here = plan.asked, plan.here
    why_not = plan.touch
    if asked.tp == 1:
        why_not = "--tp 1 has no all-reduce"
    elif len(here.gpus) == 1:
        why_not = "one GPU has nobody to reduce with"
    ranks = min(asked.tp, len(here.gpus) or _MOST_PROCESSES)
    between = (2, 4, 8, 16) if plan.several else ()
    rows = {1, *between, asked.rows * asked.requests}
    tokens = ",".join(str(count) for count in sorted(rows))

    def command(limit_s: float) -> Iterator[str]:
        yield from ("collectives.sweep", "--gpus", str(ranks))
        yield from ("--model", asked.model, "--tokens", tokens)
        if not plan.several:
            yield from ("--backend", "gloo", *_FEW_CALLS)
        elif limit_s < _THREE_COMBINATIONS_S:
            yield from ("--algos", "default", "--protos", "default")
        elif limit_s < _EVERY_COMBINATION_S:
            yield from ("--algos", "ring")
        yield from plan.records

    return _Draft(
        title="all-reduces" if plan.several else "all-reduces, over processes of the CPU",
        command=command,
        packages=("torch",),
        why_not=why_not,
        output="sweep.txt",
        may_be_cut=True,
    )


def _stub(plan: _Plan) -> _Draft:
    return _Draft(
        title="a pass of the layers, taken apart"
        if plan.here.gpus
        else "a pass of a shrunken stub on the CPU, taken apart",
        command=lambda limit_s: _stub_command(plan),
        packages=_TORCH,
        why_not=plan.touch,
        output="stub.txt",
        may_be_cut=True,
    )


def _stub_command(plan: _Plan) -> Iterator[str]:
    asked, gpus = plan.asked, len(plan.here.gpus)
    yield from ("graphs.replay", "--model", asked.model, "--requests", str(asked.requests))
    if not gpus:
        yield from ("--device", "cpu", "--rows", str(asked.rows), "--seconds", "1")
    else:
        # A verify first, then the plain step beside it.
        rows = ",".join(dict.fromkeys((str(asked.rows), "1")))
        yield from ("--device", "cuda", "--tp", str(asked.tp))
        yield from ("--rows", rows, "--context", asked.context)
        if gpus >= asked.tp > 1:
            yield from ("--gpus", str(asked.tp))
        elif asked.tp > 1:
            yield from ("--all-reduce", f"delay:{PUBLIC_ALL_REDUCE_US}us")
    yield from plan.records


def _compile(plan: _Plan) -> _Draft | None:
    if not plan.asked.compile:
        return None
    return _Draft(
        title="compile gate",
        command=lambda limit_s: ("kernels", "--compile", *plan.asked.compile, *plan.records),
        packages=_TORCH,
        output="compile.txt",
        may_be_cut=True,
    )


def _suites(plan: _Plan) -> _Draft:
    expression = plan.asked.expression
    if expression is None:
        expression = selection(plan.model, plan.asked, many=bool(plan.here.gpus))
    # A fifth of a second for each implementation of a case keeps a CPU to its minutes.
    brief = () if plan.here.gpus else ("--benchmark-max-time=0.2",)
    predict = ("--predict", plan.predicted) if plan.predicted and not plan.here.gpus else ()
    select = ("-k", expression) if expression else ()
    return _Draft(
        title="kernels" if plan.here.gpus else "kernels, those that a CPU can run",
        command=lambda limit_s: (
            *("pytest", "suites/", "--benchmark-only", *brief, *select, *predict, *plan.records),
        ),
        packages=_PYTEST,
        why_not=plan.touch,
        may_be_cut=True,
        skip_statuses={5: f"-k {expression} selects no case"},
    )


def _prediction(plan: _Plan) -> _Draft:
    asked, predicted = plan.asked, plan.predicted
    why_not = ""
    if predicted is None:
        why_not = f"{plan.here.gpus[0]} is not in verifyscope/hardware.py; --gpu names another"
    own = bool(plan.here.gpus) and predicted == plan.here.entry
    said = {"--observed-ms": asked.observed_ms, "--plain-ms": asked.plain_ms}
    said |= {"--earlier-ms": asked.earlier_ms, "--accepted": asked.accept_length}
    return _Draft(
        title=f"the pass predicted for {predicted or 'this GPU'}",
        command=lambda limit_s: (
            *("graphs.replay", "--model", asked.model, "--tp", str(asked.tp)),
            *("--rows", str(asked.rows), "--context", asked.context),
            *("--requests", str(asked.requests), "--predict", predicted or FOUNDING_GPU),
            *(word for name, ms in said.items() if ms is not None for word in (name, ms)),
            *plan.records,
        ),
        why_not=why_not,
        output="prediction.txt",
        more=lambda: more_of_prediction(plan.folder, asked, measured=own),
    )


def _report(plan: _Plan) -> _Draft:
    return _Draft(
        title="report",
        command=lambda limit_s: (
            *("reports.build", plan.folder.file("records.jsonl")),
            *("--out", plan.folder.file("report"), "--verdict"),
        ),
        packages=_REPORT,
        output="verdict.txt",
    )


_DRAFTS: Mapping[Name, Callable[[_Plan], _Draft | None]] = {
    "machine": _machine,
    "log": _log,
    "host": _host,
    "sweep": _sweep,
    "stub": _stub,
    "compile": _compile,
    "suites": _suites,
    "prediction": _prediction,
    "report": _report,
}


def selection(model: Model, asked: Asked, *, many: bool) -> str:
    """Return what pytest's -k selects: this model's attention and experts at one row and its own.

    Cases are of a few contexts and numbers of rows: the nearest context and the next rows are
    taken. many: at 16 rows, too.
    """
    heads = max(1, model.heads // asked.tp)
    cached = units.parse_count(asked.context)
    context = min(_TIMED_CONTEXTS, key=lambda name: abs(units.parse_count(name) - cached))
    if isinstance(model.attention, Gqa):
        kv_heads = max(1, model.attention.kv_heads // asked.tp)
        attention = f"tree_attention and -h{heads}x{kv_heads}-"
    else:
        attention = f"mla_verify and -h{heads}-"
    attention += f" and -l{context}-"
    ops = [f"({attention})", "rms_norm"]
    if model.moe is not None:
        experts = f"(fused_moe and -{model.name}-tp{asked.tp}- and -uniform)"
        ops += [experts, "moe_routing", "moe_align", "shared_expert"]
    rows = next((count for count in _TIMED_ROWS if count >= asked.rows), _TIMED_ROWS[-1])
    more = {_TIMED_ROWS[-1]} if many else set()
    counts = " or ".join(f"-t{count}-" for count in sorted({1, rows, *more}))
    return f"({' or '.join(ops)}) and ({counts})"


def more_of_prediction(folder: Folder, asked: Asked, *, measured: bool) -> list[str]:
    """Return what the records know by now: times measured here, and what the logs say of a pass.

    A time of a log counts where it is the only one of its kind, at as many requests and of no other
    model or TP; what the person gave goes first.
    """
    lines = list(_measurements(folder.records))
    words: list[str] = []
    if measured and any(one.source == "measured" and one.median_s is not None for one in lines):
        words += ["--measured", folder.file("records.jsonl")]
    for option, given, op, mode in (
        ("--observed-ms", asked.observed_ms, "verify", "verify"),
        ("--plain-ms", asked.plain_ms, "step", "decode"),
    ):
        found = [
            one.median_s
            for one in lines
            if (one.source, one.op, one.mode) == ("imported", op, mode)
            and one.median_s is not None
            and _may_be_of(one, asked)
        ]
        if given is None and len(found) == 1:
            words += [option, f"{found[0] * 1e3:.6g}"]
    return words


def _may_be_of(one: Measurement, asked: Asked) -> bool:
    """Say whether a log names neither another load nor another model or TP than was asked about."""
    name = asked.model.strip().lower()
    mine = systems.System(model=name if name in TABLE else None, tp=asked.tp)
    same_load = one.dims.get("requests", asked.requests) == asked.requests
    return same_load and systems.apart(systems.of_record(one), mine) is None


def _measurements(records: Path) -> Iterator[Measurement]:
    with contextlib.suppress(UsageError, OSError):  # nothing was recorded so far
        yield from (one for one in read([records], []) if isinstance(one, Measurement))
