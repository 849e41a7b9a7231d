"""A log file as numbered lines: any encoding, any size, no line longer than LONGEST_LINE_BYTES.

What is undecodable becomes the replacement character; colours of a terminal are taken out. The rest
of an overlong line is dropped, so that memory stays bounded.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

LONGEST_LINE_BYTES = 2**16

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A file to read: its name without folders, its lines from 1, and what each record carries.

    environment: the id of the environment that imports the file; command: how it was started.
    """

    file: str
    lines: Iterator[tuple[int, str]]
    environment: str
    command: str


def numbered_lines(stream: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield each line of `stream` with its number, without its end."""
    number = 0
    while data := stream.readline(LONGEST_LINE_BYTES):
        number += 1
        rest = data
        while len(rest) == LONGEST_LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(LONGEST_LINE_BYTES)
        yield number, _COLOUR.sub("", data.decode("utf-8", "replace")).rstrip("\r\n")
