"""`make bench`: the main job, from a real sweep to a report, in one folder under `runs/`.

    python -m suites.bench

Steps: an all-reduce over 8 processes (over the GPUs, where there are several), the compile gate for
sm_90 and sm_120, the suites, the sweep's own table read back, the budget predicted from the
model, passes of a shrunken stub on two processes, the report. A step that fails hides no other; the
exit status is 1 if one did.
"""

import re
import sys
from pathlib import Path

# Importing it pins Triton's FP fusion, here and so in all steps: one environment, not two.
import kernels  # noqa: F401
from suites import _steps
from suites._steps import Step, python
from verifyscope import cli, driver, runs
from verifyscope.hardware import match

_BUDGET_S = 285.0
# An H200's and the founding case's: all five take as long as the whole job may.
_ARCHITECTURES = ("90", "120")
_FOUNDING_GPU = "rtx-pro-6000-server"

application = cli.app("Run the main job: sweep, compile gate, suites, ingest, budget, report.")


@application.command()
def main() -> None:
    """Run the main job and say where its report is."""
    with runs.start(None, "bench") as run:
        folder = run.path.parent
    found = driver.look()
    outcomes = _steps.run(
        steps(folder, found.gpus if found else ()), folder=folder, budget_s=_BUDGET_S, say=cli.note
    )
    text = _steps.table(outcomes)
    (folder / "steps.md").write_text(text)
    print(text)
    report = folder / "report"
    print(f"report: {report / 'report.md'}, for a browser {report / 'report.html'}")
    if verdict := verdict_of(report / "report.md"):
        print(verdict)
    if any(outcome.result == "failed" for outcome in outcomes):
        sys.exit(1)


def verdict_of(page: Path) -> str:
    """Return the verdict that a report begins with, without its markup; "" where there is none."""
    lines = page.read_text(encoding="utf-8").splitlines() if page.is_file() else []
    found = next((line for line in lines if line.startswith("**Verdict.** ")), "")
    return re.sub(r"\\(\W)|[*`]", r"\1", found)


def steps(folder: Path, gpus: tuple[str, ...]) -> list[Step]:
    """Return the steps of the job on a machine with these GPUs."""
    records = ("--records", str(folder / "records.jsonl"))
    several = len(gpus) > 1
    ranks = (str(len(gpus)),) if several else ("8", "--backend", "gloo")
    short = _DEFAULT_ALONE if several else _FEW_CALLS
    entry = match(gpus[0]) if gpus else None
    predicted = entry.name if entry is not None else _FOUNDING_GPU
    known_times = ("--sweep", str(folder / "records.jsonl")) if several else ()
    # A fifth of a second for each implementation of a case keeps a CPU to the five minutes.
    brief = () if gpus else ("--benchmark-max-time=0.2",)
    return [
        Step(
            name="all-reduce sweep",
            command=python(
                "collectives.sweep", "--gpus", *ranks, *_MODEL, *_TOKENS, *short, *records
            ),
            limit_s=60,
            output="sweep.txt",
        ),
        Step(
            name="compile gate",
            command=python("kernels", "--compile", *_ARCHITECTURES, *records),
            limit_s=150,
            output="compile.txt",
        ),
        Step(
            name="suites",
            command=python("pytest", "suites/", "--benchmark-only", *brief, *records),
            limit_s=150,
            least_s=60,
        ),
        Step(
            name="the sweep's table read back",
            command=python("ingest", str(folder / "sweep.txt"), *records),
            limit_s=20,
        ),
        Step(
            name="predicted budget",
            command=python(
                "graphs.replay", *_MODEL, *_PASS, "--predict", predicted, *known_times, *records
            ),
            limit_s=20,
            output="budget.txt",
        ),
        Step(
            name="passes of a shrunken stub, taken apart",
            command=python(
                "graphs.replay", *_MODEL, "--device", "cpu", "--rows", "4", *_QUICK, *records
            ),
            limit_s=60,
            output="stub.txt",
        ),
        Step(
            name="report",
            command=python("reports.build", str(folder), "--out", str(folder / "report")),
            limit_s=40,
            least_s=15,
        ),
    ]


_MODEL = ("--model", "kimi-k2.5")
_DEFAULT_ALONE = ("--algos", "default", "--protos", "default")
# Eight processes on a few cores measure their scheduler: few calls show that all of it works.
_FEW_CALLS = ("--depth", "4", "--iterations", "5", "--batches", "1", "--warmup", "1")
_TOKENS = ("--tokens", "1,2,4,8,16")
_QUICK = ("--seconds", "1")
_PASS = ("--tp", "8", "--rows", "4", "--context", "8192")


if __name__ == "__main__":
    cli.run(application, "python -m suites.bench")
