"""Where the time of a GPU went: busy + idle = span, and busy by class, by kind and by kernel.

busy_s is the union of the intervals of kernels, copies and memsets: what runs side by side counts
once, so it may be under the sum of kernels. A class has its own union, its sum, and what it alone
ran for; classes that overlap add up to more than busy. All seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest.kernel_classes import Kind, Pattern, kind_of
from ingest.trace import KERNEL, Events, Floats, Ints, Trace
from verifyscope.parts import CLASSES, Class


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTime:
    """A class: calls, its union, its sum, and what it ran for while no other class did.

    kernels_s: the sum of its kernels, without copies.
    """

    name: Class
    calls: int
    busy_s: float
    sum_s: float
    kernels_s: float
    alone_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """A kernel (or copy) by its whole name: of its calls the sum, the median, and the tail."""

    name: str
    kind: Kind
    what: int
    calls: int
    sum_s: float
    median_s: float
    p90_s: float
    p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A whole trace. sum_s and kernel_count are of kernels alone; idle_s is span_s - busy_s."""

    span_s: float
    busy_s: float
    sum_s: float
    kernel_count: int
    classes: tuple[ClassTime, ...]
    kernels: tuple[KernelTime, ...]

    @property
    def idle_s(self) -> float:
        """Return what is left of the span."""
        return max(0.0, self.span_s - self.busy_s)

    def share(self, name: Class) -> float:
        """Return a class's part of the busy time."""
        return sum(one.busy_s for one in self.classes if one.name == name) / (self.busy_s or 1.0)

    def kinds(self, name: Class) -> dict[str, float]:
        """Return the summed seconds of each kind in a class, the largest first."""
        sums: dict[str, float] = {}
        for one in self.kernels:
            if one.kind.name == name:
                sums[one.kind.kind] = sums.get(one.kind.kind, 0.0) + one.sum_s
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def kinds_of(trace: Trace, patterns: tuple[Pattern, ...]) -> list[Kind]:
    """Return the kind of each name of a trace; that of a name which no GPU event has is unused."""
    used = set(np.unique(trace.gpu.name).tolist())
    unused = Kind("unclassified", "")
    return [
        kind_of(name, patterns) if at in used else unused for at, name in enumerate(trace.names)
    ]


def class_ids(trace: Trace, kinds: Sequence[Kind]) -> Ints:
    """Return for each GPU event the place of its class in CLASSES."""
    by_name = np.array([CLASSES.index(kind.name) for kind in kinds] or [0])
    return by_name[trace.gpu.name]


def breakdown(trace: Trace, kinds: Sequence[Kind]) -> Breakdown:
    """Return where the time of a trace went."""
    gpu = trace.gpu
    kernels = gpu.what == KERNEL
    length = gpu.end_s - gpu.start_s
    classes = class_ids(trace, kinds)
    busy = union_s(gpu)
    return Breakdown(
        span_s=float(gpu.end_s.max() - gpu.start_s.min()) if len(gpu) else 0.0,
        busy_s=busy,
        sum_s=float(length[kernels].sum()),
        kernel_count=int(kernels.sum()),
        classes=tuple(
            _class_time(name, gpu, classes == at, busy)
            for at, name in enumerate(CLASSES)
            if (classes == at).any()
        ),
        kernels=tuple(_kernel_times(trace, kinds, length)),
    )


def union_s(events: Events) -> float:
    """Return how long at least one of the events ran; they are sorted by start."""
    if not len(events):
        return 0.0
    before, after = gaps(events)
    span = float(events.end_s.max() - events.start_s[0])
    return span - float((after - before).sum())


def busy_before_s(events: Events, times_s: Floats) -> Floats:
    """Return for each of `times_s` how long the events had kept the GPU busy until then."""
    if not len(events):
        return np.zeros(len(times_s))
    before, after = gaps(events)
    starts = np.concatenate((events.start_s[:1], after))
    ends = np.maximum.accumulate(events.end_s)
    pauses = np.concatenate(([0.0], np.cumsum(after - before)))
    at = np.searchsorted(starts, times_s, side="right") - 1
    reached = np.minimum(times_s, ends[np.maximum(at, 0)]) - starts[0] - pauses[np.maximum(at, 0)]
    return np.where(at >= 0, reached, 0.0)


def gaps(events: Events) -> tuple[Floats, Floats]:
    """Return begin and end of what lies before each event but the first; no gap has length 0."""
    ended = np.maximum.accumulate(events.end_s)[:-1]
    return ended, np.maximum(ended, events.start_s[1:])


def _class_time(
    name: Class, gpu: Events, chosen: npt.NDArray[np.bool_], busy_s: float
) -> ClassTime:
    mine = gpu.where(chosen)
    length = mine.end_s - mine.start_s
    return ClassTime(
        name=name,
        calls=len(mine),
        busy_s=union_s(mine),
        sum_s=float(length.sum()),
        kernels_s=float(length[mine.what == KERNEL].sum()),
        alone_s=max(0.0, busy_s - union_s(gpu.where(~chosen))),
    )


def _kernel_times(trace: Trace, kinds: Sequence[Kind], length: Floats) -> list[KernelTime]:
    """Return each name's times, the largest sum first."""
    order = np.argsort(trace.gpu.name, kind="stable")
    names, first = np.unique(trace.gpu.name[order], return_index=True)
    groups, what = np.split(length[order], first[1:]), trace.gpu.what
    found = [
        KernelTime(
            name=trace.names[name],
            kind=kinds[name],
            what=int(what[place]),
            calls=len(group),
            sum_s=float(group.sum()),
            median_s=float(middle),
            p90_s=float(p90),
            p99_s=float(p99),
        )
        for name, group, place in zip(names.tolist(), groups, order[first].tolist(), strict=False)
        if len(group)
        for middle, p90, p99 in [np.percentile(group, (50, 90, 99))]
    ]
    return sorted(found, key=lambda one: (-one.sum_s, one.name))
