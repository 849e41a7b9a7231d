"""The plots of a report: PNG files that are the same bytes for the same records.

Colours are those of Okabe and Ito (2008), which people with any colour vision tell apart; lines
differ in their markers, too. Nothing here is imported before a plot is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verifyscope import units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 8
_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8C6D1F",
    "#7F3C8D",
    "#666666",
    "#A5AA99",
    "#4B6A53",
)
_MARKERS = "osD^vPX*"
_GREY = "#666666"
_DPI = 144


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A labelled line, and its intervals as a `band` of lower and upper ends.

    A `hollow` one is dashed, with empty markers: somebody else's numbers.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    hollow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar in segments of (class, seconds); `floor_s` is marked on it; `note` stands behind it."""

    label: str
    segments: Sequence[tuple[str, float]]
    floor_s: float | None
    note: str


def time_against_bytes(
    path: Path, lines: Sequence[Line], *, title: str, marks: Iterable[tuple[float, str]]
) -> None:
    """Plot seconds against bytes, both logarithmic; `marks` are sizes with a name."""

    def draw(axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _draw_lines(axes, lines)
        for at, name in marks:
            axes.axvline(at, color=_GREY, linewidth=0.6, linestyle=":", zorder=0)
            axes.annotate(
                name,
                (at, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(2, -2),
                textcoords="offset points",
                rotation=90,
                va="top",
                fontsize=7,
                color=_GREY,
            )
        axes.xaxis.set_major_formatter(lambda at, _: _binary(at))
        _log_ticks(axes, lines)
        axes.set_xlabel("message size [bytes]")
        axes.set_ylabel("time of a call")
        axes.set_title(title, loc="left", fontsize=10)

    _save(path, draw, height=4.6 + 0.16 * len(lines))


def time_against_tokens(path: Path, lines: Sequence[Line], *, title: str) -> None:
    """Plot seconds against T, both linear and from 0: a slope is what a drafted token costs."""

    def draw(axes: Axes) -> None:
        _draw_lines(axes, lines)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xticks(sorted({x for line in lines for x in line.x}))
        axes.yaxis.set_major_formatter(lambda at, _: _tick(at))
        axes.set_xlabel("T, tokens a verify")
        axes.set_ylabel("time of a call")
        axes.set_title(title, loc="left", fontsize=10)

    _save(path, draw, height=4.2 + 0.16 * len(lines))


def budget(path: Path, bars: Sequence[Bar], *, title: str) -> None:
    """Plot each bar's seconds by class, with the byte floor as a line across it."""
    classes = list(dict.fromkeys(name for bar in bars for name, _ in bar.segments))
    colours = {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(classes)}

    def draw(axes: Axes) -> None:
        longest = max(sum(seconds for _, seconds in bar.segments) for bar in bars)
        for at, bar in enumerate(bars):
            _draw_bar(axes, at, bar, colours)
        axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
        axes.invert_yaxis()
        axes.set_xlim(0, longest * 1.25)
        axes.xaxis.set_major_formatter(lambda at, _: _tick(at))
        axes.set_xlabel("predicted time of a pass on one rank")
        axes.set_title(title, loc="left", fontsize=10)
        axes.grid(axis="y", visible=False)
        handles = {name: bar for bar, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        axes.legend(
            handles.values(),
            handles.keys(),
            loc="upper left",
            bbox_to_anchor=(0, -0.75 / (0.55 * len(bars) + 0.4)),
            ncols=4,
            frameon=False,
            fontsize=8,
        )

    _save(path, draw, height=1.9 + 0.55 * len(bars) + 0.2 * (len(classes) // 4))


def _draw_lines(axes: Axes, lines: Sequence[Line]) -> None:
    for at, line in enumerate(lines):
        colour = _COLOURS[at % len(_COLOURS)]
        axes.plot(
            line.x,
            line.y,
            label=line.label,
            color=colour,
            marker=_MARKERS[at % len(_MARKERS)],
            markersize=4.5,
            markerfacecolor="white" if line.hollow else colour,
            linewidth=1.4,
            linestyle="--" if line.hollow else "-",
        )
        if line.band is not None:
            axes.fill_between(line.x, *line.band, color=colour, alpha=0.15, linewidth=0)
    if len(lines) > 1 or lines[0].label:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(0, -0.14),
            frameon=False,
            fontsize=8,
            borderaxespad=0.0,
        )


def _log_ticks(axes: Axes, lines: Sequence[Line]) -> None:
    """Label each power of ten, and 2 and 5 times it where there are few."""
    from matplotlib.ticker import LogLocator, NullFormatter

    times = [y for line in lines for y in line.y]
    few = max(times) < 50 * min(times)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=99))
    axes.yaxis.set_major_formatter(lambda at, _: _tick(at))
    axes.yaxis.set_minor_formatter(NullFormatter())
    if max(times) < 5 * min(times):  # else there may be no tick at all
        axes.set_ylim(min(times) / 2, max(times) * 2)


def _draw_bar(axes: Axes, at: int, bar: Bar, colours: dict[str, str]) -> None:
    left = 0.0
    for name, seconds in bar.segments:
        axes.barh(at, seconds, left=left, height=0.62, color=colours[name], label=name, linewidth=0)
        left += seconds
    axes.annotate(
        f"  {bar.note}", (left, at), va="center", ha="left", fontsize=8, annotation_clip=False
    )
    if bar.floor_s is not None:
        axes.plot(
            [bar.floor_s] * 2,
            [at - 0.42, at + 0.42],
            color="black",
            linewidth=1.6,
            label="byte floor",
        )


def _save(path: Path, draw: Callable[[Axes], None], *, height: float) -> None:
    # Not pyplot: it keeps figures, chooses a display and takes twice as long to load.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Figure = Figure(figsize=(8.4, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)
    draw(axes)
    figure.savefig(path, metadata={"Software": None})


def _tick(seconds: float) -> str:
    """Return a time without trailing zeros: ticks are round numbers."""
    number, _, unit = units.seconds(seconds).partition(" ")
    return f"{float(number):g} {unit}" if seconds else "0"


def _binary(size: float) -> str:
    return units.binary_size(int(size)) if size >= 1 else ""
