"""GitHub-flavoured Markdown that reads well raw: escaped text, code spans, aligned tables.

What comes out of a record is never markup here: a reason such as "needs <address> | *any*" shows
as it was written.
"""

import re
from collections.abc import Sequence

from reports import _marks
from reports._plain import one_line

_SPECIAL = re.compile(r"([\\`*\[\]<>|~$]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;))")
_OPENING = re.compile(r"^(\d*)([#+=.)-]+)(?=\s|$)")  # what begins a heading, a list or a rule
_WIDEST_PADDED = 48


def text(plain: str) -> str:
    """Return `plain` on one line, so that it shows as it is."""
    line = _SPECIAL.sub(r"\\\1", one_line(plain))
    return _OPENING.sub(r"\1\\\2", line)


def code(plain: str) -> str:
    """Return `plain` as a code span; as text if it holds what no code span in a table can."""
    line = one_line(plain)
    if not line or "|" in line or "`" in line:
        return text(line)
    return f"`{line}`"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, align: str) -> str:
    """Return a table; `align` holds a letter a column, l or r. Cells are Markdown already."""
    lines = [tuple(header), *map(tuple, rows)]
    columns = list(zip(*lines, strict=True))
    widths = [
        max(3, *(seen for seen in map(_marks.width, column) if seen <= _WIDEST_PADDED), 0)
        for column in columns
    ]
    rule = [
        "-" * width if side == "l" else "-" * (width - 1) + ":"
        for width, side in zip(widths, align, strict=True)
    ]
    padded = [_row(line, widths, align=align) for line in lines]
    return "\n".join([padded[0], f"| {' | '.join(rule)} |", *padded[1:]])


def bullets(lines: Sequence[str]) -> str:
    """Return a list; its items are Markdown already."""
    return "\n".join(f"- {line}" for line in lines)


def _row(cells: Sequence[str], widths: Sequence[int], *, align: str) -> str:
    padded = [
        f"{cell}{' ' * (width - _marks.width(cell))}"
        if side == "l"
        else f"{' ' * (width - _marks.width(cell))}{cell}"
        for cell, width, side in zip(cells, widths, align, strict=True)
    ]
    return f"| {' | '.join(padded)} |"
