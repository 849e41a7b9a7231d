"""Kineto (torch.profiler) Chrome traces, .json and .json.gz, of one rank: GPU events and calls.

Times are microseconds, whole or with nanoseconds behind the point. A file without device
properties, rank or GPU events is read; a GPU is told by args.device. Copies and memsets have
categories of their own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ingest import trace_facts
from ingest.facts import Read
from ingest.log import Log
from ingest.opening import Unreadable
from ingest.trace import (
    COPY,
    KERNEL,
    LARGEST,
    LONGEST_S,
    MEMSET,
    MOST_NAMES,
    MOST_STEPS,
    STEP,
    Names,
    Rows,
    Span,
    Trace,
    calls_of,
    is_wanted,
    no_events,
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


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` is a Chrome trace."""
    start = head[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"{"):
        return _SIGN.search(head) is not None
    return start.startswith(b"[") and _LIST_SIGN.match(head.lstrip()) is not None


def read(log: Log) -> Iterator[Read]:
    """Yield the times of each GPU, what was not read, and the facts to conclude from.

    `Unreadable` for a predicted trace: it may be looked at, and is no measurement.
    """
    reader = _read(log)
    if reader.source.predicted:
        raise Unreadable(
            f"{log.file} is a trace that python -m graphs.replay predicted, nothing in it was "
            f"measured; look at it in ui.perfetto.dev, and give one of a run"
        )
    yield from trace_facts.records(reader.traces(), reader.faults(), log)


def traces(log: Log) -> tuple[list[Trace], Faults]:
    """Return what each GPU of a file did; one without GPU events has a trace without any."""
    reader = _read(log)
    return reader.traces(), reader.faults()


def _read(log: Log) -> "_Reader":
    reader = _Reader(Reader(log.stream, log.file))
    reader.read()
    return reader


class _Wanted(dict[str, bool]):
    """Whether a call may launch, copy or wait, by name; queries are many, and tell nothing."""

    def __missing__(self, name: str) -> bool:
        known = is_wanted(name)
        if len(self) < MOST_NAMES:
            self[name] = known
        return known


@dataclass(slots=True)
class _Reader:
    """Sorts events into rows; `origin_us` is the time of the first."""

    source: Reader
    names: Names = field(default_factory=Names)
    gpu: Rows = field(default_factory=Rows)
    calls: Rows = field(default_factory=Rows)
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    streams: dict[Number, int] = field(default_factory=dict)
    wanted: _Wanted = field(default_factory=_Wanted)
    origin_us: float | None = None

    def read(self) -> None:
        """Read all events."""
        wanted = self.wanted
        for events in self.source.chunks():
            for event in events:
                category = event.cat
                if category in _CALLS:
                    if wanted[event.name]:
                        self._call(event)
                elif category in _GPU:
                    self._gpu(event, _GPU[category])
                elif category == "user_annotation":
                    self._span(event)
            self.origin_us = self.gpu.pack(self.origin_us)
            self.origin_us = self.calls.pack(self.origin_us)

    def _gpu(self, event: Event, what: int) -> None:
        args = event.args
        if not isinstance(args, Args):
            args = _NO_ARGS
        stream = event.tid if args.stream is None else args.stream
        number = self.streams.setdefault(stream, len(self.streams))
        name = self.names.id(event.name)
        self.gpu.rows.append(
            (event.ts, event.dur, name, args.correlation, number, what, args.bytes, args.device)
        )

    def _call(self, event: Event) -> None:
        cause = event.args.correlation if isinstance(event.args, Args) else None
        name = self.names.id(event.name)
        self.calls.rows.append((event.ts, event.dur, name, cause, 0, KERNEL, None, None))

    def _span(self, event: Event) -> None:
        start, length = event.ts, event.dur
        told = isinstance(start, float) and isinstance(length, float)
        if told and len(self.spans) < MOST_STEPS and STEP.match(event.name):
            self.spans.append((event.name, float(start or 0), float(length or 0)))

    def faults(self) -> Faults:
        """Return what was not read."""
        source = self.source
        return Faults(
            undecoded=source.dropped,
            untimed=self.gpu.dropped + self.calls.dropped,
            cut=source.cut,
            headless=source.headless,
            events=source.events,
        )

    def traces(self) -> list[Trace]:
        """Return a trace for each GPU."""
        gpus, twice = self.gpu.events()
        calls = self.calls.events()[0].get(-1) or no_events()
        titles = {_whole(one.id): one.name for one in self.source.devices}
        return [
            Trace(
                file=self.source.file,
                tool="kineto",
                gpu=gpu,
                calls=calls_of(device, gpus, calls),
                names=tuple(self.names.texts),
                spans=tuple(self._spans()),
                rank=self.source.rank,
                world=self.source.world,
                device=device if device >= 0 else None,
                device_name=titles.get(device) or None,
                duplicates=twice,
                overlapping=overlaps(gpu),
            )
            for device, gpu in (gpus or {-1: no_events()}).items()
        ]

    def _spans(self) -> Iterator[Span]:
        origin = self.origin_us or 0.0
        for name, start, length in self.spans:
            if 0 <= length <= LONGEST_S * 1e6 and abs(start) <= LARGEST:
                begun = (start - origin) * 1e-6
                yield Span(name=name, start_s=begun, end_s=begun + length * 1e-6)


_NO_ARGS = Args()


def _whole(value: float | str | None) -> int:
    """Return a device's number; -2, which no event has, for anything else."""
    try:
        number = float(value) if value is not None else -2.0
    except ValueError:
        return -2
    return int(number) if 0 <= number < LARGEST else -2
