"""The plots of a report: PNG files that are the same bytes for the same records.

How they look is in `_plot_style.py`. Nothing of matplotlib is imported before a plot is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reports import _plot_style as style
from reports import _text
from verifyscope import units
from verifyscope.records import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 8
_FAR_APART = 50.0  # times the fastest line: on a linear axis it would lie on the floor
_TICKS_APART = 0.033  # of the width of an axis
_MARKS_APART = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A labelled line, and its intervals as a `band` of lower and upper ends.

    y: NaN where there is no time, at which the line breaks. `colour` is the number of its colour
    and marks where two lines share them; then the `second` of them is dash-dotted. fit: base and
    slope in seconds, to be drawn from T = 0. is_floor: in grey, and not one of the series.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    source: Source = "measured"
    colour: int | None = None
    second: bool = False
    fit: tuple[float, float] | None = None
    is_floor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar in segments of (class, seconds); `floor_s` is marked on it, `note` stands behind it."""

    label: str
    segments: Sequence[tuple[str, float]]
    floor_s: float | None
    note: str
    source: Source = "predicted"


def time_against_bytes(
    path: Path, lines: Sequence[Line], *, title: str, marks: Iterable[tuple[float, str]]
) -> None:
    """Plot seconds against bytes, both logarithmic; `marks` are sizes with a name."""
    named = list(marks)

    def draw(axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _draw_lines(axes, lines)
        _size_axis(axes, lines)
        style.log_seconds(axes.yaxis, "time of a call", ends=_ends(lines), room=2 if named else 1.3)
        _draw_marks(axes, named)
        style.heading(axes, title)

    style.save(path, draw, height=4.2)


def time_against_tokens(path: Path, lines: Sequence[Line], *, title: str) -> None:
    """Plot seconds against T from 0: a slope is what a drafted token costs, T = 0 is the base.

    Where the lines lie far apart, time is logarithmic: on a linear axis the fast ones would lie on
    the floor.
    """
    tops = [max(_known(line.y)) for line in lines if not line.is_floor]
    is_log = max(tops) > _FAR_APART * min(tops)

    def draw(axes: Axes) -> None:
        most = max(x for line in lines for x in line.x)
        axes.set_xlim(0, 1.04 * most)
        if is_log:
            axes.set_yscale("log")
        _draw_lines(axes, lines)
        ends = _ends(lines)
        if is_log:
            style.log_seconds(axes.yaxis, "time of a call", ends=ends)
        else:
            axes.set_ylim(0, 1.06 * max(ends))
            style.seconds(axes.yaxis, "time of a call", most=max(ends))
        measured = (x for line in lines for x in line.x)
        places = style.apart(measured, least=_TICKS_APART * most)
        axes.set_xticks([*([0] if places[0] >= _TICKS_APART * most else []), *places])
        axes.set_xlabel("T [tokens a verify]")
        style.heading(axes, title)

    style.save(path, draw, height=4.0)


def budget(path: Path, bars: Sequence[Bar], *, title: str) -> None:
    """Plot each bar's seconds by class, with the byte floor as a line across it."""
    longest = max(sum(seconds for _, seconds in bar.segments) for bar in bars)

    def draw(axes: Axes) -> None:
        for at, bar in enumerate(bars):
            _draw_bar(axes, bar, at=at, longest=longest)
        style.names(axes, [bar.label for bar in bars] if len(bars) > 1 else [""])
        axes.set_xlim(0, longest * 1.5)
        style.seconds(axes.xaxis, "time of a pass on one rank", most=longest)
        style.heading(axes, title if len(bars) > 1 else f"{title}: {bars[0].label}")
        style.legend(axes, columns=4, bars=[bar.source for bar in bars])

    style.save(path, draw, height=1.0 + 0.62 * len(bars))


def what_if(
    path: Path, steps: Sequence[tuple[str, float]], *, floor_s: float | None, title: str
) -> None:
    """Plot the first seconds whole, then what each further step takes off, and what is left."""
    longest = max(seconds for _, seconds in steps)

    def draw(axes: Axes) -> None:
        before = steps[0][1]
        for at, (_, after) in enumerate(steps):
            whole = at == 0
            low, high = (0.0, after) if whole else sorted((before, after))
            style.step(axes, at, (low, high), is_more=None if whole else after > before)
            change = "" if whole else f" ({_text.change(after - before)})"
            style.say(axes, f"{units.seconds(after)}{change}", high, at)
            before = after
        if floor_s is not None:
            axes.axvline(floor_s, color="black", linewidth=1.2, label="byte floor of all its rows")
        style.legend(axes, columns=2, bars=["predicted"])
        style.names(axes, [name for name, _ in steps], lines=2)
        axes.set_xlim(0, longest * 1.3)
        style.seconds(axes.xaxis, "time of a pass on one rank", most=longest)
        style.heading(axes, title)

    style.save(path, draw, height=0.9 + 0.34 * len(steps))


def _draw_bar(axes: Axes, bar: Bar, *, at: int, longest: float) -> None:
    left = 0.0
    for name, seconds in bar.segments:
        colour = style.class_colour(name)
        axes.barh(
            at,
            seconds,
            left=left,
            height=style.BAR,
            color=colour,
            hatch=style.class_hatch(name),
            edgecolor="white",
            label=name,
            linewidth=0,
        )
        if seconds > 0.09 * longest:
            axes.text(
                left + seconds / 2,
                at,
                units.seconds(seconds),
                ha="center",
                va="center",
                fontsize=8,
                color=style.ink(colour),
                bbox={"facecolor": colour, "linewidth": 0, "pad": 1.5},
            )
        left += seconds
    axes.barh(at, left, height=style.BAR, **style.border(bar.source))
    if bar.floor_s is not None:
        ends = [at - 0.4, at + 0.4]
        axes.plot([bar.floor_s] * 2, ends, color="black", linewidth=1.6, label="byte floor")
    style.say(axes, bar.note, max(left, bar.floor_s or 0.0), at)


def _draw_lines(axes: Axes, lines: Sequence[Line]) -> None:
    for number, line in enumerate(lines):
        at = number if line.colour is None else line.colour
        if line.is_floor:
            looks = style.line(0, line.source, colour=style.GREY)
        else:
            looks = style.line(at, line.source)
        if line.second:
            looks["linestyle"] = "-."
        axes.plot(line.x, line.y, label=line.label, **looks)
        if line.band is not None:
            axes.fill_between(line.x, *line.band, color=looks["color"], alpha=0.15, linewidth=0)
        untimed = [x for x, y in zip(line.x, line.y, strict=True) if math.isnan(y)]
        if untimed:
            style.untimed(axes, untimed, str(looks["color"]))
        if line.fit is not None:
            _draw_fit(axes, line, str(looks["color"]))
    style.legend(
        axes,
        columns=1,
        sources=[line.source for line in lines],
        band=any(line.band for line in lines),
    )


def _draw_fit(axes: Axes, line: Line, colour: str) -> None:
    base, slope = line.fit or (0.0, 0.0)
    most = max(line.x)
    places = [most * step / 32 for step in range(33)]
    times = [base + slope * at for at in places]
    axes.plot(
        places, [time if time > 0 else math.nan for time in times], color=colour, linewidth=0.7
    )


def _size_axis(axes: Axes, lines: Sequence[Line]) -> None:
    sizes = [x for line in lines for x in line.x]
    axes.set_xlim(min(sizes) / 1.3, max(sizes) * 1.3)
    axes.xaxis.set_major_formatter(lambda at, _: units.binary_size(int(at)) if at >= 1 else "")
    axes.set_xlabel("message size [bytes]")


def _draw_marks(axes: Axes, marks: Sequence[tuple[float, str]]) -> None:
    """Draw a line at each size, and its name where there is room for it."""
    low, high = axes.get_xlim()
    inside = [(at, name) for at, name in marks if low <= at <= high]
    least = _MARKS_APART * math.log(high / low)
    shown = style.apart((math.log(at) for at, _ in inside), least=least)
    for at, name in inside:
        axes.axvline(at, color=style.GREY, linewidth=0.6, linestyle=":", zorder=0)
        if math.log(at) not in shown:
            continue
        axes.annotate(
            name,
            (at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, -2),
            textcoords="offset points",
            rotation=90,
            va="top",
            fontsize=7,
            color=style.GREY,
        )


def _ends(lines: Sequence[Line]) -> list[float]:
    """Return every time that a plot has to show."""
    return [y for line in lines for ys in (line.y, *(line.band or ())) for y in _known(ys)]


def _known(times: Sequence[float]) -> list[float]:
    return [time for time in times if math.isfinite(time)]
