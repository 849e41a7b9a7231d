"""A child process that says what it does, message by message, and is ended when it says no more.

    for message in messages([sys.executable, "-m", "some.module"], timeout_s=60): ...

The child gets the number of a file descriptor as its last argument and speaks through `Connection`.
It leads a session of its own: whatever way this ends, the child and all of its children are gone.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

from verifyscope.child import Child, signal_name, variables
from verifyscope.privacy import redacted_words

# Loading torch takes seconds, on a busy disk a minute; what comes after it has the time-out.
START_S = 300.0
NO_TORCH = (
    "torch is not installed here; `make setup` installs it, or use the environment that has it"
)
_LONGEST_SAID = 300


@dataclass(frozen=True, slots=True)
class Started:
    """The first message of a child: what it needs is loaded."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last message of a child: nothing comes after it."""


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The child cannot do its work here; nothing comes after it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The child hung, died or raised before it had ended: the last that is heard of it."""

    kind: Literal["hang", "error"]
    reason: str


def messages(
    command: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    start_s: float = START_S,
) -> Iterator[object]:
    """Run `command`; yield what it says until `Ended`, `WhyNot` or `Lost`.

    timeout_s: how long it may be silent, start_s: how long before its first message.
    environment: added to this process's own.
    """
    with tempfile.TemporaryFile() as said, contextlib.ExitStack() as stack:
        child = Child(command, variables=variables(environment), output=said)
        stack.callback(child.end)
        connection = child.connection
        allowed_s = start_s
        while True:
            if not connection.poll(allowed_s):
                yield Lost("hang", f"it says nothing for {allowed_s:g} s")
                return
            try:
                message = connection.recv()
            except (EOFError, ConnectionResetError):
                yield Lost("error", _death(child.process, said.fileno()))
                return
            if isinstance(message, Ended):
                return
            if not isinstance(message, Started):
                yield message
            if isinstance(message, (WhyNot, Lost)):
                return
            allowed_s = timeout_s


def end_with(upstream: Connection) -> None:
    """In a child: end it, with its own children, when whoever started it is gone."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            upstream.poll(None)  # nothing ever comes down: this is the end of the other side
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def _death(process: "subprocess.Popen[bytes]", said: int) -> str:
    """Return how a child ended and the last line that it printed."""
    status = process.wait()
    how = f"killed by {signal_name(-status)}" if status < 0 else f"exit status {status}"
    size = os.fstat(said).st_size
    text = os.pread(said, 4096, max(0, size - 4096)).decode(errors="replace")
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    return f"it ended with {how}" + (f": {redacted_words(last)[:_LONGEST_SAID]}" if last else "")
