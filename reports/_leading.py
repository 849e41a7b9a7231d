"""The finding that a report of logs alone begins with: what the command that read them said first.

Of several files it names the one that it is of. Where a pass was measured or predicted, the report
begins with that, and findings have their section.
"""

from reports._collected import Collected
from reports._markdown import code, text
from reports._subject import Subject
from verifyscope import first_findings
from verifyscope.records import Finding

# What the other sentences of a verdict say where they can.
_OF_SPECULATION = frozenset(
    {"break-even", "speculation-break-even", "speculation-by-load", "cycle"}
)


def leading(subject: Subject, found: Collected) -> str:
    """Return the sentence as Markdown, without its full stop; "" where there is none."""
    if subject.measured or subject.observed is not None or subject.predicted is not None:
        return ""
    known = [
        one
        for one in found.findings
        if first_findings.place(one.name) is not None and one.name not in _OF_SPECULATION
    ]
    if not known:
        return ""
    first = min(known, key=_place)
    return f"{_of_file(first, found)}{text(first.sentence).rstrip('.')}"


def _place(one: Finding) -> tuple[int, float]:
    return first_findings.place(one.name) or 0, -(one.worth_s or 0.0)


def _of_file(one: Finding, found: Collected) -> str:
    files = list(dict.fromkeys(each.file for each in one.evidence))
    every = {each.file for finding in found.findings for each in finding.evidence}
    if not files or len(every) < 2 or files[0] in one.sentence:
        return ""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{code(files[0])}{more}: "
