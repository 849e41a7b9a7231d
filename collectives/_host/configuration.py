"""Settings that NCCL takes from its configuration files, and lines of them that do nothing.

NCCL takes a line as it stands: `NCCL_PROTO = LL` sets a variable whose name ends in a space, and
`export NCCL_PROTO=LL` one whose name begins with "export". Both look right and are read by nobody.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from collectives._host.facts import Configuration
from ingest import nccl_conf
from ingest.nccl_conf import Configured
from verifyscope import settings

_LONGEST_FILE_BYTES = 2**20


def look(environment: Mapping[str, str]) -> Configuration:
    """Return what the configuration files of this machine set beside `environment`."""
    dead = (line for path in nccl_conf.files(environment) for line in _dead(path))
    return Configuration(
        settings=tuple(nccl_conf.configured(environment).values()), dead=tuple(dead)
    )


def _dead(path: Path) -> Iterator[Configured]:
    """Yield the lines that mean a listed setting and name another variable."""
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_FILE_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.partition("=")
        meant = name.strip().removeprefix("export ").strip()
        shown = settings.in_force({meant: value.strip()})
        if equals and not line.startswith("#") and meant != name and meant in shown:
            yield Configured(name=meant, value=shown[meant], file=path.name, line=number)
