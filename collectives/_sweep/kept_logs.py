"""What NCCL left in a probe: read as facts, and kept in the run's folder without what is private.

A kept log has the rank for host, process and thread, no line of a setting that is not listed, and
file names for paths; topology and graphs have no hash of the host and no identifier of a card.
"""

import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from collectives._sweep.messages import Logs
from ingest.log import numbered_lines
from ingest.nccl_facts import NcclLog
from ingest.nccl_log import read_log
from ingest.nccl_messages import Message, messages
from verifyscope.privacy import redacted
from verifyscope.settings import HIDDEN, NEVER, SETTINGS

_LOG = ".nccl.log"
_WORD = re.compile(r"\S+")
_SETTING = re.compile(r"\b([A-Z][A-Z0-9_]{3,})( set by environment to |=| environment variable)")
_IPV4 = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")
_IPV6 = re.compile(r"(?<![\w.])\[?(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{0,4}(?:%\w+)?\]?")
_PORT = re.compile(r"<address>(?::\d+|<\d+>)+")
_IDENTIFIERS = re.compile(rb'\b(host_hash|guid|sysguid|uuid)="[^"]*"')


def read(logs: Logs) -> NcclLog:
    """Return what the logs of all ranks say, rank by rank."""
    found = b"\n".join(data for _, name, data in sorted(logs.files) if name.endswith(_LOG))
    return read_log(numbered_lines(BytesIO(found)))


def keep(logs: Logs, folder: Path) -> bool:
    """Write the files into `folder`, fit to be shown; say whether there were any."""
    for rank, name, data in logs.files:
        folder.mkdir(parents=True, exist_ok=True)
        if name.endswith(_LOG):
            lines = [*_shown(data, rank)]
            (folder / name).write_text("".join(f"{line}\n" for line in lines))
        else:
            (folder / name).write_bytes(_IDENTIFIERS.sub(rb'\1="0x0"', data))
    return bool(logs.files)


def _shown(data: bytes, rank: int) -> Iterator[str]:
    """Yield the lines of a log that may be told, as they may be told."""
    hosts: set[str] = set()
    for _, line in numbered_lines(BytesIO(data)):
        for message in messages(line):
            if message.host is not None:
                hosts.add(message.host)
            text = _public(message.text, hosts)
            if text is not None and (text or message.level):
                yield _head(message, rank) + text


def _head(message: Message, rank: int) -> str:
    """Return the prefix that NCCL's readers expect, with the rank for all names and numbers."""
    if message.level is None:
        return ""
    place = f" {message.place}" if message.place else ""
    return f"rank{rank}:{rank}:{rank} [{message.device or 0}]{place} NCCL {message.level} "


def _public(text: str, hosts: set[str]) -> str | None:
    """Return a text without paths, addresses and hosts; None for a setting that is not listed."""
    for name, _ in _SETTING.findall(text):
        if name not in SETTINGS or any(word in name for word in NEVER):
            return None
    for name, shown in HIDDEN.items():
        text = re.sub(rf"\b({name}\b(?: set by environment to |\W*)).*", rf"\1{shown}", text)
    text = _IPV6.sub("<address>", _IPV4.sub("<address>", text))
    text = _PORT.sub("<address>", text)
    text = _WORD.sub(lambda word: redacted(word[0], relative_paths=True), text)
    for host in hosts:
        text = re.sub(rf"(?<!\w){re.escape(host)}(?!\w)", "<host>", text)
    return text
