"""Files become records of one run: recognised by content, counted, and told apart from failures.

Every file is read; what cannot be is named. A file of any size needs little memory.
"""

import contextlib
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from ingest.formats import FORMATS, HEAD_BYTES, Format, recognise
from ingest.log import Log, numbered_lines
from verifyscope import cli, environment, runs
from verifyscope.errors import Failure, UsageError
from verifyscope.records import Finding, Measurement

PROGRAM = "python -m ingest"
_SHOWN_FINDINGS = 100
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")


class _Unreadable(Exception):
    """A file that holds nothing to import: what it is, and what to give instead."""


@dataclass(slots=True)
class _Seen:
    """What one file gave: the lines and times of each collective, and the first findings."""

    file: str
    format: str = ""
    lines: Counter[tuple[str, str]] = field(default_factory=Counter)
    times: Counter[tuple[str, str]] = field(default_factory=Counter)
    corrupt: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    hidden_findings: int = 0
    last_line: int | None = None

    def add(self, record: Measurement | Finding) -> None:
        """Count `record`."""
        if isinstance(record, Finding):
            if len(self.findings) < _SHOWN_FINDINGS:
                self.findings.append(record)
            else:
                self.hidden_findings += 1
            return
        key = (record.op, "?" if record.ranks is None else str(record.ranks))
        line = record.origin.line if record.origin else None
        self.lines[key] += line != self.last_line
        self.last_line = line
        self.times[key] += record.status == "ok"
        self.corrupt[key] += record.status == "corrupt"

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a line for each collective and rank count."""
        for op, ranks in self.lines:
            counts = (found[op, ranks] for found in (self.lines, self.times, self.corrupt))
            yield (self.file, self.format, op, ranks, *map(str, counts))


def read_files(paths: Sequence[Path], records: Path | None) -> None:
    """Read `paths` into one run and print what was found; `-` is standard input.

    `UsageError` where nothing could be read, `Failure` where a file could not.
    """
    failures: list[str] = []
    seen: list[_Seen] = []
    with contextlib.ExitStack() as stack:
        sink = _Sink(records, stack)
        for path in paths:
            found = _Seen(path.name if str(path) != "-" else "stdin")
            try:
                for record in _records(path, found):
                    sink.append(record)
                    found.add(record)
            except _Unreadable as error:
                failures.append(str(error))
            else:
                seen.append(found)
        _print(seen)
    if sink.run is not None:
        cli.note(f"records: {sink.run.path}")
    _end(failures, len(paths))


def _end(failures: list[str], files: int) -> None:
    """Name what could not be read: in one line for one file, else each and then the sum."""
    if failures and files == 1:
        raise UsageError(failures[0])
    for failure in failures:
        cli.note(f"{PROGRAM}: {failure}")
    if len(failures) == files:
        raise UsageError(f"none of {files} files could be read")
    if failures:
        raise Failure(f"{len(failures)} of {files} files could not be read; the others are")


@dataclass(slots=True)
class _Sink:
    """The run, begun with its first record: what cannot be read leaves no folder behind."""

    path: Path | None
    stack: contextlib.ExitStack
    run: runs.Run | None = None

    def append(self, record: Measurement | Finding) -> None:
        """Write `record` now."""
        if self.run is None:
            self.run = self.stack.enter_context(runs.start(self.path, "ingest"))
        self.run.append(record)


def _records(path: Path, found: _Seen) -> Iterator[Measurement | Finding]:
    """Yield the records of a file; `_Unreadable` says in a line why there are none."""
    here = environment.current()
    with _opened(path) as stream:
        known = _format(path, stream.read(HEAD_BYTES))
        stream.seek(0)
        found.format = known.name
        log = Log(
            file=found.file,
            lines=numbered_lines(stream),
            environment=here.id,
            command=here.command,
        )
        empty = True
        for record in known.read(log):
            empty = False
            yield record
    if empty:
        raise _Unreadable(f"{path}: {known.nothing}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open the file; what comes through a pipe is put on disk, to be read from the start again."""
    with contextlib.ExitStack() as stack:
        if str(path) == "-":
            file: BinaryIO = sys.stdin.buffer
        else:
            try:
                file = stack.enter_context(path.open("rb"))
            except IsADirectoryError:
                raise _Unreadable(f"{path} is a folder; name the files in it") from None
            except OSError as error:
                reason = (error.strerror or "cannot be opened").lower()
                raise _Unreadable(f"{path}: {reason}; give a log that this user can read") from None
        if str(path) == "-" or not file.seekable():
            spool = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(file, spool)
            spool.seek(0)
            file = cast("BinaryIO", spool)
        yield file


def _format(path: Path, head: bytes) -> Format:
    if not head:
        raise _Unreadable(f"{path} is empty; give the output of a run")
    if head.startswith(_COMPRESSED):
        raise _Unreadable(f"{path} is compressed; unpack it first")
    if b"\0" in head:
        raise _Unreadable(f"{path} is binary, not a log; give the text that the tool printed")
    if head.startswith(b'{"type":'):
        raise _Unreadable(f"{path} holds records already; python -m reports.build reads it")
    known = recognise(head)
    if known is None:
        names = ", ".join(known.name for known in FORMATS)
        raise _Unreadable(f"{path}: no format that is known here; known: {names}")
    return known


def _print(seen: list[_Seen]) -> None:
    header = ("file", "format", "collective", "ranks", "rows", "times", "corrupt")
    cli.print_rows([row for found in seen for row in found.rows()], header)
    findings = [
        (_place(found.file, finding), finding.name, finding.sentence)
        for found in seen
        for finding in found.findings
    ]
    if findings:
        print()
        cli.print_rows(findings, ("where", "finding", "what it says"))
    for found in seen:
        if found.hidden_findings:
            cli.note(f"{found.file}: {found.hidden_findings} more findings are in the records")


def _place(file: str, finding: Finding) -> str:
    line = finding.evidence[0].at if finding.evidence else None
    return file if line is None else f"{file}:{line}"
