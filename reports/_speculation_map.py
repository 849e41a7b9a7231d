"""The acceptance map: acceptance against the time of a cycle; each plain step is a line.

    acceptance = cycle / plain step

Above the line of its plain step a point pays: a thin line leads from each point to its own
break-even, a dash. A point whose acceptance is not known is a dotted line upwards; of a verify
alone the cycle lies to the right of it, which an arrow says. The map is as wide as the points of
known acceptance need; what lies beyond is in the table alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from reports import _text
from reports._operating_points import OperatingPoint
from reports._plot_style import COLOURS, GREY, MARKERS, heading, legend, save, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Box = tuple[float, float, float, float]

_MOST_LINES = 5
_PAYS, _LOSES, _UNKNOWN = 2, 1, 0  # colours of the house
_BEYOND = 1.6  # times the slowest point of known acceptance: what is slower is not drawn
_LETTER, _LINE, _MARKER = 5.2, 10.0, 5.0  # of a number beside a point, in points
# Of a number from its point, in points: 0 is centred, 1 to the right of it, -1 to the left.
_ABOVE = ((0, 7), (1, 3), (-1, 3), (1, 12), (-1, 12), (0, 18), (0, 28), (0, -17))
_BELOW = tuple((side, -10 - up) for side, up in _ABOVE)
_BESIDE = 6.0


def draw(path: Path, numbered: Mapping[int, OperatingPoint], *, of: str = "") -> bool:
    """Save the map of points of one system; False where no acceptance and no plain step is known.

    numbered: by their number in the table; of: what the system is called, "" where there is one.
    """
    drawn = _drawn(numbered)
    plains = _plains(drawn.values())
    if not plains and all(one.accepted is None for one in drawn.values()):
        return False
    widest = 1.15 * max(one.seconds for one in drawn.values())
    highest = _highest(drawn.values())

    def on(axes: Axes) -> None:
        axes.set_xlim(0, widest)
        axes.set_ylim(0.8, highest)
        for number, (step_s, requests) in enumerate(plains):
            _break_even(axes, step_s, requests, number=number, to=widest)
        for one in drawn.values():
            _point(axes, one)
        seconds(axes.xaxis, "time of a cycle", most=widest)
        axes.set_ylabel("acceptance [tokens a cycle]")
        which = f" ({of})" if of else ""
        heading(axes, f"Speculation pays above break-even, the end of its thin line{which}")
        known = {one.record.source for one in drawn.values() if one.accepted is not None}
        legend(axes, columns=2, sources=known, dots=True)
        # Numbers are placed where points will be.
        cast("Figure", axes.figure).draw_without_rendering()
        _numbers(axes, drawn, highest)

    save(path, on, height=5.4)
    return True


def _drawn(numbered: Mapping[int, OperatingPoint]) -> dict[int, OperatingPoint]:
    """Return the points to draw, by their number in the table."""
    shown = numbered.values()
    known = [one.seconds for one in shown if one.accepted is not None]
    most = _BEYOND * max(known) if known else max(one.seconds for one in shown)
    return {number: one for number, one in numbered.items() if one.seconds <= most}


def _plains(shown: Iterable[OperatingPoint]) -> list[tuple[float, int | None]]:
    """Return the plain steps of points, the shortest first; of many some from end to end."""
    found = {(one.plain.seconds, one.requests) for one in shown if one.plain is not None}
    every = sorted(found, key=lambda key: (key[0], key[1] or 0))
    if len(every) <= _MOST_LINES:
        return every
    last = len(every) - 1
    return [every[round(at * last / (_MOST_LINES - 1))] for at in range(_MOST_LINES)]


def _highest(shown: Iterable[OperatingPoint]) -> float:
    """Return the top of the map: above every acceptance, and every break-even that is near one."""
    points = list(shown)
    accepted = max((one.accepted for one in points if one.accepted is not None), default=2.0)
    evens = [one.break_even for one in points if one.break_even is not None]
    near = [even for even in evens if even <= 2 * accepted] or evens[:1]
    return 1 + 1.2 * (max(accepted, *near, 2.0) - 1)


def _break_even(
    axes: Axes, seconds: float, requests: int | None, *, number: int, to: float
) -> None:
    load = "" if requests is None else f", {_text.plural(requests, 'request')}"
    axes.plot(
        [0, to],
        [0, to / seconds],
        color="black",
        linewidth=1.2,
        linestyle=("-", "--", "-.", ":", (0, (1, 3)))[number % _MOST_LINES],
        label=f"break-even: plain step {_text.duration(seconds)}{load}",
        zorder=1,
    )


def _numbers(axes: Axes, drawn: Mapping[int, OperatingPoint], highest: float) -> None:
    taken: list[_Box] = []
    for one in drawn.values():
        for height in (one.accepted or highest, one.break_even or highest):
            x, y = axes.transData.transform((one.seconds, height))
            taken.append((x - _MARKER, y - _MARKER, x + _MARKER, y + _MARKER))
        if one.accepted is not None and one.break_even is not None:
            ends = [(one.seconds, one.accepted), (one.seconds, min(one.break_even, highest))]
            (x, low), (_, high) = axes.transData.transform(sorted(ends))
            taken.append((x - 1, low, x + 1, high))
    for number, one in drawn.items():
        _number(axes, f"{number}{'' if one.is_cycle else ' →'}", one, highest, taken)


def _point(axes: Axes, one: OperatingPoint) -> None:
    """Draw a point and the thin line to its break-even, or where only its time is known that."""
    colour, words = _verdict(one)
    if one.accepted is None:
        axes.axvline(one.seconds, color=GREY, linewidth=0.9, linestyle=":", zorder=0)
        return
    measured = one.record.source == "measured"
    axes.scatter(
        [one.seconds],
        [one.accepted],
        marker=MARKERS[colour],
        s=52,
        facecolor=COLOURS[colour] if measured else "white",
        edgecolor=COLOURS[colour],
        linewidth=1.6,
        label=f"{words}{'' if measured else ', imported'}",
        zorder=3,
    )
    if one.break_even is not None:
        axes.vlines(one.seconds, one.accepted, one.break_even, color=COLOURS[colour], linewidth=0.9)
        axes.plot([one.seconds], [one.break_even], marker="_", color=COLOURS[colour])


def _verdict(one: OperatingPoint) -> tuple[int, str]:
    if one.speedup is None:
        return _UNKNOWN, "plain step not known"
    if not one.is_cycle:
        return _UNKNOWN, "verify alone"
    return (_PAYS, "pays") if one.speedup > 1 else (_LOSES, "loses")


def _number(axes: Axes, words: str, one: OperatingPoint, highest: float, taken: list[_Box]) -> None:
    """Write a point's number beside it, where it covers neither a point nor a number."""
    at = (one.seconds, highest if one.accepted is None else one.accepted)
    x, y = axes.transData.transform(at)
    scale = axes.figure.dpi / 72
    places = _BELOW if one.speedup is not None and one.speedup < 1 else _ABOVE
    if one.accepted is None:
        places = tuple((1, -12 * n) for n in range(1, 9))
    width = _LETTER * len(words)
    for side, up in places:
        right = -width / 2 if side == 0 else _BESIDE if side > 0 else -_BESIDE - width
        left, low = x + right * scale, y + up * scale
        box = (left, low, left + width * scale, low + _LINE * scale)
        if not any(_overlap(box, other) for other in taken):
            break
    taken.append(box)
    axes.annotate(
        words,
        at,
        xytext=(right, up),
        textcoords="offset points",
        fontsize=8,
        color=GREY if one.accepted is None else "black",
    )


def _overlap(one: _Box, other: _Box) -> bool:
    apart = one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]
    return not apart
