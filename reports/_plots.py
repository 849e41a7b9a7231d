"""The plots of a report: PNG files that are the same bytes for the same records.

How they look is in `_plot_style.py`. Nothing here is imported before a plot is made.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reports._plot_style import COLOURS, GREY, MARKERS, heading, legend, save, tick
from verifyscope import units
from verifyscope.parts import CLASSES, IDLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 8
_CLASS_COLOURS: dict[str, str] = dict(
    zip(CLASSES, COLOURS, strict=True)
)  # the same in every report
_PALE = "#cfcfcf"
_LESS, _MORE = COLOURS[2], COLOURS[1]
_LABEL_WIDTH = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A labelled line, and its intervals as a `band` of lower and upper ends.

    A `hollow` one is dashed, with empty markers: nobody measured it here. `colour` is the number of
    its colour and marker where two lines share them; then one of the two is `dotted`.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    hollow: bool = False
    colour: int | None = None
    dotted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar in segments of (class, seconds); `floor_s` is marked on it, `note` stands behind it."""

    label: str
    segments: Sequence[tuple[str, float]]
    floor_s: float | None
    note: str


def colour(name: str) -> str:
    """Return the colour of a class, of idle time, or of what is neither."""
    return _PALE if name == IDLE else _CLASS_COLOURS.get(name, GREY)


def time_against_bytes(
    path: Path, lines: Sequence[Line], *, title: str, marks: Iterable[tuple[float, str]]
) -> None:
    """Plot seconds against bytes, both logarithmic; `marks` are sizes with a name."""

    def draw(axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _draw_lines(axes, lines)
        for at, name in marks:
            axes.axvline(at, color=GREY, linewidth=0.6, linestyle=":", zorder=0)
            axes.annotate(
                name,
                (at, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(2, -2),
                textcoords="offset points",
                rotation=90,
                va="top",
                fontsize=7,
                color=GREY,
            )
        axes.xaxis.set_major_formatter(lambda at, _: _binary(at))
        _log_ticks(axes, lines)
        axes.set_xlabel("message size [bytes]")
        axes.set_ylabel("time of a call")
        heading(axes, title + _about_bands(lines))

    save(path, draw, height=4.6 + 0.16 * len(lines))


def time_against_tokens(path: Path, lines: Sequence[Line], *, title: str) -> None:
    """Plot seconds against T, both linear and from 0: a slope is what a drafted token costs."""

    def draw(axes: Axes) -> None:
        _draw_lines(axes, lines)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xticks(sorted({x for line in lines for x in line.x}))
        axes.yaxis.set_major_formatter(lambda at, _: tick(at))
        axes.set_xlabel("T, tokens a verify")
        axes.set_ylabel("time of a call")
        heading(axes, title + _about_bands(lines))

    save(path, draw, height=4.2 + 0.16 * len(lines))


def budget(path: Path, bars: Sequence[Bar], *, title: str) -> None:
    """Plot each bar's seconds by class, with the byte floor as a line across it."""
    classes = {name for bar in bars for name, _ in bar.segments}
    longest = max(sum(seconds for _, seconds in bar.segments) for bar in bars)

    def draw(axes: Axes) -> None:
        for at, bar in enumerate(bars):
            _draw_bar(axes, bar, at=at, longest=longest)
        labels = [textwrap.fill(bar.label, _LABEL_WIDTH, break_on_hyphens=False) for bar in bars]
        axes.set_yticks(range(len(bars)), labels if len(bars) > 1 else [""])
        axes.invert_yaxis()
        axes.set_xlim(0, longest * 1.5)
        axes.xaxis.set_major_formatter(lambda at, _: tick(at))
        axes.set_xlabel("predicted time of a pass on one rank")
        heading(axes, title if len(bars) > 1 else f"{title}: {bars[0].label}")
        axes.grid(axis="y", visible=False)
        legend(axes, columns=4)

    save(path, draw, height=1.8 + 0.62 * len(bars) + 0.2 * (len(classes) // 4))


def waterfall(
    path: Path, steps: Sequence[tuple[str, float]], *, floor_s: float | None, title: str
) -> None:
    """Plot the first seconds whole, then what each further step takes off, and what is left."""
    longest = max(seconds for _, seconds in steps)

    def draw(axes: Axes) -> None:
        before = steps[0][1]
        for at, (_, after) in enumerate(steps):
            whole = at == 0
            low, high = (0.0, after) if whole else sorted((before, after))
            colour = GREY if whole else _LESS if after <= before else _MORE
            axes.barh(at, high - low, left=low, height=0.6, color=colour, linewidth=0)
            change = "" if whole else f" ({_signed(after - before)})"
            axes.annotate(
                f"{units.seconds(after)}{change}",
                (high, at),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
            before = after
        if floor_s is not None:
            axes.axvline(floor_s, color="black", linewidth=1.2, label="byte floor of all its rows")
            legend(axes, columns=1)
        axes.set_yticks(range(len(steps)), [name for name, _ in steps])
        axes.invert_yaxis()
        axes.set_xlim(0, longest * 1.25)
        axes.xaxis.set_major_formatter(lambda at, _: tick(at))
        axes.set_xlabel("predicted time of a pass on one rank")
        axes.grid(axis="y", visible=False)
        heading(axes, title)

    save(path, draw, height=1.6 + 0.34 * len(steps))


def _signed(seconds: float) -> str:
    if not seconds:
        return "no change"
    return f"{'+' if seconds > 0 else '-'}{units.seconds(abs(seconds))}"


def _draw_lines(axes: Axes, lines: Sequence[Line]) -> None:
    for number, line in enumerate(lines):
        at = number if line.colour is None else line.colour
        colour = COLOURS[at % len(COLOURS)]
        axes.plot(
            line.x,
            line.y,
            label=line.label,
            color=colour,
            marker=MARKERS[at % len(MARKERS)],
            markersize=4.5,
            markerfacecolor="white" if line.hollow else colour,
            linewidth=1.4,
            linestyle="--" if line.hollow else ":" if line.dotted else "-",
        )
        if line.band is not None:
            axes.fill_between(line.x, *line.band, color=colour, alpha=0.15, linewidth=0)
    if len(lines) > 1:
        legend(axes, columns=1)


def _about_bands(lines: Sequence[Line]) -> str:
    return " (shaded: 95 % interval)" if any(line.band for line in lines) else ""


def _log_ticks(axes: Axes, lines: Sequence[Line]) -> None:
    """Label each power of ten, and 2 and 5 times it where there are few."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ends = [y for line in lines for ys in (line.y, *(line.band or ())) for y in ys]
    least, most = min(y for y in ends if y > 0), max(ends)
    few = most < 500 * least
    axes.set_ylim(least / 1.3, most * 1.3)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=99))
    axes.yaxis.set_major_formatter(lambda at, _: tick(at))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_bar(axes: Axes, bar: Bar, *, at: int, longest: float) -> None:
    left = 0.0
    for name, seconds in bar.segments:
        axes.barh(
            at,
            seconds,
            left=left,
            height=0.6,
            color=colour(name),
            label=name,
            linewidth=0,
        )
        if seconds > 0.09 * longest:
            middle = left + seconds / 2
            label = units.seconds(seconds)
            ink = "black" if name == IDLE else "white"
            axes.text(middle, at, label, ha="center", va="center", fontsize=8, color=ink)
        left += seconds
    if bar.floor_s is not None:
        ends = [at - 0.4, at + 0.4]
        axes.plot([bar.floor_s] * 2, ends, color="black", linewidth=1.6, label="byte floor")
    axes.annotate(
        bar.note,
        (max(left, bar.floor_s or 0.0), at),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
    )


def _binary(size: float) -> str:
    return units.binary_size(int(size)) if size >= 1 else ""
