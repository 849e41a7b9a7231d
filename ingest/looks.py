"""What a file that no reader knows looks like: JSON and its keys, CSV and its columns, or text.

A document of JSON is no log, whatever words stand in its strings; a line of JSON that holds a line
of a log, as containers write them, is none.
"""

import msgspec

from ingest.cells import cells

_MOST_NAMES = 8
_LONGEST = 60
_WRAPPED = ("log", "message", "msg", "MESSAGE")
_JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def is_json(head: bytes, *, whole: bool) -> bool:
    """Say whether a file is one document of JSON. whole: `head` is all of it."""
    text = head.strip()
    if text[:1] not in (b"{", b"["):
        return False
    first = text.partition(b"\n")[0].strip()
    if not whole:
        return first in (b"{", b"[", b"[{")
    try:
        found = msgspec.json.decode(text)
    except _JSON_ERRORS:
        return False
    return not (isinstance(found, dict) and any(name in found for name in _WRAPPED))


def looks(head: bytes) -> str:
    """Return what the file that begins with `head` is, in words."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    lines = [line.strip() for line in text[: 2**14].splitlines() if line.strip()]
    if not lines:
        return "blank"
    if text[:1] in ("{", "["):
        return f"JSON{_keys(head)}"
    if text[:15].lower().startswith(("<!doctype html", "<html")):
        return "a web page; save the log itself"
    if text[:5] == "<?xml":
        return "XML"
    for name, mark in (("CSV", ","), ("tab-separated rows", "\t")):
        columns = cells(lines[0]) if mark == "," else lines[0].split("\t")
        rows = [cells(line) if mark == "," else line.split("\t") for line in lines[1:3]]
        if len(columns) > 1 and rows and all(len(row) == len(columns) for row in rows):
            return f"{name} of the columns {_listed(columns)}"
    return f"text that begins {_quoted(lines[0])}"


def _keys(head: bytes) -> str:
    try:
        found = msgspec.json.decode(head)
    except _JSON_ERRORS:
        return ""
    if isinstance(found, list) and found:
        found = found[0]
    return f" with the keys {_listed(list(found))}" if isinstance(found, dict) and found else ""


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    shown = ", ".join(" ".join(name.split())[:_LONGEST] for name in names[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def _quoted(line: str) -> str:
    return f'"{line[:_LONGEST]}{"..." if len(line) > _LONGEST else ""}"'
