"""A long job: steps, each in its own process group, with its own limit, under one shared budget.

    outcomes = run(steps, folder=folder, budget_s=510)
    print(table(outcomes))

A step that fails, hangs or crashes hides no other. What it prints goes to `logs/` in the folder.
When its time is up it is interrupted as by Ctrl-C, so that it can keep what it has, then ended and
killed, with all that it started. A step that needs what is missing, or for which no time is left,
is skipped and says why. Where this process is killed, its running step is. The standard library is
all that is needed: on a machine that lacks packages the table must still be made.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from verifyscope.child import die_with_parent, exit_status, signal_group, signal_name

Result = Literal["passed", "cut", "failed", "skipped"]
_GRACE_S = 3.0  # ending a step takes at most two of it
_LOOK_S = 0.05
_KEEP_S = 12.0  # what a step that may be cut has, instead of the first, to end by itself
_MARK = "VERIFYSCOPE_STEP"
_LONGEST_REASON = 160
# How what is interrupted or terminated ends, done by itself or by the signal: records are appended
# at once, and kept. What only a kill ends hangs.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_KEPT = frozenset({0, *(128 + one for one in _SIGNALS), *(-one for one in _SIGNALS)})


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command and what it may cost.

    limit_s: its own limit. least_s: what it needs to be worth starting; kept free for it while
    earlier steps run. packages, programs: what it cannot do without; why_not: why it cannot run at
    all. output: a file in the folder for its stdout, where that is data. more: further words of the
    command, that steps before it find out. may_be_cut: ended at its limit, it has kept what it
    measured, and that is no failure. grace_s: how much longer than its share it may
    take, so that what the others were for is not lost on a busy machine. skip_words: words in what
    it printed that mean "this machine refuses", not "wrong"; skip_statuses: exit statuses of that
    kind, with the reason.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    least_s: float = 5.0
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    why_not: str = ""
    output: str | None = None
    more: Callable[[], Sequence[str]] = tuple
    may_be_cut: bool = False
    grace_s: float = 0.0
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
    shares: bool = False,
    variables: Mapping[str, str] | None = None,
    missing: frozenset[str] = frozenset(),
    cwd: Path | None = None,
    after: Callable[[Sequence[Outcome]], None] = lambda outcomes: None,
    say: Callable[[str], None] = lambda text: None,
    tick: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """Run `steps` in order and return what became of each.

    shares: the limits are shares of the budget, so each step has its own for certain, and what
    steps leave of theirs is for those after them; else a step has its limit as long as the budget
    keeps the least of all later ones. missing: packages and programs that this machine lacks. cwd:
    where steps run. after: called with the outcomes so far whenever there is a new one. say: called
    with a line when a step begins and ends, tick: with one each second meanwhile. On
    KeyboardInterrupt the running step is ended and the error goes on, after `after` has seen that
    it failed.
    """
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    place = _Place(folder, {**os.environ, **(variables or {})}, cwd, tick)
    outcomes: list[Outcome] = []
    for at, step in enumerate(steps):
        elapsed_s = time.monotonic() - began
        limit_s = (_share_s if shares else _limit_s)(steps, at, budget_s, elapsed_s)
        title = f"[{at + 1}/{len(steps)}] {step.name}"
        why_not = step.why_not or _needs(step, missing)
        if why_not or limit_s < step.least_s:
            outcome = _skipped(step, why_not or "no time left")
        else:
            made = replace(step, command=(*step.command, *(more := step.more())))
            given = f", given {shlex.join(more)}" if more else ""
            say(f"{_clock(elapsed_s)} {title}, at most {_clock(limit_s)}{given}")
            log = folder / "logs" / f"{at + 1:02}-{_file_name(step.name)}.txt"
            try:
                outcome = _run_one(made, place, log, limit_s)
            except KeyboardInterrupt:
                after([*outcomes, _failed(step, 0.0, "interrupted")])
                raise
            if outcome.result == "failed":
                say(_tail(log, 12))
        outcomes.append(outcome)
        say(f"{_clock(time.monotonic() - began)} {title}: {_said(outcome)}")
        after(outcomes)
    return outcomes


def lacking(steps: Sequence[Step], variables: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the packages and programs of `steps` that this machine lacks, asked of a new process.

    variables: what the steps run with beside the environment.
    """
    return absent(
        {name for step in steps for name in step.packages},
        {name for step in steps for name in step.programs},
        variables,
    )


def absent(
    packages: Collection[str], programs: Collection[str], variables: Mapping[str, str] | None = None
) -> frozenset[str]:
    """Return which of these packages and programs are not there."""
    code = (
        "import sys, importlib.util as u\n"
        "print(*(n for n in sys.argv[1:] if u.find_spec(n) is None))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *sorted(packages)],
        capture_output=True,
        text=True,
        env={**os.environ, **(variables or {})},
    )
    path = (variables or {}).get("PATH")
    missing = (name for name in programs if shutil.which(name, path=path) is None)
    return frozenset([*done.stdout.split(), *missing])


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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where steps run: folder of their files, environment, current folder; who hears of seconds."""

    folder: Path
    environment: Mapping[str, str]
    cwd: Path | None
    tick: Callable[[str], None]


def _run_one(step: Step, place: _Place, log: Path, limit_s: float) -> Outcome:
    began = time.monotonic()
    mark = uuid.uuid4().hex
    with contextlib.ExitStack() as open_files:
        stderr = open_files.enter_context(log.open("wb"))
        stdout = stderr
        if step.output is not None:
            stdout = open_files.enter_context((place.folder / step.output).open("wb"))
        try:
            process = subprocess.Popen(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**place.environment, **step.variables, _MARK: mark},
                cwd=place.cwd,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            return _failed(step, 0.0, f"{step.command[0]}: {error.strerror}")
        try:
            status = _wait(process, limit_s, lambda text: place.tick(f"{step.name}: {text}"))
        finally:
            _end(process, _KEEP_S if step.may_be_cut else _GRACE_S)
            _kill_marked(mark)
    seconds = time.monotonic() - began
    if status == 0:
        return Outcome(name=step.name, result="passed", seconds=seconds)
    text = _text(log) + (_text(place.folder / step.output) if step.output is not None else "")
    if status is None and step.may_be_cut and process.returncode in _KEPT:
        reason = "time was up; what it measured is kept"
        return Outcome(name=step.name, result="cut", seconds=seconds, reason=reason)
    return _judge(step, status, seconds, limit_s, text)


def _share_s(steps: Sequence[Step], at: int, budget_s: float, elapsed_s: float) -> float:
    """Return the time until the shares of a step and of those before it are used up.

    Never less than its least: ending the step before it may have taken a few seconds more.
    """
    share_s = sum(step.limit_s for step in steps[: at + 1]) - elapsed_s
    return max(steps[at].least_s, share_s) + steps[at].grace_s


def _limit_s(steps: Sequence[Step], at: int, budget_s: float, elapsed_s: float) -> float:
    """Return a step's limit, or what the budget leaves beside the least of all later steps."""
    later_s = sum(other.least_s + 3 * _GRACE_S for other in steps[at + 1 :])
    left_s = budget_s - elapsed_s - later_s
    limit_s = steps[at].limit_s
    return limit_s if limit_s <= left_s else left_s - 2 * _GRACE_S


def _needs(step: Step, missing: frozenset[str]) -> str:
    lacks = [name for name in (*step.packages, *step.programs) if name in missing]
    return f"needs {' and '.join(lacks)}" if lacks else ""


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


def _wait(
    process: subprocess.Popen[bytes],
    limit_s: float,
    tick: Callable[[str], None] = lambda text: None,
) -> int | None:
    """Return the exit status, None if the process has not ended in time."""
    began, told_s = time.monotonic(), 0
    while (status := exit_status(process)) is None:
        elapsed_s = time.monotonic() - began
        if elapsed_s >= limit_s:
            break
        if int(elapsed_s) > told_s:
            told_s = int(elapsed_s)
            tick(f"{_clock(told_s)} of {_clock(limit_s)}")
        time.sleep(min(_LOOK_S, limit_s - elapsed_s))
    return status


def _end(process: subprocess.Popen[bytes], keep_s: float) -> None:
    """End the process group: interrupt, terminate, kill; what has exited leaves its children.

    What is not gone then hangs in a driver: it is left, and the steps after it run.
    """
    for number, wait_s in ((signal.SIGINT, keep_s), (signal.SIGTERM, _GRACE_S)):
        if exit_status(process) is not None:
            break
        signal_group(process.pid, number)
        _wait(process, wait_s)
    signal_group(process.pid, signal.SIGKILL)
    _wait(process, _GRACE_S)


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


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}"


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
