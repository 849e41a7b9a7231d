"""Each table says what was measured on what: a line above it, made of the records of its numbers.

"Measured on A: 8 x NVIDIA RTX PRO 6000; imported from `log.txt`." It is not said again under the
same heading while nothing changes.
"""

from collections.abc import Iterator, Mapping, Sequence

from reports import _environments, _marks, _text
from reports._collected import Collected
from reports._markdown import code, text
from verifyscope import systems
from verifyscope.records import Measurement

_MOST_FILES = 4
_MOST_GPUS = 3
_ROW, _HEADING = "| ", "#"


def said(page: str, records: Mapping[str, Measurement], found: Collected) -> str:
    """Return marked Markdown with the line above each table whose numbers are of records."""
    return "\n".join(_lines(page.split("\n"), records, found))


def _lines(
    lines: Sequence[str], records: Mapping[str, Measurement], found: Collected
) -> Iterator[str]:
    before = ""
    at = 0
    while at < len(lines):
        if lines[at].startswith(_HEADING):
            before = ""
        if not lines[at].startswith(_ROW):
            yield lines[at]
            at += 1
            continue
        end = at
        while end < len(lines) and lines[end].startswith(_ROW):
            end += 1
        block = lines[at:end]
        ids = dict.fromkeys(name for line in block for name in _marks.ids(line))
        line = sentence([records[name] for name in ids if name in records], found)
        if line and line != before:
            yield from (f"*{line}*", "")
            before = line
        yield from block
        at = end


def sentence(shown: Sequence[Measurement], found: Collected) -> str:
    """Return on which machines, from which files and for which GPUs these records are."""
    measured = dict.fromkeys(one.environment for one in shown if one.source == "measured")
    files = dict.fromkeys(
        code(file(one)) if one.origin else file(one) for one in shown if one.source == "imported"
    )
    words = []
    if measured:
        words.append(
            f"measured on {_text.listed(_environments.named(one, found) for one in measured)}"
        )
    if files:
        words.append(f"imported from {_text.listed(files, most=_MOST_FILES)}{_on(shown)}")
    gpus = dict.fromkeys(
        str(one.dims.get("gpu") or one.method.get("gpu", "a GPU that no record names"))
        for one in shown
        if one.source == "predicted"
    )
    if gpus:
        words.append(f"predicted for {_text.listed(map(text, gpus))}, measured by nobody")
    line = "; ".join(words)
    return f"{line[:1].upper()}{line[1:]}." if line else ""


def file(one: Measurement) -> str:
    """Return the file that a record was read from, as plain text."""
    return one.origin.file if one.origin else "a file that no record names"


def system(one: Measurement) -> str:
    """Return what an imported record names of its system, as plain text; empty where nothing."""
    named = systems.of_record(one)
    gpu = named.gpu or one.dims.get("gpu") or one.method.get("device")
    engine = " ".join(word for word in (named.engine, named.version) if word)
    tp = f"tp {named.tp}" if named.tp and "tp" in one.method else ""
    return " / ".join(str(word) for word in (named.model, gpu, engine, tp) if word)


def _on(shown: Sequence[Measurement]) -> str:
    named = dict.fromkeys(system(one) for one in shown if one.source == "imported")
    words = _text.listed((text(words) for words in named if words), most=_MOST_GPUS)
    return f" (on {words})" if words else ""
