"""A command of somebody else's, run to its end or to ours, while its logs are watched.

It runs in a session of its own, so that Ctrl-C reaches it once, through us. Its stdout goes to our
stderr: stdout is for the report. To stop it, SIGINT goes to all of its processes, as a terminal
does it; what is left after the grace gets SIGTERM, then SIGKILL. SIGTERM, SIGHUP, SIGUSR1 and
SIGUSR2 are passed on to the command as they come; SIGQUIT (Ctrl-\\) asks for a report at once.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

from verifyscope.child import signal_group
from verifyscope.errors import UsageError

POLL_S = 0.1
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED = (signal.SIGUSR1, signal.SIGUSR2)
_ASKING = signal.SIGQUIT
_STEPS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class Watcher(Protocol):
    """What looks at the command's logs meanwhile."""

    def look(self) -> None:
        """Look once; several times a second."""

    def is_quiet(self, seconds: float) -> bool:
        """Say whether something was logged, and nothing more for `seconds`."""
        ...

    def report(self) -> None:
        """Say what is known so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop a command that does not end: after so long, or so long after its last line."""

    seconds: float | None
    quiet_s: float | None
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How it ended: by itself with `status` (128 + n by signal n), or because of `stopped`."""

    status: int
    stopped: str | None


@dataclass(slots=True)
class _Stopping:
    """Where the stopping of a command stands; `reason` is None while it may run."""

    process: "subprocess.Popen[bytes]"
    grace_s: float
    reason: str | None = None
    step: int = 0
    due: float = field(default=0.0)

    def begin(self, reason: str, number: int) -> None:
        """Send the first signal; a second wish to stop is the next step at once."""
        if self.reason is not None:
            self.due = 0.0
            return
        self.reason, self.step = reason, 1
        self._send(number, to_all=number == signal.SIGINT)

    def go_on(self) -> None:
        """Send the next, harder signal once the grace is over."""
        if self.reason is not None and self.step < len(_STEPS) and time.monotonic() >= self.due:
            self._send(_STEPS[self.step], to_all=True)
            self.step += 1

    def _send(self, number: int, *, to_all: bool) -> None:
        self.due = time.monotonic() + self.grace_s
        if to_all:
            signal_group(self.process.pid, number)
        else:
            self.process.send_signal(number)


def run(
    command: Sequence[str], *, environment: Mapping[str, str], limits: Limits, watcher: Watcher
) -> Ended:
    """Start `command` with `environment` and return how it ended."""
    with _received() as waiting:
        process = _start(command, environment)
        started, stopping = time.monotonic(), _Stopping(process, limits.grace_s)
        try:
            while not _is_over(process):
                watcher.look()
                while waiting:
                    _answer(waiting.popleft(), stopping, watcher)
                if stopping.reason is None:
                    reason = _due(limits, time.monotonic() - started, watcher)
                    if reason is not None:
                        stopping.begin(reason, signal.SIGINT)
                stopping.go_on()
        finally:
            if stopping.reason is not None or not _is_over(process, wait_s=0.0):
                # The command is not waited for yet: no other process can have its number.
                signal_group(process.pid, signal.SIGKILL)
            code = process.wait()
        watcher.look()
    return Ended(status=code if code >= 0 else 128 - code, stopped=stopping.reason)


def _start(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    terminal = sys.stdin is not None and sys.stdin.isatty()
    try:
        return subprocess.Popen(
            command,
            env=dict(environment),
            # A session without the terminal would be stopped where it reads from it.
            stdin=subprocess.DEVNULL if terminal else None,
            stdout=subprocess.DEVNULL if sys.stderr is None else 2,
            start_new_session=True,
        )
    except OSError as error:
        cause = (error.strerror or "cannot be started").lower()
        raise UsageError(
            f"cannot start {command[0]!r}: {cause}; give a program after -- that can be run"
        ) from None


def _answer(number: int, stopping: _Stopping, watcher: Watcher) -> None:
    if number == _ASKING:
        watcher.report()
    elif number in _STOPPING:
        stopping.begin(signal.Signals(number).name, number)
    else:
        stopping.process.send_signal(number)


def _due(limits: Limits, running_s: float, watcher: Watcher) -> str | None:
    if limits.seconds is not None and running_s >= limits.seconds:
        return f"--seconds {limits.seconds:g}"
    if limits.quiet_s is not None and watcher.is_quiet(limits.quiet_s):
        return f"--until-quiet {limits.quiet_s:g}"
    return None


def _is_over(process: "subprocess.Popen[bytes]", *, wait_s: float = POLL_S) -> bool:
    """Say whether the command has ended, without forgetting its number."""
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None and wait_s:
        time.sleep(wait_s)
    return ended is not None


@contextlib.contextmanager
def _received() -> Iterator[deque[int]]:
    """Gather signals instead of being ended by them."""
    waiting: deque[int] = deque()

    def keep(number: int, frame: FrameType | None) -> None:
        waiting.append(number)

    # Under nohup a hang-up is to be ignored, by the command, too.
    ignored = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else []
    wanted = [one for one in (*_STOPPING, *_PASSED, _ASKING) if one not in ignored]
    before = {number: signal.signal(number, keep) for number in wanted}
    try:
        yield waiting
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
