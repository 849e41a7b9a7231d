"""Component tables: what each part of a cycle takes, as `Target verify: 29.47 ms/cyc (97.0%)`.

    <label>: <mean> [± <spread>] ms/cyc[le] [(<share>%)] [... <n> cycles]

Several may stand in a line; us, ms and s are read, and /iter, /step and /tok beside /cyc. A label
that is printed again and again (a line an interval) is a series of means. The cycle is a line of
its own (`Cycle:` or `Total:`), else verify / share. Read besides:

- vLLM's first engine: `average_time_per_proposal_tok_ms=.. scoring_time_ms=..
verification_time_ms=..` - a note such as `verify (default backend)   ~400 ms` or `plain decode
forward   <100 ms`

- the tokens a cycle, as `Accept length: 1.83 tok/cyc` or `acceptance length = 1.83`

A share that is announced by a bracket and cut off makes the line one that is not read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ingest.facts import Component, Role
from ingest.number import NUMBER
from ingest.series import Series

SIGNS = (b"s/cyc", b"s/iter", b"s/step", b"s/tok", b"tok/cyc", b"scoring_time_ms=")
_MOST_LABELS = 256
_SCALE = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_UNIT = re.compile(r"s/(?:cyc|iter|step|tok)")

_LINE = re.compile(
    rf"(?P<label>[A-Za-z][\w /.+-]{{0,60}}?)\s{{0,40}}[:=]\s{{0,40}}(?P<mean>{NUMBER})"
    rf"(?:\s?(?:±|\+/-|\+-)\s?(?P<spread>{NUMBER}))?\s?(?P<unit>ms|us|µs|s)/"
    r"(?P<per>cyc(?:les?)?|iter(?:ation)?|step|tok(?:en)?)\b"
    rf"(?:\s?(?:±|\+/-|\+-)\s?(?P<after>{NUMBER})(?:\s?(?:ms|us|µs|s)\b)?)?"
    rf"(?P<share>,?\s{{0,4}}[(\[]?\s{{0,4}}(?P<percent>{NUMBER})\s?%[)\]]?)?"
)
_OPEN_SHARE = re.compile(r"\s{0,4}[(\[]\s{0,4}[\d.]{0,20}\s?%?$")
_CYCLES = re.compile(
    r"(?:\bcycles?\s?[:=]\s?|\bn\s?=\s?|\bover\s)(\d{1,12})\b|\b(\d{1,12}) cyc(?:le)?s\b"
)
_STAGES = re.compile(
    rf"average_time_per_proposal_tok_ms=(?P<proposal>{NUMBER}) "
    rf"scoring_time_ms=(?P<scoring>{NUMBER}) "
    rf"verification_time_ms=(?P<verification>{NUMBER})(?=\s|$)"
)
_NOTE = re.compile(
    rf"\s*(?P<label>(?:(?:plain|target|draft)\s)?(?:verify|decode|draft)\b[^:~<>=\t]{{0,70}}?)"
    rf"(?:\s*:\s*|\s{{2,}})(?P<sign>[~<]?)\s?(?P<mean>{NUMBER})\s?(?P<unit>ms|us)\s*"
)
_ACCEPTED = re.compile(
    rf"\baccept(?:ed|ance)?[ _]?(?:len(?:gth)?|tokens)?\s?[:=]\s{{0,20}}(?P<tokens>{NUMBER})"
    r"(?P<unit>\s?tok(?:en)?s?/cyc(?:le)?\b)?(?=[\s,;)]|$)(?!\s?(?:%|tok))",
    re.IGNORECASE,
)
NOTE_SIGN = re.compile(
    rb"^[ \t]*(?:(?:plain|target|draft)[ \t])?(?:verify|decode)\b[^:~<>=\n]{0,70}"
    rb"(?::[ \t]*|[ \t]{2,})[~<]?[ \t]?[\d.]{1,20}[ \t]?(?:ms|us)[ \t]*\r?$",
    re.MULTILINE,
)
_ROLES: tuple[tuple[str, Role], ...] = (
    (r"plain|baseline|no[ _-]?spec|vanilla|autoregressive", "plain"),
    (r"sampl|accept|reject|verification", "sampling"),
    (r"draft|propos", "draft"),
    (r"verif|target|scoring", "forward"),
    (r"^(?:cycle|total|step|all)$|(?:cycle|total) time|total cycle|per cycle", "cycle"),
    (r"host|cpu|schedul|overhead|python|other|sync", "host"),
    (r"^decode", "plain"),
)


@dataclass(slots=True)
class _Label:
    line: int
    role: Role
    values: Series = field(default_factory=lambda: Series(columns=2))
    cycles: int | None = None
    spread_s: float | None = None
    approximate: bool = False
    bound: bool = False


@dataclass(slots=True)
class Reader:
    """Reads a log line by line; `components` gives what it found."""

    labels: dict[str, _Label] = field(default_factory=dict)
    unread: list[int] = field(default_factory=list)
    unread_count: int = 0
    hidden: int = 0
    accepted: Series = field(default_factory=lambda: Series(columns=2))

    def take(self, line: int, text: str) -> None:
        """Read one line."""
        if "ccept" in text and len(text) < 200 and " batch" not in text and "etrics:" not in text:
            self._acceptance(line, text)
        if "scoring_time_ms=" in text:
            self._stages(line, text)
        elif "s/" in text and _UNIT.search(text):
            self._table(line, text)
        elif len(text) < 160 and text.rstrip().endswith(("ms", "us")):
            self._note(line, text)

    def components(self) -> Iterator[Component]:
        """Yield each label's means."""
        for label, one in self.labels.items():
            shares = [row[1] for row in one.values.rows() if row[1] == row[1]]
            yield Component(
                line=one.line,
                label=label,
                role=one.role,
                seconds=tuple(one.values.column()),
                share=sum(shares) / len(shares) if shares else None,
                cycles=one.cycles,
                spread_s=one.spread_s,
                printed=one.values.count,
                approximate=one.approximate,
                bound=one.bound,
            )

    def stated_acceptance(self) -> tuple[int, float] | None:
        """Return the first line that states the tokens a cycle, and the mean of all."""
        rows = self.accepted.rows()
        return (int(rows[0][0]), sum(row[1] for row in rows) / len(rows)) if rows else None

    def _acceptance(self, line: int, text: str) -> None:
        found = _ACCEPTED.search(text)
        named = found and (found["unit"] or "len" in found[0].lower())
        if found and named and 1 <= float(found["tokens"]) <= 128:
            self.accepted.add(float(line), float(found["tokens"]))

    def _table(self, line: int, text: str) -> None:
        cycles = _CYCLES.search(text)
        for found in _LINE.finditer(text):
            percent = float(found["percent"]) if found["percent"] else None
            whole = percent is not None or not _OPEN_SHARE.match(text, found.end())
            if not whole or (percent is not None and not 0 < percent <= 100.5):
                self._miss(line)
                continue
            spread, scale = found["spread"] or found["after"], _SCALE[found["unit"]]
            label = self._add(
                line,
                found["label"],
                float(found["mean"]) * scale,
                share=None if percent is None else min(percent / 100, 1.0),
            )
            if label is not None and spread:
                label.spread_s = float(spread) * scale
            if label is not None and cycles:
                label.cycles = int(cycles[1] or cycles[2])
            if label is not None and found["per"].startswith("tok") and label.role != "draft":
                label.role = "plain"

    def _stages(self, line: int, text: str) -> None:
        found = _STAGES.search(text)
        if found is None:
            self._miss(line)
            return
        self._add(line, "scoring", float(found["scoring"]) * 1e-3)
        self._add(line, "proposal of one token", float(found["proposal"]) * 1e-3)
        self._add(line, "verification", float(found["verification"]) * 1e-3)

    def _note(self, line: int, text: str) -> None:
        found = _NOTE.fullmatch(text)
        if found is None:
            return
        label = self._add(line, found["label"], float(found["mean"]) * _SCALE[found["unit"]])
        if label is not None:
            label.approximate, label.bound = found["sign"] == "~", found["sign"] == "<"

    def _add(
        self, line: int, name: str, seconds: float, share: float | None = None
    ) -> _Label | None:
        name = " ".join(name.split()).rstrip(" .-_")
        if not 0 < seconds < 1000:
            self._miss(line)
            return None
        if name not in self.labels and len(self.labels) >= _MOST_LABELS:
            self.hidden += 1
            return None
        label = self.labels.setdefault(name, _Label(line, role_of(name)))
        label.values.add(seconds, float("nan") if share is None else share)
        return label

    def _miss(self, line: int) -> None:
        self.unread_count += 1
        self.unread = [*self.unread, line][:10]


def role_of(label: str) -> Role:
    """Return the part of a cycle that a label names."""
    return next((role for words, role in _ROLES if re.search(words, label.lower())), "unclassified")
