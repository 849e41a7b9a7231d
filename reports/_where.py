"""The section "Where verify time goes": what is predicted of each pass, and what is missing."""

from collections.abc import Sequence
from dataclasses import dataclass

from reports import _budget, _drawn, _forecast
from reports._collected import Collected
from reports._drawn import Folder
from reports._forecast import Forecast
from reports._markdown import bullets, code, text
from reports._text import plural

_MOST_PASSES = 12
_MOST_CLASSES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PassView:
    """One predicted pass; `folded` are the tables of the whole that stand behind a fold."""

    title: str
    facts: str
    table: str
    timeline: str
    timeline_facts: str
    levers: str
    levers_facts: str
    excess: str
    excess_facts: str
    folded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The section."""

    passes: list[PassView]
    timelines: list[PassView]
    classes: str
    plot: str | None
    what_if: str | None
    fits: str
    fits_left_out: str
    agreements: str
    left_out: str


def view(found: Collected, passes: Sequence[_budget.Pass], folder: Folder) -> Where:
    """Return what the section shows."""
    shown = passes[:_MOST_PASSES]
    labels = _budget.labels(shown)
    wholes = _forecast.forecasts(found.predicted_passes)
    lifted = [one for one in shown if one.made_by in wholes and wholes[one.made_by].levers]
    fits, fits_left_out = _forecast.fits_table(found.predicted_passes)
    side_by_side = 1 < len(shown) <= _MOST_CLASSES
    views = [
        _pass(one, wholes.get(one.made_by), folded=number > 0) for number, one in enumerate(shown)
    ]
    return Where(
        passes=views,
        timelines=[one for one in views if one.timeline],
        classes=_budget.classes_table(shown, labels) if side_by_side else "",
        plot=_drawn.budget(shown, labels, wholes=wholes, folder=folder),
        what_if=_drawn.what_if(lifted[0], wholes[lifted[0].made_by], folder=folder)
        if lifted
        else None,
        fits=fits,
        fits_left_out=plural(fits_left_out, "line") if fits_left_out else "",
        agreements=_forecast.agreements_table(wholes.values()),
        left_out=plural(len(passes) - len(shown), "predicted pass")
        if len(passes) > len(shown)
        else "",
    )


def _pass(one: _budget.Pass, whole: Forecast | None, *, folded: bool) -> PassView:
    timed = whole if whole is not None and whole.timeline else None
    lifted = whole if whole is not None and whole.levers else None
    longer = whole if whole is not None and whole.excess else None
    return PassView(
        title=text(_budget.title(one)),
        facts=_budget.facts(one),
        table=_budget.parts_table(one),
        timeline=_forecast.timeline_table(timed) if timed else "",
        timeline_facts=bullets(_forecast.timeline_facts(timed)) if timed else "",
        levers=_forecast.levers_table(lifted) if lifted else "",
        levers_facts=_forecast.levers_facts(lifted) if lifted else "",
        excess=_forecast.excess_table(longer) if longer else "",
        excess_facts=_forecast.excess_facts(longer) if longer else "",
        folded=folded,
    )


def missing(found: Collected, predicted: Sequence[_budget.Pass]) -> list[str]:
    """Return what is not in the records of a pass, and how to get it."""
    lines = []
    gpu = code("python -m graphs.replay --model MODEL --tp N --rows ROWS --device cuda")
    if not found.passes:
        lines.append(
            "**A pass**: none was measured: what each part costs when it is taken out, what replay "
            f"saves, and what remains unexplained, need the layers run on a GPU: {gpu}."
        )
    elif all(found.on_cpu(one) for one in found.passes):
        lines.append(f"**A pass**: none was measured on a GPU: {gpu}.")
    if not predicted:
        command = code("python -m graphs.replay --model MODEL --tp N --rows ROWS --predict GPU")
        return [*lines, f"**A pass**: none was predicted, which needs no GPU: {command}."]
    wholes = _forecast.forecasts(found.predicted_passes)
    if not any(one.components for one in predicted):
        command = code("python -m graphs.replay ... --measured FILE")
        lines.append(f"**A pass**: no component was measured by anybody: {command} names who did.")
    if not any(one.made_by in wholes for one in predicted):
        lines.append(
            "**A pass**: no timeline, no levers: these predictions were made without; "
            f"{code('python -m graphs.replay ... --predict GPU')} makes them."
        )
    return lines
