"""The tables that `python -m ingest` prints of traces: steps and classes, then the top kernels."""

from collections.abc import Iterator, Sequence

from verifyscope import units
from verifyscope.records import TRACE_OPS, Measurement, Value

TOP_KERNELS = 10
CLASS_HEADER = ("file", "case", "what", "time", "of busy", "of kernel sum", "alone", "count")
KERNEL_HEADER = ("file", "case", "kernel", "class", "sum", "of busy", "a call", "count")
_TRACE, _STEP, _CLASS, _KERNEL = TRACE_OPS


def class_rows(file: str, found: Sequence[Measurement]) -> Iterator[tuple[str, ...]]:
    """Yield the whole, a step and each class of every GPU of a file, classes by their time."""
    for one in found:
        if one.op in (_TRACE, _STEP):
            share = _busy(one)
            what = "span" if one.op == _TRACE else f"step ({one.implementation})"
            yield (file, one.case, what, _time(one.median_s), share, "", "", str(one.count))
    classes = [one for one in found if one.op == _CLASS]
    for one in sorted(classes, key=lambda one: (one.case, -(one.median_s or 0.0))):
        dims = one.dims
        yield (
            file,
            one.case,
            one.implementation,
            _time(one.median_s),
            _percent(dims.get("share_of_busy")),
            _percent(dims.get("share_of_kernel_sum")),
            _time(dims.get("alone_s")),
            f"{one.count:,}",
        )


def kernel_rows(file: str, found: Sequence[Measurement]) -> Iterator[tuple[str, ...]]:
    """Yield the kernels that took most of each GPU of a file."""
    for case in dict.fromkeys(one.case for one in found):
        mine = [one for one in found if one.op == _KERNEL and one.case == case]
        for one in mine[:TOP_KERNELS]:
            yield (
                file,
                case,
                one.implementation[:72],
                one.part,
                _time(one.dims.get("sum_s")),
                _percent(one.dims.get("share_of_busy")),
                _time(one.median_s),
                f"{one.count:,}",
            )


def _busy(one: Measurement) -> str:
    busy = one.dims.get("busy_s")
    if not isinstance(busy, float) or not one.median_s:
        return ""
    return f"{units.percent(busy / one.median_s)} busy"


def _time(value: Value | None) -> str:
    return units.seconds(value) if isinstance(value, float) else ""


def _percent(value: Value | None) -> str:
    return units.percent(value) if isinstance(value, float) else ""
