"""What one GPU did, and what the host asked of it: columns of a trace, in seconds from its start.

Kineto and Nsight Systems fill the same columns. Kernels, copies and memsets are GPU events, told
apart by `what`; a call is what the host ran (a launch, a wait), joined to GPU events by
correlation, which all kernels under one graph launch share. Names are kept once. Nothing else of a
file gets here: no environment, no path.
"""

import re
from array import array
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

KERNEL, COPY, MEMSET = 0, 1, 2
MOST_NAMES = 20_000
MOST_STEPS = 100_000
LONGEST_S = 86_400.0
OTHER_NAMES = "(further names)"
STEP = re.compile(r"ProfilerStep#\d+|execute_\w|(?i:step\[|(target_)?verify|decode_step|forward)")
_WANTED = re.compile(r"Launch|Synchronize|[Mm]em(cpy|set)")


@dataclass(slots=True)
class Names:
    """Each name once; behind MOST_NAMES they share one."""

    texts: list[str] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)

    def id(self, name: str) -> int:
        """Return the number of a name."""
        known = self.ids.get(name)
        if known is None:
            if len(self.texts) >= MOST_NAMES:
                name = OTHER_NAMES
                known = self.ids.get(name)
                if known is not None:
                    return known
            known = self.ids[name] = len(self.texts)
            self.texts.append(name)
        return known


@dataclass(slots=True)
class Columns:
    """Events as they are read: start and end in microseconds from `origin` of the trace."""

    start_us: "array[float]" = field(default_factory=lambda: array("d"))
    end_us: "array[float]" = field(default_factory=lambda: array("d"))
    name: "array[int]" = field(default_factory=lambda: array("l"))
    correlation: "array[int]" = field(default_factory=lambda: array("q"))
    stream: "array[int]" = field(default_factory=lambda: array("q"))
    what: "array[int]" = field(default_factory=lambda: array("b"))
    bytes: "array[float]" = field(default_factory=lambda: array("d"))


@dataclass(frozen=True, slots=True)
class Events:
    """GPU events or calls, by start. correlation -1: none; bytes NaN: not said."""

    start_s: Floats
    end_s: Floats
    name: Ints
    correlation: Ints
    stream: Ints
    what: Ints
    bytes: Floats

    def __len__(self) -> int:
        return len(self.start_s)

    def where(self, chosen: npt.NDArray[np.bool_] | Ints) -> "Events":
        """Return some of the events."""
        return Events(*(getattr(self, name)[chosen] for name in self.__slots__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An annotation: what the host was in, seconds from the start of the trace."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One GPU of one file. hidden_graphs: graph launches of which only the whole is recorded.

    duplicates: GPU events that stood there twice and count once; overlapping: events that last
    into the one after the next on their stream, which a stream does not do.
    """

    file: str
    tool: str
    gpu: Events
    calls: Events
    names: tuple[str, ...]
    spans: tuple[Span, ...] = ()
    rank: int | None = None
    world: int | None = None
    device: int | None = None
    device_name: str | None = None
    hidden_graphs: int = 0
    duplicates: int = 0
    overlapping: int = 0

    @property
    def kernels(self) -> Events:
        """Return the kernels."""
        return self.gpu.where(self.gpu.what == KERNEL)

    def calls_named(self, *words: str) -> npt.NDArray[np.bool_]:
        """Say for each call whether its name holds one of `words`."""
        fits = [any(word in name for word in words) for name in self.names]
        return np.array(fits, dtype=bool)[self.calls.name] if fits else np.zeros(0, bool)

    def counts(self, *words: str) -> Counter[str]:
        """Return how often each call was made whose name holds one of `words`."""
        chosen = self.calls.name[self.calls_named(*words)] if len(self.calls) else np.zeros(0, int)
        found, times = np.unique(chosen, return_counts=True)
        return Counter({self.names[one]: int(n) for one, n in zip(found, times, strict=True)})


def is_wanted(call: str) -> bool:
    """Say whether a call of the host may launch, copy or wait."""
    return _WANTED.search(call[:200]) is not None


def sorted_events(columns: Columns) -> tuple[Events, int]:
    """Return the events by start, each once, and how many were there twice."""
    start, end = np.array(columns.start_us), np.array(columns.end_us)
    kept = [np.array(one, dtype=np.int64) for one in (columns.name, columns.correlation)]
    kept += [np.array(one, dtype=np.int64) for one in (columns.stream, columns.what)]
    size = np.array(columns.bytes)
    order = np.lexsort((kept[0], kept[1], kept[2], end, start))
    table = [start[order], end[order], *(one[order] for one in kept)]
    if len(order) < 2:
        same = np.zeros(len(order), dtype=bool)
    else:
        same = np.concatenate(([False], np.all([one[1:] == one[:-1] for one in table], axis=0)))
        same &= table[3] >= 0  # without a correlation, nothing says that two are one
    first = ~same
    start, end = (one[order][first] * 1e-6 for one in (start, end))
    name, correlation, stream, what = (one[order][first] for one in kept)
    events = Events(start, end, name, correlation, stream, what, size[order][first])
    return events, int(same.sum())


def overlapping(gpu: Events) -> int:
    """Return how many events last into the one after the next on their stream.

    A kernel may begin while the one before it ends (programmatic launches), and kernels of one
    graph launch may run side by side; two kernels further, a stream is serial.
    """
    order = np.lexsort((gpu.start_s, gpu.stream))
    start, end = gpu.start_s[order], gpu.end_s[order]
    stream, cause = gpu.stream[order], gpu.correlation[order]
    if len(order) < 3:
        return 0
    other = (stream[2:] == stream[:-2]) & (cause[2:] != cause[:-2])
    return int(np.sum(other & (start[2:] < end[:-2] - 2e-6)))
