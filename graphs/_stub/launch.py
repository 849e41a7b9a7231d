"""Run jobs on fresh ranks and hand over what they say, as they say it.

The holder (holder.py beside this) is the one child of this process, in a session of its own: Ctrl-C
reaches this process alone, which then ends the holder and with it all ranks. Whatever way it ends,
no process and no temporary file stays.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from graphs._stub.asked import Job
from graphs._stub.messages import Alive, Ending, Failed, Finished, Forked, Ready, Result
from verifyscope.child import Child, Lost, variables
from verifyscope.errors import Failure
from verifyscope.rank_processes import variables_of_ranks

_IMPORT_S = 300.0
# What the holder may take beyond a job's own time-out to say who is to blame.
_ANSWER_S = 10.0
HOLDER = "graphs._stub.holder"


class Holder:
    """A started holder; a new one is started for a job where the last has ended.

    module: what Python runs as it.
    """

    def __init__(self, module: str = HOLDER) -> None:
        self._module = module
        self._group: int | None = None
        self._start()

    def _start(self) -> None:
        self._child = Child(
            [sys.executable, "-m", self._module],
            variables=variables(variables_of_ranks()),
            who="the process that holds all ranks",
        )
        self._ready = False

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """Return the process of the holder that was started last."""
        return self._child.process

    def run(self, job: Job) -> Iterator[Result | Ending | Failed | Finished]:
        """Run `job`; the last of what is yielded is no `Result` and says how it ended."""
        if self._child.is_gone:
            self.end()
            self._start()
        if not self._ready:
            first = self._receive(_IMPORT_S)
            if not isinstance(first, Ready):
                reason = first.reason if isinstance(first, Failed) else f"{first}"
                raise Failure(f"torch could not be loaded: {reason}")
            self._ready = True
        with tempfile.TemporaryDirectory(prefix="verifyscope-", ignore_cleanup_errors=True) as at:
            self._child.send((job, at))
            while True:
                message = self._receive(job.timeout_s + _ANSWER_S)
                if isinstance(message, Alive):
                    continue
                if isinstance(message, Forked):
                    self._group = message.group
                    continue
                yield message  # type: ignore[misc]  # what a holder sends
                if not isinstance(message, Result):
                    self._group = None
                    return

    def _receive(self, timeout_s: float) -> object:
        try:
            return self._child.receive(timeout_s)
        except Lost as lost:
            return Failed(kind=lost.kind, reason=lost.reason)

    def end(self) -> None:
        """End the holder and all of its ranks, whatever they are doing."""
        self._child.end(groups=[] if self._group is None else [self._group])


@contextlib.contextmanager
def holder(module: str = HOLDER) -> Iterator[Holder]:
    """Start a holder and end it, with all ranks, when the block is left."""
    started = Holder(module)
    try:
        yield started
    finally:
        started.end()
