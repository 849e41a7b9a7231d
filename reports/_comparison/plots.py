"""The plots of a comparison: where the change lies, part by part, and how far each row moved.

    change from A to B = sum of the changes of its parts, drawn one behind the other

How they look is in `reports/_plot_style.py`. Nothing of matplotlib is imported before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from reports import _plot_style as style
from reports import _text
from reports._comparison.comparison import Comparison
from reports._comparison.matching import Pair
from reports._comparison.splits import Part, Split
from reports._comparison.verdicts import NORMAL_95
from reports._text import plural
from verifyscope.records import Source
from verifyscope.stats import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SPLITS = 4
_MOST_PARTS, _MOST_NAMED, _MOST_ROWS = 12, 30, 1500
_ROOM = 1.5  # times the largest ratio
_TURNS = 3.0  # a ratio beyond which the axis is logarithmic
_VERDICTS: dict[Verdict, tuple[str, str]] = {
    "slower": ("^", style.SLOWER),
    "faster": ("v", style.FASTER),
    "same": ("o", style.GREY),
    "unsure": ("D", style.COLOURS[5]),
}


@dataclass(frozen=True, slots=True)
class Plots:
    """The names of the files that were drawn: of splits by their number, and of the rows."""

    splits: dict[int, str] = field(default_factory=dict)
    rows: str = ""


def draw(found: Comparison, folder: Path) -> Plots:
    """Draw what a comparison has to show into `folder`."""
    splits = {}
    for number, split in enumerate(found.splits[:MOST_SPLITS]):
        if any(part.change_s for part in split.parts):
            splits[number] = f"change-{number + 1}.png"
            _change(folder / splits[number], split)
    timed = found.matched.timed
    if timed:
        _ratios(folder / "rows.png", timed, same_within=found.same_within)
    return Plots(splits=splits, rows="rows.png" if timed else "")


def most_telling(split: Split, *, most: int) -> list[Part]:
    """Return the parts by how much they changed; those beyond `most` as one."""
    parts = sorted(split.parts, key=lambda part: -abs(part.change_s))
    shown, rest = parts[:most], parts[most:]
    if rest:
        old_s, new_s = math.fsum(p.old_s for p in rest), math.fsum(p.new_s for p in rest)
        shown.append(Part(name=f"{len(rest)} smaller", old_s=old_s, new_s=new_s))
    return shown


def _change(path: Path, split: Split) -> None:
    parts = most_telling(split, most=_MOST_PARTS)
    whole, ends = split.whole, [0.0]
    for part in parts:
        ends.append(ends[-1] + part.change_s)
    spread = NORMAL_95 * (whole.spread_s or 0.0)
    low = min(*ends, whole.change_s - spread)
    high = max(*ends, whole.change_s + spread)

    def on(axes: Axes) -> None:
        for at, part in enumerate(parts):
            step = (min(ends[at : at + 2]), max(ends[at : at + 2]))
            style.step(axes, at, step, is_more=part.change_s > 0, source=split.source)
            style.say(axes, _said(part), step[1], at)
        at = len(parts)
        total = (min(0.0, whole.change_s), max(0.0, whole.change_s))
        style.step(axes, at, total, is_more=None, source=split.source)
        if spread:
            label = "95 % interval of the whole change"
            axes.plot(
                [whole.change_s - spread, whole.change_s + spread],
                [at, at],
                color="black",
                linewidth=1.4,
                marker="|",
                label=label,
            )
        style.say(axes, _said(whole), max(total[1], whole.change_s + spread), at)
        axes.axvline(0, color="black", linewidth=0.8)
        style.legend(axes, columns=2, bars=[split.source])
        style.names(axes, [*(part.name for part in parts), whole.name], lines=2)
        room = (high - low) or 1.0
        axes.set_xlim(low - 0.04 * room, high + 0.55 * room)
        style.seconds(axes.xaxis, "change from A to B", most=max(abs(low), abs(high)))
        style.heading(axes, f"Where the change of {split.what} is")

    style.save(path, on, height=0.9 + 0.34 * (len(parts) + 1))


def _said(part: Part) -> str:
    before, after = _text.duration(part.old_s), _text.duration(part.new_s)
    return f"{_text.change(part.change_s)} ({before} to {after})"


def _ratios(path: Path, timed: Sequence[Pair], *, same_within: float) -> None:
    ordered = sorted(timed, key=lambda pair: -_ratio(pair))
    shown = _some(ordered)
    named = len(shown) <= _MOST_NAMED

    def on(axes: Axes) -> None:
        axes.axvspan(1 - same_within, 1 + same_within, color=style.PALE, alpha=0.5, linewidth=0)
        axes.axvline(1, color="black", linewidth=0.8)
        _dots(axes, shown, size=30 if named else 10)
        _ratio_axis(axes, shown)
        if named:
            style.names(axes, [_name(pair) for pair in shown], lines=2)
        else:
            axes.set_ylim(len(shown) + 1, -2)
            axes.set_ylabel("rows [number, the slowest in B first]")
        style.legend(axes, columns=2, sources={pair.new.last.source for pair in shown}, dots=True)
        within = f"grey band: within {100 * same_within:g} %, where nothing counts as moved"
        of_all = "" if len(shown) == len(timed) else f", {len(shown):,} of them,"
        heading = f"{plural(len(timed), 'row')} that both runs timed{of_all} with 95 % intervals"
        style.heading(axes, f"{heading}; {within}")

    style.save(path, on, height=0.9 + 0.3 * len(shown) if named else 4.6)


def _some(ordered: Sequence[Pair]) -> list[Pair]:
    """Return at most _MOST_ROWS rows in their order: those that moved, and evenly of the rest."""
    if len(ordered) <= _MOST_ROWS:
        return list(ordered)
    moved = [at for at, pair in enumerate(ordered) if pair.moved]
    rest = [at for at, pair in enumerate(ordered) if not pair.moved]
    moved = moved[:: -(-len(moved) // (_MOST_ROWS // 2)) or 1]
    rest = rest[:: -(-len(rest) // (_MOST_ROWS - len(moved))) or 1]
    return [ordered[at] for at in sorted([*moved, *rest])]


def _dots(axes: Axes, shown: Sequence[Pair], *, size: float) -> None:
    for verdict, (marker, colour) in _VERDICTS.items():
        for source in ("measured", "imported"):
            places = [at for at, pair in enumerate(shown) if _is(pair, verdict, source)]
            changes = [pair.change for at in places if (pair := shown[at]).change is not None]
            if not changes:
                continue
            ends = [one.low for one in changes], [one.high for one in changes]
            axes.hlines(places, *ends, color=colour, linewidth=1.0, zorder=2)
            axes.scatter(
                [one.ratio for one in changes],
                places,
                marker=marker,
                s=size,
                facecolor="white" if source == "imported" else colour,
                edgecolor=colour,
                label=f"{verdict}: {len(changes):,}",
                zorder=3,
            )


def _ratio_axis(axes: Axes, shown: Sequence[Pair]) -> None:
    changes = [pair.change for pair in shown if pair.change is not None]
    ratios = [one.ratio for one in changes]
    # An interval may run off the axis: one that is too wide would leave no room for the rest.
    low = max(min(one.low for one in changes), min(ratios) / _ROOM)
    high = min(max(one.high for one in changes), max(ratios) * _ROOM)
    margin = (high / low) ** 0.03
    axes.set_xlim(low / margin, high * margin)
    if high > _TURNS or low < 1 / _TURNS:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=30))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda at, _: f"{at:.4g}")
    axes.set_xlabel("time in B / time in A [ratio]")


def _is(pair: Pair, verdict: Verdict, source: Source) -> bool:
    return (
        pair.change is not None
        and pair.change.verdict == verdict
        and pair.new.last.source == source
    )


def _ratio(pair: Pair) -> float:
    return 1.0 if pair.change is None else pair.change.ratio


def _name(pair: Pair) -> str:
    last = pair.new.last
    return f"{last.op}/{last.implementation} {last.case}"
