"""NCCL's configuration files: NAME=VALUE lines that it puts into its own environment at its start.

    $NCCL_CONF_FILE, or .nccl.conf in the home that the user database names; then /etc/nccl.conf

A variable that is set already stays as it is, so the environment wins over the files and the first
file over the second. NCCL says "set by environment" of both. Only settings of
`verifyscope/settings.py` are told, without folders. Source: src/misc/param.cc of NCCL 2.18 to 2.31.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from verifyscope import settings

try:
    import pwd
except ImportError:  # Windows has no user database; NCCL's files are read where NCCL runs
    pwd = None  # type: ignore[assignment]

EVERYWHERE = Path("/etc/nccl.conf")
_LONGEST_FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """A setting of a configuration file, fit for a record; `line` counts from 1."""

    name: str
    value: str
    file: str
    line: int


def files(environment: Mapping[str, str]) -> list[Path]:
    """Return the files that NCCL would look for with `environment`, in its order."""
    named = environment.get("NCCL_CONF_FILE")
    if named:
        return [Path(named), EVERYWHERE]
    home = _home()
    return [EVERYWHERE] if home is None else [home / ".nccl.conf", EVERYWHERE]


def configured(environment: Mapping[str, str]) -> dict[str, Configured]:
    """Return, by name, what the files of this machine set beside `environment`."""
    found: dict[str, Configured] = {}
    for path in files(environment):
        for known in read(path):
            if known.name not in environment:
                found.setdefault(known.name, known)
    return found


def read(path: Path) -> Iterator[Configured]:
    """Yield the listed settings of a file, each as its first line has it; nothing if it is none."""
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_FILE_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return
    seen: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.partition("=")
        if line.startswith("#") or not equals or name in seen:
            continue
        seen.add(name)
        shown = settings.in_force({name: value})
        if name in shown:
            yield Configured(name=name, value=shown[name], file=path.name, line=number)


def _home() -> Path | None:
    """Return the home of this user as NCCL finds it: by the user database, not by $HOME."""
    if pwd is None:
        return None
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None
