"""Files to read: from disk, a pipe or gzip, always from the start again, always of bounded size.

gzip is unpacked as it is read. A file that unpacks to over MOST_UNPACKED times its size, once that
is over UNPACKED_FREELY, is a bomb and refused; one that breaks off is read up to there and says so.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from gzip import GzipFile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MOST_UNPACKED = 400
UNPACKED_FREELY = 64 * 2**20
GZIP = b"\x1f\x8b"
_TRACES = (".json", ".json.gz", ".sqlite")
COMPRESSED = (GZIP, b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")


class Unreadable(Exception):
    """A file that holds nothing to import: what it is, and what to give instead."""


class Unknown(Unreadable):
    """A file that no reader knows; `looks` says what it is."""

    def __init__(self, path: Path, looks: str) -> None:
        super().__init__(
            f"{path}: no reader knows this: {looks}; python -m ingest --formats lists what is read"
        )
        self.path, self.looks = path, looks


class Unpacked(io.RawIOBase):
    """The content of a gzip file; `broken` says why it ended early."""

    def __init__(self, packed: BinaryIO, name: str) -> None:
        self.broken: str | None = None
        self._name, self._file, self._read = name, GzipFile(fileobj=packed), 0
        self._allowed = MOST_UNPACKED * packed.seek(0, io.SEEK_END)
        packed.seek(0)

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes, though only the start can be reached."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go back to the start."""
        if (offset, whence) != (0, io.SEEK_SET):
            raise io.UnsupportedOperation("only back to the start")
        self._read = 0
        return self._file.seek(0)

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Unpack some bytes; `Unreadable` for a bomb."""
        view = memoryview(buffer)
        try:
            data = self._file.read1(len(view))
        except (EOFError, zlib.error, OSError) as error:
            self.broken = "it breaks off" if isinstance(error, EOFError) else "it is damaged"
            return 0
        self._read += len(data)
        if self._read > max(UNPACKED_FREELY, self._allowed):
            raise Unreadable(
                f"{self._name} unpacks to over {MOST_UNPACKED} times its size; unpack it yourself "
                f"if that is no mistake"
            )
        view[: len(data)] = data
        return len(data)


def files_of(path: Path) -> list[Path]:
    """Return the traces in a folder (of ranks), by name; anything else is one file."""
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.iterdir() if one.name.endswith(_TRACES)) or [path]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, Unpacked | None]]:
    """Open a file; what comes through a pipe is put on disk first. `-` is standard input.

    The second is there for gzip: it knows, after reading, whether the file was whole.
    """
    with contextlib.ExitStack() as stack:
        file = _opened(path, stack)
        start = file.read(2)
        file.seek(0)
        if start != GZIP:
            yield file, None
            return
        unpacked = Unpacked(file, str(path))
        yield cast("BinaryIO", io.BufferedReader(unpacked, 2**18)), unpacked


def _opened(path: Path, stack: contextlib.ExitStack) -> BinaryIO:
    if str(path) == "-":
        file: BinaryIO = sys.stdin.buffer
    else:
        try:
            file = stack.enter_context(path.open("rb"))
        except IsADirectoryError:
            raise Unreadable(f"{path} is a folder without traces; name the files in it") from None
        except (OSError, ValueError) as error:
            reason = (getattr(error, "strerror", None) or "cannot be opened").lower()
            raise Unreadable(f"{path}: {reason}; give a log that this user can read") from None
    if str(path) == "-" or not file.seekable():
        spool = tempfile.TemporaryFile()  # noqa: SIM115 - the stack closes it
        stack.enter_context(spool)
        shutil.copyfileobj(file, spool)
        spool.seek(0)
        return cast("BinaryIO", spool)
    return file
