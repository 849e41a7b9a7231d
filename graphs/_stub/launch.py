"""Run jobs on fresh ranks and hand over what they say, as they say it.

The holder (holder.py beside this) is the one child of this process, in a session of its own: Ctrl-C
reaches this process alone, which then ends the holder and with it all ranks. Whatever way it ends,
no process and no temporary file stays.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from graphs._stub.asked import Job
from graphs._stub.messages import Alive, Ending, Failed, Finished, Ready, Result, ending
from verifyscope.errors import Failure

_ROOT = Path(__file__).resolve().parents[2]
_IMPORT_S = 300.0
# What the holder may take beyond a job's own time-out to say who is to blame.
_ANSWER_S = 10.0


HOLDER = "graphs._stub.holder"


class Holder:
    """A started holder; `module` is what Python runs as it."""

    def __init__(self, module: str = HOLDER) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=_environment(),
            )
        self._connection = Connection(ours.detach())
        self._ready = False

    def run(self, job: Job) -> Iterator[Result | Ending | Failed | Finished]:
        """Run `job`; the last of what is yielded is no `Result` and says how it ended."""
        if not self._ready:
            first = self._receive(_IMPORT_S)
            if not isinstance(first, Ready):
                raise Failure(f"torch could not be loaded: {first}")
            self._ready = True
        with tempfile.TemporaryDirectory(prefix="verifyscope-", ignore_cleanup_errors=True) as at:
            with contextlib.suppress(BrokenPipeError):  # `_receive` says what became of it
                self._connection.send((job, at))
            while True:
                message = self._receive(job.timeout_s + _ANSWER_S)
                if isinstance(message, Alive):
                    continue
                yield message  # type: ignore[misc]  # what a holder sends
                if not isinstance(message, Result):
                    return

    def _receive(self, timeout_s: float) -> object:
        who = f"the process that holds all ranks (pid {self._process.pid})"
        try:
            if self._connection.poll(timeout_s):
                return self._connection.recv()
        except (EOFError, ConnectionResetError):
            return Failed(kind="error", reason=f"{who} {ending(self._process.wait())}")
        return Failed(kind="hang", reason=f"{who} says nothing for {timeout_s:g} s")

    def end(self) -> None:
        """End the holder and all of its ranks, whatever they are doing."""
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def holder(module: str = HOLDER) -> Iterator[Holder]:
    """Start a holder and end it, with all ranks, when the block is left."""
    started = Holder(module)
    try:
        yield started
    finally:
        started.end()


def _environment() -> dict[str, str]:
    """Return the environment of the ranks: this one, one thread a rank, and one machine."""
    found = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if Path("/sys/class/net/lo").exists():
        found["GLOO_SOCKET_IFNAME"] = "lo"
    # The folders of this project run from the checkout, whatever the current folder is.
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    return {**found, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
