"""Files become records of one run: recognised by content, read, compared, told apart from failures.

Every file is read; what cannot be is named. A file of any size needs little memory. What several
files say together is concluded after the last one.
"""

import contextlib
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ingest import printing
from ingest.facts import Facts
from ingest.formats import FORMATS, HEAD_BYTES, Format, recognise
from ingest.kernel_classes import Pattern
from ingest.log import Log, as_lines, as_utf_8, is_utf_16, numbered_lines
from ingest.looks import is_json, looks
from ingest.model_findings import Machine
from ingest.opening import COMPRESSED, Unknown, Unpacked, Unreadable, files_of, opened
from ingest.printing import Shown
from ingest.serving_records import plain_given
from ingest.shipped import Shipping, shipping_of
from ingest.verdict import conclusions
from verifyscope import cli, environment, runs
from verifyscope.errors import Failure, UsageError
from verifyscope.privacy import redacted
from verifyscope.records import Environment, Evidence, Finding, Measurement

PROGRAM = "python -m ingest"
_OVERLAP_BYTES = 2**12
_SHIPPED_BYTES = 2**17
_LONGEST_NAME = 120
_MOST_NAMES = 3


def read_files(
    paths: Sequence[Path],
    records: Path | None,
    *,
    plain_s: float | None = None,
    machine: Machine | None = None,
    patterns: tuple[Pattern, ...] = (),
    same_system: bool = False,
) -> None:
    """Read `paths` into one run and print what was found; `-` is standard input.

    A folder stands for the traces in it. plain_s: a plain step that the user knows; machine: what
    floors of models are counted for; patterns: what classes kernels have, where the user says it;
    same_system: he says that all files are of one.
    `UsageError` where nothing could be read, `Failure` where a file could not.
    """
    paths = [file for path in paths for file in files_of(path)]
    told = _Told(patterns=patterns, same_system=same_system)
    failures: list[Unreadable] = []
    shown: list[Shown] = []
    facts: list[Facts] = []
    here = environment.current()
    with contextlib.ExitStack() as stack:
        sink = _Sink(records, stack)
        for path, name in zip(paths, _names(paths), strict=True):
            found = Shown(name)
            try:
                for record in _records(path, found, here, told):
                    if isinstance(record, Facts):
                        facts.append(record)
                    else:
                        sink.append(record)
                        found.add(record)
            except Unreadable as error:
                failures.append(error)
            else:
                shown.append(found)
        if shown and plain_s is not None:
            sink.append(plain_given(plain_s, here))
        concluded = conclusions(facts, plain_s=plain_s, machine=machine, same_system=same_system)
        for one in concluded:
            sink.append(one.finding(environment=here.id, command=here.command))
    if shown:
        printing.report(shown, concluded)
    if sink.run is not None:
        cli.note(f"records: {sink.run.path}")
    _end(failures, len(paths))


def measurements(path: Path, here: Environment) -> Iterator[Measurement]:
    """Yield the times that one file holds, and write nothing; `UsageError` if it cannot be read."""
    try:
        for record in _records(path, Shown(_names([path])[0]), here, _Told()):
            if isinstance(record, Measurement):
                yield record
    except Unreadable as error:
        raise UsageError(str(error)) from error


def _names(paths: Sequence[Path]) -> list[str]:
    """Return what each file is called in records: its name, numbered where two are alike."""
    plain = [path.name if str(path) != "-" else "stdin" for path in paths]
    seen: Counter[str] = Counter()
    names = []
    for name in plain:
        seen[name] += 1
        number = f" ({seen[name]})" if plain.count(name) > 1 else ""
        names.append(redacted(name, relative_paths=True)[:_LONGEST_NAME] + number)
    return names


def _end(failures: list[Unreadable], files: int) -> None:
    """Name what could not be read: in one line for one file, else each kind and then the sum."""
    if failures and files == 1:
        raise UsageError(str(failures[0]))
    alike: dict[str, list[str]] = {}
    for failure in failures:
        if isinstance(failure, Unknown):
            alike.setdefault(failure.looks, []).append(failure.path.name)
        else:
            cli.note(f"{PROGRAM}: {failure}")
    for kind, names in alike.items():
        more = len(names) - _MOST_NAMES
        shown = ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        cli.note(f"{PROGRAM}: no reader knows {kind}: {shown}")
    if alike:
        cli.note(f"{PROGRAM}: what is read, with a line of each: {PROGRAM} --formats")
    if failures and len(failures) == files:
        raise UsageError(f"none of {files} files could be read")
    if failures:
        raise Failure(f"{len(failures)} of {files} files could not be read; the others are")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What the user says of all files."""

    patterns: tuple[Pattern, ...] = ()
    same_system: bool = False


@dataclass(slots=True)
class _Sink:
    """The run, begun with its first record: what cannot be read leaves no folder behind."""

    path: Path | None
    stack: contextlib.ExitStack
    run: runs.Run | None = field(default=None)

    def append(self, record: Measurement | Finding) -> None:
        """Write `record` now."""
        if self.run is None:
            self.run = self.stack.enter_context(runs.start(self.path, "ingest"))
        self.run.append(record)


def _records(
    path: Path, found: Shown, here: Environment, told: _Told
) -> Iterator[Measurement | Finding | Facts]:
    """Yield what a file says; `Unreadable` tells in a line why it says nothing."""
    with opened(path) as (stream, unpacked):
        known, shipping = _formats(path, stream, unpacked)
        gave: dict[str, None] = {}
        for one in known:
            stream.seek(0)
            log = Log(
                file=found.file,
                lines=numbered_lines(stream, shipping),
                environment=here.id,
                command=here.command,
                stream=stream,
                path=path if unpacked is None and path.is_file() else None,
                patterns=told.patterns,
                same_system=told.same_system,
            )
            for record in one.read(log):
                gave[one.name] = None
                found.format = "+".join(gave)
                yield record
        if not gave:
            raise Unreadable(f"{path}: {known[-1].nothing}")
        for cut in _cut(stream, unpacked, text=not known[0].document):
            evidence = (Evidence(found.file, None, cut),)
            yield Finding(
                name="file-cut",
                sentence=f"{found.file}: {cut}; what is read is read up to there",
                evidence=evidence,
                next_action="give the file whole",
                confidence="likely",
                environment=here.id,
                command=here.command,
            )


def _cut(stream: BinaryIO, unpacked: Unpacked | None, *, text: bool) -> Iterator[str]:
    """Yield the signs that a file ends early."""
    if unpacked is not None and unpacked.broken:
        yield f"the gzip file is not whole: {unpacked.broken}"
    elif unpacked is None and text and stream.seek(0, io.SEEK_END) > 0:
        stream.seek(-1, io.SEEK_END)
        if stream.read(1) not in (b"\n", b"\r", b"\0"):
            yield "no newline ends its last line, which may be cut"


def _formats(
    path: Path, stream: BinaryIO, unpacked: Unpacked | None
) -> tuple[tuple[Format, ...], Shipping | None]:
    """Return the formats of a file and how it was shipped; `Unreadable` if there is no format."""
    head = stream.read(HEAD_BYTES)
    if not head and unpacked is not None and unpacked.broken:
        raise Unreadable(f"{path} is no whole gzip file: {unpacked.broken}; give it whole")
    if not head:
        raise Unreadable(f"{path} is empty; give the output of a run")
    if head.startswith(COMPRESSED):
        raise Unreadable(f"{path} is compressed; unpack it first")
    if head.startswith(b'{"type":') and b'"schema":' in head[:64]:
        raise Unreadable(f"{path} holds records already; python -m reports.build reads it")
    text = as_utf_8(head)
    shipping = shipping_of(text[:_SHIPPED_BYTES].decode("utf-8", "replace"))
    text = as_lines(text, shipping)
    # A database is known by its bytes as they are, with the zeros that a log has not.
    known = tuple(one for one in recognise(head) if one.document) or recognise(text)
    if not any(one.document for one in known):
        if is_json(text, whole=len(head) < HEAD_BYTES):
            raise Unknown(path, looks(text))
        known = (*known, *_elsewhere(stream, known, head))
    binary = b"\0" in head and not is_utf_16(head)
    if binary and not any(one.document or one.anywhere for one in known):
        raise Unreadable(f"{path} is binary, not a log; give the text that the tool printed")
    if not known:
        raise Unknown(path, looks(text))
    return known, shipping


def _elsewhere(stream: BinaryIO, known: Sequence[Format], head: bytes) -> Iterator[Format]:
    """Yield the formats whose signs stand behind the first bytes of a file."""
    wanted = [one for one in FORMATS if one.anywhere and one not in known]
    before, part = head[-_OVERLAP_BYTES:], stream.read(HEAD_BYTES) if wanted else b""
    while part and wanted:
        for one in [one for one in wanted if one.recognises(before + part)]:
            wanted.remove(one)
            yield one
        before, part = part[-_OVERLAP_BYTES:], stream.read(HEAD_BYTES)
