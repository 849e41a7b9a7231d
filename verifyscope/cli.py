"""One way to run a command line: an error is one line, and the exit status says its kind.

0 fine, 1 wrong or failed, 2 usage, 130 interrupted. Data goes to stdout, the rest to stderr.
"""

import errno
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import typer

from verifyscope.errors import Failure, UsageError

_ENVIRONMENT_ERRORS = {
    errno.ENOSPC: "no space left on the device; free some or name another folder",
    errno.EDQUOT: "the disk quota is used up; free some or name another folder",
    errno.EACCES: "permission denied; name a place that this user may write",
    errno.EPERM: "not permitted; name a place that this user may write",
    errno.EROFS: "the file system is read-only; name another folder",
    errno.EISDIR: "this is a folder; name a file",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.ENOENT: "no such file or folder",
}


def app(help_text: str | None) -> typer.Typer:
    """Return the application that every command of the project starts from."""
    return typer.Typer(
        help=help_text, rich_markup_mode=None, add_completion=False, no_args_is_help=False
    )


def run(application: typer.Typer, program: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `application` as `program` (such as "python -m ingest") and exit with its status."""
    try:
        status = application(
            args=list(sys.argv[1:] if arguments is None else arguments),
            prog_name=program,
            standalone_mode=False,
        )
        sys.stdout.flush()
    except UsageError as error:
        _end(program, str(error), 2)
    except Failure as error:
        _end(program, str(error), 1)
    except KeyboardInterrupt:
        _end(program, "interrupted; what was measured is kept", 130)
    except BrokenPipeError:
        # Whoever read stdout has left (`| head`); nothing may be written there at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno not in _ENVIRONMENT_ERRORS:
            raise
        place = f"{error.filename}: " if error.filename else ""
        _end(program, f"{place}{_ENVIRONMENT_ERRORS[error.errno]}", 1)
    except Exception as error:  # typer's own errors; it has moved them between packages
        if type(error).__name__ == "Abort":
            _end(program, "interrupted; what was measured is kept", 130)
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        text = " ".join(str(message()).split())
        _end(program, f"{text.rstrip('.')}; '{program} --help' lists what is allowed", 2)
    sys.exit(status if isinstance(status, int) else 0)


def command_line() -> str:
    """Return how this process was started, fit for a record: paths become file names."""
    program, *arguments = sys.orig_argv
    words = [Path(program).name, *arguments]
    return shlex.join(word.rpartition("/")[2] if word.startswith("/") else word for word in words)


def note(text: str) -> None:
    """Say `text` to the person, on stderr."""
    print(text, file=sys.stderr, flush=True)


def print_rows(rows: Iterable[Sequence[str]], header: Sequence[str]) -> None:
    """Print a table: aligned for a terminal, tab-separated and untruncated for anything else."""
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(row))
        return
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip())


def _end(program: str, message: str, status: int) -> NoReturn:
    note(f"{program}: {message}")
    sys.exit(status)
