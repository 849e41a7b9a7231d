"""A timeline as a Chrome trace: open it in Perfetto (ui.perfetto.dev) or chrome://tracing.

A process is a rank, its threads the host and the device's stream. ts and dur are microseconds, as
the format wants; `args` hold the part, the layer and, of a collective, what the rank waited. The
trace says in each process's name whether it is predicted, so that it passes for no measurement.
"""

from collections.abc import Iterable

import msgspec

from graphs.timeline import Timeline

_THREADS = {"host": 1, "device": 2}


def encoded(timeline: Timeline, *, title: str) -> bytes:
    """Return the trace as JSON; `title` stands beside each rank's number."""
    return msgspec.json.encode(
        {"displayTimeUnit": "ms", "traceEvents": [*_events(timeline, title)]}
    )


def _events(timeline: Timeline, title: str) -> Iterable[dict[str, object]]:
    for rank in sorted({event.rank for event in timeline.events}):
        yield _named("process_name", f"rank {rank}: {title}", pid=rank)
        for name, number in _THREADS.items():
            yield _named("thread_name", name, pid=rank, tid=number)
    for event in timeline.events:
        known = {"layer": event.layer, "waited_us": event.waited_s * 1e6 or None}
        yield {
            "name": event.name,
            "cat": event.part,
            "ph": "X",
            "pid": event.rank,
            "tid": _THREADS[event.on],
            "ts": event.start_s * 1e6,
            "dur": (event.end_s - event.start_s) * 1e6,
            "args": {"part": event.part, **{k: v for k, v in known.items() if v is not None}},
        }


def _named(what: str, name: str, **at: int) -> dict[str, object]:
    return {"name": what, "ph": "M", **at, "args": {"name": name}}
