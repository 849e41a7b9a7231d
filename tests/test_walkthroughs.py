"""CONTRIBUTING's short walk-throughs: what the page says is done, and prints what the page shows.

A copy of the sources takes the edits of all of them, one after the other, so that they also stand
beside each other. In the page

    Save this as `FILE` ...          the next fence becomes FILE
    In `FILE`, at the end of `X = (` the next fence goes before the bracket that closes it, which
                                     stands below the beginning of that line
    In `FILE`, before|after `LINE`   the next fence goes beside the one line that begins so
    $ COMMAND                        is run; the lines below are in its output, in this order
"""

import contextlib
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("verifyscope", "kernels", "collectives", "graphs", "ingest", "reports", "suites")
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALKS = PAGE.partition("## Everything else in ten minutes")[2].partition("\n## ")[0]
_EDIT = re.compile(
    r"(?:Save this as `(?P<new>[^`]+)`|"
    r"[Ii]n\s`(?P<file>[^`]+)`,\s(?P<how>at the end of|before|after)\s`(?P<anchor>[^`]+)`)"
    r"[^`]*?\n\n```\w+\n(?P<body>.*?)```",
    re.DOTALL,
)
_RUN = re.compile(r"^    \$ (?P<command>.+)\n(?P<shown>(?:    (?!\$ ).*\n)*)", re.MULTILINE)


@dataclass(slots=True)
class Walk:
    """One walk-through: its edits, and its commands with the lines that they print."""

    name: str
    edits: list[re.Match[str]] = field(default_factory=list)
    commands: list[tuple[str, list[str]]] = field(default_factory=list)


def walks() -> Iterator[Walk]:
    for part in WALKS.split("\n### ")[1:]:
        name, _, text = part.partition("\n")
        runs = [(m["command"], m["shown"].splitlines()) for m in _RUN.finditer(text)]
        yield Walk(name, list(_EDIT.finditer(text)), runs)


def edit(folder: Path, change: re.Match[str]) -> None:
    if change["new"]:
        (folder / change["new"]).write_text(change["body"], encoding="utf-8")
        return
    path = folder / change["file"]
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    found = [at for at, line in enumerate(lines) if line.startswith(change["anchor"])]
    assert len(found) == 1, (
        f"CONTRIBUTING names a line of {path.name}: {change['anchor']!r}: {found}"
    )
    at = found[0] + (change["how"] == "after")
    if change["how"] == "at the end of":
        indent = re.match(" *", change["anchor"])
        closing = {f"{indent[0] if indent else ''}{bracket}\n" for bracket in ")}"}
        at = next(n for n in range(found[0], len(lines)) if lines[n] in closing)
    path.write_text("".join([*lines[:at], change["body"], *lines[at:]]), encoding="utf-8")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources with every edit of the page."""
    folder = tmp_path_factory.mktemp("checkout")
    skip = shutil.ignore_patterns("__pycache__", "published")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for walk in walks():
        for change in walk.edits:
            edit(folder, change)
    return folder


def run(folder: Path, command: str) -> str:
    words = shlex.split(command)
    given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    if words[0] == "python":
        words[0] = sys.executable
    ours, theirs = pty.openpty()  # what a person sees, not what a program is given
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=os.environ | given | {"PYTHONPATH": str(folder), "COLUMNS": "100", "TERM": "dumb"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    out = b""
    with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
        while part := os.read(ours, 2**16):
            out += part
    os.close(ours)
    assert process.wait(300) == 0, out.decode()
    return out.decode().replace("\r\n", "\n")


def shows(out: str, wanted: list[str]) -> bool:
    """Say whether the lines are there, in this order; blanks count once, `...` is anything."""
    lines = iter(" ".join(line.split()) for line in out.splitlines())
    for line in wanted:
        pieces = [re.escape(piece.strip()) for piece in " ".join(line.split()).split("...")]
        pattern = re.compile(r"\s*.*?\s*".join(pieces))
        if not any(pattern.fullmatch(found) for found in lines):
            return False
    return True


def test_the_page_walks_through_all_that_the_architecture_promises() -> None:
    assert [walk.name for walk in walks()] == [
        "A collective",
        "A GPU",
        "A model",
        "A format that is read",
        "A line of a server's log, or of NCCL's",
        "A finding",
        "A section of the report",
    ]
    assert sum(len(walk.edits) for walk in walks()) == WALKS.count("```") // 2


@pytest.mark.parametrize("walk", list(walks()), ids=lambda walk: walk.name)
def test_what_is_run_prints_what_the_page_shows(checkout: Path, walk: Walk) -> None:
    for command, wanted in walk.commands:
        out = run(checkout, command)
        assert shows(out, wanted), f"{command}\n{out}\nwanted:\n" + "\n".join(wanted)


def test_the_code_on_the_page_is_in_the_project_s_style(checkout: Path) -> None:
    named = {change["new"] or change["file"] for walk in walks() for change in walk.edits}
    files = sorted(name for name in named if name.endswith(".py"))
    for words in (("check",), ("format", "--check", "--diff")):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--no-cache", *files],
            cwd=checkout,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
