"""The change of a whole, split so that its parts add up.

    change of the whole = sum of the changes of its parts + the change of what they leave

Wholes and parts, where both runs have them:

    a measured pass     its parts where they stand, or its classes as a profiler saw them; what they
                        leave is unexplained
    a cycle of a log    the components that it prints; what they leave is the rest of the cycle
    a step of a trace   each class by the time in which only it ran, scaled from the trace to a
                        step; what overlaps and what is idle are parts of their own
    a predicted pass    its parts by class: no noise, and nobody measured it; without what only one
                        of the two knows, which is no change
    the rows            else: one call of each row that both runs timed, summed by class and op,
                        without the machine's ceilings. That is no pass: a row counts once, however
                        often a pass makes that call
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from reports import _budget, _text
from reports._comparison.matching import Matched, Pair
from reports._comparison.runs import Row, Run
from reports._comparison.verdicts import NORMAL_95
from verifyscope import passes
from verifyscope.parts import IDLE, UNEXPLAINED, class_of
from verifyscope.predictions import WHOLE
from verifyscope.records import TRACE_OPS, Measurement, Source

_TABLE = "component table"
_TRACE, _STEP, _CLASS, _ = TRACE_OPS
_PASS, _ABLATED = (passes.FORWARD, WHOLE), (passes.ACCOUNT, WHOLE)
# Ops whose rows are parts, and the rows that are their whole: that of the same rounds first.
_APART = (
    ((passes.IN_CONTEXT,), (_ABLATED, _PASS)),
    ((passes.CLASS, passes.IDLE), (_PASS, _ABLATED)),
)
_LEFT = {"cycle": "rest of the cycle", "pass": UNEXPLAINED, "trace": "several classes at once"}
# No calls of a pass: what holds other rows, and what the machine gives (verifyscope/parts.py).
_HOLD_OTHERS = ("cycle", "forward", "draft", "host", "generation")
_CEILINGS = ("empty_kernel", "memory_ceiling", "matrix_ceiling")
_MOST_PREDICTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part in both runs; `spread_s` is the deviation of its change, None where it has none."""

    name: str
    old_s: float
    new_s: float
    spread_s: float | None = None

    @property
    def change_s(self) -> float:
        """Return the seconds that it takes longer."""
        return self.new_s - self.old_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A whole and its parts, which add up to it in both runs; `is_sum`: it is no pass."""

    what: str
    source: Source
    whole: Part
    parts: tuple[Part, ...]
    is_sum: bool = False

    @property
    def is_clear(self) -> bool:
        """Say whether the whole changed beyond the 95 % interval of its own change."""
        spread_s = self.whole.spread_s
        beyond = 0.0 if spread_s is None else NORMAL_95 * spread_s
        return abs(self.whole.change_s) > beyond

    @property
    def largest(self) -> Part:
        """Return the part whose change is largest in the direction of the whole's."""
        way = 1 if self.whole.change_s >= 0 else -1
        return max(self.parts, key=lambda part: way * part.change_s)


def splits(old: Run, new: Run, matched: Matched) -> list[Split]:
    """Return the splits that both runs allow, the most telling first; the rows come last."""
    found = [*_passes(old, new), *_cycles(old, new), *_traces(old, new), *_predicted(old, new)]
    rows = _of_rows(matched.timed)
    return [*found, *([rows] if rows is not None else [])]


def _passes(old: Run, new: Run) -> Iterator[Split]:
    olds, news = _by_pass(old), _by_pass(new)
    for key in (one for one in olds if one in news):
        a, b = olds[key], news[key]
        for ops, wholes in _APART:
            parts = [
                _part(IDLE if op == passes.IDLE else part, a[op, part], b[op, part])
                for op, part in a
                if op in ops and (op, part) in b
            ]
            whole = next((one for one in wholes if one in a and one in b), None)
            if parts and whole is not None:
                words = ", ".join(str(word) for word in key if word is not None)
                total = _part("pass", a[whole], b[whole])
                yield _closed(f"a pass of {words}", total, parts, "pass")
                break


def _by_pass(run: Run) -> dict[tuple[object, ...], dict[tuple[str, str], Row]]:
    """Return the rows of each pass that was taken apart, by op and part."""
    found: dict[tuple[object, ...], dict[tuple[str, str], Row]] = {}
    for row in run.rows:
        last = row.last
        if last.op.startswith(passes.FORWARD) and row.level is not None:
            key = (last.implementation, last.case, last.launch, last.mode)
            found.setdefault(key, {})[last.op, last.part] = row
    return found


def _cycles(old: Run, new: Run) -> Iterator[Split]:
    olds, news = _tables(old), _tables(new)
    names = [(name, name) for name in olds if name in news]
    if not names and len(olds) == len(news) == 1:
        names = [(next(iter(olds)), next(iter(news)))]
    for before, after in names:
        a, b = olds[before], news[after]
        whole_a, whole_b = _cycle_s(a), _cycle_s(b)
        if whole_a is None or whole_b is None:
            continue
        parts = [
            _part("verify" if part == "forward" else part, a[part], b[part])
            for part in a
            if part in b and part != "cycle"
        ]
        file = before if before == after else f"{before} and {after}"
        spread_s = next(part.spread_s for part in parts if part.name == "verify")
        whole = Part(name="cycle", old_s=whole_a, new_s=whole_b, spread_s=spread_s)
        yield _closed(f"a cycle of {file}", whole, parts, "cycle", source="imported")


def _tables(run: Run) -> dict[str, dict[str, Row]]:
    """Return the component tables of a run by file, each by part; of several the longest."""
    found: dict[str, dict[str, Row]] = {}
    for row in run.rows:
        last = row.last
        if last.implementation != _TABLE or row.level is None or last.mode == "decode":
            continue
        table = found.setdefault("" if last.origin is None else last.origin.file, {})
        known = table.get(last.part)
        if known is None or (known.median_s or 0) < row.level.median_s:
            table[last.part] = row
    return {file: table for file, table in found.items() if "forward" in table}


def _cycle_s(table: Mapping[str, Row]) -> float | None:
    """Return the cycle of a table: its own line, else verify / share."""
    verify = table["forward"]
    if "cycle" in table:
        return table["cycle"].median_s
    share = verify.last.method.get("share")
    if verify.median_s is None or not isinstance(share, int | float) or not 0 < share <= 1:
        return None
    return verify.median_s / share


def _traces(old: Run, new: Run) -> Iterator[Split]:
    olds, news = _by_trace(old), _by_trace(new)
    both = [name for name in olds if name in news]
    for name in both:
        a, b = olds[name], news[name]
        parts = [
            Part(name=part, old_s=a.get(part, 0.0), new_s=b.get(part, 0.0))
            for part in dict.fromkeys([*a, *b])
        ]
        whole = Part(name="step", old_s=sum(a.values()), new_s=sum(b.values()))
        yield Split(what=f"a step of {name}", source="imported", whole=whole, parts=tuple(parts))


def _by_trace(run: Run) -> dict[str, dict[str, float]]:
    """Return the seconds a step of each class, by GPU; files count where a GPU has several."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for one in run.traced:
        groups.setdefault((one.case, one.origin.file if one.origin else ""), []).append(one)
    cases = [case for case, _ in groups]
    found = {}
    for (case, file), group in groups.items():
        parts = _step_parts(group)
        if parts:
            found[case if cases.count(case) == 1 else f"{case} of {file}"] = parts
    return found


def _step_parts(group: Sequence[Measurement]) -> dict[str, float]:
    """Return what each class takes of a step: of the whole trace where no step was found."""
    whole = next((one for one in group if one.op == _TRACE), None)
    if whole is None or not whole.median_s:
        return {}
    step = next((one.median_s for one in group if one.op == _STEP), None) or whole.median_s
    scale = step / whole.median_s
    parts: dict[str, float] = {}
    for one in group:
        alone = one.dims.get("alone_s")
        if one.op == _CLASS and isinstance(alone, int | float):
            parts[one.implementation] = scale * alone
    idle = whole.dims.get("idle_s")
    idle_s = scale * idle if isinstance(idle, int | float) else 0.0
    if idle_s:
        parts[IDLE] = idle_s
    parts[_LEFT["trace"]] = step - sum(parts.values())
    return parts


def _predicted(old: Run, new: Run) -> Iterator[Split]:
    olds, news = (
        {_budget.title(one): one for one in _budget.passes(filter(_is_of_a_pass, run.predicted))}
        for run in (old, new)
    )
    for title in [name for name in olds if name in news][:_MOST_PREDICTED]:
        unknown = {key for one in (olds[title], news[title]) for key in map(_op, one.whole.unknown)}
        a, b = (
            {str(name): total.seconds or 0.0 for name, total in one.by_class().items()}
            for one in (_without(olds[title], unknown), _without(news[title], unknown))
        )
        parts = [
            Part(name=name, old_s=a.get(name, 0.0), new_s=b.get(name, 0.0))
            for name in dict.fromkeys([*a, *b])
        ]
        whole = Part(name="pass", old_s=sum(a.values()), new_s=sum(b.values()))
        if whole.old_s and whole.new_s:
            lacks = f", without {_text.listed(sorted({op for _, op in unknown}))}"
            yield Split(
                what=f"a pass of {title}{lacks if unknown else ''}",
                source="predicted",
                whole=whole,
                parts=tuple(parts),
            )


def _op(one: Measurement) -> tuple[str, str]:
    return one.part, one.op


def _without(one: _budget.Pass, unknown: Collection[tuple[str, str]]) -> _budget.Pass:
    """Return a pass without ops that have no time in it, or in the one that it is held against."""
    return replace(one, records=tuple(each for each in one.records if _op(each) not in unknown))


def _is_of_a_pass(one: Measurement) -> bool:
    """Say whether a prediction is a part of a pass, and no single kernel or message."""
    return one.part != WHOLE and "calls" in one.dims and "algorithm" not in one.dims


def _of_rows(pairs: Sequence[Pair]) -> Split | None:
    """Return the sum of one call of each row by class and op; see what is left out above."""
    groups: dict[str, list[Part]] = {}
    for pair in pairs:
        last = pair.new.last
        if (
            last.part in (*_HOLD_OTHERS, *_CEILINGS)
            or last.op.startswith(f"{passes.FORWARD}_")
            or last.op in TRACE_OPS
        ):
            continue
        name = f"{class_of(last.part)}: {last.op}"
        groups.setdefault(name, []).append(_part(name, pair.old, pair.new))
    if not groups:
        return None
    parts = [_summed(name, group) for name, group in groups.items()]
    return Split(
        what="one call of each row",
        source="measured",
        whole=_summed("sum", parts),
        parts=tuple(sorted(parts, key=lambda part: -abs(part.change_s))),
        is_sum=True,
    )


def _summed(name: str, parts: Iterable[Part]) -> Part:
    given = list(parts)
    spreads = [part.spread_s for part in given]
    return Part(
        name=name,
        old_s=math.fsum(part.old_s for part in given),
        new_s=math.fsum(part.new_s for part in given),
        spread_s=math.sqrt(sum(spread**2 for spread in spreads if spread is not None))
        if None not in spreads
        else None,
    )


def _part(name: str, old: Row, new: Row) -> Part:
    if old.level is None or new.level is None:
        raise ValueError(f"{name} has no time in one of the runs")
    between = max(old.level.between, new.level.between)
    spread_s = math.hypot(
        old.level.median_s * old.level.spread,
        new.level.median_s * new.level.spread,
        between * math.sqrt(old.level.median_s * new.level.median_s),
    )
    return Part(name=name, old_s=old.level.median_s, new_s=new.level.median_s, spread_s=spread_s)


def _closed(
    what: str, whole: Part, parts: Sequence[Part], kind: str, *, source: Source = "measured"
) -> Split:
    """Return the split with what its parts leave of the whole."""
    left = Part(
        name=_LEFT[kind],
        old_s=whole.old_s - math.fsum(part.old_s for part in parts),
        new_s=whole.new_s - math.fsum(part.new_s for part in parts),
    )
    return Split(what=what, source=source, whole=whole, parts=(*parts, left))
