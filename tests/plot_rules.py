"""What every plot keeps to, read off its figure before it is saved (tests/conftest.py).

no two words overlap, and none lies beyond the figure
an axis that is no list of names has a label and a unit, and shows data
two series of one plot differ in marks, dash or hatch, or in colour and lightness, for
everybody (deuteranopia, protanopia and tritanopia of Machado, Oliveira and Fernandes 2009)
measured, imported and predicted lines differ in dash and marks
"""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

_TOLERANCE = 1.0  # pixels
_COLOURS_APART = 12.0  # in CIELAB, where 2.3 is what an eye just sees
_LIGHTNESS_APART = 12.0
_VISIONS = {
    "any eye": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def faults(figure: Any) -> list[str]:
    """Return what is wrong with a figure, as it will be saved."""
    figure.canvas.draw()
    found = list(_overlaps(figure))
    for axes in figure.axes:
        found += [*_axis(axes, axes.xaxis), *_axis(axes, axes.yaxis), *_empty(axes)]
        found += [*_series(axes), *_sources(axes)]
    return found


def _words(figure: Any) -> Iterator[Any]:
    """Yield every text that is seen, ticks beyond the axis and empty ones left out."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if low <= tick.get_loc() <= high:
                    yield tick.label1
            yield axis.label
        yield axes.title
        yield from axes.texts
    for legend in figure.legends:
        yield from legend.get_texts()
    yield from figure.texts  # and the title


def _overlaps(figure: Any) -> Iterator[str]:
    whole = figure.bbox
    placed = [(one, one.get_window_extent()) for one in _words(figure) if one.get_text().strip()]
    for one, box in placed:
        beyond = max(whole.x0 - box.x0, box.x1 - whole.x1, whole.y0 - box.y0, box.y1 - whole.y1)
        if beyond > _TOLERANCE:
            yield f"{one.get_text()!r} is {beyond:.0f} pixels beyond the figure"
    for (one, a), (other, b) in combinations(placed, 2):
        wide = min(a.x1, b.x1) - max(a.x0, b.x0)
        high = min(a.y1, b.y1) - max(a.y0, b.y0)
        if wide > _TOLERANCE and high > _TOLERANCE:
            yield f"{one.get_text()!r} lies on {other.get_text()!r}"


def _axis(axes: Any, axis: Any) -> Iterator[str]:
    """Yield what an axis of numbers lacks; a list of names needs no unit."""
    if axis.get_gid() == "names":
        return
    low, high = sorted(axis.get_view_interval())
    ticks = [
        one.label1.get_text() for one in axis.get_major_ticks() if low <= one.get_loc() <= high
    ]
    label = axis.label.get_text()
    if not label:
        yield f"the {axis.axis_name} axis has no label"
        return
    with_unit = all(re.search(r"\d\s?[A-Za-z%]+$", tick) for tick in ticks if tick not in ("", "0"))
    if "[" not in label and not with_unit:
        yield f"the {axis.axis_name} axis has no unit: {label!r}, {ticks}"


def _empty(axes: Any) -> Iterator[str]:
    lines = [line for line in axes.lines if line.get_transform() == axes.transData]
    points = [len(line.get_xdata()) and np.isfinite(line.get_ydata()).any() for line in lines]
    bars = [one for one in axes.patches if isinstance(one, Rectangle) and one.get_width()]
    dots = [one for one in axes.collections if len(one.get_offsets())]
    if not any(points) and not bars and not dots:
        yield "the axes have no data"


def _series(axes: Any) -> Iterator[str]:
    """Yield the series that somebody takes for each other."""
    handles, labels = axes.get_legend_handles_labels()
    known = {
        label: _looks(one)
        for one, label in zip(handles, labels, strict=True)
        if getattr(one, "get_linestyle", str)() != "None" or one.get_marker() != "None"
    }
    for (one, (shape, colour)), (other, (its_shape, its_colour)) in combinations(known.items(), 2):
        if shape != its_shape:
            continue
        for vision, matrix in _VISIONS.items():
            a, b = _lab(colour, matrix), _lab(its_colour, matrix)
            apart, lightness = float(np.linalg.norm(a - b)), abs(float(a[0] - b[0]))
            if apart < _COLOURS_APART or lightness < _LIGHTNESS_APART:
                yield f"{one!r} and {other!r} look alike to {vision}"
                break


def _looks(handle: Any) -> tuple[tuple[object, ...], tuple[float, float, float]]:
    """Return the shape of a handle (marks, dash, hatch) and its colour."""
    one = handle[0] if isinstance(handle, tuple) else handle
    if hasattr(one, "get_marker"):
        hollow = to_rgb(one.get_markerfacecolor()) == (1.0, 1.0, 1.0)
        return ("line", one.get_marker(), one._dash_pattern[1], hollow), to_rgb(one.get_color())
    if hasattr(one, "get_offsets"):
        hollow = len(one.get_facecolor()) == 0 or tuple(one.get_facecolor()[0][:3]) == (1, 1, 1)
        shape = one.get_paths()[0].vertices.round(3).tobytes()
        return ("dot", shape, hollow), to_rgb(one.get_edgecolor()[0])
    return ("bar", one.get_hatch(), one.get_fill()), to_rgb(one.get_facecolor())


def _sources(axes: Any) -> Iterator[str]:
    """Yield sources that look alike; each line says by its group who made it."""
    dashes: dict[str, set[object]] = {}
    for line in axes.lines:
        if line.get_gid() in ("measured", "imported", "predicted"):
            pattern = "second" if line.get_linestyle() == "-." else line.get_linestyle()
            dashes.setdefault(str(line.get_gid()), set()).add(pattern)
    for (one, its), (other, theirs) in combinations(dashes.items(), 2):
        if its & theirs - {"second"}:
            yield f"{one} and {other} lines have the same dash"


def _lab(colour: tuple[float, float, float], vision: Any) -> Any:
    """Return CIELAB (D65) of sRGB as somebody sees it."""
    given = np.array(colour)
    linear = np.where(given <= 0.04045, given / 12.92, ((given + 0.055) / 1.055) ** 2.4)
    seen = np.clip(vision @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    ratio = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    root = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])
