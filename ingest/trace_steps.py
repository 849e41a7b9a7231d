"""The steps of a trace, and what they say of the model: layers, all-reduces a step.

A step is found by an annotation (the kernels launched within it), else by a graph launch of many
kernels, else by a kernel that runs once a step at even distances, else by the repeat of layers,
which makes a step of all kernels between two gaps far longer than the others. A few kernels that
such a gap sets apart from their step do not stretch it; nor do copies, which never belong to one.
The layers are how often most kernels run in a step that has attention.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ingest.kernel_classes import Kind
from ingest.timeline import busy_before_s, gaps
from ingest.trace import MOST_STEPS, Events, Floats, Ints, Trace

How = Literal["annotation", "graph launch", "kernel that runs once a step", "repeat of layers"]

FEWEST_KERNELS = 20
FEWEST_LAYERS = 4
_FEWEST_NAMES = 3
_REPEATS_A_STEP = 8
_SPLIT_S = 1e-3
_SPLIT_TIMES = 20.0
_EVEN = 0.05
_STRAY = 0.1
_COVERED = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: seconds from the start of the trace; busy_s of all that the GPU ran meanwhile."""

    start_s: float
    end_s: float
    kernels: int
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a trace, and of a typical one: layers, all-reduces, graph launches."""

    how: How
    steps: tuple[Step, ...]
    layers: int | None
    all_reduces: int
    graph_launches: int

    @property
    def lengths_s(self) -> tuple[float, ...]:
        """Return how long each took."""
        return tuple(one.end_s - one.start_s for one in self.steps)

    @property
    def kernels(self) -> int:
        """Return the kernels of a typical step."""
        return int(np.median([one.kernels for one in self.steps]))


def steps_of(trace: Trace, kinds: Sequence[Kind]) -> Steps | None:
    """Return the steps of a trace; None where nothing tells them."""
    kernels = trace.kernels
    for how, groups in _ways(trace, kernels):
        parts = [_trimmed(kernels, group) for group in groups if len(group)]
        if parts:
            return _steps(how, parts, trace, kinds)
    return None


def launched_s(trace: Trace, events: Events) -> Floats:
    """Return when the launch of each event began; NaN where no call has its correlation."""
    calls = trace.calls
    known = np.flatnonzero(calls.correlation >= 0)
    found = np.full(len(events), np.nan)
    if not len(known) or not len(events):
        return found
    order = known[np.argsort(calls.correlation[known], kind="stable")]
    sorted_correlation = calls.correlation[order]
    at = np.searchsorted(sorted_correlation, events.correlation)
    at = np.minimum(at, len(order) - 1)
    same = sorted_correlation[at] == events.correlation
    found[same] = calls.start_s[order[at[same]]]
    return found


def _ways(trace: Trace, kernels: Events) -> Iterator[tuple[How, list[Ints]]]:
    """Yield the ways to find steps, the surest first, with the kernels of each step."""
    yield "annotation", _by_annotation(trace, kernels)
    yield "graph launch", _by_graph(trace, kernels)
    marked = _by_marker(kernels)
    if marked:
        yield "kernel that runs once a step", marked
    elif _layers(Counter(kernels.name.tolist())) is not None:
        yield "repeat of layers", _apart(kernels)


def _by_annotation(trace: Trace, kernels: Events) -> list[Ints]:
    kinds = Counter(_stem(span.name) for span in trace.spans)
    if not kinds:
        return []
    stem = max(kinds, key=lambda name: kinds[name])
    spans = sorted((span.start_s, span.end_s) for span in trace.spans if _stem(span.name) == stem)
    starts, ends = np.array(spans).T
    launched = launched_s(trace, kernels)
    at = np.searchsorted(starts, launched, side="right") - 1
    inside = (at >= 0) & ~np.isnan(launched)
    inside[inside] = launched[inside] <= ends[at[inside]]
    chosen = np.flatnonzero(inside)
    return _grouped(chosen, at[chosen])


def _stem(name: str) -> str:
    """Return an annotation's name without numbers."""
    return "".join(letter for letter in name[:200] if not letter.isdigit()).partition("(")[0]


def _by_graph(trace: Trace, kernels: Events) -> list[Ints]:
    launches = trace.calls.correlation[trace.calls_named("GraphLaunch")]
    chosen = np.flatnonzero(np.isin(kernels.correlation, launches[launches >= 0]))
    groups = _grouped(chosen, kernels.correlation[chosen])
    most = max((len(group) for group in groups), default=0)
    if most < FEWEST_KERNELS:
        return []
    return [group for group in groups if len(group) * 2 >= most]


def _by_marker(kernels: Events) -> list[Ints]:
    """Return the kernels between the calls of one that runs once a step, at even distances."""
    count = len(kernels)
    order = np.argsort(kernels.name, kind="stable")
    _, first = np.unique(kernels.name[order], return_index=True)
    calls = sorted(np.split(order, first[1:]), key=len)
    if len(calls) < _FEWEST_NAMES:
        return []
    often = len(calls[-_FEWEST_NAMES])
    for places in calls:
        if len(places) < 2 or often < _REPEATS_A_STEP * len(places):
            continue
        distances = np.diff(places)
        mean = float(distances.mean())
        even = np.ptp(distances) <= _EVEN * mean and mean >= FEWEST_KERNELS
        if even and places[-1] - places[0] + mean >= _COVERED * count:
            whole = [np.arange(a, b) for a, b in itertools.pairwise(places)]
            return [*whole, np.arange(places[-1], min(count, places[-1] + int(mean)))]
    return []


def _apart(kernels: Events) -> list[Ints]:
    """Return runs of kernels between long gaps that have at least half of the largest."""
    parts = _split(kernels, np.arange(len(kernels)))
    most = max(len(part) for part in parts)
    return [part for part in parts if 2 * len(part) >= most]


def _trimmed(kernels: Events, group: Ints) -> Ints:
    """Return a group without the few kernels at its ends that long gaps set apart."""
    parts = _split(kernels, group)
    while len(parts) > 1 and len(parts[0]) < _STRAY * len(group):
        parts = parts[1:]
    while len(parts) > 1 and len(parts[-1]) < _STRAY * len(group):
        parts = parts[:-1]
    return np.concatenate(parts)


def _split(kernels: Events, group: Ints) -> list[Ints]:
    if len(group) < 2:
        return [group]
    before, after = gaps(kernels.where(group))
    lengths = after - before
    limit = max(_SPLIT_S, _SPLIT_TIMES * float(np.percentile(lengths, 95)))
    return np.split(group, np.flatnonzero(lengths > limit) + 1)


def _grouped(chosen: Ints, key: Ints) -> list[Ints]:
    order = np.argsort(key, kind="stable")
    _, first = np.unique(key[order], return_index=True)
    return [np.sort(part) for part in np.split(chosen[order], first[1:])][:MOST_STEPS]


def _steps(how: How, parts: list[Ints], trace: Trace, kinds: Sequence[Kind]) -> Steps:
    kernels = trace.kernels
    found = tuple(_each(parts, kernels, trace))
    typical = sorted(parts, key=len)[len(parts) // 2]
    names = Counter(kernels.name[typical].tolist())
    by_class = Counter[str]()
    for name, count in names.items():
        by_class[kinds[name].name] += count
    layers = _layers(names)
    if layers is not None and by_class["attention"] < layers:
        layers = None
    launches = np.unique(kernels.correlation[typical])
    graphs = trace.calls.correlation[trace.calls_named("GraphLaunch")]
    return Steps(
        how=how,
        steps=found,
        layers=layers,
        all_reduces=by_class["all_reduce"],
        graph_launches=int(np.isin(launches, graphs[graphs >= 0]).sum()),
    )


def _each(parts: Sequence[Ints], kernels: Events, trace: Trace) -> Iterator[Step]:
    """Yield the steps by their start."""
    starts = np.array([kernels.start_s[part[0]] for part in parts])
    ends = np.array([kernels.end_s[part].max() for part in parts])
    busy = busy_before_s(trace.gpu, ends) - busy_before_s(trace.gpu, starts)
    for at in np.argsort(starts, kind="stable").tolist():
        yield Step(
            start_s=float(starts[at]),
            end_s=float(ends[at]),
            kernels=len(parts[at]),
            busy_s=float(busy[at]),
        )


def _layers(names: Counter[int]) -> int | None:
    """Return how often most kernels run, at least FEWEST_LAYERS times; None if few agree."""
    agree = Counter(count for count in names.values() if count >= FEWEST_LAYERS)
    if not agree:
        return None
    layers = max(agree, key=lambda count: (agree[count], count))
    return layers if agree[layers] >= _FEWEST_NAMES else None
