"""The section of findings: what each says, what it rests on, and what to do next.

Findings of one name and one next action stand together: first what is worth most, then the surest,
of those what would stand first elsewhere (verifyscope/first_findings.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports import _marks, _packed, _text
from reports._collected import Collected
from reports._markdown import bullets, code, text
from verifyscope import first_findings
from verifyscope.records import TRACE_OPS, Confidence, Evidence, Finding, Measurement

MOST_FINDINGS = 40
_MOST_EVIDENCE = 4
_ORDER: tuple[Confidence, ...] = ("sure", "likely", "hint")

Places = Mapping[tuple[str, int | str | None], Sequence[Measurement]]


@dataclass(frozen=True, slots=True)
class Shown:
    """Findings of one name as Markdown."""

    name: str
    sentences: str
    next_action: str


def shown(found: Collected) -> list[Shown]:
    """Return the findings by name and next action; what they saw leads to the records of it."""
    findings, seen = found.findings, _by_place(found)
    groups: dict[tuple[str, str | None], list[Finding]] = {}
    for one in _ordered(findings)[:MOST_FINDINGS]:
        groups.setdefault((one.name, one.next_action), []).append(one)
    return [
        Shown(
            name=text(name.replace("_", " ")),
            sentences=bullets([_sentence(one, seen) for one in group]),
            next_action=text(action or ""),
        )
        for (name, action), group in groups.items()
    ]


def left_out(findings: Sequence[Finding]) -> int:
    """Return how many findings are not shown."""
    return max(0, len(_ordered(findings)) - MOST_FINDINGS)


def _ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings in their order; one that was met twice counts once."""
    distinct = {(one.name, one.sentence, one.evidence): one for one in findings}
    return sorted(distinct.values(), key=_place)


def _place(one: Finding) -> tuple[float, int, float]:
    place = first_findings.place(one.name)
    return (
        -(one.worth_s or 0.0),
        _ORDER.index(one.confidence),
        math.inf if place is None else place,
    )


def _by_place(found: Collected) -> Places:
    """Return the records by the file and line that they were read at, and by a kernel's name.

    A trace as a whole is at no line: it stands for all events of its file.
    """
    wanted = {(each.file, each.at) for one in found.findings for each in one.evidence}
    wanted |= {(file, None) for file, _ in wanted}
    places: dict[tuple[str, int | str | None], list[Measurement]] = {}
    for one in _packed.every(found):
        if one.origin is None:
            continue
        for at in _places(one):
            if (one.origin.file, at) in wanted:
                places.setdefault((one.origin.file, at), []).append(one)
    return places


def _places(one: Measurement) -> list[int | str | None]:
    if one.op == TRACE_OPS[0]:
        return [None]
    if one.op in TRACE_OPS:
        return [one.implementation]
    return [] if one.origin is None or one.origin.line is None else [one.origin.line]


def _sentence(finding: Finding, places: Places) -> str:
    worth = "" if finding.worth_s is None else f", worth {_text.duration(finding.worth_s)}"
    seen = _text.listed((_evidence(one, places) for one in finding.evidence), most=_MOST_EVIDENCE)
    return f"{text(finding.sentence)} ({finding.confidence}{worth})" + (f": {seen}" if seen else "")


def _evidence(evidence: Evidence, places: Places) -> str:
    place = evidence.file if evidence.at is None else f"{evidence.file}:{evidence.at}"
    seen = places.get((evidence.file, evidence.at), ())
    if not seen and not isinstance(evidence.at, int):
        seen = places.get((evidence.file, None), ())
    return f"{_marks.cited(text(evidence.value), seen, place)} at {code(place)}"
