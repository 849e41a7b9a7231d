"""One verify pass as SVG: what the host launches for and what the device is busy with, by mode.

A lane is as long as its seconds, in percent of the longest, so that words stay legible at any
width. A prediction has totals of each class and no order of events: so has the drawing. Colours,
hatches and borders are those of all plots (reports/_plot_style.py): a solid border is measured, a
dotted one predicted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from reports import _budget, _plot_style, _text
from reports._collected import Collected
from reports._forecast import Forecast
from reports._subject import Subject, same_case
from verifyscope import passes
from verifyscope.parts import IDLE, class_of
from verifyscope.records import Measurement, Source

_ROOM = 96.0  # percent of the width for the longest lane
_MODE_HEIGHT = 78
_HOST = "host launches"
_WHOLE = "whole pass"
_TILE = 8  # of a hatch, in pixels
_HATCHES = {
    "//": '<path d="M0 8L8 0"/>',
    "\\\\": '<path d="M0 0L8 8"/>',
    "xx": '<path d="M0 8L8 0M0 0L8 8"/>',
    "--": '<path d="M0 4H8"/>',
    "||": '<path d="M4 0V8"/>',
    "++": '<path d="M0 4H8M4 0V8"/>',
    "..": '<circle cx="4" cy="4" r=".7"/>',
    "oo": '<circle cx="4" cy="4" r="1.8"/>',
    "O": '<circle cx="4" cy="4" r="3"/>',
    "**": '<path d="M4 1V7M1 4H7M2 2L6 6M2 6L6 2"/>',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mode:
    """One way to run the pass, in seconds; `device` is (class, seconds) in the order drawn."""

    name: str
    pass_s: float
    host_s: float | None
    device: Sequence[tuple[str, float]]
    source: Source


def drawing(subject: Subject, found: Collected) -> str:
    """Return a heading and the drawing of what was measured or played of one system, or none."""
    measured, played = subject.measured, subject.predicted
    modes = [_measured(one, found) for one in measured if one.median_s]
    if played is not None and subject.forecast is not None:
        modes += _predicted(played, subject.forecast)
    if not modes:
        return ""
    titles = [f"Measured: {measured[0].case}"] if measured else []
    titles += [f"Predicted: {_budget.title(played)}"] if played is not None else []
    longest = max(
        max(one.pass_s, one.host_s or 0.0, sum(seconds for _, seconds in one.device))
        for one in modes
    )
    lanes = "".join(
        _lanes(one, top=at * _MODE_HEIGHT, scale=_ROOM / longest) for at, one in enumerate(modes)
    )
    height = len(modes) * _MODE_HEIGHT
    said = (
        f"{'. '.join(titles)}. Above what the host launches for, below what the device does, as "
        "totals: nothing here is an order of events. A dotted border is predicted, a solid one "
        "measured; the classes of a measured pass are a profiler's."
    )
    return (
        f'<h2 id="one-pass">One verify pass</h2>\n<p>{escape(said)}</p>\n'
        f'<svg class="pass" width="100%" height="{height}" role="img" '
        f'aria-label="One verify pass by mode">{_patterns()}{lanes}</svg>\n{_legend(modes)}'
    )


def _measured(one: Measurement, found: Collected) -> _Mode:
    """Return a measured mode, in classes where a profiler told them (of other passes)."""
    pass_s = one.median_s or 0.0
    told = [
        (class_of(row.part) if row.op == passes.CLASS else IDLE, row.median_s)
        for row in found.passes
        if row.op in (passes.CLASS, passes.IDLE)
        and row.launch == one.launch
        and same_case(row, one)
        and row.median_s
    ]
    where = ", on the CPU" if found.on_cpu(one) else ""
    host = one.method.get("host_launch_s")
    return _Mode(
        name=f"{one.launch or 'a pass'}, measured{where}",
        pass_s=pass_s,
        host_s=float(host) if isinstance(host, int | float) else None,
        device=told or [(_WHOLE, pass_s)],
        source="measured",
    )


def _predicted(one: _budget.Pass, whole: Forecast) -> Iterator[_Mode]:
    for mode in whole.timeline:
        if mode.median_s is None:
            continue
        idle, host = mode.dims.get("idle_s"), mode.dims.get("host_s")
        device = list(_budget.segments(one.with_components))
        if isinstance(idle, int | float) and idle > 0:
            device.append((IDLE, float(idle)))
        yield _Mode(
            name=f"{mode.implementation}, predicted"
            + (", at least" if "at-least" in mode.flags else ""),
            pass_s=mode.median_s,
            host_s=float(host) if isinstance(host, int | float) else None,
            device=device,
            source="predicted",
        )


def _lanes(one: _Mode, *, top: int, scale: float) -> str:
    words = escape(f"{one.name}: {_text.duration(one.pass_s)}")
    parts = [f'<text x="0" y="{top + 16}">{words}</text>']
    if one.host_s is not None:
        parts.append(_bar(0.0, one.host_s, _HOST, top=top + 23, height=10, scale=scale))
    left = 0.0
    for name, seconds in one.device:
        parts.append(_bar(left, seconds, name, top=top + 37, height=24, scale=scale))
        left += seconds
    parts.append(
        f'<rect x="0" y="{top + 37}" width="{one.pass_s * scale:.3f}%" height="24" fill="none" '
        f"{_plot_style.svg_border(one.source)}/>"
    )
    return "".join(parts)


def _bar(left: float, seconds: float, name: str, *, top: int, height: int, scale: float) -> str:
    said = escape(f"{name}: {_text.duration(seconds)}")
    place = f'x="{left * scale:.3f}%" y="{top}" width="{seconds * scale:.3f}%" height="{height}"'
    return f'<rect {place} fill="{_colour(name)}"><title>{said}</title></rect>{_hatch(name, place)}'


def _patterns() -> str:
    """Return the hatches, which tell classes apart where colours do not."""
    tiles = "".join(
        f'<pattern id="hatch-{at}" width="{_TILE}" height="{_TILE}" patternUnits="userSpaceOnUse" '
        f'fill="none" stroke="#fff">{shape}</pattern>'
        for at, shape in enumerate(_HATCHES.values())
    )
    return f"<defs>{tiles}</defs>"


def _hatch(name: str, place: str) -> str:
    """Return a rectangle that hatches the one below it; "" where the class has none."""
    hatch = "" if name == _HOST else _plot_style.class_hatch(name)
    if not hatch:
        return ""
    number = list(_HATCHES).index(hatch)
    return f'<rect {place} fill="url(#hatch-{number})" pointer-events="none"/>'


def _legend(modes: Sequence[_Mode]) -> str:
    """Return each colour with its seconds, for whom no colour and no pointer says them.

    Where modes differ in one, from the least to the most.
    """
    known: dict[str, list[float]] = {}
    for one in modes:
        for name, seconds in one.device:
            known.setdefault(name, []).append(seconds)
    host = [one.host_s for one in modes if one.host_s is not None]
    if host:
        known[_HOST] = host
    place = 'width="20" height="14"'
    items = "".join(
        f'<li><svg width="20" height="14" aria-hidden="true"><rect {place} fill="{_colour(name)}" '
        f'stroke="#555"/>{_hatch(name, place)}</svg> {escape(name)} {_span(several)}</li>'
        for name, several in known.items()
    )
    return f'<ul class="legend">{items}</ul>'


def _span(several: Sequence[float]) -> str:
    ends = dict.fromkeys(_text.duration(end) for end in (min(several), max(several)))
    return " to ".join(ends)


def _colour(name: str) -> str:
    return "#444444" if name == _HOST else _plot_style.class_colour(name)
