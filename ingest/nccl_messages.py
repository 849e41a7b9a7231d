"""A line of a log becomes the messages of NCCL in it: level, place, text, and who says it.

    node7:4711:4712 [3] NCCL INFO text
    [2026-05-01 10:00:00] node7:4711:4712 [3] misc/socket.cc:512 NCCL WARN text

What stands before (a rank tag, a stamp, a launcher's or an engine's label) does not matter; two
messages that were written into one line are two, as is a row of a table that breaks off in one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LEVEL = re.compile(r"NCCL (INFO|WARN|TRACE) ?")
_PREFIX = re.compile(
    r"(?:(?P<host>[\w.<>-]{1,255}):(?P<process>\d{1,10}):\d{1,10} )?"
    r"\[(?P<device>-?\d{1,5})\] (?:\d+\.\d+ )?(?:(?P<place>\S+:\d+) (?:\([^)]*\) )?)?$"
)
_LONGEST_PREFIX = 1024
# What most lines are: one message, and nothing before it.
_PLAIN = re.compile(r"([\w.<>-]{1,255}):(\d{1,10}):\d{1,10} \[(-?\d{1,5})\] NCCL INFO (.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `level` is None for text that no prefix marks; host and process are private."""

    level: str | None
    text: str
    host: str | None = None
    process: str | None = None
    device: int | None = None
    place: str = ""


def messages(line: str) -> Iterator[Message]:
    """Yield what NCCL says in a line; the whole line, without a level, where nothing marks it."""
    if "NCCL " not in line:
        yield Message(level=None, text=line)
        return
    plain = _PLAIN.match(line)
    if plain and " NCCL " not in plain[4]:
        host, process, device, text = plain.groups()
        yield Message(
            level="INFO", text=text.rstrip(), host=host, process=process, device=int(device)
        )
        return
    marks = list(_LEVEL.finditer(line))
    if not marks:
        yield Message(level=None, text=line)
        return
    prefixes = [
        _PREFIX.search(line, max(0, mark.start() - _LONGEST_PREFIX), mark.start()) for mark in marks
    ]
    for at, (mark, prefix) in enumerate(zip(marks, prefixes, strict=True)):
        following = prefixes[at + 1] if at + 1 < len(marks) else None
        end = following.start() if following else len(line)
        text = line[mark.end() : max(end, mark.end())].rstrip()
        if prefix is None:
            yield Message(level=mark[1], text=text)
        else:
            yield Message(
                level=mark[1],
                text=text,
                host=prefix["host"],
                process=prefix["process"],
                device=int(prefix["device"]),
                place=(prefix["place"] or "").rpartition("/")[2],
            )
