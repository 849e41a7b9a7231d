"""The time of a pass by class, as the device itself tells it: torch's profiler, read by ingest/.

Each pass is a span `forward pass N`, and, where steps can be told, each step one within it,
`forward step N`. On a GPU the times are those of kernels, copies and memsets: a class by the names
of kernels (ingest/kernel_classes.py), idle what lies between the first and the last and is none's.
A kernel belongs to the step that launched it. A graph's kernels have one launch: they are told by
their place among as many that the steps launched eagerly; if they are fewer or more, not at all.
On a CPU no kernels are to be seen: the times are those of the steps' spans, by their parts.

Seconds a pass; of several passes the median. What the profiler adds to each step is in them.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphs._stub.step import Flow, Step
from ingest import kineto
from ingest.kernel_classes import kind_of, ours, short_name
from ingest.log import Log
from ingest.trace import Events, Span, Trace
from ingest.trace_steps import launched_s
from verifyscope.parts import CLASSES, class_of

PASS, STEP = "forward pass", "forward step"
_MOST_UNKNOWN = 5
# A span is by the host's clock, a kernel by the device's.
_CLOCKS_APART_S = 5e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of some passes, in seconds a pass; None where nothing can say it.

    by: "kernels" or "spans". by_part: of each pass in turn. step_kernels: how many kernels each
    step launched. launches: calls that launched kernels or graphs.
    """

    by: str
    passes: int
    by_class_s: Mapping[str, float]
    kernels: Mapping[str, int] | None = None
    busy_s: float | None = None
    idle_s: float | None = None
    launches: int | None = None
    by_part: Mapping[str, tuple[float, ...]] | None = None
    step_kernels: tuple[int, ...] | None = None
    unknown: tuple[str, ...] = ()


def spanned(steps: Sequence[Step], flow: Flow) -> Callable[[], None]:
    """Return a pass whose steps can be told apart in a trace."""

    def run() -> None:
        for number, step in enumerate(steps):
            with torch.profiler.record_function(f"{STEP} {number}"):
                step.run(flow)

    return run


def record(run: Callable[[], object], *, passes: int, synchronize: Callable[[], None]) -> Trace:
    """Profile some passes, after one that is not kept, and read the trace back.

    Where several GPUs were seen, it is the one that ran most.
    """
    run()
    synchronize()
    # Not torch.profiler.profile around it, which imports all of torch's compiler: seconds a rank.
    device = "cuda" if torch.cuda.is_available() else None
    with torch.autograd.profiler.profile(use_kineto=True, use_device=device) as profiler:
        for number in range(passes):
            with torch.profiler.record_function(f"{PASS} {number}"):
                run()
                synchronize()
    with tempfile.TemporaryDirectory(prefix="verifyscope-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read(path)


def read(path: Path) -> Trace:
    """Read a trace of Kineto."""
    with path.open("rb") as stream:
        found, _ = kineto.traces(
            Log(file=path.name, lines=iter(()), environment="", command="", stream=stream)
        )
    return max(found, key=lambda one: len(one.gpu))


def seen(trace: Trace, steps: Sequence[Step], *, step_kernels: Sequence[int] | None = None) -> Seen:
    """Return what a trace of passes of these steps says.

    step_kernels: of a graph, how many kernels each of the steps in it launched eagerly.
    """
    passes = [one for one in trace.spans if one.name.startswith(PASS)]
    if not passes:
        raise ValueError("the trace holds no pass; the profiler kept none of its spans")
    if not len(trace.gpu):
        return _of_spans(trace, passes, steps)
    return _of_kernels(trace, passes, steps, step_kernels)


def _of_spans(trace: Trace, passes: Sequence[Span], steps: Sequence[Step]) -> Seen:
    by_part: dict[str, list[float]] = {}
    for one in passes:
        sums = dict.fromkeys((step.part for step in steps), 0.0)
        for span, number in _steps_within(trace, one):
            sums[steps[number].part] += span.end_s - span.start_s
        for part, seconds in sums.items():
            by_part.setdefault(part, []).append(seconds)
    return Seen(
        by="spans",
        passes=len(passes),
        by_class_s=_classes({part: float(np.median(times)) for part, times in by_part.items()}),
        by_part={part: tuple(times) for part, times in by_part.items()},
    )


def _steps_within(trace: Trace, whole: Span) -> Iterator[tuple[Span, int]]:
    for span in trace.spans:
        if span.name.startswith(STEP) and whole.start_s <= span.start_s <= whole.end_s:
            yield span, int(span.name.removeprefix(STEP))


def _classes(by_part: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part, seconds in by_part.items():
        found[class_of(part)] = found.get(class_of(part), 0.0) + seconds
    return {name: found[name] for name in CLASSES if name in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnePass:
    """The GPU's events of one pass, and the step of each; -1 where it is not known."""

    events: Events
    step: Any  # an array of whole numbers
    busy_s: float
    idle_s: float


def _of_kernels(
    trace: Trace,
    passes: Sequence[Span],
    steps: Sequence[Step],
    step_kernels: Sequence[int] | None,
) -> Seen:
    found = [_one_pass(trace, one, step_kernels) for one in passes]
    kinds = [kind_of(name, ours()) for name in trace.names]
    class_times: dict[str, list[float]] = {}
    for one in found:
        length = one.events.end_s - one.events.start_s
        sums: dict[str, float] = dict.fromkeys(CLASSES, 0.0)
        for name, seconds in zip(one.events.name.tolist(), length.tolist(), strict=True):
            sums[kinds[name].name] += seconds
        for name_of, seconds in sums.items():
            class_times.setdefault(name_of, []).append(seconds)
    last = found[-1].events
    counts: dict[str, int] = {
        name: sum(kinds[one].name == name for one in last.name.tolist()) for name in CLASSES
    }
    told = all((one.step >= 0).all() for one in found)
    return Seen(
        by="kernels",
        passes=len(found),
        by_class_s={n: float(np.median(t)) for n, t in class_times.items() if counts[n]},
        kernels={name: count for name, count in counts.items() if count},
        busy_s=float(np.median([one.busy_s for one in found])),
        idle_s=float(np.median([one.idle_s for one in found])),
        launches=_launches(trace, passes[-1]),
        by_part=_parts(found, steps) if told else None,
        step_kernels=_counted(found[-1], steps) if told else None,
        unknown=_unknown(trace, last, kinds),
    )


def _one_pass(trace: Trace, span: Span, step_kernels: Sequence[int] | None) -> _OnePass:
    gpu = trace.gpu
    first_s, last_s = span.start_s - _CLOCKS_APART_S, span.end_s + _CLOCKS_APART_S
    within = (gpu.start_s >= first_s) & (gpu.start_s <= last_s)
    events = gpu.where(within)
    if step_kernels is not None:
        by_place = np.repeat(np.arange(len(step_kernels)), step_kernels)
        step = by_place if len(by_place) == len(events) else np.full(len(events), -1)
    else:
        step = _by_launch(trace, events, span)
    ends = np.maximum.accumulate(events.end_s) if len(events) else events.end_s
    gaps = np.maximum(0.0, events.start_s[1:] - ends[:-1])
    whole = float(ends[-1] - events.start_s[0]) if len(events) else 0.0
    idle_s = float(gaps.sum())
    return _OnePass(events=events, step=step, busy_s=whole - idle_s, idle_s=idle_s)


def _by_launch(trace: Trace, events: Events, whole: Span) -> Any:
    """Return the step in whose span each event was launched; -1 for none."""
    spans = sorted(_steps_within(trace, whole), key=lambda pair: pair[0].start_s)
    if not spans:
        return np.full(len(events), -1)
    starts = np.array([span.start_s for span, _ in spans])
    numbers = np.array([number for _, number in spans])
    launched = launched_s(trace, events)
    at = np.searchsorted(starts, np.nan_to_num(launched, nan=-1.0), side="right") - 1
    return np.where((at >= 0) & ~np.isnan(launched), numbers[np.maximum(at, 0)], -1)


def _parts(found: Sequence[_OnePass], steps: Sequence[Step]) -> dict[str, tuple[float, ...]]:
    by_part: dict[str, list[float]] = {}
    for one in found:
        length = (one.events.end_s - one.events.start_s).tolist()
        sums = dict.fromkeys((step.part for step in steps), 0.0)
        for number, seconds in zip(one.step.tolist(), length, strict=True):
            sums[steps[number].part] += seconds
        for part, seconds in sums.items():
            by_part.setdefault(part, []).append(seconds)
    return {part: tuple(times) for part, times in by_part.items()}


def _counted(one: _OnePass, steps: Sequence[Step]) -> tuple[int, ...]:
    return tuple(np.bincount(one.step, minlength=len(steps)).tolist())


def _launches(trace: Trace, span: Span) -> int:
    calls = trace.calls.where(trace.calls_named("Launch"))
    return int(((calls.start_s >= span.start_s) & (calls.start_s <= span.end_s)).sum())


def _unknown(trace: Trace, events: Events, kinds: Sequence[Any]) -> tuple[str, ...]:
    names = dict.fromkeys(
        short_name(trace.names[one])
        for one in events.name.tolist()
        if kinds[one].name == "unclassified"
    )
    return tuple(names)[:_MOST_UNKNOWN]
