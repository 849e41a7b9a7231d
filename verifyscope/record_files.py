"""How a file of records is opened, and what is said of one that holds none.

A pipe that nobody writes to is empty: to open it as usual would wait for ever. What editors of
Windows put before UTF-8 is no part of the first line.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from verifyscope.errors import UsageError

WHAT_TO_GIVE = "give a records file or the folder of a run"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OTHERWISE_WRITTEN = {
    b"\x1f\x8b": "it is compressed; unpack it with gunzip",
    b"\xff\xfe": "it is UTF-16; save it as UTF-8",
    b"\xfe\xff": "it is UTF-16; save it as UTF-8",
}
_READ_IT = "a log, trace or table becomes records by: python -m ingest FILE --records OUT.jsonl"


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes; `UsageError` where that cannot be."""
    try:
        file = os.fdopen(_unblocked(path), "rb")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; {WHAT_TO_GIVE}") from error
    with file:
        yield file


def why_not(number: int, data: bytes, error: Exception) -> str:
    """Return why a line is no record and what to do: of a first line, of the whole file.

    number: of the line, from 1; error: what its bytes `data` were refused with.
    """
    if number > 1 or data.startswith(b"{"):
        return f" ({error}); remove the line, or give another file"
    for start, words in _OTHERWISE_WRITTEN.items():
        if data.startswith(start):
            return f": {words}"
    return f"; {_READ_IT}"


def _unblocked(path: Path) -> int:
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    os.set_blocking(number, True)
    return number
