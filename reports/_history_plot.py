"""The plot of a history: medians in time, their intervals, and what changed between the runs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reports import _plot_style as style
from reports._history import History, Point
from reports._plot_style import COLOURS, GREY, heading, legend, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_TICKS, _MOST_TOLD, _WIDTH = 10, 10, 110
_MARK = {"slower": ("^", 1), "faster": ("v", 2)}


def draw(path: Path, found: History) -> None:
    """Save the plot; runs stand side by side in time, whatever lies between them."""
    points, told = found.points, _told(found.points)

    def on(axes: Axes) -> None:
        _line(axes, points)
        _marks(axes, points)
        axes.set_xlim(-0.5, len(points) - 0.5)
        labels = _ticks(points)
        axes.set_xticks(list(labels), list(labels.values()))
        axes.xaxis.set_gid("names")
        _time_axis(axes, points)
        axes.set_xlabel("run: its day, and the commit that measured")
        heading(axes, f"{found.label} on {found.machine}")
        # The words stand where a legend would.
        for line in told:
            axes.plot([], [], linestyle="none", label=textwrap.shorten(line, _WIDTH))
        legend(axes, columns=1, sources={point.seen.row.last.source for point in points})

    save(path, on, height=4.4)


def _time_axis(axes: Axes, points: Sequence[Point]) -> None:
    """Begin at 0 where that hides nothing: a change of a tenth must be seen."""
    times = [end for one in points for end in (one.median_s, *(one.interval or ()))]
    least, most = min(times), max(times)
    room = 0.15 * (most - least) or 0.05 * most
    axes.set_ylim(0 if least < 0.5 * most else max(0.0, least - room), most + room)
    style.seconds(axes.yaxis, "median of a call", most=most)


def _line(axes: Axes, points: Sequence[Point]) -> None:
    looks = style.line(0, points[0].seen.row.last.source)
    axes.plot(
        range(len(points)),
        [point.median_s for point in points],
        label="median, 95 % interval",
        **looks,
    )
    for number, point in enumerate(points):
        if point.interval is not None:
            axes.vlines(number, *point.interval, color=looks["color"], linewidth=1.2, alpha=0.6)
    for verdict, (marker, of) in _MARK.items():
        at = [n for n, one in enumerate(points) if one.change and one.change.verdict == verdict]
        if at:
            axes.scatter(
                at,
                [points[number].median_s for number in at],
                marker=marker,
                s=90,
                color=COLOURS[of],
                zorder=3,
                label=f"{verdict} than the run before",
            )


def _marks(axes: Axes, points: Sequence[Point]) -> None:
    """Draw a line before each run whose commit (dashed) or environment (numbered) is another."""
    number = 0
    for at, point in enumerate(points):
        if point.commit_changed and not point.differences:
            axes.axvline(at - 0.5, color=GREY, linewidth=0.6, linestyle="--", zorder=0)
        if point.differences:
            number += 1
            axes.axvline(at - 0.5, color=GREY, linewidth=1.0, zorder=0)
            axes.annotate(
                str(number),
                (at - 0.5, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(2, -9),
                textcoords="offset points",
                fontsize=8,
                color=GREY,
            )


def _told(points: Sequence[Point]) -> list[str]:
    """Return the words of each number, and of the dashed lines."""
    changed = [point.differences for point in points if point.differences]
    lines = [f"{number}: {', '.join(words)}" for number, words in enumerate(changed, 1)]
    rest = len(lines) - _MOST_TOLD
    lines = lines[:_MOST_TOLD] + ([f"and {rest} more"] if rest > 0 else [])
    if any(point.commit_changed and not point.differences for point in points):
        lines.append("dashed: another commit, all else as before")
    return lines


def _ticks(points: Sequence[Point]) -> dict[int, str]:
    """Return labels for at most _MOST_TICKS runs: the day, and a commit where it is another."""
    step = -(-len(points) // _MOST_TICKS)
    labels: dict[int, str] = {}
    shown: str | None = None
    for at in range(0, len(points), step):
        day, commit = points[at].seen.begun[:10], (points[at].commit or "?")[:7]
        labels[at] = (day[5:] or "?") + (f"\n{commit}" if commit != shown else "")
        shown = commit
    return labels
