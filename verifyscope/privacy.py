"""What may leave this machine in a record: no folder, no address, no host or user name.

    redacted("/data/alice/graph.xml") == "graph.xml"
    redacted("tcp://10.0.0.7:29500") == "<address>"

A path becomes its file name, an address `<address>`, a home folder `<home>`, this machine's name
`<host>` and this user's name `<user>`. Which environment variables are looked at at all is decided
in `verifyscope/settings.py`.
"""

import contextlib
import getpass
import ipaddress
import os
import re
import socket
from functools import cache
from pathlib import Path

# A value of a setting says such a word for its meaning, whoever the user or the host is.
_PRODUCT_WORDS = frozenset({"cuda", "nccl", "nvidia", "sglang", "triton", "vllm"})
# They name nobody, and logs speak of a root of PCIe, of a tree and of localhost.
_NOBODY = frozenset({"localhost", "root"})
_SEPARATORS = re.compile(r"([,;=:\"'()\[\]{}]+)")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s,;\"']*")
_MAILBOX = re.compile(r"[^\s,;=\"'@]+@[^\s,;\"'@]+")
_HOST_AND_PORT = re.compile(r"(?<![\w.-])[A-Za-z][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)*:\d{4,5}(?!\w)")
_DOTTED_HOST_AND_PORT = re.compile(r"(?<![\w.-])[\w-]+(?:\.[\w-]+)+:\d+(?!\w)")
_NUMERIC_ADDRESS = re.compile(r"(?<![\w.:])\[?[0-9A-Fa-f]*[.:][0-9A-Fa-f.:]+(?:%\w+)?\]?(?!\w)")


def redacted(text: str, *, relative_paths: bool = False) -> str:
    """Return `text` without folders, addresses and names of host and user.

    relative_paths: keep `runs/a.jsonl` whole, as in a command; absolute paths and those that
        start with `~` or `..` become a file name all the same.
    """
    text = readable(text)
    for pattern in (_URL, _MAILBOX):
        text = pattern.sub("<address>", text)
    text = _NUMERIC_ADDRESS.sub(_hide_address, text)
    for pattern in (_HOST_AND_PORT, _DOTTED_HOST_AND_PORT):
        text = pattern.sub("<address>", text)
    pieces = _SEPARATORS.split(text)
    text = "".join(_file_name(piece, relative_paths) for piece in pieces)
    for pattern, word in _names():
        text = pattern.sub(word, text)
    return text


def readable(text: str) -> str:
    """Return `text` with a ? for each byte of a file's name that is no letter in any encoding."""
    return text.encode("utf-8", "replace").decode()


def redacted_words(sentence: str) -> str:
    """Return `sentence` with each word redacted on its own; rates such as 1.2 TB/s stay whole."""
    return " ".join(redacted(word, relative_paths=True) for word in sentence.split())


def _hide_address(match: re.Match[str]) -> str:
    """Hide what is an IPv4 or IPv6 address, with or without a port; leave versions and ranges."""
    address = match[0].strip("[]").partition("%")[0]
    candidates = [address]
    if address.count(":") == 1:
        candidates.append(address.partition(":")[0])
    for candidate in candidates:
        try:
            ipaddress.ip_address(candidate)
        except ValueError:
            continue
        return "<address>"
    return match[0]


def _file_name(piece: str, relative_paths: bool) -> str:
    if "/" not in piece and not piece.startswith("~"):
        return piece
    if relative_paths and not piece.startswith(("/", "~", "..")):
        return piece
    path = Path(piece.strip())
    home = str(path.parent) in ("/home", "/Users") or path in (Path.home(), Path("/root"))
    if home or (str(path).startswith("~") and len(path.parts) == 1):
        return "<home>"
    return path.name or "<path>"


@cache
def _names() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return the patterns of this host's and this user's names, the longest first."""
    words = dict.fromkeys(_user_names(), "<user>") | dict.fromkeys(_host_names(), "<host>")
    return tuple(
        (re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", re.IGNORECASE), word)
        for name, word in sorted(words.items(), key=lambda item: -len(item[0]))
        if len(name) > 1 and not name.isdigit() and name.lower() not in _PRODUCT_WORDS | _NOBODY
    )


def _host_names() -> list[str]:
    found = [socket.gethostname(), os.environ.get("HOSTNAME", "")]
    return [part for name in found for part in (name, name.partition(".")[0])]


def _user_names() -> list[str]:
    found = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")]
    found.append(Path.home().name)
    # A user id without an account is a KeyError, from Python 3.13 on an OSError.
    with contextlib.suppress(KeyError, OSError):
        found.append(getpass.getuser())
    return found
