"""Compares two runs as the command does, and keeps what was printed and written."""

import json
from pathlib import Path
from typing import Any

import pytest

from reports import compare
from verifyscope import cli

Capture = pytest.CaptureFixture[str]
KERNELS = {"triton": 1.0, "cupy": 1.3, "flashinfer": 1.1}


class Compared:
    """Compares two runs in this process, and keeps what was printed and written."""

    def __init__(self, folder: Path, capture: Capture) -> None:
        self._folder, self._capture = folder, capture
        self.status, self.text, self.notes = 0, "", ""
        self.data: dict[str, Any] = {}

    def of(self, old: Path, new: Path, *words: str) -> "Compared":
        path = self._folder / "said.json"
        path.unlink(missing_ok=True)
        given = [str(old), str(new), "--json", str(path), *words]
        with pytest.raises(SystemExit) as end:
            cli.run(compare.app, compare.PROGRAM, given)
        assert isinstance(end.value.code, int)
        said = self._capture.readouterr()
        self.status, self.text, self.notes = end.value.code, said.out, said.err
        self.data = json.loads(path.read_text()) if path.is_file() else {}
        return self

    @property
    def sentence(self) -> str:
        assert self.status == 0, self.notes
        return str(self.data["sentence"])

    @property
    def verdicts(self) -> dict[str, list[str]]:
        """Return the verdicts of the rows of each implementation."""
        found: dict[str, list[str]] = {}
        for row in self.data["rows"]:
            verdict = row["change"]["verdict"] if row["change"] else "none"
            found.setdefault(row["implementation"], []).append(verdict)
        return found

    def split(self, number: int = 0) -> dict[str, float]:
        return {part["name"]: part["change_s"] for part in self.data["splits"][number]["parts"]}

    @property
    def refused(self) -> str:
        assert (self.status, self.text) == (2, "")
        (line,) = self.notes.splitlines()
        return line.removeprefix(f"{compare.PROGRAM}: ")
