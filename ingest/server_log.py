"""One pass over the log of a server or a benchmark: every grammar is offered each line.

A grammar is a file of its own: its signs (bytes, one of which a log of it holds), and a reader of
lines. What the grammars found in one file becomes one `Facts`; what they could not read, findings.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ingest import (
    benchmark_runs,
    components,
    event_timer,
    load_tables,
    named_settings,
    named_system,
    notices,
    serving_records,
    sglang,
    vllm,
)
from ingest.facts import Component, Facts, Read
from ingest.log import Log
from ingest.reading_faults import Fault, findings_on
from ingest.shipped import source_of
from verifyscope.records import Launch

SIGNS = (
    *sglang.SIGNS,
    *vllm.SIGNS,
    *components.SIGNS,
    *benchmark_runs.SIGNS,
    *event_timer.SIGNS,
    *notices.SIGNS,
)
_STARTS = ("server_args=ServerArgs(", "non-default args: ", "LLM engine (v")
EXAMPLES = (
    "[2026-01-05 10:27:56 TP0] Decode batch, #running-req: 1, #token: 186, token usage: 0.00, "
    "accept len: 1.95, accept rate: 0.49, cuda graph: True, gen throughput (token/s): 178.86, "
    "#queue-req: 0",
    "INFO 01-05 09:00:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.74, "
    "Accepted throughput: 63.40 tokens/s, Drafted throughput: 109.20 tokens/s, Accepted: 634 "
    "tokens, "
    "Drafted: 1092 tokens, Per-position acceptance rate: 0.849, 0.574, 0.319, Avg Draft acceptance "
    "rate: 58.1%",
    "Target verify: 29.47 ms/cyc (97.0%)",
    "Run 3/5: 2048 tokens in 40.24s = 50.9 tok/s",
    "label  n  gpu_total  gpu_avg  cpu_total  cpu_avg",
    "conc    no_mtp   mtp3      (below a line that says tok/s; or ctx, or bytes)",
    "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with TritonMLABackend backend (support: "
    "AttentionCGSupport.NEVER); setting cudagraph_mode=PIECEWISE",
)


def recognises(part: bytes) -> bool:
    """Say whether `part`, any part of a file, holds a sign of a serving log."""
    return any(sign in part for sign in SIGNS) or any(
        pattern.search(part) for pattern in (components.NOTE_SIGN, load_tables.SIGN)
    )


def read(log: Log) -> Iterator[Read]:
    """Yield what the file says, then a record for each time in it, and what was not read.

    A server that starts again with other arguments is as good as another file, and called so.
    """
    readers, servers, started = _Readers(), 1, ""
    takes = readers.takes()
    for number, text in log.lines:
        if any(sign in text for sign in _STARTS) and not source_of(text):
            now = _arguments(text)
            if now != started and readers.has_windows:
                yield from _told(readers, log, server=servers)
                readers, servers = _Readers(), servers + 1
                takes = readers.takes()
            started = now
        for take in takes:
            take(number, text)
    yield from _told(readers, log, server=servers)


def _told(readers: "_Readers", log: Log, *, server: int) -> Iterator[Read]:
    """Yield what was read of one server of a log."""
    if server > 1:
        log = replace(log, file=f"{log.file} (server {server})")
    facts = readers.facts(log.file)
    if not facts.empty:
        yield facts
    yield from serving_records.measurements(facts, log, about=readers.loads.about)
    yield from findings_on(readers.faults(), log)


def _arguments(text: str) -> str:
    return next(text.partition(sign)[2] for sign in _STARTS if sign in text)


@dataclass(slots=True)
class _Readers:
    """A reader of each grammar, for one file."""

    decodes: sglang.Reader = field(default_factory=sglang.Reader)
    engines: vllm.Reader = field(default_factory=vllm.Reader)
    table: components.Reader = field(default_factory=components.Reader)
    runs: benchmark_runs.Reader = field(default_factory=benchmark_runs.Reader)
    timer: event_timer.Reader = field(default_factory=event_timer.Reader)
    loads: load_tables.Reader = field(default_factory=load_tables.Reader)
    named: named_settings.Reader = field(default_factory=named_settings.Reader)
    told: notices.Reader = field(default_factory=notices.Reader)
    where: named_system.Reader = field(default_factory=named_system.Reader)

    @property
    def has_windows(self) -> bool:
        """Say whether an engine has decoded."""
        return bool(self.decodes.windows.loads or self.engines.windows.loads)

    def takes(self) -> tuple[Callable[[int, str], None], ...]:
        """Return what each line is offered to."""
        return (
            self.decodes.take,
            self.engines.take,
            self.table.take,
            self.runs.take,
            self.timer.take,
            self.loads.take,
            self.named.take,
            self.told.take,
            self.where.take,
        )

    def facts(self, file: str) -> Facts:
        """Return what all of them found; once, after the last line."""
        self.runs.end()
        self.loads.end()
        named = self.named.found
        steps = self.decodes.steps(
            verify_tokens=named_settings.whole(named, "speculative_num_draft_tokens"),
            interval=named_settings.whole(named, "decode_log_interval"),
        )
        usual = self.decodes.windows.usual_steps(named_settings.whole(named, "decode_log_interval"))
        eager = any(one.name == "graph-off" for one in self.told.notices)
        pieces = any(one.name == "graph-piecewise-fallback" for one in self.told.notices)
        launch: Launch | None = "eager" if eager else "piecewise" if pieces else None
        served = [replace(one, launch=one.launch or launch) for one in self.engines.steps()]
        return Facts(
            file=file,
            system=self.where.system,
            steps=(*steps, *served),
            components=(*self.table.components(), *self._stated()),
            runs=tuple(self.runs.runs),
            timers=tuple(self.timer.timers.values()),
            columns=tuple(self.loads.columns),
            notices=self.told.notices,
            settings=dict(named),
            stated_acceptance=self.table.stated_acceptance() or self.engines.stated_acceptance,
            summaries=tuple(self.runs.summaries),
            steps_a_window=usual,
        )

    def faults(self) -> Sequence[Fault]:
        """Return what was dropped or not read."""
        found: list[Fault] = []
        for name, reader in (("SGLang", self.decodes), ("vLLM", self.engines)):
            found += [
                Fault.windows(name, reader.windows),
                Fault.duplicates(name, reader.duplicates),
            ]
        for name, unread in (
            ("SGLang decode lines", self.decodes),
            ("vLLM metrics lines", self.engines),
            ("component lines", self.table),
            ("event-timer rows", self.timer),
            ("rows of a table", self.loads),
        ):
            found.append(Fault.unread(name, unread.unread, count=unread.unread_count))
        found += Fault.runs(self.runs)
        found.append(Fault.left_out("labels of a component table", self.table.hidden))
        found.append(Fault.changed(self.named.changed))
        return [fault for fault in found if fault.count]

    def _stated(self) -> Iterator[Component]:
        """Yield the plain step that a line states in tokens a second."""
        if self.runs.stated_plain is not None:
            line, seconds = self.runs.stated_plain
            yield Component(line=line, label="plain", role="plain", seconds=(seconds,))
