"""Marks in Markdown: which record a printed number comes from.

of(record, "23.4 us") is "23.4 us" between letters that no record's text can hold (reports/_markdown
takes them out). `removed` gives the Markdown of report.md, `as_html` the number that report.html
shows with its source, its exact value and its record.
"""

import re
from collections.abc import Mapping

from verifyscope.records import Measurement

_OPEN, _END_OF_ID, _CLOSE = "\ue000", "\ue001", "\ue002"
_MARK = re.compile(f"{_OPEN}([^{_END_OF_ID}]*){_END_OF_ID}([^{_CLOSE}]*){_CLOSE}")
_ID = re.compile(r"[\w-]{1,64}", re.ASCII)


def of(record: Measurement, words: str) -> str:
    """Return `words` as what was printed of a record."""
    if _ID.fullmatch(record.id) is None:
        return words
    return f"{_OPEN}{record.id}{_END_OF_ID}{words}{_CLOSE}"


def removed(markdown: str) -> str:
    """Return Markdown without its marks."""
    return _MARK.sub(r"\2", markdown) if _OPEN in markdown else markdown


def width(cell: str) -> int:
    """Return how many letters of a cell are seen."""
    return len(removed(cell))


def as_html(body: str, records: Mapping[str, Measurement]) -> str:
    """Return HTML whose marked numbers carry the class of their source and their record's id."""

    def element(found: re.Match[str]) -> str:
        record = records.get(found[1])
        if record is None or record.median_s is None:
            return found[2]
        about = f'class="n {record.source}" data-r="{found[1]}" data-s="{record.median_s!r}"'
        return f"<a {about}>{found[2]}</a>"

    return _MARK.sub(element, body)
