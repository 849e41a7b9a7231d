"""Why a GPU was idle, gap by gap: idle = launch + host sync + device + away + not known.

- host sync: a call that waits (a synchronize, a copy) lasted until the GPU had run dry; only then
  could the host launch more.
- launch: the next kernel was asked for when the GPU was, or was about to be, without work.
- device: the next kernel had been launched before: it waited for a stream, an event, a graph node.
- away: gaps of AWAY_S and more before a late launch, as between requests; no launch takes that
  long.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest.kernel_classes import readable
from ingest.timeline import gaps
from ingest.trace import Events, Floats, Trace
from ingest.trace_steps import launched_s

AWAY_S = 20e-3
_BEFORE_S = 5e-6
_SHORTEST_S = 1e-7
_WAITS = ("Synchronize", "Memcpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Seconds and counts of gaps by cause, and the call that waited most before one."""

    launch_s: float = 0.0
    sync_s: float = 0.0
    device_s: float = 0.0
    away_s: float = 0.0
    unknown_s: float = 0.0
    launches: int = 0
    syncs: int = 0
    waiter: str | None = None
    longest_s: float = 0.0


def idle_of(trace: Trace) -> Idle:
    """Return the causes of the gaps of a trace."""
    gpu = trace.gpu
    if len(gpu) < 2:
        return Idle()
    before, after = gaps(gpu)
    real = after - before > _SHORTEST_S
    following = gpu.where(np.concatenate(([False], real)))
    before, after = before[real], after[real]
    length = after - before
    launched = launched_s(trace, following)
    sync, waiters = _after_wait(trace, before, launched)
    known = ~np.isnan(launched)
    away = (length >= AWAY_S) & ~sync & ~(known & (launched < before - _BEFORE_S))
    launch = known & ~sync & ~away & (launched >= before - _BEFORE_S)
    device = known & ~sync & ~away & ~launch
    return Idle(
        launch_s=float(length[launch].sum()),
        sync_s=float(length[sync].sum()),
        device_s=float(length[device].sum()),
        away_s=float(length[away].sum()),
        unknown_s=float(length[~known & ~sync & ~away].sum()),
        launches=int(launch.sum()),
        syncs=int(sync.sum()),
        waiter=_most_waiting(waiters, length[sync], trace.names),
        longest_s=float(length.max()) if len(length) else 0.0,
    )


def _after_wait(
    trace: Trace, before: Floats, launched: Floats
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Say for each gap whether the host had waited until it began, and in which call."""
    calls = trace.calls.where(trace.calls_named(*_WAITS))
    if not len(calls):
        return np.zeros(len(before), bool), np.zeros(0, np.int64)
    last = _longest_so_far(calls)
    at = np.searchsorted(calls.start_s, before, side="right") - 1
    waiter = last[np.maximum(at, 0)]
    waited = (at >= 0) & (calls.end_s[waiter] >= before)
    waited &= np.isnan(launched) | (launched >= calls.end_s[waiter] - 1e-9)
    return waited, calls.name[waiter[waited]]


def _longest_so_far(calls: Events) -> npt.NDArray[np.int64]:
    """Return for each call the one up to it that ends last."""
    ends = np.maximum.accumulate(calls.end_s)
    newest = np.where(calls.end_s >= ends, np.arange(len(calls)), 0)
    return np.maximum.accumulate(newest)


def _most_waiting(
    waiters: npt.NDArray[np.int64], lengths: Floats, names: Sequence[str]
) -> str | None:
    sums: dict[int, float] = {}
    for waiter, length in zip(waiters.tolist(), lengths.tolist(), strict=True):
        sums[waiter] = sums.get(waiter, 0.0) + length
    if not sums:
        return None
    return readable(names[max(sums, key=lambda one: sums[one])])
