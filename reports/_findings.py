"""The section of findings: what each says, what it rests on, and what to do next.

Findings of one name and one next action stand together. The most is worth first, then the surest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reports import _text
from reports._markdown import bullets, code, text
from verifyscope.records import Confidence, Evidence, Finding

MOST_FINDINGS = 40
_MOST_EVIDENCE = 4
_ORDER: tuple[Confidence, ...] = ("sure", "likely", "hint")


@dataclass(frozen=True, slots=True)
class Shown:
    """Findings of one name as Markdown."""

    name: str
    sentences: str
    next_action: str


def shown(findings: Sequence[Finding]) -> list[Shown]:
    """Return the findings by name and next action."""
    groups: dict[tuple[str, str | None], list[Finding]] = {}
    for one in _ordered(findings)[:MOST_FINDINGS]:
        groups.setdefault((one.name, one.next_action), []).append(one)
    return [
        Shown(
            name=text(name.replace("_", " ")),
            sentences=bullets([_sentence(one) for one in group]),
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
    return sorted(
        distinct.values(), key=lambda one: (-(one.worth_s or 0.0), _ORDER.index(one.confidence))
    )


def _sentence(finding: Finding) -> str:
    worth = "" if finding.worth_s is None else f", worth {_text.duration(finding.worth_s)}"
    seen = _text.listed(map(_evidence, finding.evidence), most=_MOST_EVIDENCE)
    return f"{text(finding.sentence)} ({finding.confidence}{worth})" + (f": {seen}" if seen else "")


def _evidence(evidence: Evidence) -> str:
    place = evidence.file if evidence.at is None else f"{evidence.file}:{evidence.at}"
    return f"{text(evidence.value)} at {code(place)}"
