"""CPU time, memory and size of a report of many records, beside another checkout, in turns.

    python -m suites.report_speed [--count 100000] [--beside CHECKOUT] [--rounds 3]

Each run is a process of its own, `python -m reports.build` in the checkout, on one file of records
that nobody measured (suites/_made_up_records.py). Printed for each checkout, with plots and
without, are medians: CPU seconds of user and system, wall-clock seconds, peak resident memory and
bytes of report.html. On a busy machine only the ratio of CPU seconds between two checkouts that
took turns means anything. `--count 0` is what it takes to start and to end.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from verifyscope import cli, units
from verifyscope.errors import Failure, UsageError

PROGRAM = "python -m suites.report_speed"
HEADER = ("checkout", "plots", "CPU", "wall", "memory", "report.html", "runs")
_HERE = Path(__file__).parent.parent

application = cli.app("Time the report of many records, beside another checkout.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one process took: seconds of CPU and of the wall's clock, bytes at most and written."""

    cpu_s: float
    wall_s: float
    resident_bytes: int
    html_bytes: int


@application.command()
def main(
    count: Annotated[int, typer.Option(min=0, max=10**6, help="Records, about.")] = 100_000,
    beside: Annotated[
        Path | None, typer.Option(help="A checkout to take turns with, such as a git worktree.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each side.")] = 3,
) -> None:
    """Print what `reports.build` takes for made-up records, with plots and without."""
    if beside is not None and not (beside / "reports" / "build.py").is_file():
        raise UsageError(f"--beside {beside} has no reports/build.py; name a checkout")
    checkouts = {"this": _HERE} | ({} if beside is None else {"other": beside.resolve()})
    found: dict[tuple[str, bool], list[Run]] = {}
    with tempfile.TemporaryDirectory(prefix="report-speed-") as folder:
        records = Path(folder) / "records.jsonl"
        _write(records, count)
        for _ in range(rounds):
            for name, checkout in checkouts.items():
                for plots in (True, False):
                    found.setdefault((name, plots), []).append(run(checkout, records, plots=plots))
    cli.print_rows([_row(*key, runs) for key, runs in found.items()], HEADER)


def _write(path: Path, count: int) -> None:
    from suites._made_up_records import records  # here, so that --help is quick
    from verifyscope.records import encoded

    with path.open("wb") as file:
        file.writelines(map(encoded, records(count)))


def run(checkout: Path, records: Path, *, plots: bool) -> Run:
    """Build a report in a process of its own; `Failure` if it fails."""
    out = records.parent / "report"
    command = [sys.executable, "-m", "reports.build", str(records), "--out", str(out)]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, *(() if plots else ("--no-plots",))], cwd=checkout, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Failure(f"reports.build in {checkout.name} ended with {process.returncode}")
    return Run(
        cpu_s=used.ru_utime + used.ru_stime,
        wall_s=time.monotonic() - began,
        resident_bytes=used.ru_maxrss * 1024,
        html_bytes=(out / "report.html").stat().st_size,
    )


def _row(name: str, plots: bool, runs: list[Run]) -> tuple[str, ...]:
    return (
        name,
        "with" if plots else "without",
        units.seconds(statistics.median(one.cpu_s for one in runs)),
        units.seconds(statistics.median(one.wall_s for one in runs)),
        units.bytes_(max(one.resident_bytes for one in runs)),
        units.bytes_(runs[-1].html_bytes),
        str(len(runs)),
    )


if __name__ == "__main__":
    cli.run(application, PROGRAM)
