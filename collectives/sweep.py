"""`python -m collectives.sweep --gpus 8`: an all-reduce over real ranks, size by size, checked.

A sample is the maximum over ranks of end - start after a barrier; the printed time is the median.
The table on stdout is in the grammar of nccl-tests. Each point becomes a record at once. A wrong
value, and a rank that dies or hangs, end with status 1; all that was measured before is kept.
"""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, BinaryIO, NoReturn

import typer

from verifyscope import cli
from verifyscope.errors import Failure, UsageError, choose

if TYPE_CHECKING:
    from collectives._sweep.plan import Job

PROGRAM = "python -m collectives.sweep"

application = cli.app("Time collectives over all ranks of this machine, and check every value.")


@application.command()
def main(
    ranks: Annotated[
        int,
        typer.Option("--gpus", "--ranks", help="Ranks: one a GPU, with gloo one a CPU process."),
    ] = 8,
    backend: Annotated[
        str | None, typer.Option(help="nccl (GPUs; the default) or gloo (CPU processes).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Sizes of this model: tokens x hidden x bytes of the dtype.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Tokens a call, such as 1,2,4,8,16; needs --model.")
    ] = None,
    min_bytes: Annotated[str | None, typer.Option(help="Least power of two, such as 8K.")] = None,
    max_bytes: Annotated[
        str | None, typer.Option(help="Largest power of two, such as 64M.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    iterations: Annotated[
        int | None, typer.Option(help="Timed calls a point; 20, with gloo 10.")
    ] = None,
    warmup: Annotated[int, typer.Option(help="Calls before them, checked and not timed.")] = 2,
    timeout: Annotated[
        float, typer.Option(help="Seconds without progress after which a rank counts as hung.")
    ] = 60.0,
    records: Annotated[
        Path | None,
        typer.Option(help="Append the records to this file; else a new folder under runs/."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the table as JSON, with the keys of nccl-tests -J.")
    ] = None,
) -> None:
    """Time an all-reduce over all ranks, size by size, in place and out of place."""
    from collectives._sweep import devices, plan
    from collectives.all_reduce import ALL_REDUCE
    from verifyscope import units

    choose("dtype", dtype, list(plan.DTYPE_BYTES))
    if backend is not None:
        choose("backend", backend, list(plan.BACKENDS))
    if iterations is None:
        iterations = plan.DEFAULT_ITERATIONS[backend or "nccl"]
    _require("--gpus", ranks, 1, plan.MOST_RANKS)
    _require("--iterations", iterations, 1, 1_000_000)
    _require("--warmup", warmup, 0, 1_000_000)
    _require("--timeout", timeout, 1, 86_400)
    job = plan.Job(
        collective=ALL_REDUCE,
        backend=backend or "nccl",
        ranks=ranks,
        dtype=dtype,
        points=plan.points(
            backend=backend or "nccl",
            dtype=dtype,
            model=model,
            tokens=None if tokens is None else units.parse_list(tokens, units.parse_count),
            min_bytes=None if min_bytes is None else units.parse_bytes(min_bytes),
            max_bytes=None if max_bytes is None else units.parse_bytes(max_bytes),
        ),
        iterations=iterations,
        warmup=warmup,
        timeout_s=timeout,
    )
    devices.require_torch()
    devices.require_driver(job) if job.backend == "nccl" else devices.require_memory(job)
    signal.signal(signal.SIGTERM, _terminate)
    _sweep(job, records, json)


def _require(option: str, given: float, low: int, high: int) -> None:
    if not low <= given <= high:
        raise UsageError(f"{option} {given:g} is out of range; give {low} to {high}")


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """End as Ctrl-C does, so that no rank and no temporary file stays."""
    cli.note(f"{PROGRAM}: ended by {signal.Signals(number).name}; what was measured is kept")
    sys.exit(128 + number)


def _sweep(job: "Job", records: Path | None, json: Path | None) -> None:
    """Measure `job` and say what came of it; `Failure` for wrong values and lost ranks."""
    from collectives._sweep import devices, launch
    from collectives._sweep.outcome import Outcome
    from collectives._sweep.screen import screen
    from verifyscope import runs

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(launch.fork_server())
        if job.backend == "nccl":
            devices.require_gpus(job, launch.count_gpus(server))
        table = stack.enter_context(_json_file(json)) if json else None
        run = stack.enter_context(runs.start(records, "sweep"))
        outcome = Outcome(job, run, stack.enter_context(screen(job.calls)))
        try:
            for message in launch.results(server, job):
                outcome.take(message)
            outcome.end(None)
        except launch.RankFailed as failed:
            outcome.end(failed)
        finally:
            if table is not None:
                table.write(outcome.json())
    cli.note(f"records: {run.path}")
    if outcome.problem is not None:
        raise Failure(outcome.problem)


@contextlib.contextmanager
def _json_file(path: Path) -> Iterator[BinaryIO]:
    """Open the file before anything is measured: what cannot be written is known at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        yield file


if __name__ == "__main__":
    cli.run(application, PROGRAM)
