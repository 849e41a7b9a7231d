"""A first all-reduce over all GPUs, with NCCL's own log on: what it searched, chose and was told.

Every process writes a log of its own into a folder that is gone afterwards, because they name hosts
and addresses. Settings that the environment of the start lacks came from a configuration file.
"""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from collectives._attest import logs
from collectives._attest.logs import Logs
from collectives._attest.requested import PATTERN
from collectives._host import child
from collectives._host.facts import Broken, Probed, Summed
from collectives._host.peer_tests import Step
from ingest.nccl_log import attributed

FILE = "nccl probe"
SUBSYSTEMS = "INIT,ENV,GRAPH,TUNING,P2P,SHM,NET"
_Command = Callable[[Path], Sequence[str]]


def probe(
    ranks: int,
    *,
    timeout_s: float,
    command: _Command | None = None,
) -> tuple[Probed, Logs | None]:
    """Return what became of it, and NCCL's log of all ranks as one.

    command: how to start it for a folder; the real thing where not given.
    """
    if importlib.util.find_spec("torch") is None:
        return Probed(why_not=child.NO_TORCH), None
    broken: Broken | None = None
    wrong, step = 0, "the start of the ranks"
    with tempfile.TemporaryDirectory(prefix="verifyscope-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        words = (command or (lambda at: _command(ranks, at)))(folder)
        for message in child.messages(words, timeout_s=timeout_s, environment=_logging(folder)):
            if isinstance(message, Step):
                step = message.name
            elif isinstance(message, child.WhyNot):
                return Probed(why_not=message.reason), None
            elif isinstance(message, child.Lost):
                broken = Broken(kind=message.kind, step=step, reason=message.reason)
            elif isinstance(message, Summed):
                wrong += message.wrong
        found = logs.read(logs.made_in(folder))
    # Their own names would be those of files that are gone.
    named = replace(found, log=attributed(found.log, os.environ), names=(FILE,) * len(found.names))
    return Probed(ranks=ranks, wrong=wrong, broken=broken), named if found.log.lines else None


def _command(ranks: int, folder: Path) -> Sequence[str]:
    module = "collectives._host.probe_process"
    return (sys.executable, "-m", module, "nccl", str(ranks), str(folder))


def _logging(folder: Path) -> dict[str, str]:
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": SUBSYSTEMS,
        "NCCL_DEBUG_FILE": str(folder).replace("%", "%%") + f"/{PATTERN}",
    }
