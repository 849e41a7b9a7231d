"""Time from a trace file to its breakdown: this project beside HolisticTraceAnalysis, alternated.

    python -m suites.trace_speed TRACE --other PATH_OF_A_PYTHON_WITH_IT [--rounds 5]

Each side is a process of its own that has imported what it needs and waits for a line; then it
reads the file and makes the breakdown by kernel, once, and prints its seconds (wall clock). Imports
are not counted; reading, unpacking and decoding are. The sides take turns, so that a busy machine
slows both. Printed are the medians, their ratio with the interval of a bootstrap (stats.compare),
and the rate in uncompressed bytes. The other side runs through its public class, as its users do.
"""

import subprocess
import sys
from pathlib import Path
from typing import IO, Annotated

import typer

from verifyscope import cli, units
from verifyscope.errors import Failure, UsageError

PROGRAM = "python -m suites.trace_speed"
_OURS = """
import sys, time
from pathlib import Path
from ingest import kineto, trace_facts
from ingest.kernel_classes import ours
from ingest.log import Log
from ingest.opening import opened
for line in sys.stdin:
    began = time.perf_counter()
    with opened(Path(line.strip())) as (stream, _):
        log = Log(file="t", lines=iter(()), environment="", command="", stream=stream)
        found = [trace_facts.facts_of(trace, ours()) for trace in kineto.traces(log)[0]]
    print(time.perf_counter() - began, len(found), flush=True)
"""
_OTHER = """
import contextlib, io, logging, sys, time, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
if __name__ == "__main__":
    for line in sys.stdin:
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            trace = TraceAnalysis(trace_files={0: line.strip()}, trace_dir="/")
            kinds, kernels = trace.get_gpu_kernel_breakdown(visualize=False)
        print(time.perf_counter() - began, len(kernels), flush=True)
"""

application = cli.app("Time reading a trace, beside HolisticTraceAnalysis.")


@application.command()
def main(
    trace: Annotated[Path, typer.Argument(help="A Kineto trace, .json or .json.gz.")],
    other: Annotated[
        Path | None, typer.Option(help="A Python that has HolisticTraceAnalysis 0.5.0.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Timed runs of each side.")] = 5,
) -> None:
    """Print seconds of each side for TRACE, after one run of each that does not count."""
    if not trace.is_file():
        raise UsageError(f"{trace} is no file; name a trace")
    sides = {"verifyscope": _side(Path(sys.executable), _OURS)}
    if other is None or not _has_it(other):
        cli.note(
            f"{PROGRAM}: no Python with HolisticTraceAnalysis is named with --other; "
            f"only this project is timed"
        )
    else:
        sides["HolisticTraceAnalysis"] = _side(other, _OTHER)
    try:
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds + 1):
            for name, side in sides.items():
                found[name].append(_ask(side, trace.resolve(), name))
    finally:
        for side in sides.values():
            side.kill()
            side.wait()
    _report({name: values[1:] for name, values in found.items()}, _unpacked_bytes(trace))


def _side(python: Path, script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(python), "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _has_it(python: Path) -> bool:
    try:
        asked = subprocess.run(
            [
                str(python),
                "-c",
                "import importlib.metadata as m; m.version('HolisticTraceAnalysis')",
            ],
            check=False,
            capture_output=True,
        )
    except OSError:
        return False
    return asked.returncode == 0


def _ask(side: "subprocess.Popen[str]", trace: Path, name: str) -> float:
    """Return the seconds of one run; `Failure` if the side died."""
    asked, answered = _pipes(side)
    print(trace, file=asked, flush=True)
    words = answered.readline().split()
    if len(words) != 2:
        raise Failure(f"{name} could not read {trace.name}; try it by hand")
    return float(words[0])


def _pipes(side: "subprocess.Popen[str]") -> tuple[IO[str], IO[str]]:
    if side.stdin is None or side.stdout is None:
        raise Failure("a process has no pipes")
    return side.stdin, side.stdout


def _unpacked_bytes(trace: Path) -> int:
    from ingest.opening import opened

    with opened(trace) as (stream, _):
        return sum(len(part) for part in iter(lambda: stream.read(2**20), b""))


def _report(found: dict[str, list[float]], unpacked_bytes: int) -> None:
    from verifyscope import stats  # here, so that --help needs no NumPy

    rows = []
    for name, seconds in found.items():
        middle = stats.summarise(seconds)
        spread = f"{units.seconds(middle.low)} to {units.seconds(middle.high)}"
        rate = units.rate(unpacked_bytes / middle.median)
        rows.append((name, units.seconds(middle.median), spread, rate, str(middle.count)))
    cli.print_rows(rows, ("reader", "median", "95 %", "uncompressed", "runs"))
    if len(found) == 2:
        ours, other = found.values()
        ratio = stats.compare(other, ours)
        print(f"\n{ratio.ratio:.1f} x as fast ({ratio.low:.1f} to {ratio.high:.1f})")


if __name__ == "__main__":
    cli.run(application, PROGRAM)
