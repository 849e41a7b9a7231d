"""What --from RUN gives the calculator: a line of time against rows, a point of a log, or both.

A run of measured or predicted passes gives its line, one of logs a point; where it holds both, the
line counts unless --point names a log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reports import _collected, _operating_points, _text
from reports._calculator import lines, of_logs
from reports._calculator.lines import Known
from reports._operating_points import OperatingPoint
from verifyscope import cli
from verifyscope.contests import latest
from verifyscope.errors import UsageError
from verifyscope.records import Environment, read


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of a run is wanted: texts that name a line or a log, a kernel and its calls, a load."""

    line: str | None = None
    op: str | None = None
    calls: int | None = None
    point: str | None = None
    requests: int | None = None

    def check(self, *, has_run: bool) -> None:
        """Raise `UsageError` for options that do not go together."""
        chosen = (self.line, self.op, self.calls, self.point)
        if not has_run and any(one is not None for one in chosen):
            raise UsageError(
                "--line, --op, --calls and --point choose among the times of --from RUN"
            )
        if (self.op is None) != (self.calls is None) or (self.calls is not None and self.calls < 1):
            raise UsageError("--op and --calls belong together: a kernel and its calls in a pass")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What was taken of a run; None is not there, or was not wanted."""

    line: Known | None = None
    point: OperatingPoint | None = None


def take(run: Sequence[Path], wanted: Wanted) -> Taken:
    """Return the line and the point of a run; `UsageError` where it holds neither."""
    wanted.check(has_run=bool(run))
    if not run:
        return Taken()
    warnings: list[str] = []
    records = list(read(run, warnings))
    for warning in warnings:
        cli.note(f"warning: {warning}")
    measured, name = latest(records), ", ".join(map(str, run))
    if wanted.op is None or wanted.calls is None:
        found = lines.of_passes(measured)
    else:
        found = lines.of_op(measured, wanted.op, calls=wanted.calls)
        name = f"{wanted.op} of {name}"
    logs = [
        one
        for one in _operating_points.points(_collected.collect(run))
        if one.record.source == "imported"
    ]
    wants_line = wanted.line is not None or wanted.op is not None
    line = point = None
    if wants_line or (found and wanted.point is None) or not logs:
        line = lines.choose(found, wanted.line, of=name)
        _say_of_line(line, found, named=wanted.line is not None, environments=records)
    if wanted.point is not None or line is None:
        point = _point(logs, wanted, name)
    elif logs:
        cli.note(f"--from holds {_text.plural(len(logs), 'cycle')} of logs, too; --point names one")
    return Taken(line=line, point=point)


def _point(logs: Sequence[OperatingPoint], wanted: Wanted, name: str) -> OperatingPoint:
    if not logs:
        raise UsageError(f"{name} holds no cycle of a log; read one: python -m ingest serve.log")
    choice = of_logs.choose(logs, wanted.point, wanted.requests, of=name)
    if choice.other_loads and wanted.requests is None:
        loads = _text.listed(map(str, choice.other_loads), most=12)
        cli.note(f"--from holds it at other loads, too: --requests {loads}")
    return choice.point


def _say_of_line(
    chosen: Known, found: Sequence[Known], *, named: bool, environments: Sequence[object]
) -> None:
    others = [one.what for one in found if one is not chosen]
    if others and not named:
        cli.note(f"--from holds {len(others)} more; --line names one, such as: {others[0]}")
    on_cpu = any(
        isinstance(one, Environment) and one.id == chosen.environment and not one.gpus
        for one in environments
    )
    if on_cpu and chosen.source == "measured":
        cli.note("the line was measured on a CPU: it says nothing about a GPU")
