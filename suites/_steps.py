"""Steps of a long job: each in its own process group, with its own limit, under one shared budget.

    outcomes = run(steps, folder=folder, budget_s=510)
    print(table(outcomes))

A step that fails, hangs or crashes hides no other. What it prints goes to `logs/` in the folder.
When its time is up it is interrupted as by Ctrl-C, so that it can keep what it has, then ended and
killed, with all that it started. A step that needs what is missing, or for which no time is left,
is skipped and says why. The standard library is all that is needed: on a machine that lacks
packages the table must still be made.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from verifyscope.child import signal_name

Result = Literal["passed", "failed", "skipped"]
_GRACE_S = 3.0  # ending a step takes at most two of it
_MARK = "VERIFYSCOPE_STEP"
_LONGEST_REASON = 160


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command and what it may cost.

    limit_s: its own limit. least_s: what it needs to be worth starting; kept free for it while
    earlier steps run. packages, programs: what it cannot do without. output: a file in the folder
    for its stdout, where that is data. skip_words: words in what it printed that mean "this machine
    refuses", not "wrong"; skip_statuses: exit statuses of that kind, with the reason.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    least_s: float = 5.0
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    output: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    skip_words: tuple[str, ...] = ()
    skip_statuses: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a step; `reason` is empty where it passed."""

    name: str
    result: Result
    seconds: float = 0.0
    reason: str = ""


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module with the Python of this process."""
    return (sys.executable, "-m", module, *arguments)


def run(
    steps: Sequence[Step],
    *,
    folder: Path,
    budget_s: float,
    variables: Mapping[str, str] | None = None,
    missing: frozenset[str] = frozenset(),
    after: Callable[[Sequence[Outcome]], None] = lambda outcomes: None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """Run `steps` in order and return what became of each.

    missing: packages and programs that this machine lacks. after: called with the outcomes so far
    whenever there is a new one. On KeyboardInterrupt the running step is ended and the error goes
    on, after `after` has seen that it failed.
    """
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + budget_s
    environment = {**os.environ, **(variables or {})}
    outcomes: list[Outcome] = []
    for at, step in enumerate(steps):
        later_s = sum(other.least_s + 3 * _GRACE_S for other in steps[at + 1 :])
        left_s = ends - time.monotonic() - later_s
        limit_s = step.limit_s if step.limit_s <= left_s else left_s - 2 * _GRACE_S
        lacks = [name for name in (*step.packages, *step.programs) if name in missing]
        say(f"[{at + 1}/{len(steps)}] {step.name}")
        if lacks:
            outcome = _skipped(step, f"needs {' and '.join(lacks)}")
        elif limit_s < step.least_s:
            outcome = _skipped(step, "no time left")
        else:
            log = folder / "logs" / f"{at + 1:02}-{_file_name(step.name)}.txt"
            try:
                outcome = _run_one(step, folder, log, limit_s, environment)
            except KeyboardInterrupt:
                after([*outcomes, _failed(step, 0.0, "interrupted")])
                raise
            if outcome.result == "failed":
                say(_tail(log, 12))
        outcomes.append(outcome)
        say(f"[{at + 1}/{len(steps)}] {step.name}: {_said(outcome)}")
        after(outcomes)
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as a Markdown table that reads well in a terminal, too."""
    rows = [
        (o.name, o.result, f"{o.seconds:.1f}" if o.seconds else "", o.reason.replace("|", "/"))
        for o in outcomes
    ]
    head = ("step", "result", "seconds", "reason")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(4)]
    rule = ("-" * widths[0], "-" * widths[1], "-" * (widths[2] - 1) + ":", "-" * widths[3])
    lines = [
        f"| {row[0]:{widths[0]}} | {row[1]:{widths[1]}} | {row[2]:>{widths[2]}} "
        f"| {row[3]:{widths[3]}} |"
        for row in [head, rule, *rows]
    ]
    return "\n".join(lines) + "\n"


def _run_one(
    step: Step, folder: Path, log: Path, limit_s: float, environment: Mapping[str, str]
) -> Outcome:
    began = time.monotonic()
    mark = uuid.uuid4().hex
    with contextlib.ExitStack() as open_files:
        stderr = open_files.enter_context(log.open("wb"))
        stdout = stderr
        if step.output is not None:
            stdout = open_files.enter_context((folder / step.output).open("wb"))
        try:
            process = subprocess.Popen(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**environment, **step.variables, _MARK: mark},
                start_new_session=True,
            )
        except OSError as error:
            return _failed(step, 0.0, f"{step.command[0]}: {error.strerror}")
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
            _kill_marked(mark)
    seconds = time.monotonic() - began
    if status == 0:
        return Outcome(name=step.name, result="passed", seconds=seconds)
    text = _text(log) + (_text(folder / step.output) if step.output is not None else "")
    return _judge(step, status, seconds, limit_s, text)


def _judge(step: Step, status: int | None, seconds: float, limit_s: float, text: str) -> Outcome:
    for word in step.skip_words:
        if word in text:
            return _skipped(step, _line_with(text, word), seconds)
    if status is None:
        whose = "its limit" if limit_s >= step.limit_s else "no time left for more"
        return _failed(step, seconds, f"ended after {limit_s:.3g} s, {whose}")
    if status in step.skip_statuses:
        return _skipped(step, step.skip_statuses[status], seconds)
    if status < 0:
        return _failed(step, seconds, f"ended by {signal_name(-status)}")
    return _failed(step, seconds, f"exit status {status}: {_last_line(text)}".rstrip(": "))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group: interrupt, terminate, kill; what has exited leaves its children."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if process.poll() is not None:
            break
        _signal(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _kill_marked(mark: str) -> None:
    """Kill what a step left in sessions of its own, such as ranks: they carry its mark."""
    wanted = f"{_MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def _failed(step: Step, seconds: float, reason: str) -> Outcome:
    return Outcome(name=step.name, result="failed", seconds=seconds, reason=reason)


def _skipped(step: Step, reason: str, seconds: float = 0.0) -> Outcome:
    return Outcome(name=step.name, result="skipped", seconds=seconds, reason=reason)


def _said(outcome: Outcome) -> str:
    took = f", {outcome.seconds:.1f} s" if outcome.seconds else ""
    return f"{outcome.result}{took}{': ' if outcome.reason else ''}{outcome.reason}"


def _file_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _text(path: Path) -> str:
    """Return the end of a log; a step that prints without end must not fill the memory."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 1_000_000))
        return file.read().decode(errors="replace")
    return ""


def _tail(path: Path, count: int) -> str:
    return "\n".join(f"    {line}" for line in _text(path).splitlines()[-count:])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" =-#\t")]
    return lines[-1][:_LONGEST_REASON] if lines else ""


def _line_with(text: str, word: str) -> str:
    line = next(line for line in text.splitlines() if word in line)
    return line.strip(" =")[:_LONGEST_REASON]
