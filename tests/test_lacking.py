"""A command of a Python without packages says which it lacks, in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from verifyscope.lacking import sentence

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "module",
    [
        "verifyscope",
        "kernels",
        "collectives.sweep",
        "graphs.replay",
        "ingest",
        "reports.build",
        "suites.ceilings",
    ],
)
def test_a_bare_python_is_told_what_to_do(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", module, "--help"],  # -S: no installed package is found
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"python -m {module}: this Python lacks ")
    assert "activate .venv" in line


def test_a_module_of_ours_that_is_missing_is_a_fault_of_ours() -> None:
    assert sentence("reports._gone") is None
    assert str(sentence("typer.core")).startswith("this Python lacks typer; ")
