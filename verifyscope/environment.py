"""What a run ran on: machine, GPUs, driver, versions, whitelisted settings, commit.

Never a host name, a user name, a home folder or a variable that is not listed.
"""

import datetime
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import msgspec

from verifyscope import cli
from verifyscope.records import Environment

_PACKAGES = (
    "torch",
    "triton",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "flashinfer-python",
    "cuda-bindings",
)
_ROOT = Path(__file__).resolve().parent.parent


@cache
def current() -> Environment:
    """Return the environment of this process, read once."""
    commit, dirty = _commit()
    found = Environment(
        id="",
        created="",
        command="",
        commit=commit,
        dirty=dirty,
        system=f"{platform.system()} {platform.release()}",
        processor=platform.machine(),
        cores=os.cpu_count() or 1,
        python=platform.python_version(),
        versions=_versions(),
    )
    digest = hashlib.sha256(msgspec.json.encode(found)).hexdigest()[:12]
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return msgspec.structs.replace(found, id=digest, created=now, command=cli.command_line())


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> tuple[str | None, bool | None]:
    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(_ROOT), *words], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit, changes = git("rev-parse", "--short=12", "HEAD"), git("status", "--porcelain")
    return commit or None, None if changes is None else bool(changes)
