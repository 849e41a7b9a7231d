"""A first all-reduce over all GPUs, with NCCL's own log on: what it searched, chose and was told.

Every process writes a log of its own into a folder that is gone afterwards, because they name hosts
and addresses. Settings that the environment of the start lacks came from a configuration file.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from collectives._host import child
from collectives._host.facts import Broken, Logged, Probed, Summed
from collectives._host.peer_tests import Step
from ingest.log import numbered_lines
from ingest.nccl_facts import NcclLog
from ingest.nccl_log import Reader, attributed

FILE = "nccl probe"
SUBSYSTEMS = "INIT,ENV,GRAPH,TUNING,P2P,SHM,NET"
_PATTERN = "nccl.%h.%p.log"
_Command = Callable[[Path], Sequence[str]]


def probe(
    ranks: int,
    *,
    timeout_s: float,
    command: _Command | None = None,
) -> tuple[Probed, Logged | None]:
    """Return what became of it, and NCCL's log of all ranks as one.

    command: how to start it for a folder; the real thing where not given.
    """
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
        log = _read(folder)
    logged = Logged(file=FILE, log=attributed(log, os.environ)) if log.lines else None
    return Probed(ranks=ranks, wrong=wrong, broken=broken), logged


def _command(ranks: int, folder: Path) -> Sequence[str]:
    module = "collectives._host.probe_process"
    return (sys.executable, "-m", module, "nccl", str(ranks), str(folder))


def _logging(folder: Path) -> dict[str, str]:
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": SUBSYSTEMS,
        "NCCL_DEBUG_FILE": str(folder).replace("%", "%%") + f"/{_PATTERN}",
    }


def _read(folder: Path) -> NcclLog:
    """Read the logs of all processes one after the other, lines counted through."""
    reader, end = Reader(), 0
    for path in sorted(folder.glob("nccl.*.log")):
        begin = end
        with path.open("rb") as file:
            for number, line in numbered_lines(file):
                end = begin + number
                reader.take(end, line)
    return reader.log()
