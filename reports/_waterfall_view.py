"""How a waterfall is shown: a table whose lines add up, the same drawn in report.html, and a plot.

All times of a waterfall have the unit of its whole and as many decimals, so that they can be added.
Bars are in percent of the longest, so that words stay legible at any width. Borders are those of
all plots (`_plot_style.py`), dotted where a step is predicted; what is unexplained is hatched.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from reports import _html, _marks, _provenance, _text
from reports import _plot_style as style
from reports._collected import Collected
from reports._markdown import table, text
from reports._steps import Kind, Step, Waterfall
from verifyscope import units
from verifyscope.records import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOT = "waterfall.png"
_ALT = "From the floor of a pass to its whole: what each part adds, and what is unexplained"
_UNEXPLAINED, _WHOLE = "#000000", "#444444"
_ROW = 20  # pixels
_NARROWEST = 0.15  # percent: what is shorter would not be seen
_FORMULAS: dict[Kind, str] = {
    "floor": "sum of floor_s x calls",
    "above": "sum of time x calls, less floor_s x calls",
    "collective": "sum of time x calls",
    "idle": "the pass, less the sum of its kernels",
    "unexplained": "the whole, less all lines above",
    "whole": "as the record holds it",
}


def markdown(one: Waterfall, found: Collected, *, plotted: bool) -> str:
    """Return title, plot and table for report.md."""
    unit = _unit(one)
    lines = [
        (
            f"**{text(step.name)}**" if step.kind == "whole" else text(step.name),
            f"**{_time(step, one)}**" if step.kind == "whole" else _time(step, one),
            _so_far(one, at),
            text(step.how),
        )
        for at, step in enumerate(one.steps)
    ]
    header = ("step", f"adds [{unit}]", f"so far [{unit}]", "known how")
    shown = [
        f"{text(one.title)}. {_on(one, found)}",
        f"![{_ALT}]({PLOT})" if plotted else "",
        table(header, lines, align="lrrl"),
        " ".join(one.notes),
    ]
    return "\n\n".join(part for part in shown if part)


def html(one: Waterfall, found: Collected) -> str:
    """Return the table with a bar in each row; its numbers carry marks (reports/_marks.py)."""
    unit = _unit(one)
    longest = _longest(one)
    rows = []
    for at, (step, low, high) in enumerate(one.ends()):
        name = escape(step.name)
        rows.append(
            f'<tr class="{step.kind}"><td>{name}</td><td class="bar">'
            f"{_bar(step, min(low, high) / longest, abs(high - low) / longest, one)}</td>"
            f'<td class="right">{_time(step, one)}</td><td class="right">{_so_far(one, at)}</td>'
            f"<td>{escape(step.how)}</td></tr>"
        )
    heads = (
        f'<th scope="col">step</th><th scope="col">0 to {_fixed(longest, one)} {unit}</th>'
        f'<th scope="col" class="right">adds [{unit}]</th>'
        f'<th scope="col" class="right">so far [{unit}]</th><th scope="col">known how</th>'
    )
    notes = f"<p>{_html.inline(' '.join(one.notes))}</p>" if one.notes else ""
    on = _html.inline(_on(one, found))
    return (
        f'<p class="caption"><strong>{escape(one.title)}.</strong> {on}</p>'
        f'<div class="frame"><table class="fall"><caption>{escape(_ALT)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{notes}"
    )


def plot(path: Path, one: Waterfall) -> None:
    """Save the waterfall as a picture, for report.md."""
    longest = _longest(one)

    def draw(axes: Axes) -> None:
        for at, (step, low, high) in enumerate(one.ends()):
            left, length = min(low, high), abs(high - low)
            axes.barh(
                at,
                length,
                left=left,
                height=style.BAR,
                color=_colour(step),
                edgecolor="white",
                linewidth=0,
                hatch="//" if step.kind == "unexplained" else "",
            )
            axes.barh(at, length, left=left, height=style.BAR, **style.border(step.source))
            if at:
                axes.plot([low if step.kind != "whole" else high] * 2, [at - 1, at], "k", lw=0.5)
            style.say(axes, f"{_fixed(step.seconds, one)} {_unit(one)}", max(low, high), at)
        style.names(axes, [step.name for step in one.steps], lines=2)
        axes.set_xlim(0, longest * 1.14)
        style.seconds(axes.xaxis, "time of a pass", most=longest)
        style.legend(axes, columns=3, bars={step.source for step in one.steps})
        style.heading(axes, one.title)

    style.save(path, draw, height=0.7 + 0.29 * len(one.steps))


def _bar(step: Step, left: float, length: float, one: Waterfall) -> str:
    said = escape(f"{step.name}: {_text.duration(step.seconds)} ({step.how})")
    fill = "url(#hatched)" if step.kind == "unexplained" else _colour(step)
    place = f'x="{left * 100:.2f}%" width="{max(length * 100, _NARROWEST):.2f}%"'
    pattern = _PATTERN if step is one.steps[0] else ""
    return (
        f'<svg width="100%" height="{_ROW}" aria-hidden="true">{pattern}'
        f'<rect {place} y="4" height="{_ROW - 8}" fill="{fill}" {style.svg_border(step.source)}>'
        f"<title>{said}</title></rect></svg>"
    )


_PATTERN = (
    '<defs><pattern id="hatched" width="6" height="6" patternUnits="userSpaceOnUse" '
    f'patternTransform="rotate(45)"><rect width="6" height="6" fill="{_UNEXPLAINED}"/>'
    '<rect width="2" height="6" fill="#fff"/></pattern></defs>'
)


def _colour(step: Step) -> str:
    if step.kind == "unexplained":
        return _UNEXPLAINED
    return _WHOLE if step.kind == "whole" else style.class_colour(step.part)


def _time(step: Step, one: Waterfall) -> str:
    """Return the time of a step, marked with its records."""
    words = _fixed(step.seconds, one)
    alone = step.records[0] if len(step.records) == 1 else None
    if alone is not None and alone.median_s == step.seconds:
        return _marks.of(alone, words)
    return _marks.derived(words, step.records, _FORMULAS[step.kind])


def _so_far(one: Waterfall, at: int) -> str:
    steps = one.steps[: at + 1]
    if steps[-1].kind == "whole":
        return ""
    records: list[Measurement] = [record for step in steps for record in step.records]
    words = _fixed(sum(step.seconds for step in steps), one)
    return _marks.derived(words, records, "sum of the lines so far")


def _on(one: Waterfall, found: Collected) -> str:
    records = [record for step in one.steps for record in step.records]
    return _provenance.sentence(records, found)


def _unit(one: Waterfall) -> str:
    return units.unit_of(one.steps[-1].seconds)[0]


def _fixed(seconds: float, one: Waterfall) -> str:
    """Return a number in the unit of the whole, with the decimals of its fourth digit."""
    _, scale = units.unit_of(one.steps[-1].seconds)
    whole = one.steps[-1].seconds / scale
    decimals = 3 if whole < 10 else 2 if whole < 100 else 1
    return f"{seconds / scale:.{decimals}f}"


def _longest(one: Waterfall) -> float:
    """Return where the longest step ends; of a pass that took no time at all, anything above it."""
    return max(max(low, high) for _, low, high in one.ends()) or 1.0
