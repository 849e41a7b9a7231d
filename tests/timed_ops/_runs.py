"""Run pytest on the suites several times, each in a fork of this process: torch is imported once.

    python -m tests.timed_ops._runs < runs.json      [{"folder", "arguments", "environ"}, ...]

Each leaves stdout, stderr and status in its folder. The suites see the op of this folder alone.
"""

import json
import os
import sys
from pathlib import Path

import pytest

import kernels

# The machinery of `kernels` must be imported whole before its path becomes this folder.
from suites import _suite  # noqa: F401


def main() -> None:
    """Run what stdin lists, one after the other."""
    kernels.__path__ = [str(Path(__file__).resolve().parent)]
    for run in json.load(sys.stdin):
        child = os.fork()
        if child == 0:
            _run(Path(run["folder"]), run["arguments"], run["environ"])
        os.waitpid(child, 0)


def _run(folder: Path, arguments: list[str], environ: dict[str, str]) -> None:
    os.environ.update(environ)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    status = pytest.main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    (folder / "status").write_text(str(int(status)))
    os._exit(0)


if __name__ == "__main__":
    main()
