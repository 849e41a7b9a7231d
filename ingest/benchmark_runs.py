"""Benchmark runs, as `Run 3/5: 2048 tokens in 40.24s = 50.9 tok/s`; by run and by token.

A line that says `Warmup` is never a run. A run whose printed rate is not tokens / seconds is not
read. Runs belong together until their index does not grow any more or their number of runs
changes. What they measure is told by the nearest heading above them, if there is one: `plain`,
`baseline`, `no speculation` or `speculative`, `EAGLE`, `MTP`. A summary that breaks off is noted.
"""

import re
from collections import deque
from dataclasses import dataclass, field

from ingest.facts import Run, Runs
from ingest.number import NUMBER

SIGNS = (b" tokens in ", b" tok/s", b" tokens/s")
RATE_WITHIN = 0.01
_MOST_RUNS = 10_000
_HEADING_LINES = 8

_RUN = re.compile(
    rf"\b[Rr]un\s{{0,3}}#?(?P<index>\d{{1,6}})\s?(?:/|of)\s?(?P<all>\d{{1,6}})\s?[:\-]\s{{0,8}}"
    rf"(?P<tokens>\d{{1,9}}) tok(?:en)?s? in (?P<seconds>{NUMBER})\s?s(?:ec(?:onds)?)?\s?"
    rf"[=,(:]+\s?(?P<rate>{NUMBER}) tok(?:en)?s?/s"
)
_BEGUN = re.compile(r"\b[Rr]un {1,3}#?\d{1,6}\s?(?:/|of)\s?\d{1,6}\s?[:\-]")
_WARMUP = re.compile(r"\bwarm[ -]?up\b", re.IGNORECASE)
_SUMMARY = re.compile(
    r"\b(?:average|mean|avg|median)\b\s?(?:\([\w ]{1,20}\))?\s?[:=]", re.IGNORECASE
)
_SUMMARY_END = re.compile(rf"\b(?P<rate>{NUMBER}) tok(?:en)?s?/s\b")
_SUMMARY_CUT = re.compile(r"[:=]\s?[\d.]{0,20}\s?(?:t|to|tok(?:ens?)?/?)?$")
PLAIN = re.compile(
    r"\b(?:plain|baseline|vanilla|autoregressive|no[ _-]?(?:spec\w*|mtp|eagle\w*|draft\w*)"
    r"|without (?:spec\w*|drafts?|mtp|eagle\w*)|spec\w*(?: "
    r"decoding)?\s?[:=]?\s?(?:off|disabled))\b",
    re.IGNORECASE,
)
SPECULATIVE = re.compile(
    r"\b(?:spec(?:ulative|ulation)?|eagle[\w-]*|mtp\d*|drafts?)\b", re.IGNORECASE
)
_PLAIN_WORDS = ("lain", "aseline", "anilla", "utoregressive")  # a quick look, before a pattern
_TIMED = re.compile(r"\d\s?[mu]s\b|\d\s?%")  # a line of a component table is no heading
_STATED = re.compile(
    rf"\b(?:plain|baseline|vanilla|autoregressive)\b[\w ,()-]{{0,40}}[:=]\s{{0,20}}"
    rf"(?P<rate>{NUMBER}) tok(?:en)?s?/s\b",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Reader:
    """Reads a log line by line; `runs` holds what it found after `end`."""

    runs: list[Runs] = field(default_factory=list)
    summaries: list[tuple[int, float]] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    disagreeing: list[int] = field(default_factory=list)
    stated_plain: tuple[int, float] | None = None
    duplicates: int = 0
    _open: list[Run] = field(default_factory=list)
    _announced: int = 0
    _warmups: int = 0
    _above: deque[str] = field(default_factory=lambda: deque(maxlen=_HEADING_LINES))
    _plain: bool | None = None
    _last: str = ""

    def take(self, line: int, text: str) -> None:
        """Read one line."""
        if len(text) > 400:
            return
        if ("arm" in text or "ARM" in text) and _WARMUP.search(text):
            self._warmups += "tok" in text
        elif "un " in text and _BEGUN.search(text):
            self._run(line, text)
        elif self._open and _SUMMARY.search(text):
            self._summary(line, text)
        elif "tok" in text and any(word in text for word in _PLAIN_WORDS):
            self._stated(line, text)
        self._above.append(text)

    def end(self) -> None:
        """Close the runs that are open."""
        if self._open:
            self.runs.append(
                Runs(
                    line=self._open[0].line,
                    runs=tuple(self._open),
                    announced=self._announced,
                    plain=self._plain,
                    warmups=self._warmups,
                )
            )
        self._open, self._announced, self._warmups = [], 0, 0

    def _stated(self, line: int, text: str) -> None:
        found = _STATED.search(text)
        if found is not None and float(found["rate"]) > 0:
            self.stated_plain = (line, 1 / float(found["rate"]))

    def _run(self, line: int, text: str) -> None:
        found = _RUN.search(text)
        if found is None:
            if "tok" in text or re.search(r"[:\-]\s*\d*$", text):
                self.cut = [*self.cut, line][:10]
            return
        index, announced = int(found["index"]), int(found["all"])
        tokens, seconds, rate = int(found["tokens"]), float(found["seconds"]), float(found["rate"])
        if not (tokens and seconds) or abs(tokens / seconds / rate - 1) > RATE_WITHIN:
            self.disagreeing = [*self.disagreeing, line][:10]
            return
        if self._open and text == self._last:
            self.duplicates += 1
            return
        self._last = text
        if self._open and (index <= self._open[-1].index or announced != self._announced):
            warmups, self._warmups = self._warmups, 0
            self.end()
            self._warmups = warmups
        if not self._open:
            self._plain = self._heading()
        if len(self._open) < _MOST_RUNS:
            self._open.append(Run(line=line, index=index, tokens=tokens, seconds=seconds))
        self._announced = announced

    def _summary(self, line: int, text: str) -> None:
        found = _SUMMARY_END.search(text)
        if found is None:
            if _SUMMARY_CUT.search(text):
                self.cut = [*self.cut, line][:10]
            return
        self.summaries = [*self.summaries, (line, float(found["rate"]))][:100]

    def _heading(self) -> bool | None:
        """Return what the nearest heading above says: plain, speculative, or nothing."""
        for text in reversed(self._above):
            if len(text) > 160 or _TIMED.search(text):
                continue
            if PLAIN.search(text):
                return True
            if SPECULATIVE.search(text):
                return False
        return None
