"""What ships a log puts something before each line: a container's name, a time, a unit.

    sglang-1  | 2026-01-05T10:00:00.000000000Z <line>        docker compose logs [-t]
    2026-01-05T10:00:00.000000000Z stdout F <line>           a pod's log on its node
    [pod/llm-0/server] <line>                                kubectl logs --prefix
    {"log":"<line>\\n","stream":"stderr","time":"..."}        docker's json-file
    Jan 05 10:00:00 box python3[4711]: <line>                journalctl
    2026-01-05 10:00:00,123 - bench - INFO - <line>          logging of Python
    2026-01-05 10:00:00,"<line>"                             a table of lines, as of Grafana

It is taken off where most of the first lines carry it, and it alone. Where several sources are
in one file, each line keeps the name of its own, as "name | line".
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

SEPARATOR = " | "
_LINES = 400
_SHARE = 0.8
_FEWEST = 3

_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_NO_KERNEL = r"(?![\w.-]{1,64} kernel[:\[])"  # its own log is read with what stands before it
_FORMS = tuple(
    re.compile(form)
    for form in (
        rf"(?P<name>[A-Za-z][\w.-]{{0,63}}?)\s{{1,40}}\| (?:{_TIME} )?",
        rf"\[(?P<name>pod/[\w./-]{{1,200}})\] (?:{_TIME} )?",
        rf"{_TIME} (?:stdout|stderr) [FP] ",
        rf"{_TIME} {_NO_KERNEL}(?P<name>[\w.-]{{1,64}} [\w.@/-]{{1,64}}?)\[\d+\]: ",
        rf"{_TIME} {_NO_KERNEL}",
        rf"[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d {_NO_KERNEL}"
        r"(?P<name>[\w.-]{1,64} [\w.@/-]{1,64}?)\[\d+\]: ",
        r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?,(?P<quoted>")',
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3} - [\w.]{1,64} - [A-Z]{4,8} - ",
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3} \| [A-Z]{4,8} {1,4}\| [\w.:<>-]{1,120} - ",
    )
)
_Split = Callable[[str], tuple[str, str] | None]


class _Wrapped(msgspec.Struct):
    """A line of docker's json-file."""

    log: str


_wrapped = msgspec.json.Decoder(_Wrapped)


@dataclass(frozen=True, slots=True)
class Shipping:
    """How the lines of a file were shipped; `keeps_names` where they are of several sources."""

    split: _Split
    keeps_names: bool

    def line(self, text: str) -> str:
        """Return a line as it was written."""
        found = self.split(text)
        if found is None:
            return text
        name, rest = found
        return f"{name}{SEPARATOR}{rest}" if self.keeps_names and name else rest


def source_of(text: str) -> str:
    """Return the name that `Shipping.line` left before a line, or ""."""
    name, found, _ = text[:300].partition(SEPARATOR)
    return name if found else ""


def shipping_of(head: str) -> Shipping | None:
    """Return how the lines of a file that begins with `head` were shipped; None if as written."""
    lines = [line for line in head.split("\n")[:_LINES] if line.strip()]
    if len(lines) > _FEWEST:
        lines = lines[:-1]  # the last may be cut
    for split in (_of_json, *(_of(form) for form in _FORMS)):
        found = [parts for line in lines if (parts := split(line)) is not None]
        if len(found) >= max(_FEWEST - 1, _SHARE * len(lines)):
            names = Counter(name for name, _ in found)
            return Shipping(split, keeps_names=len(names) > 1)
    return None


def _of(form: re.Pattern[str]) -> _Split:
    def split(text: str) -> tuple[str, str] | None:
        found = form.match(text)
        if found is None:
            return None
        named, rest = found.groupdict(), text[found.end() :]
        if "quoted" in named:
            rest = rest.rstrip("\r\n").removesuffix('"').replace('""', '"')
        return named.get("name") or "", rest

    return split


def _of_json(text: str) -> tuple[str, str] | None:
    if not text.startswith('{"log":'):
        return None
    try:
        return "", _wrapped.decode(text).log.rstrip("\r\n")
    except (msgspec.DecodeError, RecursionError):
        return None
