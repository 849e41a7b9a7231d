"""What `python -m kernels` does: list, compile, check; each row printed, kept as JSON, recorded."""

import contextlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kernels._points import Checked, Point, Selection
from kernels._workers import Conditions, Lost, work
from verifyscope import cli, runs
from verifyscope.errors import Failure, UsageError
from verifyscope.records import Compiled, Evidence, Finding, Measurement, Status

_LIST = ("op", "implementation", "kind", "case", "reason")
_COMPILE = (
    *("op", "implementation", "case", "kernel", "capability", "registers", "spilled_bytes"),
    *("shared_bytes", "shared_limit_bytes", "threads", "blocks_per_sm", "occupancy", "limited_by"),
    *("blocks", "waves", "instr_per_B", "classes", "failure"),
)
_CHECK = (
    *("op", "implementation", "case", "max_row_error", "tolerance", "executed", "status"),
    *("output", "reason"),
)
_ABOUT_THE_RUN = ("schema", "environment", "command", "commit")
MOST_PROCESSES = 8
_MOST_UNITS = 8  # that the gate reads at once: rows come as often


class Output:
    """Rows on stdout, in a JSON file and as records; what came before an interruption is kept.

    A pipe gets each row at once, a terminal an aligned table at the end.
    """

    def __init__(self, json: Path | None, run: runs.Run | None) -> None:
        self._json, self._run = json, run
        self._header: Sequence[str] = ()
        self._cells: list[list[str]] = []
        self._items: list[Any] = []

    def begin(self, header: Sequence[str]) -> None:
        """Name the columns."""
        self._header = header

    def add(self, cells: Iterable[object], item: Any) -> None:
        """Add one row: as texts for the table, and as the struct that goes to JSON."""
        row = ["" if cell is None else str(cell) for cell in cells]
        self._items.append(item)
        if cli.is_terminal(sys.stdout):
            self._cells.append(row)
        else:
            cli.print_rows([row], self._header)

    def record(self, record: Measurement | Compiled | Finding) -> None:
        """Append `record`, with where and how it was made, if records are kept."""
        if self._run is None:
            return
        here = self._run.environment
        made: dict[str, Any] = {"environment": here.id, "command": here.command}
        if not isinstance(record, Finding):
            made["commit"] = here.commit
        self._run.append(msgspec.structs.replace(record, **made))

    def close(self) -> None:
        """Print the table and write the JSON file."""
        if self._cells:
            cli.print_rows(self._cells, self._header)
        if self._run is not None:
            self._run.close()
        if self._json is not None:
            data = msgspec.json.format(msgspec.json.encode(self._items), indent=2)
            try:
                self._json.write_bytes(data + b"\n")
            except OSError as error:  # of a full place, which does not say its name
                error.filename = error.filename or str(self._json)
                raise


@contextlib.contextmanager
def output(json: Path | None, records: Path | None) -> Iterator[Output]:
    """Open what `--json` and `--records` name before the work, and close it whatever happens."""
    if json is not None:
        if json.is_dir():
            raise UsageError(f"--json {json} is a folder; name a file in it")
        json.parent.mkdir(parents=True, exist_ok=True)
    out = Output(json, runs.start(records, "kernels") if records is not None else None)
    try:
        yield out
    finally:
        out.close()


def list_points(selection: Selection, out: Output) -> None:
    """Print each implementation and case; record those that cannot be measured here."""
    from kernels import _select

    out.begin(_LIST)
    for point in _select.selected_points(selection):
        out.add((point.op, point.implementation, point.kind, point.case, point.reason), point)
        if point.reason and point.kind:
            out.record(_measurement(point, "skipped", point.reason))


def compile_units(
    selection: Selection, capabilities: list[int], *, long: bool, timeout_s: float, out: Output
) -> None:
    """Build and print; `Failure` if a kernel fails the gate."""
    from kernels import _cubin, _gate, _select

    if reason := _cubin.why_not():
        raise Failure(f"nothing can be compiled here: {reason}")
    units = _select.units(selection, capabilities, long=long)
    if not units:
        cli.note("nothing to compile: no implementation chosen is made of Triton or CUDA C++")
    conditions = conditions_of(MOST_PROCESSES, timeout_s, {"TRITON_INTERPRET": "0"})
    out.begin(_COMPILE)
    count = failed = launches = 0
    builds: set[str] = set()
    results = _gate.built(units, conditions=conditions, most_at_once=_MOST_UNITS)
    with (
        contextlib.closing(results),
        watched(results, len(units), "compiling") as built,
    ):
        for unit in built:
            for row in unit.rows:
                _print_compiled(row, out)
                count, failed = count + 1, failed + (row.failure is not None)
            launches, builds = launches + unit.launches, builds | unit.builds
    cli.note(
        f"{count} kernels built, {failed} failed the gate; "
        f"{launches} launches, {len(builds)} distinct builds"
    )
    if units:
        cli.note("what no compiler sees (floor, bytes, flops, waves of each case): --predict GPU")
    if failed:
        raise Failure(f"{failed} of {count} kernels must not be launched; see their last column")


def check_points(
    selection: Selection, *, tiny: bool, graph: bool, timeout_s: float, out: Output
) -> None:
    """Check and print; `Failure` if an implementation is wrong."""
    from kernels import _execute, _select

    on_gpu = _execute.device().type == "cuda"
    if graph and not on_gpu:
        raise UsageError("--graph captures on a CUDA device, and there is none here")
    points = _select.checkable(selection, tiny=tiny)
    tasks = [(point, graph) for point in points if point.reason is None]
    # On a GPU one at a time; a kernel that failed may have broken its process's context.
    conditions = conditions_of(
        1 if on_gpu else MOST_PROCESSES, timeout_s, {} if on_gpu else {"TRITON_INTERPRET": "1"}
    )
    rows: list[Checked] = []
    out.begin(_CHECK)
    with (
        work(
            "kernels._execute:check_point",
            tasks,
            conditions=conditions,
            spoils=lambda row: on_gpu and row.status == "failed",
        ) as results,
        watched(results, len(tasks), "checking") as checked,
    ):
        for op, its_points in itertools.groupby(points, key=lambda point: point.op):
            rows += _print_op(op, its_points, checked, graph=graph, out=out)
    counts = {s: sum(row.status == s for row in rows) for s in ("passed", "failed", "skipped")}
    cli.note(", ".join(f"{count} {status}" for status, count in counts.items()))
    if counts["failed"]:
        raise Failure(f"{counts['failed']} of {len(rows)} checks failed; see their last column")


def _print_op(
    op: str, points: Iterable[Point], checked: Iterator[Any], *, graph: bool, out: Output
) -> list[Checked]:
    """Print and record what became of the points of one op, as it comes."""
    rows: list[Checked] = []
    try:
        for point in points:
            row = _skipped(point) if point.reason else next(checked)
            rows.append(_failed(point, row.reason) if isinstance(row, Lost) else row)
            _print_checked(rows[-1], out)
    finally:
        _record_agreement(op, rows, graph=graph, out=out)
    return rows


def conditions_of(most: int, timeout_s: float, environment: Mapping[str, str]) -> Conditions:
    """Return how workers run: `most` at once, fewer where there are fewer cores."""
    processes = min(most, len(os.sched_getaffinity(0)))
    return Conditions(processes=processes, timeout_s=timeout_s, environment=environment)


@contextlib.contextmanager
def watched(results: Iterator[Any], count: int, what: str) -> Iterator[Iterator[Any]]:
    """Give `results`, with a progress bar on stderr where that is a terminal."""
    if not cli.is_terminal(sys.stderr):
        yield results
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        yield iter(bar.track(results, total=count, description=what))


def _print_compiled(row: Compiled, out: Output) -> None:
    cells = (row.op, row.implementation, row.case, row.kernel, row.capability, row.registers)
    memory = (row.spilled_bytes, row.shared_bytes, row.shared_limit_bytes)
    held = (row.threads, row.resident_blocks, digits(row.occupancy), row.limited_by)
    launch = (row.grid_blocks, digits(row.waves), digits(row.instructions_per_byte))
    fields = msgspec.structs.asdict(row)
    item = {name: value for name, value in fields.items() if name not in _ABOUT_THE_RUN}
    out.add((*cells, *memory, *held, *launch, ",".join(row.found), row.failure), item)
    out.record(row)


def _print_checked(row: Checked, out: Output) -> None:
    errors = (digits(row.max_row_error), digits(row.tolerance))
    cells = (row.op, row.implementation, row.case, *errors)
    out.add((*cells, row.executed, row.status, row.output, row.reason), row)
    if row.status == "failed":
        out.record(_measurement(row, "failed", row.reason or "wrong"))


def digits(value: float | None) -> str | None:
    """Return three digits of a number that is known."""
    return None if value is None else f"{value:.3g}"


def _skipped(point: Point) -> Checked:
    return _unchecked(point, "skipped", point.reason)


def _failed(point: Point, reason: str) -> Checked:
    return _unchecked(point, "failed", reason)


def _unchecked(point: Point, status: str, reason: str | None) -> Checked:
    return Checked(
        part=point.part,
        op=point.op,
        implementation=point.implementation,
        kind=point.kind,
        case=point.case,
        executed=None,
        status=status,
        reason=reason,
    )


def _measurement(point: Point | Checked, status: Status, reason: str) -> Measurement:
    return Measurement(
        source="measured",
        part=point.part,
        op=point.op,
        implementation=point.implementation,
        kind=point.kind or "own",
        case=point.case,
        status=status,
        reason=reason,
        environment="",
        command="",
    )


def _record_agreement(op: str, rows: list[Checked], *, graph: bool, out: Output) -> None:
    """Record one finding that holds what passed, how near to its bound, and how it was executed."""
    ran = [row for row in rows if row.status != "skipped"]
    passed = [row for row in ran if row.status == "passed"]
    if not ran:
        return
    what = "replays of a captured graph" if graph else "checks"
    out.record(
        Finding(
            name="graph replay" if graph else "correctness",
            sentence=f"{op}: {len(passed)} of {len(ran)} {what} agree with the reference.",
            evidence=tuple(
                Evidence(
                    file="python -m kernels --check",
                    at=f"{row.op}/{row.implementation} on {row.case}",
                    value=f"{row.output}: {row.max_row_error:.3g} of {row.tolerance:.3g}, "
                    f"executed by {row.executed}",
                )
                for row in passed
            ),
            confidence="sure",
        )
    )
