"""Kineto (torch.profiler) Chrome traces, .json and .json.gz, of one rank: GPU events and calls.

Times are microseconds, whole or with nanoseconds behind the point. A file without device
properties, rank or GPU events is read; a GPU is told by args.device, else by its pid. Copies and
memsets have categories of their own. An event whose time is no number, negative, or over a day
long is dropped and counted.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ingest import trace_facts
from ingest.facts import Read
from ingest.log import Log
from ingest.trace import (
    COPY,
    KERNEL,
    LONGEST_S,
    MEMSET,
    MOST_NAMES,
    MOST_STEPS,
    STEP,
    Columns,
    Names,
    Span,
    Trace,
    is_wanted,
    sorted_events,
)
from ingest.trace import overlapping as overlaps
from ingest.trace_events import Args, Event, Number, Reader
from ingest.trace_faults import Faults

EXAMPLE = '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": ..., "ts": ..., "dur": ...}, ...'
_GPU = {
    "kernel": KERNEL,
    "Kernel": KERNEL,
    "gpu_memcpy": COPY,
    "Memcpy": COPY,
    "gpu_memset": MEMSET,
    "Memset": MEMSET,
}
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime"})
_SIGN = re.compile(rb'(?<!\\)"(traceEvents|deviceProperties)"\s*:\s*\[')
_LIST_SIGN = re.compile(rb'\[\s*\{[^{}]{0,4000}"ph"\s*:\s*"\w"')
_LARGEST_US = 2.0**53


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` is a Chrome trace."""
    start = head[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"{"):
        return _SIGN.search(head) is not None
    return start.startswith(b"[") and _LIST_SIGN.match(head.lstrip()) is not None


def read(log: Log) -> Iterator[Read]:
    """Yield the times of each GPU, what was not read, and the facts to conclude from."""
    found, faults = traces(log)
    yield from trace_facts.records(found, faults, log)


def traces(log: Log) -> tuple[list[Trace], Faults]:
    """Return what each GPU of a file did; one without GPU events has a trace without any."""
    reader = _Reader(Reader(log.stream, log.file))
    reader.read()
    return reader.traces(), reader.faults()


@dataclass(slots=True)
class _Reader:
    """Sorts events into columns; `origin_us` is the time of the first, so that floats stay fine."""

    source: Reader
    names: Names = field(default_factory=Names)
    gpus: dict[int, Columns] = field(default_factory=dict)
    calls: Columns = field(default_factory=Columns)
    spans: list[Span] = field(default_factory=list)
    origin_us: float | None = None
    untimed: int = 0
    streams: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, bool] = field(default_factory=dict)

    def read(self) -> None:
        """Read all events."""
        for events in self.source.chunks():
            for event in events:
                category = event.cat
                if category in _GPU:
                    self._gpu(event, _GPU[category])
                elif category in _CALLS and self._is_wanted(event.name):
                    self._call(event)
                elif category == "user_annotation":
                    self._span(event)

    def _is_wanted(self, name: str) -> bool:
        """Say whether a call may launch, copy or wait; queries are many, and tell nothing."""
        known = self.wanted.get(name)
        if known is None:
            known = is_wanted(name)
            if len(self.wanted) < MOST_NAMES:
                self.wanted[name] = known
        return known

    def _times(self, event: Event) -> tuple[float, float] | None:
        """Return start and end from the origin; None, counted, where they are none."""
        start, length = _number(event.ts), _number(event.dur)
        fine = 0 <= length <= LONGEST_S * 1e6 and abs(start) <= _LARGEST_US  # NaN is not
        if not fine:
            self.untimed += 1
            return None
        if self.origin_us is None:
            self.origin_us = start
        start -= self.origin_us
        return start, start + length

    def _gpu(self, event: Event, what: int) -> None:
        times = self._times(event)
        if times is None:
            return
        args = event.args if isinstance(event.args, Args) else _NO_ARGS
        columns = self.gpus.setdefault(_whole(args.device), Columns())
        self._add(columns, event.name, times, _whole(args.correlation))
        columns.stream[-1] = self._stream(args.stream if args.stream is not None else event.tid)
        columns.what[-1] = what
        columns.bytes[-1] = _number(args.bytes)

    def _call(self, event: Event) -> None:
        times = self._times(event)
        if times is not None:
            args = event.args if isinstance(event.args, Args) else _NO_ARGS
            self._add(self.calls, event.name, times, _whole(args.correlation))
            self.calls.stream[-1] = self._stream(event.tid)

    def _span(self, event: Event) -> None:
        if len(self.spans) >= MOST_STEPS or not STEP.match(event.name):
            return
        times = self._times(event)
        if times is not None:
            start, end = times
            self.spans.append(Span(name=event.name, start_s=start * 1e-6, end_s=end * 1e-6))

    def _add(
        self, columns: Columns, name: str, times: tuple[float, float], correlation: int
    ) -> None:
        columns.start_us.append(times[0])
        columns.end_us.append(times[1])
        columns.name.append(self.names.id(name))
        columns.correlation.append(correlation)
        columns.stream.append(-1)
        columns.what.append(KERNEL)
        columns.bytes.append(math.nan)

    def _stream(self, name: Number) -> int:
        return self.streams.setdefault(str(name), len(self.streams))

    def faults(self) -> Faults:
        """Return what was not read."""
        source = self.source
        return Faults(
            dropped=source.dropped + self.untimed,
            cut=source.cut,
            headless=source.headless,
            events=source.events,
        )

    def traces(self) -> list[Trace]:
        """Return a trace for each GPU."""
        calls, _ = sorted_events(self.calls)
        titles = {_whole(_as_number(one.id)): one.name for one in self.source.devices}
        found = []
        for device, columns in self.gpus.items() or ((-1, Columns()),):
            gpu, twice = sorted_events(columns)
            found.append(
                Trace(
                    file=self.source.file,
                    tool="kineto",
                    gpu=gpu,
                    calls=calls,
                    names=tuple(self.names.texts),
                    spans=tuple(self.spans),
                    rank=self.source.rank,
                    world=self.source.world,
                    device=device if device >= 0 else None,
                    device_name=titles.get(device) or None,
                    duplicates=twice,
                    overlapping=overlaps(gpu),
                )
            )
        return found


_NO_ARGS = Args()


def _as_number(value: int | float | str | None) -> Number:
    return float(value) if isinstance(value, int) else value


def _number(value: Number) -> float:
    """Return a number, also from text; NaN for anything else."""
    if isinstance(value, float):
        return value
    try:
        return float(value) if value is not None else math.nan
    except ValueError:
        return math.nan


def _whole(value: Number) -> int:
    """Return a whole number from 0; -1 for anything else."""
    number = _number(value)
    return int(number) if 0 <= number < _LARGEST_US else -1
