"""Runs the steps of a diagnosis, and says in the end what they found and where the report is.

Progress goes to stderr, what was found to stdout: the steps, what looks wrong with the machine, the
verdict, the path of the report. Interrupted, it builds the report of what there is by then.
"""

import contextlib
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from verifyscope import cli, job
from verifyscope._diagnosis_steps import Folder
from verifyscope.job import Outcome, Step

# What every step compiles with, whichever folder it loads first: one environment, not two. Their
# output is read back, whatever the locale of a container.
_VARIABLES = {"TRITON_DEFAULT_FP_FUSION": "1", "PYTHONIOENCODING": "utf-8"}
_ADD_PACKAGES = "python -m verifyscope.install here"
_LARGE = frozenset({"torch", "triton"})  # what that command does not add
# For the report of an interrupted run, and beyond the minutes on a busy machine: all is for it.
_REPORT_S = 60.0
_WIDTH = 100
_INTERRUPTED = 130
_CLEAR = "\r\x1b[K"  # what stands in the terminal's line


def run(steps: Sequence[Step], *, folder: Folder, budget_s: float, root: Path) -> int:
    """Run `steps` in the checkout `root`; return the exit status."""
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.records.touch()
    missing = job.lacking(steps)
    outcomes: list[Outcome] = []

    def after(known: Sequence[Outcome]) -> None:
        outcomes[:] = known
        (folder.path / "steps.md").write_text(job.table(known), encoding="utf-8")
        if len(known) == 1:  # before hours are spent on a machine that is in use
            for line in _wrong(folder):
                _say(f"    {line}")

    interrupted = False
    try:
        job.run(
            [*steps[:-1], replace(steps[-1], grace_s=_REPORT_S)],
            folder=folder.path,
            budget_s=budget_s,
            shares=True,
            variables=_VARIABLES,
            missing=missing,
            cwd=root,
            after=after,
            say=_say,
            tick=_tick,
        )
    except KeyboardInterrupt:
        interrupted = True
        if folder.records.stat().st_size:
            _say("interrupted: the report of what there is by now; Ctrl-C again leaves it out")
            with contextlib.suppress(KeyboardInterrupt):
                outcomes += _report(steps[-1], folder, missing, root)
        (folder.path / "steps.md").write_text(job.table(outcomes), encoding="utf-8")
    _tell(outcomes, folder, missing)
    if interrupted:
        return _INTERRUPTED
    return 1 if any(one.result == "failed" for one in outcomes) else 0


def _report(step: Step, folder: Folder, missing: frozenset[str], root: Path) -> list[Outcome]:
    """Build the report of an interrupted run."""
    return job.run(
        [replace(step, limit_s=_REPORT_S, why_not="")],
        folder=folder.path,
        budget_s=_REPORT_S,
        shares=True,
        variables=_VARIABLES,
        missing=missing,
        cwd=root,
        say=_say,
    )


def _tell(outcomes: Sequence[Outcome], folder: Folder, missing: frozenset[str]) -> None:
    rows = [
        (one.result, f"{one.seconds:.1f} s" if one.seconds else "", one.name, one.reason)
        for one in outcomes
    ]
    cli.print_rows(rows, ("result", "took", "step", "reason"))
    for paragraph in (*_wrong(folder), *_next(outcomes, missing), *_verdict(folder)):
        print(f"\n{textwrap.fill(paragraph, _WIDTH, break_on_hyphens=False)}")
    report = folder.path / "report" / "report.md"
    shown = f"{folder.name}/report/report"
    if report.exists():
        print(f"\nreport: {shown}.md, for a browser {shown}.html")
    elif folder.records.stat().st_size:
        build = f"python -m reports.build {folder.file('records.jsonl')}"
        print(f"\nreport: none was built; the records are kept: {build}")
    else:
        print("\nreport: none, nothing was measured")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a terminal that has gone is no reason to have no report
        cli.note(f"{_CLEAR if cli.is_terminal(sys.stderr) else ''}{text}")


def _tick(text: str) -> None:
    """Let a person see in one line of the terminal that the time goes on."""
    with contextlib.suppress(OSError):
        if cli.is_terminal(sys.stderr):
            print(f"{_CLEAR}     {text[: _WIDTH - 6]}", end="", file=sys.stderr, flush=True)


def _next(outcomes: Sequence[Outcome], missing: frozenset[str]) -> Iterator[str]:
    """Yield how to get what steps lacked, and where a step that failed says more."""
    large, light = sorted(missing & _LARGE), sorted(missing - _LARGE)
    if light:
        yield (
            f"Missing {', '.join(light)}: `{_ADD_PACKAGES}` (or `make setup-here`) adds what is "
            f"light, and changes no package that is here."
        )
    if large:
        yield (
            f"Missing {', '.join(large)}: use the Python of the container that serves the model, "
            f"or `make setup`."
        )
    if any(one.result == "failed" for one in outcomes):
        yield "What a failed step said is in logs/ beside the records."


def _verdict(folder: Folder) -> Sequence[str]:
    """Return what `reports.build --verdict` printed below the two paths."""
    try:
        said = (folder.path / "verdict.txt").read_text(encoding="utf-8")
    except OSError:
        return ()
    return said.splitlines()[2:]


def _wrong(folder: Folder) -> Iterator[str]:
    """Yield what `python -m verifyscope` found wrong with this machine."""
    try:
        found = json.loads((folder.path / "machine.json").read_bytes())
    except (OSError, ValueError):
        return
    for one in found["findings"]:
        yield f"Looks wrong: {one['sentence']}; next: {one['next_action']}"
