"""The first screen: title, verdict, the budget as a waterfall, what is worth most, counts.

The waterfall is a plot and a table in report.md and drawn in report.html; where either goes, and
the table of actions, stands a letter in the page that no record's text can hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reports import (
    _actions,
    _budget,
    _commands,
    _not_run,
    _operating_points,
    _subject,
    _summary,
    _sweep,
    _verdict,
    _waterfall,
    _waterfall_view,
)
from reports._collected import Collected
from reports._drawn import Folder
from reports._operating_points import OperatingPoint
from reports._steps import Waterfall
from reports._subject import Subject
from verifyscope.sweep_conclusion import SweepConclusion

_DRAWN, _TABLE = "\ue010", "\ue011"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstScreen:
    """What it shows, as Markdown; `place` and `actions_place` are where the rest goes."""

    subject: Subject
    points: Sequence[OperatingPoint]
    waterfall: Waterfall | None
    title: str
    verdict: str
    place: str
    actions: str
    actions_place: str
    counts: str
    wrong: list[str]


def first_screen(
    found: Collected,
    *,
    series: Sequence[_sweep.Series],
    sweeps: Sequence[SweepConclusion],
    not_run: Sequence[_not_run.Group],
) -> FirstScreen:
    """Return the first screen of what was collected."""
    subject = _subject.subject(found, _budget.passes(found.predicted))
    waterfall = _waterfall.waterfall(subject, found)
    points = _operating_points.points(found)
    actions = _actions.actions_table(
        subject, found, waterfall=waterfall, sweeps=sweeps, points=points
    )
    return FirstScreen(
        subject=subject,
        points=points,
        waterfall=waterfall,
        title=_summary.title(subject, found),
        verdict=_verdict.verdict(subject, found, series=series, sweeps=sweeps, points=points),
        place=_DRAWN if waterfall is not None else _why_not_drawn(subject),
        actions=actions,
        actions_place=_TABLE if actions else "",
        counts=_summary.counts(found, not_run),
        wrong=_summary.wrong(not_run),
    )


def in_markdown(page: str, first: FirstScreen, found: Collected, drawn: Folder) -> str:
    """Return the page with what is shown at both places in report.md, and save the plot."""
    shown = page.replace(_TABLE, first.actions)
    if first.waterfall is None:
        return shown
    path = drawn.file(_waterfall_view.PLOT)
    if path is not None:
        _waterfall_view.plot(path, first.waterfall)
    drawing = _waterfall_view.markdown(first.waterfall, found, plotted=path is not None)
    return shown.replace(_DRAWN, drawing)


def before_html(page: str, first: FirstScreen) -> str:
    """Return the page that report.html is made of; the drawing is one of `places`."""
    return page.replace(_TABLE, first.actions)


def places(first: FirstScreen, found: Collected) -> dict[str, str]:
    """Return the HTML of the drawing, by the letter that stands where it goes."""
    if first.waterfall is None:
        return {}
    return {_DRAWN: _waterfall_view.html(first.waterfall, found)}


def _why_not_drawn(subject: Subject) -> str:
    """Return why no budget is drawn, and how to get it."""
    if subject.measured:
        how = f"{_commands.replay(subject)} takes it apart"
        return f"The pass was timed whole, its parts were not: no budget is drawn ({how})."
    how = f"{_commands.replay(subject, '--predict GPU')} predicts one without a GPU"
    return f"No budget from floor to measured is drawn: no pass was predicted or measured ({how})."
