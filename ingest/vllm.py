"""vLLM's engine and speculation lines: 1000 x k x running / drafted throughput ms a cycle.

k drafted tokens a cycle are counted from the per-position rates. Two identities are tested on each
pair of lines:

    mean acceptance length  = 1 + accepted / (drafted / k)
    generation throughput   = drafted throughput / k x mean acceptance length

A pair that breaks one is dropped: it spans idle time or a change of load, or its lines do not
belong together. Lines without drafted throughput (before it was printed) give running x length /
generation throughput, with only the first identity. Without speculation a step yields one token.

Of vLLM's first engine, `Speculative metrics` holds sums since the start: only acceptance is read,
as emitted x k / drafted. A number counts only where its unit follows: a cut line is not read.
"""

import math
import re
from dataclasses import dataclass, field

from ingest.facts import Steps
from ingest.number import NUMBER, short
from ingest.shipped import source_of
from ingest.windows import Load, Window, Windows

SIGNS = (b"SpecDecoding metrics:", b"Avg generation throughput:", b"Speculative metrics:")
LENGTH_WITHIN = 0.01
RATE_WITHIN = 0.01
PRINTED_WITHIN = 0.06  # one decimal of generation throughput
_MOST_ENGINES = 1024

_ENGINE = re.compile(
    rf"(?:Engine (?P<engine>\d+): )?Avg prompt throughput: (?P<prompt>{NUMBER}) tokens/s, "
    rf"Avg generation throughput: (?P<generated>{NUMBER}) tokens/s, "
    rf"Running: (?P<running>\d{{1,7}}) reqs,"
)
_POSITIONS = re.compile(rf"Per-position acceptance rate: ((?:{NUMBER}(?:, |$))+)")
_LENGTH = re.compile(rf"Mean acceptance length: ({NUMBER}),")
_ACCEPTED = re.compile(r"Accepted: (\d{1,12}) tokens,")
_DRAFTED = re.compile(r"Drafted: (\d{1,12}) tokens,")
_DRAFTED_RATE = re.compile(rf"Drafted throughput: ({NUMBER}) tokens/s,")
_OLD = re.compile(
    r"Number of speculative tokens: (\d{1,4}), Number of accepted tokens: (\d{1,12}), "
    r"Number of draft tokens: (\d{1,12}), Number of emitted tokens: (\d{1,12})\."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine line: tokens a second and running requests."""

    line: int
    engine: str
    prompt: float
    generated: float
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """One line of speculative-decoding metrics; `drafted_rate` is None in older ones."""

    drafted_tokens: int
    length: float
    accepted: int
    drafted: int
    drafted_rate: float | None

    @property
    def length_holds(self) -> bool:
        """Say whether the first identity holds."""
        cycles = self.drafted / self.drafted_tokens
        return abs(1 + self.accepted / cycles - self.length) <= LENGTH_WITHIN

    def expected_rate(self) -> float | None:
        """Return the generation throughput that the second identity asks for."""
        if self.drafted_rate is None:
            return None
        return self.drafted_rate / self.drafted_tokens * self.length

    def cycle_s(self, engine: Engine) -> float:
        """Return the seconds a cycle of a request."""
        if self.drafted_rate is not None:
            made, rate = float(self.drafted_tokens), self.drafted_rate
        else:
            made, rate = self.length, engine.generated
        return made * engine.running / rate if rate else math.inf


@dataclass(slots=True)
class Reader:
    """Reads a log line by line; `steps` gives what it found."""

    windows: Windows = field(default_factory=lambda: Windows("vllm"))
    unread: list[int] = field(default_factory=list)
    unread_count: int = 0
    duplicates: int = 0
    stated_acceptance: tuple[int, float] | None = None
    _open: dict[str, Engine] = field(default_factory=dict)
    _running: dict[str, int] = field(default_factory=dict)
    _speculative: set[str] = field(default_factory=set)
    _last: str = ""

    def take(self, line: int, text: str) -> None:
        """Read one line."""
        if "throughput:" in text or " metrics:" in text:
            self._look(line, text)

    def _look(self, line: int, text: str) -> None:
        if "Avg generation throughput:" in text:
            if text == self._last:
                self.duplicates += 1
                return
            self._last = text
            self._close(source_of(text))
            engine = self._engine(line, text)
            if engine is not None and len(self._open) < _MOST_ENGINES:
                self._open[source_of(text)] = engine
        elif "SpecDecoding metrics:" in text:
            self._drafts(line, text)
        elif "Speculative metrics:" in text:
            self._old(line, text)

    def steps(self) -> list[Steps]:
        """Return the cycles of each load."""
        for source in list(self._open):
            self._close(source)
        return list(self.windows.steps())

    def _engine(self, line: int, text: str) -> Engine | None:
        found = _ENGINE.search(text)
        if found is None:
            self._miss(line)
            return None
        return Engine(
            line=line,
            engine=source_of(text) + (found["engine"] or ""),
            prompt=float(found["prompt"]),
            generated=float(found["generated"]),
            running=int(found["running"]),
        )

    def _drafts(self, line: int, text: str) -> None:
        source = source_of(text)
        engine, drafts = self._open.pop(source, None), parse(text)
        self._speculative.add(source)
        if drafts is None:
            self._miss(line)
        if engine is None or drafts is None:
            return
        taint = self._taint(engine)
        if engine.running == 0:
            return
        cycle_s = drafts.cycle_s(engine)
        reason = _broken(engine, drafts)
        if reason is not None:
            self.windows.drop(line, cycle_s if math.isfinite(cycle_s) else None, reason)
            return
        load = Load(engine.engine, engine.running, None, True, drafts.drafted_tokens + 1)
        window = Window(line=line, cycle_s=cycle_s, acceptance=drafts.length, taint=taint)
        self.windows.add(load, window)

    def _close(self, source: str) -> None:
        """Take an engine line that no line on drafts follows as a window of plain decoding.

        In a log with drafts it is none: nothing was drafted while it ran, or the line is lost.
        """
        engine = self._open.pop(source, None)
        if engine is None:
            return
        taint = self._taint(engine)
        if source in self._speculative or not engine.running:
            return
        if not engine.generated:
            self.windows.drop(engine.line, None, "nothing was generated in it")
            return
        load = Load(engine.engine, engine.running, None, False, None)
        cycle_s = engine.running / engine.generated
        self.windows.add(load, Window(line=engine.line, cycle_s=cycle_s, taint=taint))

    def _taint(self, engine: Engine) -> str:
        before = self._running.get(engine.engine)
        if len(self._running) < _MOST_ENGINES or before is not None:
            self._running[engine.engine] = engine.running
        if before != engine.running:
            return "first"
        return "prefill" if engine.prompt else ""

    def _old(self, line: int, text: str) -> None:
        found = _OLD.search(text)
        if found is None:
            self._miss(line)
            return
        tokens, _, drafted, emitted = (int(value) for value in found.groups())
        self._speculative.add(source_of(text))
        if tokens and drafted:
            self.stated_acceptance = (line, emitted * tokens / drafted)

    def _miss(self, line: int) -> None:
        self.unread_count += 1
        self.unread = [*self.unread, line][:10]


def parse(text: str) -> Drafts | None:
    """Return the drafts that a line tells of; None where a part is missing or impossible."""
    found = [pattern.search(text) for pattern in (_POSITIONS, _LENGTH, _ACCEPTED, _DRAFTED)]
    positions, length, accepted, drafted = found
    if positions is None or length is None or accepted is None or drafted is None:
        return None
    tokens = len(positions[1].rstrip(", ").split(", "))
    rate = _DRAFTED_RATE.search(text)
    if "Drafted throughput" in text and rate is None:
        return None
    known = Drafts(
        drafted_tokens=tokens,
        length=float(length[1]),
        accepted=int(accepted[1]),
        drafted=int(drafted[1]),
        drafted_rate=None if rate is None else float(rate[1]),
    )
    return known if known.drafted > 0 and 1 <= known.length <= tokens + 1 else None


def _broken(engine: Engine, drafts: Drafts) -> str | None:
    """Return which identity a pair of lines breaks."""
    if not drafts.length_holds:
        return "its acceptance length is not 1 + accepted / (drafted / k): lines are mixed up"
    expected = drafts.expected_rate()
    if expected is None:
        return None if engine.generated else "nothing was generated in it"
    allowed = RATE_WITHIN * engine.generated + PRINTED_WITHIN
    if abs(expected - engine.generated) <= allowed:
        return None
    return (
        f"{short(engine.generated)} tokens/s were generated and {short(expected)} fit its drafts: "
        f"it spans idle time or a change of load"
    )
