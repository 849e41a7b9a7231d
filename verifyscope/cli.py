"""One way to run a command line: an error is one line, and the exit status says its kind.

0 fine, 1 wrong or failed, 2 usage, 130 interrupted. Data goes to stdout, the rest to stderr.
"""

import contextlib
import errno
import io
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn, TextIO

import typer

from verifyscope import lacking
from verifyscope.errors import Failure, UsageError
from verifyscope.privacy import redacted

_INTERRUPTED = "interrupted; what was measured is kept"
_BREAKS = str.maketrans("\t\r\n", "   ")
_LEAST_COLUMN = 24  # letters that a wrapped column is worth
_MOST_TEXT = 100  # letters of a line of text, however wide the terminal is
_WHAT_TO_DO = {
    errno.ENOSPC: "free some or name another folder",
    errno.EFBIG: "a limit of this shell stands against it (ulimit -f)",
    errno.EDQUOT: "free some or name another folder",
    errno.EACCES: "name a place that this user may use",
    errno.EPERM: "name a place that this user may use",
    errno.EROFS: "name another folder",
    errno.EISDIR: "name a file",
    errno.ENOTDIR: "a part of this path is a file",
    errno.ENOENT: "name a place that is there",
    errno.EEXIST: "a part of this path is a file",
    errno.ENAMETOOLONG: "give a shorter name",
}


def app(help_text: str | None) -> typer.Typer:
    """Return the application that every command of the project starts from.

    typer shows `help_text` above several commands; a single one is described by its docstring.
    """
    return typer.Typer(
        help=help_text,
        rich_markup_mode=None,
        add_completion=False,
        no_args_is_help=False,
        pretty_exceptions_enable=False,  # a fault of ours is a plain traceback, without locals
    )


def run(application: typer.Typer, program: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `application` as `program` (such as "python -m ingest") and exit with its status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal of another encoding shows a ? for a dash; a file's name passes byte for byte.
        is_utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "replace")
    try:
        status = application(
            args=list(sys.argv[1:] if arguments is None else arguments),
            prog_name=program,
            standalone_mode=False,
        )
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read stdout has left (`| head`)
        _release_stdout()
        sys.exit(1)
    except (Exception, KeyboardInterrupt) as error:
        ending = _ending(error, program)
        if ending is None:
            raise
        _end(program, *ending)
    if status == 130:  # typer makes this of Ctrl-C, and says nothing
        _end(program, _INTERRUPTED, 130)
    sys.exit(status if isinstance(status, int) else 0)


def command_line() -> str:
    """Return how this process was started, fit for a record: no folder, address, host or user.

    What stands behind a `--` is another program's command, which may hold a key: it is left out.
    """
    program, *arguments = sys.orig_argv
    end = arguments.index("--") if "--" in arguments else len(arguments)
    words = [redacted(word, relative_paths=True) for word in arguments[:end]]
    theirs = ["--", "..."] if end < len(arguments) else []
    return shlex.join([Path(program).name, *words, *theirs])


def note(text: str) -> None:
    """Say `text` to the person, on stderr."""
    if sys.stderr is not None:  # or print would take stdout, which is for data
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def output(path: Path | None) -> Iterator[BinaryIO | None]:
    """Open the file of an option such as --json, its folder made; None where there is none.

    Before the work begins: what cannot be written is known at once.
    """
    if path is None:
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        yield file


def is_terminal(stream: TextIO | None) -> bool:
    """Say whether a person reads `stream`; it is None where it was closed before the start."""
    return stream is not None and stream.isatty()


def print_rows(rows: Iterable[Sequence[str]], header: Sequence[str]) -> None:
    """Print a table: aligned for a terminal, tab-separated and untruncated for anything else.

    In a terminal that is too narrow the last column goes on below itself.
    """
    if not is_terminal(sys.stdout):
        for row in rows:
            print("\t".join(cell.translate(_BREAKS) for cell in row))
        return
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    indent = sum(widths[:-1]) + 2 * len(widths[:-1])
    room = shutil.get_terminal_size().columns - indent
    for line in lines:
        head = "".join(f"{cell:{width}}  " for cell, width in zip(line[:-1], widths, strict=False))
        wrapped = _wrapped(line[-1], room) if room >= _LEAST_COLUMN else [line[-1]]
        for start, words in zip((head, *[" " * indent] * len(wrapped)), wrapped, strict=False):
            print(f"{start}{words}".rstrip())


def print_finding(title: str, *paragraphs: str) -> None:
    """Print what was found for a person: no table holds two sentences a row."""
    width = max(40, min(_MOST_TEXT, shutil.get_terminal_size().columns)) - 2
    print(title)
    for paragraph in filter(None, paragraphs):
        for line in _wrapped(paragraph, width):
            print(f"  {line}")


def print_remark(text: str) -> None:
    """Print what belongs to tables and is none: "# text", a terminal's in several lines."""
    width = max(_LEAST_COLUMN, shutil.get_terminal_size().columns - 4)
    lines = _wrapped(text, width) if is_terminal(sys.stdout) else [text]
    for mark, line in zip(("#", *["#  "] * len(lines)), lines, strict=False):
        print(f"{mark} {line}")


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of `text`; words are never broken, and there is one line at least."""
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False) or [""]


def print_tables(
    tables: Iterable[tuple[Sequence[str], Sequence[Sequence[str]]]], *, below_text: bool = False
) -> None:
    """Print those that have rows, a header and its rows each, with an empty line between.

    below_text: something was printed before them, so that one stands before the first, too.
    """
    for header, rows in tables:
        if rows:
            if below_text:
                print()
            print_rows(rows, header)
            below_text = True


def _ending(error: BaseException, program: str) -> tuple[str, int] | None:
    """Return the line and the exit status that `error` ends with; None if the fault is ours."""
    if isinstance(error, UsageError):
        return str(error), 2
    if isinstance(error, Failure):
        return str(error), 1
    # typer has moved its own errors between packages: they are known by their names.
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return _INTERRUPTED, 130
    if isinstance(error, OSError) and error.errno is not None:
        return _sentence(error), 1
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        said = lacking.sentence(error.name)
        return None if said is None else (said, 1)
    message = getattr(error, "format_message", None)
    if message is None:
        return None
    return f"{str(message()).rstrip('.')}; '{program} --help' lists what is allowed", 2


def _sentence(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    cause = (error.strerror or "").lower()
    hint = _WHAT_TO_DO.get(error.errno or 0)
    return f"{place}{cause}; {hint}" if hint else f"{place}{cause}"


def _release_stdout() -> None:
    """Write what is held back for stdout; drop it where that fails, or exit would fail again."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(program: str, message: str, status: int) -> NoReturn:
    _release_stdout()
    note(f"{program}: {' '.join(message.split())}")
    sys.exit(status)
