"""Marks in Markdown: which records a printed number comes from, and how.

of(record, "23.4 us") is "23.4 us" between letters that no record's text can hold (reports/_plain
takes them out); derived("0.83", (own, other), "own / other") is a number that was computed from
records, cited("86.1 us", records, place) words that were read where they were. `removed` gives the
Markdown of report.md, `as_html` the number that report.html shows with its source and records.

What comes of several records counts as the weakest: predicted, then imported, then measured.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from urllib.parse import quote, unquote

from reports._plain import one_line
from verifyscope.records import Measurement, Source

MOST_RECORDS = 64  # of one number
_OPEN, _END_OF_IDS, _CLOSE, _ABOUT = "\ue000", "\ue001", "\ue002", "\ue003"
_MARK = re.compile(f"{_OPEN}([^{_END_OF_IDS}]*){_END_OF_IDS}([^{_CLOSE}]*){_CLOSE}")
_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
_WEAKEST: tuple[Source, ...] = ("predicted", "imported", "measured")
_COMPUTED = "= "
_NOTHING = ("", "–")


def of(record: Measurement, words: str) -> str:
    """Return `words` as what was printed of a record."""
    return _marked([record], "", words)


def derived(
    words: str,
    records: Iterable[Measurement | None],
    formula: str,
    *,
    predicted: bool = False,
) -> str:
    """Return `words` as what was computed from records; "–" and "" stay as they are.

    predicted: it is no measured time, whatever the records are: a floor of their bytes.
    """
    if words in _NOTHING:
        return words
    known = [one for one in records if one is not None]
    return _marked(known, _COMPUTED + formula, words, predicted=predicted)


def told(words: str, record: Measurement, name: str) -> str:
    """Return `words` as what a record holds beside its time, under the name `name`."""
    return words if words in _NOTHING else _marked([record], f"{name} of the record", words)


def cited(words: str, records: Iterable[Measurement], place: str) -> str:
    """Return `words` as what was read at a place of which there are records."""
    return _marked(list(records), f"read at {place}", words)


def removed(markdown: str) -> str:
    """Return Markdown without its marks."""
    return _MARK.sub(r"\2", markdown) if _OPEN in markdown else markdown


def width(cell: str) -> int:
    """Return how many letters of a cell are seen."""
    return len(removed(cell))


def ids(markdown: str) -> Iterator[str]:
    """Yield the records of all marks."""
    for found in _MARK.finditer(markdown):
        yield from found[1].partition(_ABOUT)[0].split()


def as_html(body: str, records: Mapping[str, Measurement], names: Mapping[str, str]) -> str:
    """Return HTML whose marked numbers carry the class of their source and their records.

    records: those of the marks; names: what the page calls them, if not by their ids. Both by id.
    """

    def element(found: re.Match[str]) -> str:
        ids, quoted, counts_as = (*found[1].split(_ABOUT), "", "")[:3]
        known = [records[name] for name in ids.split() if name in records]
        if not known or (not quoted and known[0].median_s is None):
            return found[2]
        about = unquote(quoted)
        computed = "derived " if about.startswith(_COMPUTED) else ""
        exact = f'data-f="{escape(about)}"' if about else f'data-s="{known[0].median_s!r}"'
        joined = " ".join(names.get(one.id, one.id) for one in known)
        source = counts_as or weakest(known)
        return f'<a class="n {computed}{source}" data-r="{joined}" {exact}>{found[2]}</a>'

    return _MARK.sub(element, body)


def weakest(records: Sequence[Measurement]) -> Source:
    """Return what a number of these records counts as."""
    return min((one.source for one in records), key=_WEAKEST.index)


def _marked(
    records: Sequence[Measurement], about: str, words: str, *, predicted: bool = False
) -> str:
    names = dict.fromkeys(one.id for one in records if _ID.fullmatch(one.id) is not None)
    if not names:
        return words
    # Every letter that Markdown could take for markup is written as its number.
    quoted = (
        quote(one_line(about), safe="").replace("_", "%5F").replace("~", "%7E") if about else ""
    )
    told = " ".join([*names][:MOST_RECORDS]) + (f"{_ABOUT}{quoted}" if quoted else "")
    told += f"{_ABOUT}predicted" if predicted else ""
    return f"{_OPEN}{told}{_END_OF_IDS}{removed(words)}{_CLOSE}"
