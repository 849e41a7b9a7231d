"""SGLang's decode lines, old and new: 1000 x accept len x running / throughput ms a cycle.

Read are `Decode batch.`, `Decode batch,` and `Decode batch [n],` with `#token` or `#full token`,
with and without `accept len` and `cuda graph`. Without `accept len` a step yields one token.
Throughput is tokens since the line before / time since then, so that the first line after idle
time shows that idle time. The graph flag is that of the last batch. `accept rate` has two
definitions (accept len / tokens, (accept len - 1) / steps) and is never used for acceptance; where
just one of the two fits every line with a whole number, that number gives the verify tokens a
request.

Prefill lines only mark the window that they fall into: their throughput is that of a gap, not of a
pass. A number counts only where what follows it in the line is there: a cut line is not read.
"""

import math
import re
from dataclasses import dataclass, field, replace

from ingest.facts import Steps
from ingest.number import count, number
from ingest.windows import Load, Window, Windows
from verifyscope.records import Launch

SIGNS = (b"Decode batch", b"Prefill batch")
MOST_VERIFY_TOKENS = 128
_MOST_RANKS = 1024

_PIECE = re.compile(r"(?P<kind>Decode|Prefill) batch(?: \[\d+\])?[.,]")
_STAMP = re.compile(r"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)\S*((?: (?:DP|TP|PP|EP|CP)\d+)*)\]")
_FIELD = re.compile(r"[ ,]([#A-Za-z][^:,]{0,40}): ([^,\s]{1,40})(?=,)")
_GRAPH_FIELDS = ("cuda graph", "npu graph", "cpu graph")
_LAUNCHES: dict[str, Launch] = {"True": "graph", "False": "eager"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """One decode line; None where the line does not have the field."""

    running: int
    throughput: float
    tokens: int | None
    accept_len: float | None
    accept_rate: float | None
    launch: Launch | None

    @property
    def cycle_s(self) -> float:
        """Return the seconds a cycle; infinite where nothing was generated."""
        made = (1.0 if self.accept_len is None else self.accept_len) * self.running
        return made / self.throughput if self.throughput else math.inf


@dataclass(slots=True)
class _Rank:
    """What came last on one rank."""

    stamp: str = ""
    running: int | None = None
    tokens: int | None = None
    prefilled: bool = False


@dataclass(slots=True)
class Reader:
    """Reads a log line by line; `steps` gives what it found."""

    windows: Windows = field(default_factory=lambda: Windows("sglang"))
    unread: list[int] = field(default_factory=list)
    unread_count: int = 0
    duplicates: int = 0
    _rate: "_Rate" = field(default_factory=lambda: _Rate())  # it is defined below
    _ranks: dict[str, _Rank] = field(default_factory=dict)
    _last: str = ""

    def take(self, line: int, text: str) -> None:
        """Read one line."""
        if " batch" not in text:
            if "server_args=ServerArgs(" in text:
                self._ranks.clear()  # the server starts again
            return
        found = list(_PIECE.finditer(text))
        if found and text == self._last and found[0]["kind"] == "Decode":
            self.duplicates += 1
            return
        self._last = text
        for at, piece in enumerate(found):
            before = text[found[at - 1].end() if at else 0 : piece.start()]
            end = found[at + 1].start() if at + 1 < len(found) else len(text)
            key, rank = self._rank(before)
            if piece["kind"] == "Prefill":
                rank.prefilled = True
            else:
                self._decode(line, text[piece.end() : end], key=key, rank=rank)

    def steps(self, *, verify_tokens: int | None, interval: int | None) -> list[Steps]:
        """Return the cycles of each load. Both arguments are what the log's settings say."""
        tokens = verify_tokens or self._rate.verify_tokens()
        found = []
        for one in self.windows.steps(interval=interval):
            off = all(accepted == 1.0 for accepted in one.acceptances)
            known = tokens if one.mode == "verify" and not off else None
            found.append(replace(one, verify_tokens=known))
        return found

    @property
    def inferred_tokens(self) -> int | None:
        """Return the verify tokens a request that accept len and accept rate show together."""
        return self._rate.verify_tokens()

    def _rank(self, before: str) -> tuple[str, _Rank]:
        stamp = _STAMP.search(before)
        key = before[: stamp.start()] + (stamp[2] or "") if stamp else before[:64]
        if len(self._ranks) >= _MOST_RANKS and key not in self._ranks:
            self._ranks.clear()
        rank = self._ranks.setdefault(key, _Rank())
        now = stamp[1] if stamp else ""
        if now < rank.stamp:  # time goes backwards: another log begins here
            rank = self._ranks[key] = _Rank()
        rank.stamp = now
        return key, rank

    def _decode(self, line: int, text: str, *, key: str, rank: _Rank) -> None:
        decode = parse(text)
        if decode is None:
            self.unread_count += 1
            self.unread = [*self.unread, line][:10]
            rank.running = rank.tokens = None
            return
        self._rate.take(decode)
        load = Load(key, decode.running, decode.launch, decode.accept_len is not None, None)
        self.windows.add(load, self._window(line, rank, decode))
        rank.running, rank.tokens, rank.prefilled = decode.running, decode.tokens, False

    def _window(self, line: int, rank: _Rank, decode: Decode) -> Window:
        accepted = 1.0 if decode.accept_len is None else decode.accept_len
        steps = context = math.nan
        if decode.tokens is not None:
            context = decode.tokens / decode.running
            if rank.tokens is not None and rank.running == decode.running:
                steps = (decode.tokens - rank.tokens) / decode.running / accepted
        taint = "prefill" if rank.prefilled else ""
        if rank.running != decode.running:
            taint = "first"
        return Window(
            line=line,
            cycle_s=decode.cycle_s,
            acceptance=math.nan if decode.accept_len is None else decode.accept_len,
            steps=steps,
            context=context,
            taint=taint,
        )


def parse(text: str) -> Decode | None:
    """Return what follows `Decode batch` in a line; None where a number is missing or is none."""
    fields: dict[str, str] = dict(_FIELD.findall(text if text.startswith(" ") else f" {text}"))
    running = count(fields.get("#running-req", ""))
    throughput = number(fields.get("gen throughput (token/s)", ""))
    tokens = count(fields.get("#token", fields.get("#full token", "")))
    accept_len, accept_rate = fields.get("accept len"), fields.get("accept rate")
    accepted = None if accept_len is None else number(accept_len)
    if not running or throughput is None:
        return None
    if accept_len is not None and (accepted is None or not 1 <= accepted <= MOST_VERIFY_TOKENS):
        return None
    if "accept len" in text and accept_len is None:
        return None
    graph = next((fields[name] for name in _GRAPH_FIELDS if name in fields), "")
    return Decode(
        running=running,
        throughput=throughput,
        tokens=tokens,
        accept_len=accepted,
        accept_rate=None if accept_rate is None else number(accept_rate),
        launch=_LAUNCHES.get(graph),
    )


@dataclass(slots=True)
class _Rate:
    """Which numbers of verify tokens explain `accept rate`, by either definition, on every line."""

    by_tokens: set[int] = field(default_factory=lambda: set(range(2, MOST_VERIFY_TOKENS + 1)))
    by_steps: set[int] = field(default_factory=lambda: set(range(1, MOST_VERIFY_TOKENS)))
    seen: int = 0

    def take(self, decode: Decode) -> None:
        """Leave out the numbers that do not explain this line."""
        if decode.accept_len is None or decode.accept_rate is None:
            return
        self.seen += 1
        rate, accepted = decode.accept_rate, decode.accept_len
        self.by_tokens = {n for n in self.by_tokens if _explains(rate, accepted, n)}
        self.by_steps = {n for n in self.by_steps if _explains(rate, accepted - 1, n)}

    def verify_tokens(self) -> int | None:
        """Return the number, where one definition and one number alone explain all lines."""
        found = self.by_tokens | {steps + 1 for steps in self.by_steps}
        return found.pop() if self.seen and len(found) == 1 else None


def _explains(rate: float, accepted: float, divisor: int) -> bool:
    return abs(accepted / divisor - rate) <= 0.005 + 0.005 / divisor + 1e-9
