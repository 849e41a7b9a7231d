"""A log file as numbered lines: any encoding, any size, no line longer than LONGEST_LINE_BYTES.

What is undecodable becomes the replacement character; colours of a terminal are taken out. UTF-16
is known by its byte order mark, else by its zeros. The rest of an overlong line is dropped, so that
memory stays bounded. A carriage return without a newline (a progress bar) ends a line, too, but
counts none. Zeros are taken out: rotation leaves holes in a log that is still written.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ingest.kernel_classes import Pattern
from ingest.shipped import Shipping

LONGEST_LINE_BYTES = 2**16

# No tool prints such a number, and no float holds it: it is no number to any format.
_LONGEST_NUMBER = 300
_ENDLESS = re.compile(rf"\d{{{_LONGEST_NUMBER},}}")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_UTF_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_SHORTEST_UTF_16 = 16  # bytes that tell UTF-16 without a mark: each second is zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A file to read: its name without folders, its lines from 1, and what each record carries.

    stream: the same file as bytes, unpacked, for formats that are not read by line; a format takes
        one of the two. path: the file itself, where it is plain and on disk. patterns: what classes
        kernels have, where the user names a file of them. same_system: the user says that all files
        of the command are of one.
    environment: the id of the environment that imports the file; command: how it was started.
    """

    file: str
    lines: Iterator[tuple[int, str]]
    environment: str
    command: str
    stream: BinaryIO = field(default_factory=io.BytesIO)
    path: Path | None = None
    patterns: tuple[Pattern, ...] = ()
    same_system: bool = False


def numbered_lines(stream: BinaryIO, shipping: Shipping | None = None) -> Iterator[tuple[int, str]]:
    """Yield each line of `stream` with its number, without its end and what shipped it."""
    for number, text in _numbered(stream):
        yield number, text if shipping is None else shipping.line(text)


def _numbered(stream: BinaryIO) -> Iterator[tuple[int, str]]:
    for number, data in enumerate(_lines(stream), 1):
        text = data.decode("utf-8", "replace").removeprefix("\ufeff")
        if "\0" in text:
            text = text.replace("\0", "")
        if "\x1b" in text:
            text = _COLOUR.sub("", text)
        text = text.rstrip("\r\n")
        if len(text) > _LONGEST_NUMBER:
            text = _ENDLESS.sub("#", text)
        if "\r" in text:
            yield from ((number, piece) for piece in text.split("\r") if piece)
        else:
            yield number, text


def is_utf_16(head: bytes) -> bool:
    """Say whether a file that begins with `head` is UTF-16."""
    return _utf_16(head) is not None


def _utf_16(head: bytes) -> tuple[str, int] | None:
    """Return the encoding and the bytes of its mark; None for other files."""
    if head[:2] in _UTF_16:
        return _UTF_16[head[:2]], 2
    part = head[:256]
    even, odd = part[::2], part[1::2]
    if len(part) >= _SHORTEST_UTF_16 and not any(odd) and all(even[: len(odd)]):
        return "utf-16-le", 0
    if len(part) >= _SHORTEST_UTF_16 and not any(even) and all(odd):
        return "utf-16-be", 0
    return None


def as_utf_8(head: bytes) -> bytes:
    """Return the first bytes of a file as UTF-8, without a byte order mark."""
    found = _utf_16(head)
    if found is not None:
        encoding, mark = found
        return head[mark:].decode(encoding, "replace").encode()
    return head.removeprefix(b"\xef\xbb\xbf")


def as_lines(head: bytes, shipping: Shipping | None) -> bytes:
    """Return the first bytes of a file as its lines are read: no colours, nothing that ships it."""
    if shipping is None and b"\x1b" not in head:
        return head
    return "\n".join(text for _, text in numbered_lines(io.BytesIO(head), shipping)).encode()


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    data = stream.readline(LONGEST_LINE_BYTES)
    found = _utf_16(data)
    if found is not None:
        encoding, mark = found
        yield from _decoded(stream, data[mark:], encoding)
        return
    while data:
        data = _after_hole(stream, data)
        yield data
        while len(data) == LONGEST_LINE_BYTES and not data.endswith(b"\n"):
            data = stream.readline(LONGEST_LINE_BYTES)
        data = stream.readline(LONGEST_LINE_BYTES)


def _after_hole(stream: BinaryIO, data: bytes) -> bytes:
    """Return a line without the zeros before it, which a log has that was emptied while in use."""
    while data.startswith(b"\0"):
        data = data.lstrip(b"\0")
        if not data.endswith(b"\n"):
            more = stream.readline(LONGEST_LINE_BYTES - len(data))
            if not more:
                break
            data += more
    return data


def _decoded(stream: BinaryIO, first: bytes, encoding: str) -> Iterator[bytes]:
    """Yield the lines of UTF-16 as UTF-8, in blocks of an even number of bytes."""
    left, block = "", first + stream.read(len(first) % 2)
    while block:
        *whole, left = (left + block.decode(encoding, "replace")).split("\n")
        yield from (line.encode("utf-8", "replace") for line in whole)
        left = left[:LONGEST_LINE_BYTES]
        block = stream.read(LONGEST_LINE_BYTES)
    if left:
        yield left.encode("utf-8", "replace")
