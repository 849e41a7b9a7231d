"""`make gpu`: the first nine minutes on a machine with a GPU, where nothing can be downloaded.

    python -m suites.gpu

Uses the python that runs it and, if they are there, the wheels of `.wheels/` for what that python
lacks, installed offline into a temporary folder. The first line names what is missing and what it
costs. Leaves `steps.md`, `report.md`, `records.jsonl` and `run.tar.gz` in $OUT, else in a new
folder under `runs/`. Exit status: 0 fine, 1 a step failed, 2 no GPU, 130 interrupted.

Until the steps run, only the standard library may be imported.
"""

import argparse
import datetime
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from suites import wheels
from verifyscope import driver, job
from verifyscope.job import Outcome, Step, python
from verifyscope.passes import PUBLIC_ALL_REDUCE_US

BUDGET_S = 515.0  # of nine minutes: the rest is for ending a last step and packing
_BASE = ("msgspec", "typer", "rich", "numpy")
_TORCH = (*_BASE, "torch", "triton")
_PYTEST = (*_TORCH, "pytest", "pytest_benchmark")
# What no step needs as a whole, and what goes without it.
_OPTIONAL = {
    "cuda": "graphs are captured and not opened",  # cuda-python
    "cupy": "no CuPy rows",
    "flashinfer": "no FlashInfer baseline",
    "nvcc": "FlashInfer cannot compile",
    "pynvml": "no clocks, power and throttling in the records",
}
_PROGRAMS = frozenset({"ncu", "compute-sanitizer", "nvcc"})


def main(arguments: Sequence[str]) -> int:
    """Run the steps; return the exit status. The parser is the standard library's, as all here."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    argparse.ArgumentParser(
        prog="python -m suites.gpu",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(arguments)
    began = time.monotonic()
    found = driver.look()
    if found is None:
        print(
            "make gpu: no NVIDIA GPU answers here (NVML); it needs one, `make bench` runs without",
            file=sys.stderr,
        )
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        out = _out_folder()
        with tempfile.TemporaryDirectory(prefix="verifyscope-") as temporary:
            return _run(found, out, Path(temporary), began)
    except OSError as error:
        print(f"make gpu: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1


def steps(folder: Path, gpus: Sequence[str], entry: str | None) -> list[Step]:
    """Return the steps; `entry` is the first GPU's name in verifyscope/hardware.py, if it has one.

    The order is that of worth: whatever the time does not reach is at the end.
    """
    records = ("--records", str(folder / "records.jsonl"))
    check = ("kernels", "--check")
    sanitizer = ("compute-sanitizer", "--target-processes", "all", "--error-exitcode", "86")
    refuses = ("Device not supported",)
    model = ("--model", "kimi-k2.5")
    a_pass = ("--tp", "8", "--context", "8192")
    reduced = ("--all-reduce-us", PUBLIC_ALL_REDUCE_US)
    return [
        Step(
            name="what this machine is",
            command=python("verifyscope", "--json", str(folder / "machine.json")),
            limit_s=20,
            packages=_BASE,
            output="machine.txt",
        ),
        # The tiny cases have every path of every kernel; each real one is held to its reference
        # by the suites before it has a time.
        Step(
            name="every implementation against its reference",
            command=python(*check, "--tiny", "--json", str(folder / "check.json"), *records),
            limit_s=120,
            least_s=30,
            packages=_TORCH,
            output="check.txt",
        ),
        Step(
            name="graph replay against eager",
            command=python(
                *(*check, "--tiny", "--graph", "--json", str(folder / "graph.json")), *records
            ),
            limit_s=75,
            least_s=20,
            packages=_TORCH,
            output="graph.txt",
        ),
        Step(
            name="bandwidth and matrix ceilings",
            command=python("suites.ceilings", *records),
            limit_s=60,
            least_s=15,
            packages=_TORCH,
            output="ceilings.txt",
        ),
        Step(
            name="suites",
            command=python(
                *("pytest", "suites/", "--benchmark-only", *records),
                f"--benchmark-json={folder / 'benchmark.json'}",
            ),
            limit_s=150,
            least_s=30,
            packages=_PYTEST,
        ),
        Step(
            name="passes of the stub: eager, graphs, parts out and in",
            command=python(
                *("graphs.replay", *model, *a_pass, "--rows", "1,4", "--device", "cuda"),
                *("--all-reduce", f"delay:{PUBLIC_ALL_REDUCE_US}us", *records),
                *("--json", str(folder / "stub.json")),
            ),
            limit_s=150,
            least_s=40,
            packages=_TORCH,
            output="stub.txt",
        ),
        Step(
            name="tests that need a GPU",
            command=python("pytest", "-m", "gpu", "tests/"),
            limit_s=60,
            least_s=15,
            packages=(*_PYTEST, "hypothesis"),
            skip_statuses={5: "no test is marked gpu"},
        ),
        Step(
            name="all-reduce (NCCL)" if len(gpus) > 1 else "all-reduce (NCCL, one rank: a smoke)",
            # One rank: the probe, eager calls and graphs run, and nothing is chosen. Several:
            # NCCL's own choice beside two protocols, each in a probe and three starts.
            command=python(
                *("collectives.sweep", "--gpus", str(len(gpus)), *model, "--algos", "ring"),
                *("--tokens", "1,2,4,8,16", *records),
            ),
            limit_s=120 if len(gpus) > 1 else 60,
            least_s=30 if len(gpus) > 1 else 15,
            packages=_TORCH,
            output="sweep.txt",
        ),
        Step(
            name="predicted budget, and the timeline against measured passes",
            command=python(
                *("graphs.replay", *model, *a_pass, "--rows", "1,4", *reduced),
                *("--predict", entry or gpus[0], "--measured", records[1], *records),
            ),
            limit_s=30,
            packages=_BASE,
            output="budget.txt",
            # The table of GPUs is short; a device that is not in it is no fault of this machine.
            skip_words=("unknown GPU", "holds no time that counts"),
        ),
        Step(
            name="DRAM bytes against touched bytes (ncu)",
            command=python("suites.dram_bytes", *records),
            limit_s=60,
            least_s=20,
            packages=_TORCH,
            programs=("ncu",),
            output="dram-bytes.txt",
            skip_words=("ERR_NVGPUCTRPERM", "LibraryNotLoaded", "Cuda driver is not compatible"),
        ),
        *(
            Step(
                name=f"{tool} on the tiny cases (compute-sanitizer)",
                command=(*sanitizer, "--tool", tool, *python(*check, "--tiny", "--kind", "own")),
                limit_s=60,
                least_s=20,
                packages=_TORCH,
                programs=("compute-sanitizer",),
                # torch's own allocator hands out memory that a checker takes for allocated.
                variables={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
                skip_words=refuses,
            )
            for tool in ("memcheck", "racecheck")
        ),
        Step(
            name="report",
            command=python(
                "reports.build", str(folder / "records.jsonl"), "--out", str(folder / "report")
            ),
            limit_s=30,
            least_s=15,
            packages=(*_BASE, "jinja2", "markdown_it", "matplotlib"),
        ),
    ]


def _run(found: driver.Found, out: Path, temporary: Path, began: float) -> int:
    work, site = temporary / "run", temporary / "site"
    work.mkdir()
    said = wheels.install_missing(site)
    variables = _variables(site)
    planned = steps(work, found.gpus, _table_entry(found.gpus[0], variables))
    missing = _missing(planned, variables)
    print(first_line(missing, planned, said), flush=True)
    (work / "records.jsonl").touch()

    def keep(outcomes: Sequence[Outcome]) -> None:
        (out / "steps.md").write_text(job.table(outcomes))
        shutil.copyfile(work / "records.jsonl", out / "records.jsonl")

    outcomes: Sequence[Outcome] = ()
    status = 0
    try:
        outcomes = job.run(
            planned,
            folder=work,
            budget_s=BUDGET_S - (time.monotonic() - began),
            variables=variables,
            missing=missing,
            after=keep,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
        status = 1 if any(outcome.result == "failed" for outcome in outcomes) else 0
    except KeyboardInterrupt:
        print("make gpu: interrupted; what was measured is kept", file=sys.stderr)
        status = 130
    _pack(work, out)
    print((out / "steps.md").read_text())
    print(f"left in {out}: steps.md report.md records.jsonl run.tar.gz")
    return status


def first_line(missing: frozenset[str], planned: Sequence[Step], said: str = "") -> str:
    """Return the line that names what is missing and what that costs."""
    costs = []
    for name in sorted(missing):
        skipped = [step.name for step in planned if name in (*step.packages, *step.programs)]
        cost = f"skips {', '.join(skipped)}" if skipped else _OPTIONAL.get(name, "")
        costs.append(f"{name} ({cost})")
    line = f"Missing: {'; '.join(costs)}." if costs else "Nothing is missing: every step can run."
    return f"{line} {said}".rstrip()


def _pack(work: Path, out: Path) -> None:
    """Leave the four files: the report, or why there is none, and all else in the archive."""
    report = work / "report" / "report.md"
    if report.exists():
        shutil.copyfile(report, out / "report.md")
    else:
        (out / "report.md").write_text("No report was built; steps.md and run.tar.gz say why.\n")
    if not (out / "steps.md").exists():
        (out / "steps.md").write_text(job.table([]))
    shutil.copyfile(out / "steps.md", work / "steps.md")
    shutil.copyfile(work / "records.jsonl", out / "records.jsonl")
    with tarfile.open(out / "run.tar.gz", "w:gz") as archive:
        archive.add(work, arcname="run")


def _missing(planned: Sequence[Step], variables: dict[str, str]) -> frozenset[str]:
    return job.lacking(planned, variables) | job.absent(
        set(_OPTIONAL) - _PROGRAMS, _PROGRAMS, variables
    )


def _table_entry(gpu: str, variables: dict[str, str]) -> str | None:
    code = (
        "import sys; from verifyscope.hardware import match; gpu = match(sys.argv[1])\n"
        "print(gpu.name if gpu else '')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, gpu],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    return done.stdout.strip() or None


def _variables(site: Path) -> dict[str, str]:
    def before(name: str, folder: Path) -> str:
        return os.pathsep.join(part for part in (str(folder), os.environ.get(name)) if part)

    return {
        "PYTHONPATH": before("PYTHONPATH", site),
        "PATH": before("PATH", site / "bin"),
        "PYTHONUNBUFFERED": "1",
    }


def _out_folder() -> Path:
    if given := os.environ.get("OUT"):
        folder = Path(given)
    else:
        folder = Path("runs") / f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}-gpu"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
