"""Two runs compared as a whole, and the sentence that a tired engineer reads first."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports import _text
from reports._comparison import hypotheses as guesses
from reports._comparison import matching, runs, splits, verdicts
from reports._comparison.differences import Difference, differences, unknown
from reports._comparison.hypotheses import Hypothesis
from reports._comparison.matching import Matched, Pair
from reports._comparison.runs import Run
from reports._comparison.splits import Split
from reports._comparison.verdicts import Change
from verifyscope.parts import class_of
from verifyscope.records import Finding, Measurement
from verifyscope.stats import SAME_WITHIN, Verdict

_VERDICTS: tuple[Verdict, ...] = ("slower", "faster", "same", "unsure")
_LOAD = ("requests", "rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rows of one op: how many moved, and their mean change, judged among all ops."""

    op: str
    part: str
    rows: int
    verdicts: Counter[Verdict]
    mean: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that is said of two runs. whole: the row of a cycle or pass that the first line tells."""

    old: Run
    new: Run
    same_within: float
    matched: Matched
    whole: Pair | None
    groups: Sequence[Group]
    splits: Sequence[Split]
    hypotheses: Sequence[Hypothesis]
    unknown: Sequence[str]
    only_old_findings: Sequence[Finding]
    only_new_findings: Sequence[Finding]

    @property
    def moved(self) -> list[Pair]:
        """Return the rows that moved, the most seconds among wholes and the largest ratio first."""
        return sorted(
            (pair for pair in self.matched.timed if pair.moved),
            key=lambda pair: (not runs.is_whole(pair.new.last), -_size(pair)),
        )

    @property
    def nothing_measured(self) -> bool:
        """Say whether no row in both runs was measured by this project."""
        return all(pair.new.last.source != "measured" for pair in self.matched.timed)

    @property
    def counts(self) -> Counter[Verdict]:
        """Return how many rows have which verdict."""
        return Counter(pair.change.verdict for pair in self.matched.timed if pair.change)


def compare(
    old: Path, new: Path, *, same_within: float = SAME_WITHIN, warnings: list[str]
) -> Comparison:
    """Read and compare two runs; `UsageError` where one cannot be read."""
    a, b = runs.read("A", old, warnings), runs.read("B", new, warnings)
    matched = matching.match(a, b, same_within=same_within)
    timed = matched.timed
    found: list[Difference] = differences(a, b, timed)
    names_a, names_b = ({one.name for one in run.findings} for run in (a, b))
    return Comparison(
        old=a,
        new=b,
        same_within=same_within,
        matched=matched,
        whole=_whole(timed),
        groups=_groups(timed, same_within),
        splits=splits.splits(a, b, matched),
        hypotheses=guesses.hypotheses(found, timed, old=a, new=b),
        unknown=unknown(a, b),
        only_old_findings=[one for one in a.findings if one.name not in names_b],
        only_new_findings=[one for one in b.findings if one.name not in names_a],
    )


def sentence(found: Comparison) -> str:
    """Return what changed, where it went, and what could explain it, as plain text."""
    said = " ".join(_sentences(found))
    return f"{said[0].upper()}{said[1:]}"


def _sentences(found: Comparison) -> Iterator[str]:
    if not found.matched.timed:
        yield "A and B have no row in common that both timed: nothing can be compared."
        return
    split = _told(found)
    if found.whole is not None:
        yield _whole_words(found.whole)
    elif split is not None:
        predicted = "Predicted, not measured: " if split.source == "predicted" else ""
        change = _changed(split.whole.old_s, split.whole.new_s)
        yield f"{predicted}{split.what}: {change}."
    yield _counted(found)
    shown = split or next(iter(found.splits), None)
    if shown is not None and shown.is_clear and (found.moved or not shown.is_sum):
        yield from _largest(shown)
    yield _guess(found)


def _told(found: Comparison) -> Split | None:
    """Return the split of the pass or cycle that is told first; a prediction where it changed."""
    several = [one for one in found.splits if not one.is_sum and _has_news(one)]
    case = None if found.whole is None else found.whole.new.last.case
    same = [one for one in several if case is not None and case in one.what]
    return next(iter(same or several), None)


def _has_news(split: Split) -> bool:
    return split.source != "predicted" or split.whole.change_s != 0


def _whole_words(pair: Pair) -> str:
    old_s, new_s = pair.old.median_s or 0.0, pair.new.median_s or 0.0
    interval = ""
    if pair.change is not None:
        interval = f"; 95 %: {_percent(pair.change.low)} to {_percent(pair.change.high)}"
        interval += ", its spread assumed" if pair.change.basis == "assumed" else ""
    verdict = "" if pair.change is None else f": {pair.change.verdict}"
    return f"{_title(pair.new.last)}: {_changed(old_s, new_s, interval)}{verdict}."


def _title(one: Measurement) -> str:
    """Return what a whole row is, such as "a verify of 4 rows"."""
    names = {"verify": "a verify", "decode": "a step without speculation", "extend": "an extend"}
    name = names.get(one.mode or "", f"a {one.op}")
    if one.part == "cycle" and one.mode == "verify":
        name = "a cycle"
    load = [
        _text.plural(value, "request" if dim == "requests" else "row")
        for dim in _LOAD
        if isinstance(value := one.dims.get(dim), int)
    ]
    return f"{name[0].upper()}{name[1:]}{' of ' if load else ''}{', '.join(load)}"


def _changed(old_s: float, new_s: float, interval: str = "") -> str:
    way = "longer" if new_s >= old_s else "shorter"
    return (
        f"{_text.duration(old_s)} in A, {_text.duration(new_s)} in B, "
        f"{_text.duration(abs(new_s - old_s))} {way} ({_percent(new_s / old_s)}{interval})"
    )


def _percent(ratio: float) -> str:
    change = 100 * (ratio - 1)
    return f"{change:+.{1 if abs(change) < 10 else 0}f} %"


def _counted(found: Comparison) -> str:
    counts, timed = found.counts, len(found.matched.timed)
    words = [f"{counts[name]:,} {name}" for name in _VERDICTS if counts[name]]
    said = f"Of {_text.plural(timed, 'row')} in both, {', '.join(words)}."
    if not counts["slower"] and not counts["faster"]:
        said = f"Nothing moved beyond noise. {said}"
    if lost := len(found.matched.lost):
        said += f" {_text.plural(lost, 'row')} of A {'has' if lost == 1 else 'have'} no time in B."
    return said


def _largest(split: Split) -> Iterator[str]:
    whole, part = split.whole, split.largest
    if not whole.change_s or part.change_s * whole.change_s <= 0:
        return
    share = _text.share(part.change_s, whole.change_s)
    of_it = f"Of the {_text.duration(abs(whole.change_s))} of {split.what}"
    if split.is_sum:
        of_it = f"Of the {_text.duration(abs(whole.change_s))} over {split.what}"
    yield f"{of_it}, {_text.duration(abs(part.change_s))} ({share}) are {part.name}."


def _guess(found: Comparison) -> str:
    """Return the difference that fits best, as what it is."""
    if not found.moved:
        count = len(found.hypotheses)
        return (
            f"{_text.plural(count, 'recorded difference')} beside it moved nothing."
            if count
            else ""
        )
    best = next(iter(found.hypotheses), None)
    if best is None and found.nothing_measured:
        return "Nothing is recorded of the machine that this was measured on."
    if best is None:
        return "Nothing that was recorded beside the rows differs."
    if not best.explained:
        return "No recorded difference could touch what moved."
    equal = [one for one in found.hypotheses if one.fits == best.fits][1:]
    others = f", as {_text.plural(len(equal), 'other')} could" if equal else ""
    one = best.difference
    return (
        f"A hypothesis: {one.name}, {one.old} in A and {one.new} in B, could explain "
        f"{best.explained:,} of {_text.plural(best.moved, 'row')} that moved{others}."
    )


def _whole(pairs: Sequence[Pair]) -> Pair | None:
    """Return the row to tell first: a cycle, else a pass, that moved most; else seen most often."""
    wholes = [
        pair
        for pair in pairs
        if runs.is_whole(pair.new.last) and not pair.new.last.op.startswith("forward_")
    ]
    return min(wholes, key=_telling, default=None)


def _telling(pair: Pair) -> tuple[bool, int, float, int]:
    last = pair.new.last
    order = 0 if last.part == "cycle" else 1 if last.op == "verify" else 2
    if last.mode == "decode" or last.part == "generation":
        order += 3
    return not pair.moved, order, -abs(pair.change_s), -(last.count or 0)


def _size(pair: Pair) -> float:
    if pair.change is None:
        return 0.0
    return max(pair.change.ratio, 1 / pair.change.ratio)


def _groups(pairs: Sequence[Pair], same_within: float) -> list[Group]:
    """Return the ops by how far they moved, each with its rows' mean change."""
    by_op: dict[tuple[str, str], list[Change]] = {}
    for pair in pairs:
        if pair.change is not None:
            last = pair.new.last
            by_op.setdefault((last.op, class_of(last.part)), []).append(pair.change)
    means = [mean for changes in by_op.values() if (mean := verdicts.pooled(changes)) is not None]
    judged = verdicts.judged(means, same_within=same_within)
    found = [
        Group(
            op=op,
            part=part,
            rows=len(changes),
            verdicts=Counter(one.verdict for one in changes),
            mean=mean,
        )
        for ((op, part), changes), mean in zip(by_op.items(), judged, strict=True)
    ]
    return sorted(found, key=lambda one: -max(one.mean.ratio, 1 / one.mean.ratio))
