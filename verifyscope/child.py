"""A child process that speaks over a connection; whatever way this ends, the child is gone.

    child = Child([sys.executable, "-m", "some.module"], variables=variables())
    child.send(job)
    message = child.receive(60.0)      # `Lost` where it died or is silent, and then it is gone
    child.end()

It gets the number of a file descriptor behind the words of its command, before `more`. It leads a
session of its own: Ctrl-C reaches this process alone, which ends the child and all it started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Literal

_ROOT = Path(__file__).resolve().parent.parent
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_LOOK_S = 0.01


class Lost(Exception):
    """The child died, or said nothing for as long as it was given."""

    def __init__(self, kind: Literal["error", "hang"], reason: str) -> None:
        super().__init__(reason)
        self.kind: Literal["error", "hang"] = kind
        self.reason = reason


class Child:
    """A started child. who: what it is, for the reason of a `Lost`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        variables: Mapping[str, str],
        who: str = "the child",
        more: Sequence[str] = (),
        output: IO[bytes] | None = None,
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), *more],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=dict(variables),
            )
        self.connection = Connection(ours.detach())
        self._who = f"{who} (pid {self.process.pid})"

    def send(self, message: object) -> None:
        """Send it, if somebody is there: `receive` says what became of the child."""
        with contextlib.suppress(BrokenPipeError):
            self.connection.send(message)

    def receive(self, timeout_s: float, *, also: Sequence[Connection] = ()) -> object:
        """Return the next message, or the first of `also` that has something to say.

        `Lost` where the child died or is silent: then it is killed, for it is of no use any more.
        """
        try:
            ready = wait([self.connection, *also], timeout_s)
            if others := [one for one in also if one in ready]:
                return others[0]
            if ready:
                return self.connection.recv()
        except (EOFError, ConnectionResetError, BrokenPipeError):
            raise Lost("error", f"{self._who} {ending(_wait(self.process))}") from None
        self.process.kill()
        _wait(self.process)
        raise Lost("hang", f"{self._who} says nothing for {timeout_s:g} s")

    @property
    def is_gone(self) -> bool:
        """Say whether the process has ended."""
        return exit_status(self.process) is not None

    def end(self, *, leave_s: float = 0.0, groups: Sequence[int] = ()) -> None:
        """End it with all that it started, after `leave_s` to leave by itself.

        groups: process groups of its own children, which do not end with its own.
        """
        self.connection.close()
        try:
            _wait(self.process, leave_s)
        finally:
            if self.process.returncode != 0:
                for group in (self.process.pid, *groups):
                    signal_group(group, signal.SIGKILL)
                _wait(self.process)


def exit_status(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status, negative for a signal, None while the process runs.

    Popen asks under a lock, which an interrupt at the wrong moment leaves locked for ever.
    """
    if process.returncode is None:
        try:
            found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:  # interrupted right after it was asked
            process.returncode = -signal.SIGINT
        else:
            if found is not None:
                exited = found.si_code == os.CLD_EXITED
                process.returncode = found.si_status if exited else -found.si_status
    return process.returncode


def _wait(process: subprocess.Popen[bytes], limit_s: float = float("inf")) -> int | None:
    ends = time.monotonic() + limit_s
    while (status := exit_status(process)) is None and (left_s := ends - time.monotonic()) > 0:
        time.sleep(min(_LOOK_S, left_s))
    return status


def signal_group(group: int, number: int) -> None:
    """Send a signal to all processes of a group, if there are any."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def die_with_parent() -> None:
    """Have this process killed when the one that started it is: it may have no time to say so."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def ending(code: int | None) -> str:
    """Say how a process ended: `code` is its exit status, or minus the signal."""
    if code is not None and code < 0:
        return f"was ended by {signal_name(-code)}"
    return f"ended with status {code}"


def signal_name(number: int) -> str:
    """Return SIGKILL of 9; those without a name of their own (real-time ones) as `signal 40`."""
    return signal.Signals(number).name if number in [*signal.Signals] else f"signal {number}"


def variables(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment for a child, with `added`.

    The folders of this project run from the checkout, whatever the current folder is.
    """
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    return {**os.environ, **(added or {}), "PYTHONPATH": path}
