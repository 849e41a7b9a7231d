"""NCCL's logs, one file a process or several in one, read together as if they were one log.

Lines are counted through all files, so that a fact's line says its file, too: `place`. Files that
attest has made are called `nccl.<process>.log` in all that is told, since their own names hold the
host; where there are several hosts, `nccl.node1.<process>.log`.
"""

import re
import socket
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ingest.log import numbered_lines
from ingest.nccl_facts import NcclLog
from ingest.nccl_log import Reader
from verifyscope import settings
from verifyscope.errors import UsageError
from verifyscope.privacy import redacted

_MADE = re.compile(r"nccl\.(?P<host>.+)\.(?P<process>\d{1,10})\.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """What all files say. `names` and `starts` are each file's and the line before its first.

    processes: of each of `log.processes` its number in the system and the name of its file.
    """

    log: NcclLog
    names: tuple[str, ...]
    starts: tuple[int, ...]
    processes: tuple[tuple[int, str], ...]

    def place(self, line: int | None) -> tuple[str, int | None]:
        """Return the file of a line and its number there."""
        if line is None or not self.names:
            return self.names[0] if len(self.names) == 1 else "NCCL's logs", None
        at = max(0, bisect_right(self.starts, line - 1) - 1)
        return self.names[at], line - self.starts[at]


def read(paths: Sequence[Path]) -> Logs:
    """Read the files; one that cannot be read is a `UsageError`."""
    reader, names = Reader(), _names(paths)
    starts: list[int] = []
    processes: list[tuple[int, str]] = []
    end = 0
    for path, name in zip(paths, names, strict=True):
        starts.append(end)
        for number, line in _lines(path):
            reader.take(starts[-1] + number, line)
            end = starts[-1] + number
        new = list(reader.processes)[len(processes) :]
        processes += [(int(process), name) for _, process in new]
    return Logs(
        log=reader.log(),
        names=tuple(names),
        starts=tuple(starts),
        processes=tuple(processes),
    )


def made_in(folder: Path) -> list[Path]:
    """Return the logs in a folder that attest has made, by process."""
    found = [(match, path) for path in folder.iterdir() if (match := _MADE.fullmatch(path.name))]
    return [path for match, path in sorted(found, key=lambda one: int(one[0]["process"]))]


@dataclass(slots=True)
class Watched:
    """The folder of a running command's logs; `started` is what each process was started with.

    pattern: the NCCL_DEBUG_FILE of the command: a process whose environment has another one is a
        stranger that only has the same number, and its environment is none of our business.
    """

    folder: Path
    pattern: str
    started: dict[int, Mapping[str, str]] = field(default_factory=dict)
    _sizes: dict[Path, int] = field(default_factory=dict)
    _changed_s: float = 0.0

    def look(self) -> None:
        """Note what is new: files, their growth, and how the processes behind them started."""
        for path in made_in(self.folder):
            try:
                size = path.stat().st_size
            except OSError:  # somebody removed it
                continue
            if path not in self._sizes:
                self._note_start(path)
            if self._sizes.get(path) != size:
                self._sizes[path], self._changed_s = size, time.monotonic()

    def is_quiet(self, seconds: float) -> bool:
        """Say whether something was logged, and nothing more for `seconds`."""
        return any(self._sizes.values()) and time.monotonic() - self._changed_s >= seconds

    def _note_start(self, path: Path) -> None:
        made = _MADE.fullmatch(path.name)
        if made is None or made["host"] != socket.gethostname().partition(".")[0]:
            return
        process = int(made["process"])
        try:
            data = Path(f"/proc/{process}/environ").read_bytes()
        except OSError:  # it is gone, or of another user
            return
        words = (word.partition("=") for word in data.decode(errors="replace").split("\0"))
        environment = {name: value for name, equals, value in words if equals}
        if environment.get("NCCL_DEBUG_FILE") == self.pattern:
            self.started[process] = settings.in_force(environment)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as stream:
            yield from numbered_lines(stream)
    except OSError as error:
        cause = (error.strerror or "cannot be read").lower()
        raise UsageError(f"--log {path}: {cause}; give NCCL's logs or their folder") from None


def _names(paths: Sequence[Path]) -> list[str]:
    """Return what each file is called, in the order of the files; no two are called the same."""
    matches = [_MADE.fullmatch(path.name) for path in paths]
    hosts = list(dict.fromkeys(match["host"] for match in matches if match))
    found: list[str] = []
    for path, match in zip(paths, matches, strict=True):
        if match is None:
            name = redacted(path.name)
        else:
            node = f"node{hosts.index(match['host'])}." if len(hosts) > 1 else ""
            name = f"nccl.{node}{match['process']}.log"
        again = sum(known == name or known.startswith(f"{name} (") for known in found)
        found.append(f"{name} ({again + 1})" if again else name)
    return found
