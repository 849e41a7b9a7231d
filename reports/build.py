"""Makes report.md, report.html and plots from any mix of records files and run folders.

    python -m reports.build runs/2026-08-01-101500-suites other.jsonl --out report

The page is built aside and moved into place at the end: if that fails, an earlier report is whole.
Other files of the folder are left alone. Prints the paths of the two pages and, with --verdict,
what the report begins with, as plain text.
"""

import contextlib
import gc
import re
import shutil
import signal
import sys
import time
import uuid
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from verifyscope import cli
from verifyscope.errors import UsageError

PAGE, HTML = "report.md", "report.html"
_ASIDE = ".building-"
_ABANDONED_S = 3600.0  # no build takes as long: it was killed
_PLOT = re.compile(r"^!\[.*\]\(([\w-]+\.png)\)$", re.MULTILINE)

app = cli.app(None)


@app.command()
def main(
    run: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="A records file, or the folder of a run."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The report's folder; else report/ beside the first RUN."),
    ] = None,
    plots: Annotated[bool, typer.Option(help="Draw the plots, or write report.md alone.")] = True,
    verdict: Annotated[
        bool, typer.Option("--verdict", help="Print the verdict and what is worth most, too.")
    ] = False,
) -> None:
    """Make report.md, report.html and plots from records, whatever they are of."""
    from reports import _page
    from reports._collected import collect

    folder = out or (run[0] if run[0].is_dir() else run[0].parent) / "report"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file; name a folder")
    found = collect(run)
    was_there = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder)
    aside = folder / f"{_ASIDE}{uuid.uuid4().hex[:12]}"
    try:
        aside.mkdir()
        _page.write(found, aside, command=cli.command_line(), plots=plots)
        _move_into_place(aside, folder)
    except BaseException:
        if not was_there:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    for warning in found.warnings:
        cli.note(f"warning: {warning}")
    print(folder / PAGE)
    print(folder / HTML)
    if verdict:
        from reports._first_words import first_words

        for paragraph in first_words((folder / PAGE).read_text(encoding="utf-8")):
            print(paragraph)


def _clear(folder: Path) -> None:
    """Remove what builds left aside that were killed; one that runs now is left alone."""
    for aside in folder.glob(f"{_ASIDE}*"):
        with contextlib.suppress(OSError):  # its own build has removed it meanwhile
            if time.time() - aside.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(aside)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    """End as by Ctrl-C, so that nothing is left aside."""
    sys.exit(128 + number)


def _move_into_place(aside: Path, folder: Path) -> None:
    """Move the plots and then the page; remove the plots that only the page before showed."""
    before = _plots_of(folder / PAGE)
    for file in sorted(aside.iterdir(), key=lambda file: file.name in (PAGE, HTML)):
        file.replace(folder / file.name)
    for name in before - _plots_of(folder / PAGE):
        (folder / name).unlink(missing_ok=True)


def _plots_of(page: Path) -> set[str]:
    if not page.is_file():
        return set()
    return set(_PLOT.findall(page.read_text(encoding="utf-8", errors="replace")))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    gc.disable()  # much plain data, read once, and then the end: there is nothing to collect
    cli.run(app, "python -m reports.build")
