"""What one GPU did, and what the host asked of it: columns of a trace, in seconds from its start.

Kineto and Nsight Systems fill the same columns. Kernels, copies and memsets are GPU events, told
apart by `what`; a call is what the host ran (a launch, a wait), joined to GPU events by
correlation, which all kernels under one graph launch share. Names are kept once. Nothing else of a
file gets here: no environment, no path.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

KERNEL, COPY, MEMSET = 0, 1, 2
MOST_NAMES = 20_000
MOST_STEPS = 20_000
MOST_GPUS = 64
LONGEST_S = 86_400.0
LARGEST = 2.0**53
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


Row = tuple[object, object, int, object, object, int, object, object]


@dataclass(slots=True)
class Rows:
    """Events as they are read: (start, length, name, correlation, stream, what, bytes, device).

    Times are microseconds; start is made to count from the first event of the file, so that floats
    keep nanoseconds. A row whose time is no number, negative, or over a day long is dropped.
    """

    rows: list[Row] = field(default_factory=list)
    blocks: list[Floats] = field(default_factory=list)
    dropped: int = 0

    def pack(self, origin_us: float | None) -> float | None:
        """Turn the rows into a block; return the origin, which the first block sets."""
        if not self.rows:
            return origin_us
        try:
            block = np.array(self.rows, dtype=np.float64)
        except (ValueError, TypeError):
            block = np.array([[_number(cell) for cell in row] for row in self.rows])
        self.rows.clear()
        start, length = block[:, 0], block[:, 1]
        fine = (length >= 0) & (length <= LONGEST_S * 1e6) & (np.abs(start) <= LARGEST)
        self.dropped += int((~fine).sum())
        block = block[fine]
        if not len(block):
            return origin_us
        origin = float(block[0, 0]) if origin_us is None else origin_us
        block[:, 0] -= origin
        self.blocks.append(block)
        return origin

    def events(self) -> tuple[dict[int, "Events"], int]:
        """Return the events of each device (-1: not said), and how many stood there twice."""
        if not self.blocks:
            return {}, 0
        table = np.concatenate(self.blocks)
        self.blocks.clear()
        whole = table[:, [3, 7]]
        table[:, [3, 7]] = np.where((whole >= 0) & (whole <= LARGEST), whole, -1)
        devices = np.unique(table[:, 7]).tolist()
        if len(devices) > MOST_GPUS:  # no machine has so many: the numbers mean something else
            table[:, 7], devices = -1, [-1]
        found = {int(one): _sorted(table[table[:, 7] == one]) for one in devices}
        return {one: events for one, (events, _) in found.items()}, sum(
            twice for _, twice in found.values()
        )


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


def calls_of(device: int, gpus: Mapping[int, Events], calls: Events) -> Events:
    """Return the calls that are not for another GPU: their correlation is none of its events'."""
    others = [gpu.correlation for one, gpu in gpus.items() if one != device]
    if not others:
        return calls
    return calls.where(~np.isin(calls.correlation, np.concatenate(others)))


def no_events() -> Events:
    """Return the events of a GPU that ran nothing."""
    return _sorted(np.zeros((0, 8)))[0]


def _sorted(table: Floats) -> tuple[Events, int]:
    """Return events by start, each once, and how many were there twice."""
    start, end = table[:, 0], table[:, 0] + table[:, 1]
    order = np.lexsort((table[:, 2], table[:, 3], table[:, 4], end, start))
    table, end = table[order], end[order]
    first = np.ones(len(table), dtype=bool)
    # Without a correlation nothing says that two are one.
    same = np.all(table[1:, :6] == table[:-1, :6], axis=1) & (table[1:, 3] >= 0)
    first[1:] = ~same
    table, end = table[first], end[first]
    name, cause, stream, what = (table[:, column].astype(np.int64) for column in (2, 3, 4, 5))
    events = Events(table[:, 0] * 1e-6, end * 1e-6, name, cause, stream, what, table[:, 6].copy())
    return events, int(same.sum())


def _number(value: object) -> float:
    """Return a number, also from text; NaN for anything else."""
    try:
        return float(value)  # type: ignore[arg-type]  # what is no number is caught
    except (TypeError, ValueError):
        return float("nan")


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
