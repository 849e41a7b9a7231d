"""How every plot looks: colours, marks, dashes, legend, axes, and how it is saved.

Who made a number is seen on any plot, in any colour vision and in print:

    measured     solid line, filled marks
    imported     dashed line, hollow marks
    predicted    dotted line, marks of strokes alone

The border of a bar is solid, dashed or dotted likewise.

Colours are those of Okabe and Ito (2008) and a few more; since no dozen of colours is told apart by
everybody, lines differ in their marks, too, and bars in their hatches. Lengths of time have their
unit in the label of a linear axis, and at each tick of a logarithmic one. A plot is the same bytes
for the same numbers. Nothing of matplotlib is imported before a plot is made.
"""

from __future__ import annotations

import logging
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifyscope import units
from verifyscope.parts import CLASSES, IDLE
from verifyscope.records import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = (
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
MARKERS = "osD^vPX*"
GREY, PALE = "#666666", "#cfcfcf"
FASTER, SLOWER = COLOURS[2], COLOURS[1]
BAR = 0.6  # of the height of a row
HATCHES = ("", "//", "\\\\", "..", "xx", "--", "", "||", "++", "oo", "", "**")
# Read together with the marks of a number in report.html (reports/page.css).
SAID: dict[Source, str] = {
    "measured": "measured",
    "imported": "imported: measured by others",
    "predicted": "predicted: never measured",
}
_DASHES: dict[Source, str] = {"measured": "-", "imported": "--", "predicted": ":"}
_BORDERS: dict[Source, Any] = {"measured": "-", "imported": (0, (6, 2)), "predicted": ":"}
_SVG_DOTS = ' stroke-dasharray="2 3"'
_STROKES = ("x", "+", "1", "2", "3", "4", "|", "_")
_DPI = 144
_WIDTH = 8.4  # inches
_TITLE_WIDTH, _TITLE_LINES = 96, 4
_TITLE_LINE = 0.17  # inches
_LABEL_WIDTH, _LABEL_LINES = 104, 2
_NAME_WIDTH = 30
_SMALL = 8


def class_colour(name: str) -> str:
    """Return the colour of a class, of idle time, or of what is neither: the same everywhere."""
    known: tuple[str, ...] = CLASSES
    return PALE if name == IDLE else COLOURS[known.index(name)] if name in known else GREY


def class_hatch(name: str) -> str:
    """Return what tells a class from others where its colour does not."""
    known: tuple[str, ...] = CLASSES
    return "" if name == IDLE else HATCHES[known.index(name)] if name in known else "O"


def ink(background: str) -> str:
    """Return black or white, whichever is read better on a colour."""
    parts = [int(background[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (light + 0.05) / 0.05 > 1.05 / (light + 0.05) else "white"


def line(number: int, source: Source, *, colour: str | None = None) -> dict[str, Any]:
    """Return how the line of a series looks; `number` counts series, the first of them is 0."""
    shown = colour or COLOURS[number % len(COLOURS)]
    marks = _STROKES if source == "predicted" else MARKERS
    return {
        "color": shown,
        "linestyle": _DASHES[source],
        "linewidth": 1.4,
        "marker": marks[number % len(marks)],
        "markersize": 5.5 if source == "predicted" else 4.5,
        "markerfacecolor": "white" if source == "imported" else shown,
        "gid": source,
    }


def border(source: Source) -> dict[str, Any]:
    """Return the border of a bar: who made its number."""
    return {"fill": False, "edgecolor": "black", "linewidth": 1.0, "linestyle": _BORDERS[source]}


def svg_border(source: Source) -> str:
    """Return the same as attributes of a shape in SVG."""
    dashes = {"measured": "", "imported": ' stroke-dasharray="6 2"', "predicted": _SVG_DOTS}
    return f'stroke="#000"{dashes[source]}'


def step(
    axes: Axes,
    at: float,
    ends: tuple[float, float],
    *,
    is_more: bool | None,
    source: Source = "predicted",
) -> None:
    """Draw a step of a waterfall between two times; is_more: None for a whole."""
    low, high = ends
    axes.barh(
        at,
        high - low,
        left=low,
        height=BAR,
        color=GREY if is_more is None else SLOWER if is_more else FASTER,
        edgecolor="white",
        linewidth=0,
        hatch="//" if is_more else "",
        label="" if is_more is None or low == high else "longer" if is_more else "shorter",
    )
    axes.barh(at, high - low, left=low, height=BAR, **border(source))


def say(axes: Axes, words: str, right_of: float, at: float) -> None:
    """Write words behind a bar."""
    axes.annotate(
        words,
        (right_of, at),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=_SMALL,
    )


def untimed(axes: Axes, places: Sequence[float], colour: str) -> None:
    """Mark at the foot of a plot what was tried and has no time."""
    axes.plot(
        places,
        [0.02] * len(places),
        transform=axes.get_xaxis_transform(),
        linestyle="none",
        marker="v",
        markersize=4,
        markerfacecolor="white",
        color=colour,
        label="at the foot: tried, and without a time",
    )


def heading(axes: Axes, title: str) -> None:
    """Set the title, in as many lines as it takes."""
    wrapped = _wrapped(title, _TITLE_WIDTH, lines=_TITLE_LINES)
    axes.figure.suptitle(wrapped, x=0.008, ha="left", fontsize=10)


def legend(
    axes: Axes,
    *,
    columns: int,
    sources: Iterable[Source] = (),
    bars: Iterable[Source] = (),
    band: bool = False,
    dots: bool = False,
) -> None:
    """Put the labels below the plot, each once, and what is said of all of them.

    sources, bars: of which lines, and bars, the plot has some. band: lines have intervals. dots:
    what sources are of are dots without a line.
    """
    handles = {name: one for one, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    handles |= _key(set(sources), set(bars), band, dots)
    width = _LABEL_WIDTH // columns - 6 * (columns > 1)
    axes.figure.legend(
        handles.values(),
        [_wrapped(name, width, lines=_LABEL_LINES) for name in handles],
        loc="outside lower left",
        ncols=columns,
        frameon=False,
        fontsize=_SMALL,
    )


def _key(sources: set[Source], bars: set[Source], band: bool, dots: bool) -> dict[str, Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: dict[str, Any] = {}
    for source, words in SAID.items():
        if source in sources:
            looks = line(0, source, colour=GREY) | ({"linestyle": "none"} if dots else {})
            found[words] = Line2D([], [], **looks)
        if source in bars:
            found[words] = Patch(**border(source))
    if band:
        found["shaded: 95 % interval"] = Patch(color=GREY, alpha=0.15, linewidth=0)
    return found


def _wrapped(words: str, width: int, *, lines: int) -> str:
    """Return `words` in at most `lines` lines; what is left out shows as an ellipsis."""
    found = textwrap.wrap(words, width, break_on_hyphens=False)
    if len(found) > lines:
        found = [*found[: lines - 1], f"{found[lines - 1][: width - 1]}…"]
    return "\n".join(found)


def names(axes: Axes, labels: Sequence[str], *, lines: int = 3) -> None:
    """Name the rows of a plot of bars, the first at the top."""
    wrapped = [_wrapped(label, _NAME_WIDTH, lines=lines) for label in labels]
    axes.set_yticks(range(len(wrapped)), wrapped)
    axes.yaxis.set_gid("names")
    axes.set_ylim(len(wrapped) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def seconds(axis: Axis, words: str, *, most: float) -> None:
    """Label a linear axis of time that shows at most `most` seconds, and its ticks."""
    unit, scale = units.unit_of(most)
    axis.set_major_formatter(lambda at, _: f"{at / scale:.6g}")
    axis.set_label_text(f"{words} [{unit}]")


def log_seconds(axis: Axis, words: str, *, ends: Sequence[float], room: float = 1.3) -> None:
    """Label a logarithmic axis of time: each power of ten, and 2 and 5 times it where few are."""
    from matplotlib.ticker import LogLocator, NullFormatter

    known = [end for end in ends if math.isfinite(end) and end > 0]
    least, most = min(known), max(known)
    few = most < 500 * least
    axis.axes.set_ylim(least / 1.3, most * room)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=99))
    axis.set_major_formatter(lambda at, _: tick(at))
    axis.set_minor_formatter(NullFormatter())
    axis.set_label_text(words)


def tick(seconds: float) -> str:
    """Return a time without trailing zeros: ticks are round numbers."""
    number, _, unit = units.seconds(seconds).partition(" ")
    return f"{float(number):g} {unit}" if seconds else "0"


def apart(places: Iterable[float], *, least: float) -> list[float]:
    """Return the places, ascending, without those nearer than `least` to one before."""
    kept: list[float] = []
    for place in sorted(set(places)):
        if not kept or place - kept[-1] >= least:
            kept.append(place)
    return kept


def save(path: Path, draw: Callable[[Axes], None], *, height: float) -> None:
    """Let `draw` draw, and save it; `height` is in inches, title and legend come on top."""
    # It would tell of a home folder that it cannot write to.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # Not pyplot: it keeps figures, chooses a display and takes twice as long to load.
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A name from a record is no formula, and one that the font lacks is still a plot.
    settings: Any = {"text.parse_math": False, "hatch.linewidth": 0.7}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph ")
        figure: Figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
        canvas: Any = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.tick_params(labelsize=_SMALL)
        axes.xaxis.label.set_fontsize(9)
        axes.yaxis.label.set_fontsize(9)
        draw(axes)
        below = [one.get_window_extent(canvas.get_renderer()).height for one in figure.legends]
        lines = figure.get_suptitle().count("\n") + 1
        figure.set_figheight(height + sum(below) / _DPI + _TITLE_LINE * lines)
        written(figure, path)


def written(figure: Figure, path: Path) -> None:
    """Write a finished figure; each plot comes through here (tests/plot_rules.py looks at it).

    A palette makes the file a quarter as large: a report holds its plots.
    """
    import numpy as np
    from PIL import Image

    canvas: Any = figure.canvas
    canvas.draw()
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    octree = Image.Quantize.FASTOCTREE
    few = pixels.quantize(256, method=octree, dither=Image.Dither.NONE)
    few.putpalette(
        [255 if part > 253 else part for part in few.getpalette() or ()]
    )  # white is white
    few.save(path, format="PNG")
