"""A conclusion: a finding before it is bound to a run, and how near it is to the verdict."""

from dataclasses import dataclass

from ingest.number import short
from verifyscope.records import Confidence, Evidence, Finding

MOST_EVIDENCE = 10


@dataclass(frozen=True, slots=True)
class Seen:
    """One observed value and where: a line, or the name of an event."""

    file: str
    line: int | str | None
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a file or several together mean. `verdict`: may it stand first."""

    name: str
    sentence: str
    seen: tuple[Seen, ...]
    next_action: str | None = None
    worth_s: float | None = None
    confidence: Confidence = "sure"
    verdict: bool = True

    def finding(self, *, environment: str, command: str) -> Finding:
        """Return the record of this conclusion."""
        return Finding(
            name=self.name,
            sentence=self.sentence,
            evidence=tuple(Evidence(*_parts(seen)) for seen in self.seen[:MOST_EVIDENCE]),
            next_action=self.next_action,
            worth_s=self.worth_s,
            confidence=self.confidence,
            environment=environment,
            command=command,
        )


def ms(seconds: float, *, digits: int = 3) -> str:
    """Return seconds as milliseconds with three digits: "30.4 ms"."""
    return f"{short(seconds * 1e3, digits=digits)} ms"


def percent(share: float) -> str:
    """Return a share with at most three digits: 0.97 -> "97 %"."""
    return f"{share * 100:.3g} %"


def listed(words: list[str]) -> str:
    """Return "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def _parts(seen: Seen) -> tuple[str, int | str | None, str]:
    return seen.file, seen.line, seen.value
