"""What of a trace was not read, or does not fit together: a finding each, never silence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingest.conclusions import Conclusion, Seen
from ingest.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Of a file: events read, events that were no JSON, events without a time, whether it ends.

    headless: what stands beside the events (devices, rank) is no whole JSON.
    """

    events: int = 0
    undecoded: int = 0
    untimed: int = 0
    cut: bool = False
    headless: bool = False


def conclusions(faults: Faults, traces: Sequence[Trace]) -> Iterator[Conclusion]:
    """Yield what a reader must know before the numbers."""
    file = traces[0].file
    if faults.cut:
        yield Conclusion(
            name="file-cut",
            sentence=f"the list of events does not end: {faults.events:,} events are read, what "
            f"follows is missing from every number",
            seen=(Seen(file, None, "no end of traceEvents"),),
            next_action="give the trace whole",
            verdict=False,
        )
    dropped = faults.undecoded + faults.untimed
    if dropped:
        yield Conclusion(
            name="events-not-read",
            sentence=f"{dropped:,} of {faults.events + faults.undecoded:,} events are damaged "
            f"or have no time, and are missing from every number",
            seen=(Seen(file, None, f"{dropped} events dropped"),),
            next_action="export the trace again",
            verdict=False,
        )
    if faults.headless:
        yield Conclusion(
            name="header-not-read",
            sentence="what stands beside the events is no whole JSON: GPU names and rank are not "
            "known",
            seen=(Seen(file, None, "header not read"),),
            next_action="export the trace again",
            verdict=False,
        )
    for trace in traces:
        yield from _in_trace(trace)


def _in_trace(trace: Trace) -> Iterator[Conclusion]:
    if trace.duplicates:
        yield Conclusion(
            name="duplicate-events",
            sentence=f"{trace.duplicates:,} GPU events stand there twice; each counts once",
            seen=(Seen(trace.file, None, f"{trace.duplicates} duplicates"),),
            verdict=False,
        )
    if trace.overlapping:
        yield Conclusion(
            name="overlap-in-stream",
            sentence=f"{trace.overlapping:,} GPU events begin before the one before them on their "
            f"stream ends, which a stream does not do: some times are wrong",
            seen=(Seen(trace.file, None, f"{trace.overlapping} overlaps"),),
            next_action="do not rely on sums and shares of this trace; record it again",
            verdict=False,
        )
