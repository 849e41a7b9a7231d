"""A log format is one entry of `FORMATS`, and no other edit.

It recognises a file by its first bytes, never by its name, and reads it line by line, so that a
file of any size needs little memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ingest import nccl_records
from ingest.log import Log
from verifyscope.records import Finding, Measurement

HEAD_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of logs: `recognises` looks at the first HEAD_BYTES, `read` makes the records.

    nothing: what to say of a file that is recognised and holds no measurement.
    """

    name: str
    recognises: Callable[[bytes], bool]
    read: Callable[[Log], Iterator[Measurement | Finding]]
    nothing: str


FORMATS = (
    Format(
        name="nccl-tests",
        recognises=nccl_records.recognises,
        read=nccl_records.read,
        nothing="an NCCL log without a table of times; give what nccl-tests printed, whole",
    ),
)


def recognise(head: bytes) -> Format | None:
    """Return the format of a file that begins with `head`, or None."""
    return next((known for known in FORMATS if known.recognises(head)), None)
