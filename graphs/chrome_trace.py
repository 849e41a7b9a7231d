"""A timeline as a Chrome trace: open it in Perfetto (ui.perfetto.dev) or chrome://tracing.

A process is a rank, its threads the host and the device's stream. Events look as torch.profiler
writes them: calls of the host are cudaLaunchKernel and cudaGraphLaunch, joined by `correlation` to
the kernels that they launch, and a rank is a device. ts and dur are microseconds, as the format
wants; `args` hold the part, the layer and, of a collective, what the rank waited.

A predicted trace must pass for no measurement: each process's and each device's name says what it
is, and so does the header, by which `python -m ingest` knows that there is nothing to import.
"""

from collections.abc import Iterable

import msgspec

from graphs.timeline import GRAPH, Event, Timeline
from verifyscope.predictions import PREDICTED_TRACE

_THREADS = {"host": 1, "device": 2}
_CATEGORIES = {"host": "cuda_runtime", "device": "kernel"}
_MOST_LAUNCHES = 10**6


def encoded(timeline: Timeline, *, title: str) -> bytes:
    """Return the trace as JSON; `title` stands beside each rank's number."""
    ranks = sorted({event.rank for event in timeline.events})
    return msgspec.json.encode(
        {
            "displayTimeUnit": "ms",
            PREDICTED_TRACE: True,
            "deviceProperties": [{"id": rank, "name": title} for rank in ranks],
            "traceEvents": [*_events(timeline, ranks, title)],
        }
    )


def _events(timeline: Timeline, ranks: Iterable[int], title: str) -> Iterable[dict[str, object]]:
    for rank in ranks:
        yield _named("process_name", f"rank {rank}: {title}", pid=rank)
        for name, number in _THREADS.items():
            yield _named("thread_name", name, pid=rank, tid=number)
    for event in timeline.events:
        yield {
            "name": _call(event) if event.on == "host" else event.name,
            "cat": _CATEGORIES[event.on],
            "ph": "X",
            "pid": event.rank,
            "tid": _THREADS[event.on],
            "ts": event.start_s * 1e6,
            "dur": (event.end_s - event.start_s) * 1e6,
            "args": {name: value for name, value in _args(event).items() if value is not None},
        }


def _call(event: Event) -> str:
    return "cudaGraphLaunch" if event.name == GRAPH else "cudaLaunchKernel"


def _args(event: Event) -> dict[str, object]:
    device = event.rank if event.on == "device" else None
    return {
        "op": event.name,
        "part": event.part,
        "layer": event.layer,
        "waited_us": event.waited_s * 1e6 or None,
        "correlation": event.rank * _MOST_LAUNCHES + event.launch + 1,
        "device": device,
        "stream": None if device is None else _THREADS["device"],
    }


def _named(what: str, name: str, **at: int) -> dict[str, object]:
    return {"name": what, "ph": "M", **at, "args": {"name": name}}
