"""Facts of a serving log become measurements, one a load, a component, a set of runs or a cell.

Their medians are over what the file prints: windows (each a mean over its cycles), printed means,
or runs. `method` says of what; `count` how many. Rows are those of one request in a verify pass,
as in predictions; `all_rows` those of all requests together.
"""

import re
from collections.abc import Iterator
from statistics import fmean

from ingest.facts import Column, Component, Facts, Runs, Steps, Timer
from ingest.log import Log
from ingest.named_settings import whole
from ingest.named_system import system_of
from verifyscope import speculation
from verifyscope.records import Environment, Launch, Measurement, Mode, Origin, Value
from verifyscope.stats import Summary, summarise
from verifyscope.systems import as_method

GIVEN = "given"
FROM_TPOT = "from-tpot"
_RANKS = re.compile(r"\b(\d{1,4}) (?:GPUs|ranks)\b")
_PARTS = {
    "cycle": "cycle",
    "forward": "forward",
    "draft": "draft",
    "sampling": "sampling",
    "host": "host",
    "plain": "forward",
    "unclassified": "unclassified",
}


def measurements(facts: Facts, log: Log, *, about: str = "") -> Iterator[Measurement]:
    """Yield the records. about: the words above a table by load."""
    maker = _Maker(facts, log)
    for steps in facts.steps:
        yield maker.steps(steps)
    for component in facts.components:
        yield maker.component(component)
    for runs in facts.runs:
        yield maker.runs(runs)
    for timer in facts.timers:
        yield from maker.timer(timer)
    for column in facts.columns:
        yield from maker.column(column, about)


def plain_given(seconds: float, here: Environment) -> Measurement:
    """Return the record of a plain step of the command line, whatever its load."""
    return Measurement(
        source="imported",
        part="cycle",
        op="step",
        implementation=GIVEN,
        kind="baseline-different-work",
        case="load not said",
        status="ok",
        dims={"rows": 1},
        mode="decode",
        median_s=seconds,
        method={"sample": "given by --plain-ms"},
        environment=here.id,
        command=here.command,
        origin=Origin("command line"),
    )


class _Maker:
    """Makes the records of one file; each says which system it is of, where the file does."""

    def __init__(self, facts: Facts, log: Log) -> None:
        self._facts, self._log = facts, log
        self._ranks = whole(facts.settings, "tp_size", "tensor_parallel_size")
        self._system = as_method(system_of(facts), same=log.same_system)

    def steps(self, steps: Steps) -> Measurement:
        """Return the cycle at one load."""
        known: dict[str, Value | None] = {
            "requests": steps.running,
            "rows": 1 if steps.mode == "decode" else steps.verify_tokens,
            "all_rows": steps.rows,
            "acceptance": steps.acceptance,
            "context": fmean(steps.contexts) if steps.contexts else None,
        }
        load = f"{steps.running} running" if steps.running is not None else "load not known"
        return self._record(
            "cycle" if steps.mode == "verify" else "step",
            part="cycle",
            implementation=steps.engine,
            case=f"{load}, {steps.launch}" if steps.launch else load,
            line=steps.line,
            summary=steps.summary,
            count=steps.windows,
            mode=steps.mode,
            dims={name: value for name, value in known.items() if value is not None},
            method={
                "sample": "TPOT x acceptance"
                if FROM_TPOT in steps.flags
                else "mean over a log window",
                "mean_s": fmean(steps.seconds),
                **self._drafted(steps.mode),
            },
            flags=steps.flags,
            launch=steps.launch,
        )

    def _drafted(self, mode: Mode) -> dict[str, Value]:
        """Return the draft steps of a cycle, where they are not its drafted tokens."""
        settings = self._facts.settings
        steps = whole(settings, "speculative_num_steps")
        width = whole(settings, "speculative_eagle_topk")
        tree = mode == "verify" and steps is not None and width is not None and width > 1
        return {"draft_steps": steps} if tree and steps is not None else {}

    def component(self, one: Component) -> Measurement:
        """Return what a line of a component table says."""
        stated = self._facts.stated_acceptance
        method: dict[str, Value] = {"sample": "mean as printed"}
        method |= {"share": one.share} if one.share is not None else {}
        method |= {"cycles": one.cycles} if one.cycles is not None else {}
        method |= {"spread_s": one.spread_s} if one.spread_s is not None else {}
        flags = {"approximate": one.approximate, "upper-bound": one.bound}
        modes: dict[str, Mode] = {"forward": "verify", "plain": "decode"}
        return self._record(
            "verify" if one.role == "forward" else one.label,
            part=_PARTS[one.role],
            implementation="component table",
            case=one.label,
            line=one.line,
            summary=one.summary,
            count=one.printed,
            mode=modes.get(one.role),
            dims={"acceptance": stated[1]} if stated and one.role == "forward" else {},
            method=method,
            flags=tuple(name for name, set_ in flags.items() if set_),
        )

    def runs(self, runs: Runs) -> Measurement:
        """Return the seconds a token over runs."""
        each = [seconds / tokens for tokens, seconds in zip(runs.tokens, runs.seconds, strict=True)]
        outliers = speculation.outlier_runs(runs.tokens, runs.seconds)
        return self._record(
            "token",
            part="generation",
            implementation="benchmark runs",
            case="plain" if runs.plain else "speculative" if runs.plain is False else "not said",
            line=runs.line,
            summary=summarise(each),
            count=len(each),
            mode="decode" if runs.plain else None,
            dims={"tokens": sum(run.tokens for run in runs.runs)},
            method={
                "sample": "a run, its prompt included",
                "by_run_tok_s": speculation.average_by_run(runs.tokens, runs.seconds),
                "by_token_tok_s": speculation.average_by_token(runs.tokens, runs.seconds),
                "announced": runs.announced,
                "warmups": runs.warmups,
                "outliers": ", ".join(str(runs.runs[at].index) for at in outliers) or "none",
            },
            flags=("runs-missing",) if len(runs.runs) < runs.announced else (),
        )

    def timer(self, timer: Timer) -> Iterator[Measurement]:
        """Yield the two clocks of a label."""
        for clock, seconds in (("gpu", timer.gpu_s), ("host", timer.host_s)):
            yield self._record(
                timer.label,
                part="unclassified" if clock == "gpu" else "host",
                implementation=f"{clock} clock",
                case=timer.label,
                line=timer.line,
                summary=summarise([seconds]),
                count=timer.iterations,
                method={"sample": "mean as printed", "clock": clock, "nested": True},
            )

    def column(self, column: Column, about: str) -> Iterator[Measurement]:
        """Yield the cells of a column: seconds, or seconds a token of a request."""
        reduce = "all-reduce" in about.lower() or "allreduce" in about.lower()
        timed = column.unit == "s"
        ranks = _RANKS.search(about) if timed and reduce else None
        for load, value in column.values.items():
            requests = load if column.axis == "requests" else 1
            yield self._record(
                "all_reduce" if timed and reduce else "time" if timed else "token",
                part="all_reduce"
                if timed and reduce
                else "unclassified"
                if timed
                else "generation",
                implementation=column.name,
                case=f"{load} {column.axis}",
                line=column.line,
                summary=summarise([value if timed else requests / value]),
                count=None,
                mode="decode" if column.plain else None,
                dims={column.axis: load},
                method={"sample": "as printed in a table"},
                ranks=int(ranks[1]) if ranks else None,
            )

    def _record(
        self,
        op: str,
        *,
        part: str,
        implementation: str,
        case: str,
        line: int,
        summary: Summary,
        count: int | None,
        mode: Mode | None = None,
        dims: dict[str, Value] | None = None,
        method: dict[str, Value] | None = None,
        flags: tuple[str, ...] = (),
        launch: Launch | None = None,
        ranks: int | None = None,
    ) -> Measurement:
        several = summary.count > 1
        return Measurement(
            source="imported",
            part=part,
            op=op,
            implementation=implementation,
            kind="baseline-different-work",
            case=case,
            status="ok",
            dims=dims or {},
            mode=mode,
            launch=launch,
            flags=flags,
            median_s=summary.median,
            low_s=summary.low if several else None,
            high_s=summary.high if several else None,
            count=count,
            ranks=ranks or self._ranks,
            method={**(method or {}), **self._system},
            environment=self._log.environment,
            command=self._log.command,
            origin=Origin(self._log.file, line),
        )
