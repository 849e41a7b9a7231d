"""The section of traces: what each GPU of a trace did, its classes, and the kernels that took most.

Shares are of busy time, in which what runs side by side counts once; the share of the kernel sum,
in which it counts twice, stands beside it. Nothing here was timed by this project.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reports import _marks, _text
from reports._kernels import known_columns
from reports._markdown import code, table, text
from reports._text import NOT_KNOWN, plural
from verifyscope import units
from verifyscope.parts import CLASSES
from verifyscope.records import TRACE_OPS, Measurement, Value

MOST_TRACES = 64
TOP_KERNELS = 15
_COUNTS = 0.05  # of the busy time: a class of less in every trace has no column
_PARTS = re.compile(r"(\D*)(\d{0,18})")
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
    """Return the traces by file and rank; numbers in a name count as numbers."""
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for one in found:
        file = one.origin.file if one.origin else ""
        groups.setdefault((file, one.case, one.command), []).append(one)
    every = [Trace(file, case, tuple(rows)) for (file, case, _), rows in groups.items()]
    return sorted(every, key=lambda one: [*map(_by_number, (one.file, one.case))])


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(digits or 0), word) for word, digits in _PARTS.findall(name)]


def overview(several: Sequence[Trace]) -> str:
    """Return a line for each trace: span, busy, a step, and the share of each class that counts."""
    shares = [{one.implementation: one for one in trace.of(_CLASS)} for trace in several]
    shown = [
        name
        for name in CLASSES
        if any(_share(by_class.get(name)) >= _COUNTS for by_class in shares)
    ]
    lines = []
    for trace, by_class in zip(several, shares, strict=True):
        whole, step = (next(iter(trace.of(op)), None) for op in (_TRACE, _STEP))
        lines.append(
            (
                text(trace.case),
                code(trace.file) if trace.file else NOT_KNOWN,
                _text.median(whole),
                NOT_KNOWN if whole is None else busy(whole),
                NOT_KNOWN if whole is None else _count(whole.dims.get("kernels")),
                NOT_KNOWN if whole is None else _count(whole.dims.get("graph_launches")),
                _text.median(step),
                *(_told_share(by_class.get(name)) for name in shown),
            )
        )
    header = (
        *("trace", "from", "span", "busy", "kernels", "graphs", "a step"),
        *(name.replace("_", " ") for name in shown),
    )
    return known_columns(header, lines, always=2, align="ll" + "r" * (len(shown) + 5))


def busy(whole: Measurement) -> str:
    """Return the share of the span in which something ran."""
    share = _share_of(whole.dims.get("busy_s"), whole.median_s)
    return _marks.derived(share, [whole], "busy_s / span")


def _share(one: Measurement | None) -> float:
    share = None if one is None else one.dims.get("share_of_busy")
    return share if isinstance(share, float) else 0.0


def _told_share(one: Measurement | None) -> str:
    if one is None:
        return NOT_KNOWN
    return _marks.told(_percent(one.dims.get("share_of_busy")), one, "share_of_busy")


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
        told = f", busy {busy(one)}" if "busy_s" in one.dims else ""
        counts = (_count(one.dims.get(name)) for name in ("kernels", "launches", "graph_launches"))
        kernels, launches, graphs = counts
        said.append(
            f"{_text.median(one)}{told}; {kernels} kernels, {launches} launches of a kernel, "
            f"{graphs} of a graph"
        )
    for one in trace.of(_STEP):
        layers = one.dims.get("layers")
        of_layers = f" of {layers} layers" if layers is not None else ""
        said.append(
            f"{plural(one.count or 0, 'step')}{of_layers}, found by {text(one.implementation)}: "
            f"{_text.median(one)}, {_count(one.dims.get('kernels'))} kernels, "
            f"{_count(one.dims.get('all_reduces'))} all-reduces"
        )
    return ". ".join(said)


def classes_table(trace: Trace) -> str:
    """Return the classes, the largest first."""
    rows = sorted(trace.of(_CLASS), key=lambda one: -(one.median_s or 0.0))
    lines = [
        (
            text(one.implementation),
            _text.median(one),
            _told_share(one),
            _marks.told(_percent(one.dims.get("share_of_kernel_sum")), one, "share_of_kernel_sum"),
            _marks.told(_time(one.dims.get("alone_s")), one, "alone_s"),
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
            _marks.told(_time(one.dims.get("sum_s")), one, "sum_s"),
            _told_share(one),
            _text.median(one),
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
