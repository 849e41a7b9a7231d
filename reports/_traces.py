"""The section of traces: what each GPU of a trace did, its classes, and the kernels that took most.

Shares are of busy time, in which what runs side by side counts once; the share of the kernel sum,
in which it counts twice, stands beside it. Nothing here was timed by this project.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reports._markdown import code, table, text
from reports._text import NOT_KNOWN, plural
from verifyscope import units
from verifyscope.records import TRACE_OPS, Measurement, Value

MOST_TRACES = 64
TOP_KERNELS = 15
_TRACE, _STEP, _CLASS, _KERNEL = TRACE_OPS


@dataclass(frozen=True, slots=True)
class Trace:
    """The rows of one GPU of one file."""

    file: str
    case: str
    rows: tuple[Measurement, ...]

    def of(self, op: str) -> list[Measurement]:
        """Return the rows of one op."""
        return [one for one in self.rows if one.op == op]


def traces(found: Sequence[Measurement]) -> list[Trace]:
    """Return the traces in the order in which they were read."""
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for one in found:
        file = one.origin.file if one.origin else ""
        groups.setdefault((file, one.case, one.command), []).append(one)
    return [Trace(file, case, tuple(rows)) for (file, case, _), rows in groups.items()]


def heading(trace: Trace) -> str:
    """Return a trace's name and what it is as a whole."""
    words = [text(trace.case)]
    if trace.file:
        words.append(f"from {code(trace.file)}")
    return ", ".join(words)


def facts(trace: Trace) -> str:
    """Return the span, what of it was busy, and a step, in a sentence."""
    said = []
    for one in trace.of(_TRACE):
        busy = one.dims.get("busy_s")
        told = f", busy {_share_of(busy, one.median_s)}" if busy is not None else ""
        counts = (_count(one.dims.get(name)) for name in ("kernels", "launches", "graph_launches"))
        kernels, launches, graphs = counts
        said.append(
            f"{_time(one.median_s)}{told}; {kernels} kernels, {launches} launches of a kernel, "
            f"{graphs} of a graph"
        )
    for one in trace.of(_STEP):
        layers = one.dims.get("layers")
        of_layers = f" of {layers} layers" if layers is not None else ""
        said.append(
            f"{plural(one.count or 0, 'step')}{of_layers}, found by {text(one.implementation)}: "
            f"{_time(one.median_s)}, {_count(one.dims.get('kernels'))} kernels, "
            f"{_count(one.dims.get('all_reduces'))} all-reduces"
        )
    return ". ".join(said)


def classes_table(trace: Trace) -> str:
    """Return the classes, the largest first."""
    rows = sorted(trace.of(_CLASS), key=lambda one: -(one.median_s or 0.0))
    lines = [
        (
            text(one.implementation),
            _time(one.median_s),
            _percent(one.dims.get("share_of_busy")),
            _percent(one.dims.get("share_of_kernel_sum")),
            _time(one.dims.get("alone_s")),
            _count(one.count),
        )
        for one in rows
    ]
    header = ("class", "time", "of busy", "of kernel sum", "alone", "calls")
    return table(header, lines, align="lrrrrr")


def kernels_table(trace: Trace) -> str:
    """Return the kernels that took most."""
    header = ("kernel", "class", "sum", "of busy", "a call", "calls")
    return table(header, list(_kernels(trace)), align="llrrrr")


def _kernels(trace: Trace) -> Iterator[tuple[str, ...]]:
    for one in trace.of(_KERNEL)[:TOP_KERNELS]:
        yield (
            code(one.implementation),
            text(one.part),
            _time(one.dims.get("sum_s")),
            _percent(one.dims.get("share_of_busy")),
            _time(one.median_s),
            _count(one.count),
        )


def _count(value: Value | None) -> str:
    return f"{value:,}" if isinstance(value, int) else NOT_KNOWN


def _time(value: Value | None) -> str:
    return units.seconds(value) if isinstance(value, float | int) else NOT_KNOWN


def _percent(value: Value | None) -> str:
    return units.percent(value) if isinstance(value, float | int) else NOT_KNOWN


def _share_of(part: Value | None, whole: float | None) -> str:
    return _percent(part / whole) if isinstance(part, float | int) and whole else NOT_KNOWN
