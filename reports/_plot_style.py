"""How every plot looks: colours, markers, legend, ticks, and how it is saved.

Colours are those of Okabe and Ito (2008), which people with any colour vision tell apart; lines
differ in their markers, too, so that they do in print. A plot is the same bytes for the same
numbers. Nothing of matplotlib is imported before a plot is made.
"""

from __future__ import annotations

import logging
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from verifyscope import units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
GREY = "#666666"
_DPI = 144
_TITLE_WIDTH = 95


def heading(axes: Axes, title: str) -> None:
    """Set the title, in as many lines as it takes."""
    wrapped = textwrap.fill(title, _TITLE_WIDTH, break_on_hyphens=False)
    axes.set_title(wrapped, loc="left", fontsize=10)


def legend(axes: Axes, *, columns: int) -> None:
    """Put the labels below the plot, each once."""
    handles = {name: one for one, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    axes.figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower left",
        ncols=columns,
        frameon=False,
        fontsize=8,
    )


def save(path: Path, draw: Callable[[Axes], None], *, height: float) -> None:
    """Let `draw` draw, and save it; `height` is in inches."""
    # It would tell of a home folder that it cannot write to.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # Not pyplot: it keeps figures, chooses a display and takes twice as long to load.
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A name from a record is no formula, and one that the font lacks is still a plot.
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph ")
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


def tick(seconds: float) -> str:
    """Return a time without trailing zeros: ticks are round numbers."""
    number, _, unit = units.seconds(seconds).partition(" ")
    return f"{float(number):g} {unit}" if seconds else "0"
