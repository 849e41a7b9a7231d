"""class_of(kernel name) by the first pattern that is found in it: kernel_classes.csv, one a line.

A line is `class,kind,pattern,evidence`: a class of verifyscope/parts.py, what the kernel is in a
word or two, a regular expression (searched, with upper and lower case), and where the name was
seen. A user's own file has the same form and stands before ours. What no pattern finds is
unclassified; what is known and none of a verify pass's (an optimizer) is other_known by its kind.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from verifyscope.errors import UsageError
from verifyscope.parts import CLASSES, Class
from verifyscope.privacy import redacted

COLUMNS = ("class", "kind", "pattern", "evidence")
LONGEST_NAME = 2048
_TELLING = 512
_MOST_CACHED = 2**14
COLLECTIVES: frozenset[Class] = frozenset({"all_reduce", "other_collective"})
_OURS = Path(__file__).with_name("kernel_classes.csv")
_MOST_PATTERNS = 10_000
_MOST_SHOWN = 120
_NAMESPACES = re.compile(r"\b(?:\w+::)+")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of the data file."""

    name: Class
    kind: str
    pattern: re.Pattern[str]
    evidence: str


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kernel is: its class, and in a word or two what does the work."""

    name: Class
    kind: str


UNCLASSIFIED = Kind("unclassified", "unclassified")


@lru_cache(maxsize=_MOST_CACHED)
def kind_of(kernel: str, patterns: tuple[Pattern, ...]) -> Kind:
    """Return what the first pattern that is found in a kernel's name says."""
    name = kernel[:_TELLING]
    for one in patterns:
        if one.pattern.search(name):
            return Kind(one.name, one.kind)
    return UNCLASSIFIED


@cache
def ours() -> tuple[Pattern, ...]:
    """Return the patterns of the data file."""
    return tuple(_patterns(_OURS))


def with_own(file: Path) -> tuple[Pattern, ...]:
    """Return the patterns of a user's file, then ours; `UsageError` names a line that is wrong."""
    return (*_patterns(file), *ours())


def short_name(kernel: str) -> str:
    """Return the last name of a kernel, without templates and parameters.

    "void cutlass::Kernel<gemm_64x64>(Params)" -> "Kernel".
    """
    base, _ = _parts(kernel)
    return base.rpartition("::")[2] or kernel[:80]


def readable(kernel: str) -> str:
    """Return a kernel's name for people and records, cut in the middle where it is long.

    Return type, parameters and the namespaces of template arguments are left out, and whatever of
    a path, a host or a user a name might hold.
    """
    base, arguments = _parts(kernel)
    name = base + _NAMESPACES.sub("", arguments) or kernel[:LONGEST_NAME]
    # "::" alone is an address of IPv6, too.
    name = "::".join(redacted(part, relative_paths=True) for part in name.split("::"))
    return name if len(name) <= _MOST_SHOWN else f"{name[: _MOST_SHOWN - 33]}...{name[-30:]}"


def _parts(kernel: str) -> tuple[str, str]:
    """Return a kernel's qualified name and its template arguments, in brackets."""
    name = kernel[:LONGEST_NAME].replace("(anonymous namespace)::", "").strip()
    if " (" in name and "<" not in name:  # a copy: "Memcpy DtoD (Device -> Device)"
        return name, ""
    if name.endswith(")"):
        name = name[: _opening(name, "(", ")")] or name
    arguments = ""
    if name.endswith(">"):
        at = _opening(name, "<", ">")
        name, arguments = name[:at], name[at:]
    return name.rpartition(" ")[2], arguments


def _opening(name: str, left: str, right: str) -> int:
    """Return where the bracket opens that the last letter closes; 0 if it does not."""
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += (name[at] == right) - (name[at] == left)
        if not depth:
            return at
    return 0


def _patterns(file: Path) -> Iterator[Pattern]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no UTF-8"
        raise UsageError(f"{file}: {reason}; give a CSV with {','.join(COLUMNS)}") from None
    rows = csv.reader(text.splitlines())
    if tuple(next(rows, ())) != COLUMNS:
        raise UsageError(f"{file}:1: the first line must be {','.join(COLUMNS)}")
    for row in rows:
        if row and rows.line_num <= _MOST_PATTERNS:
            yield _pattern(row, f"{file}:{rows.line_num}")


def _pattern(row: Sequence[str], place: str) -> Pattern:
    if len(row) != len(COLUMNS):
        raise UsageError(f"{place}: {len(row)} columns; give {','.join(COLUMNS)}")
    wanted, kind, pattern, evidence = (cell.strip() for cell in row)
    name = next((known for known in CLASSES if known == wanted), None)
    if name is None:
        raise UsageError(f"{place}: no class {wanted!r}; classes: {', '.join(CLASSES)}")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{place}: {pattern!r} is no regular expression: {error}") from None
    if not pattern or compiled.search(""):
        raise UsageError(f"{place}: {pattern!r} finds every name; give one that does not")
    return Pattern(name, kind or wanted, compiled, evidence)
