"""What the sweep's driver adds to a call, beside a bare torch.distributed loop and a control.

    python -m collectives.sweep_overhead [--rounds 20] [--whole]

Three sides take turns, forwards and backwards, each with fresh processes over gloo in each round: a
bare loop that fills its buffers, waits for all, calls, and compares; the same once more (the
control); and the driver. A sample is the maximum over ranks of (end - start) after a barrier,
isolated or of calls in a row divided by their number. Of a round counts the ratio of medians to
that of the first bare loop. The driver adds nothing that can be seen where the median of its ratios
lies inside the 95 % interval of the control's ratios, which is what two equal loops differ by; else
the exit status is 1.

--whole runs a sweep of 5 combinations x 16 sizes, and wants at least half of its wall time, process
start excluded, to be spent in samples.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from verifyscope import cli, units
from verifyscope.child import variables
from verifyscope.errors import Failure
from verifyscope.rank_processes import variables_of_ranks
from verifyscope.records import Measurement, Reader

PROGRAM = "python -m collectives.sweep_overhead"
LEAST_SHARE = 0.5
_BARE = """
import json, multiprocessing, os, sys, tempfile, time
import torch, torch.distributed as dist

def rank_of(rank, job, folder, pipe):
    torch.set_num_threads(1)
    store = dist.FileStore(folder + "/store", job["ranks"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job["ranks"])
    found = []
    for depth, samples in ((1, job["iterations"]), (job["depth"], job["batches"])):
        source = torch.ones(job["elements"], dtype=torch.float32)
        expected = source * job["ranks"]
        buffers = [torch.empty_like(source) for _ in range(depth)]
        seconds = torch.zeros(job["warmup"] + samples, dtype=torch.float64)
        for at in range(len(seconds)):
            for buffer in buffers:
                buffer.copy_(source)
            dist.barrier()
            began = time.perf_counter()
            for buffer in buffers:
                dist.all_reduce(buffer)
            seconds[at] = (time.perf_counter() - began) / depth
            assert all(torch.equal(buffer, expected) for buffer in buffers)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        found.append(seconds[job["warmup"]:].tolist())
    if rank == 0:
        pipe.send(found)
    os._exit(0)

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    for line in sys.stdin:
        job = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            receiver, sender = context.Pipe(duplex=False)
            ranks = [context.Process(target=rank_of, args=(rank, job, folder, sender))
                     for rank in range(job["ranks"])]
            for rank in ranks:
                rank.start()
            print(json.dumps(receiver.recv()), flush=True)
            for rank in ranks:
                rank.join()
"""
_SIDES = ("bare", "bare again", "driver")

application = cli.app("Time what the sweep's driver adds to a call.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What all sides do in a round."""

    ranks: int
    elements: int
    iterations: int
    batches: int
    depth: int
    warmup: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The driver's ratio to a bare loop, and the 95 % interval of the control's."""

    ratio: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """Say whether the driver differs from a bare loop by no more than that from itself."""
        return self.low <= self.ratio <= self.high


@application.command()
def main(
    rounds: Annotated[int, typer.Option(min=5, max=1000, help="Rounds of the three sides.")] = 20,
    size: Annotated[str, typer.Option(help="Bytes that each rank reduces.")] = "32K",
    ranks: Annotated[
        int, typer.Option("--gpus", "--ranks", min=2, max=64, help="CPU processes.")
    ] = 2,
    whole: Annotated[
        bool, typer.Option("--whole", help="Also run a sweep of 5 combinations x 16 sizes.")
    ] = False,
) -> None:
    """Print the ratio of the driver and the interval of the control, isolated and in a row."""
    loop = Loop(
        ranks=ranks,
        elements=max(1, units.parse_bytes(size) // 4),
        iterations=60,
        batches=15,
        depth=8,
    )
    medians = _alternated(loop, rounds)
    rows, wrong = [], []
    for name, sides in medians.items():
        found = judged(sides["bare"], sides["bare again"], sides["driver"])
        verdict = "inside" if found.inside else "outside"
        middle = units.seconds(statistics.median(sides["bare"]))
        interval = f"{found.low:.3f} to {found.high:.3f}"
        rows.append((name, middle, f"{found.ratio:.3f}", interval, verdict))
        wrong += [] if found.inside else [f"{name}: the driver's ratio is outside the control's"]
    cli.print_rows(rows, ("calls", "bare loop", "driver", "control 95 %", "verdict"))
    if whole:
        spent = _share(ranks)
        print(f"5 combinations x 16 sizes: {100 * spent:.0f} % of the time is spent in samples")
        wrong += [] if spent >= LEAST_SHARE else [f"only {100 * spent:.0f} % is spent in samples"]
    if wrong:
        raise Failure("; ".join(wrong))


def judged(bare: Sequence[float], again: Sequence[float], driver: Sequence[float]) -> Judged:
    """Return the verdict on medians by round, in seconds: each is held to its round's bare loop."""
    import numpy as np  # here, so that --help starts in a blink

    control = np.asarray(again) / np.asarray(bare)
    low, high = (float(value) for value in np.percentile(control, [2.5, 97.5]))
    ratio = float(np.median(np.asarray(driver) / np.asarray(bare)))
    return Judged(ratio=ratio, low=min(low, 1.0), high=max(high, 1.0))


def _alternated(loop: Loop, rounds: int) -> Mapping[str, dict[str, list[float]]]:
    """Return the medians by round, of isolated calls and of calls in a row, by side."""
    from collectives._sweep import launch

    names = ("isolated", f"{loop.depth} in a row")
    found = {name: {side: list[float]() for side in _SIDES} for name in names}
    with _bare() as bare, launch.fork_server() as server:
        for turn in range(rounds + 1):
            for side in _SIDES if turn % 2 == 0 else reversed(_SIDES):
                samples = _driver(server, loop) if side == "driver" else _ask(bare, loop)
                for name, seconds in zip(names, samples, strict=True):
                    if turn:  # the first round warms up
                        found[name][side].append(statistics.median(seconds))
    return found


def _bare() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _BARE],
        env=variables(variables_of_ranks()),  # one network interface for all sides
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _ask(bare: "subprocess.Popen[str]", loop: Loop) -> list[list[float]]:
    """Return the samples of one run of the bare loop; `Failure` if it died."""
    if bare.stdin is None or bare.stdout is None:
        raise Failure("the bare loop has no pipes")
    asked = {name: getattr(loop, name) for name in Loop.__dataclass_fields__}
    print(json.dumps(asked), file=bare.stdin, flush=True)
    answer = bare.stdout.readline()
    if not answer:
        raise Failure("the bare loop ended; what it printed says why")
    found: list[list[float]] = json.loads(answer)
    return found


def _driver(server: object, loop: Loop) -> list[list[float]]:
    """Return the samples of the driver, in place, for the same calls."""
    from collectives._sweep import backend, launch
    from collectives._sweep.combination import Combination
    from collectives._sweep.job import Job, Task, Timing
    from collectives._sweep.points import Point
    from collectives.operations.all_reduce import ALL_REDUCE

    if not isinstance(server, launch.ForkServer):
        raise TypeError("the driver needs a fork server")
    point = Point(size_bytes=loop.elements * 4, elements=loop.elements, in_place=True)
    timings = (Timing(launch="eager", depth=1), Timing(launch="eager", depth=loop.depth))
    job = Job(
        purpose="time",
        collective=ALL_REDUCE,
        backend=backend.GLOO,
        combination=Combination(backend="gloo"),
        ranks=loop.ranks,
        local_ranks=loop.ranks,
        dtype="float32",
        tasks=(Task(point=point, timings=timings),),
        iterations=loop.iterations,
        batches=loop.batches,
        warmup=loop.warmup,
        timeout_s=60.0,
    )
    results = launch.results(server, job)
    return [list(known.samples) for known in results if isinstance(known, launch.Result)]


def _share(ranks: int) -> float:
    """Return the share of a sweep's time, without process start, that is spent in samples."""
    axes = [word for count in (1, 2, 3, 4) for word in ("--launch-option", f"connections={count}")]
    with tempfile.TemporaryDirectory(prefix="verifyscope-") as folder:
        records = Path(folder) / "r.jsonl"
        subprocess.run(
            [
                *(sys.executable, "-m", "collectives.sweep", "--backend", "gloo"),
                *("--ranks", str(ranks), "--min-bytes", "32", "--max-bytes", "1M", *axes),
                *("--algos", "default", "--protos", "default", "--force"),
                *("--records", str(records)),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        whole = [r for r in Reader(records) if isinstance(r, Measurement) and r.op == "sweep"]
    return float(whole[0].method["measured_share"])


if __name__ == "__main__":
    cli.run(application, PROGRAM)
