"""How a waterfall is shown: as a table whose lines add up, drawn in report.html, and as a plot.

All times of a waterfall have the unit of its whole and as many decimals, so that they can be added.
"""

from reports import _marks
from reports._markdown import table, text
from reports._steps import Kind, Step, Waterfall
from verifyscope.records import Measurement

PLOT = "waterfall.png"
_SCALES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def lines(one: Waterfall) -> list[tuple[str, str, str, str]]:
    """Return name, time, sum so far and how, as Markdown; the times add up to the last one."""
    shown = []
    before: list[Measurement] = []
    for step, _, end in one.ends():
        before += step.records
        whole = step.kind == "whole"
        so_far = "" if whole else _marks.derived(_signed(end), before, "sum of the lines so far")
        bold = "**" if whole else ""
        shown.append(
            (f"{bold}{text(step.name)}{bold}", f"{bold}{time(step)}{bold}", so_far, step.how)
        )
    return shown


def markdown_table(one: Waterfall) -> str:
    """Return the table of report.md."""
    return table(("step", "adds", "so far", "known how"), lines(one), align="lrrl")


def time(step: Step) -> str:
    """Return the time of a step, marked with its records."""
    words = _signed(step.seconds)
    alone = step.records[0] if len(step.records) == 1 else None
    if alone is not None and alone.median_s == step.seconds:
        return _marks.of(alone, words)
    return _marks.derived(words, step.records, _FORMULAS[step.kind])


_FORMULAS: dict[Kind, str] = {
    "floor": "sum of floor_s x calls",
    "above": "time x calls - floor_s x calls",
    "collective": "time x calls",
    "idle": "pass - sum of its kernels",
    "unexplained": "the whole - all lines above",
    "whole": "as recorded",
}


def _signed(seconds: float) -> str:
    return _text.duration(seconds) if seconds >= 0 else f"-{_text.duration(-seconds)}"
