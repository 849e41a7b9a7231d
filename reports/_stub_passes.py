"""Measured passes of the stub: modes side by side, the account of parts, classes, and graphs.

Records are those of `verifyscope.passes`; what one run measured of a case shares method["pass"]. A
part's cost stands three times: alone (*isolated*), as what the pass gains without it (*marginal*),
and where it stands in a whole pass (*in context*). What a column's parts do not add up to is shown.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports import _marks, _text
from reports._collected import Collected
from reports._kernels import known_columns
from reports._markdown import code, text
from reports._text import NOT_KNOWN
from verifyscope import passes
from verifyscope.parts import CLASSES, PARTS, class_of
from verifyscope.records import Measurement

MOST_CASES = 12


@dataclass(frozen=True, slots=True)
class Case:
    """What one run measured of one case, in the order of the records."""

    rows: tuple[Measurement, ...]

    @property
    def first(self) -> Measurement:
        """Return any of its records, for what they share."""
        return self.rows[0]

    def of(self, op: str) -> list[Measurement]:
        """Return the records of `op` that have a time."""
        return [row for row in self.rows if row.op == op and row.median_s is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """One case as Markdown; "" where a part of it is not in the records."""

    title: str
    facts: str
    modes: str
    account: str
    classes: str
    graphs: str
    beside: str


def cases(found: Collected) -> list[Case]:
    """Return the measured cases, in the order of the records."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for row in found.passes:
        key = str(row.method.get("pass", row.environment)), row.case
        groups.setdefault(key, []).append(row)
    return [Case(tuple(rows)) for rows in groups.values()]


def view(found: Collected, shown: Sequence[Case]) -> list[CaseView]:
    """Return what the section shows of each case."""
    return [
        CaseView(
            title=_title(case, found),
            facts=_facts(case),
            modes=_modes_table(case),
            account="\n\n".join(_account_table(case, whole) for whole in case.of(passes.ACCOUNT)),
            classes=_classes_table(case),
            graphs=_graphs_table(case),
            beside=beside(case),
        )
        for case in shown
    ]


def _title(case: Case, found: Collected) -> str:
    dims = case.first.dims
    where = f", on {found.letter(case.first.environment)}" if len(found.environments) > 1 else ""
    cpu = ", CPU" if found.on_cpu(case.first) else ""
    return (
        f"{text(str(dims.get('model', '?')))}, TP {dims.get('tp', '?')}, "
        f"{_text.plural(int(dims.get('rows', 0)), 'row')}, context {dims.get('context', '?')}, "
        f"{_text.plural(int(dims.get('layers', 0)), 'layer')}{cpu}{where}"
    )


def _facts(case: Case) -> str:
    """Return what the numbers are of: how shrunk, which weights, all-reduces, implementations."""
    dims, method = case.first.dims, case.first.method
    words = []
    if dims.get("shrunk"):
        words.append("**shrunk to fit a CPU: no time of the real model**")
    if "all_reduce" in dims:
        words.append(f"all-reduce: {text(str(dims['all_reduce']))}")
    if "weight_sets" in dims:
        words.append(f"{dims['weight_sets']} distinct sets of weights")
    used = {
        name.removeprefix("impl_"): value
        for name, value in method.items()
        if name.startswith("impl_")
    }
    words += [f"{text(name)} by {code(str(value))}" for name, value in used.items()]
    return ", ".join(words) + "." if words else ""


def _modes_table(case: Case) -> str:
    """Return each way to launch the pass: its time, the host's part in it, and its graph."""
    lines = []
    for row in case.of(passes.FORWARD):
        outside = row.dims.get("outside")
        mode = f"{row.launch or '?'}" + (f", {text(str(outside))} outside" if outside else "")
        idle = _one(case, passes.IDLE, row)
        skew = [
            value
            for name, value in row.method.items()
            if name.startswith("rank_") and isinstance(value, int | float)
        ]
        lines.append(
            (
                mode,
                row.cache or NOT_KNOWN,
                _text.timed(row),
                _seconds(row, "host_launch_s"),
                _seconds(row, "from_idle_s"),
                _text.median(idle),
                str(row.method.get("launches", NOT_KNOWN)),
                _text.of_floor(row),
                _marks.derived(
                    _text.duration(max(skew) - min(skew)), [row], "slowest - fastest rank"
                )
                if len(skew) > 1
                else NOT_KNOWN,
            )
        )
    if not lines:
        return ""
    header = (
        *("launched", "cache", "time (95 %)", "host launch", "from idle", "without a kernel"),
        *("launches", "of floor", "between ranks"),
    )
    return known_columns(header, lines, always=3, align="llrrrrrrr")


def _account_table(case: Case, whole: Measurement) -> str:
    """Return each part three times, and what the parts do not add up to."""
    alike = [row for row in case.rows if (row.launch, row.dims) == (whole.launch, whole.dims)]
    lines: list[tuple[str, ...]] = []
    for part in PARTS:
        mine = {row.op: row for row in alike if row.part == part and row.median_s is not None}
        only, without, inside = (
            mine.get(op) for op in (passes.ONLY, passes.WITHOUT, passes.IN_CONTEXT)
        )
        if only is None and without is None and inside is None:
            continue
        lines.append(
            (
                text(part),
                text(class_of(part)),
                _text.median(only),
                _signed(without, "cost"),
                _text.median(inside),
                _share(inside or only, whole),
            )
        )
    columns = ("isolated", "marginal", "in_context")
    sums = [
        _marks.told(_text.duration(_number(whole, name)), whole, name) for name in _sums(columns)
    ]
    lines.append(("**sum**", "", *sums, ""))
    lines.append(("**whole**", "", *[_text.median(whole)] * 3, ""))
    unexplained = [_unexplained(whole, f"{name}_unexplained_s") for name in columns]
    lines.append(("**unexplained**", "", *unexplained, ""))
    between = [_between(whole, f"{name}_unexplained") for name in columns]
    lines.append(("its 95 %", "", *between, ""))
    header = ("part", "class", "isolated", "marginal (95 %)", "in context", "of the whole")
    return known_columns(header, lines, always=2, align="llrrrr")


def _sums(columns: Iterable[str]) -> list[str]:
    return [f"{name}_sum_s" for name in columns]


def beside(case: Case) -> str:
    """Return what stands beside the passes: plans of attention, and what ranks wait for."""
    words = []
    for plan in case.of(passes.PLAN):
        words.append(f"attention plans {_text.median(plan)} a step on the host")
    for whole in case.of(passes.ACCOUNT):
        skew = _number(whole, "all_reduce_skew_s")
        if skew is not None:
            words.append(
                f"in all-reduces the rank that waits most spends "
                f"{_marks.told(_text.duration(skew), whole, 'all_reduce_skew_s')} a pass "
                f"more than the one that waits least"
            )
    return f"{'; '.join(words)}." if words else ""


def growth_table(found: Collected) -> str:
    """Return the lines through measured passes of several rows or contexts."""
    lines = []
    for row in found.passes:
        if row.op != passes.FIT or row.median_s is None:
            continue
        dims, over_rows = row.dims, row.method.get("axis") == "rows"
        ratio, low, high = (_number(row, f"ratio{end}") for end in ("", "_low", "_high"))
        apart = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
        lines.append(
            (
                f"{text(str(dims.get('model', '?')))}, TP {dims.get('tp', '?')}",
                row.launch or NOT_KNOWN,
                text(str(dims.get("all_reduce", NOT_KNOWN))),
                "rows" if over_rows else "context",
                f"{'context' if over_rows else 'rows'} {row.method.get('other', '?')}",
                text(str(row.method.get("sizes", NOT_KNOWN))),
                _seconds(row, "base_s"),
                _seconds(row, "slope_s"),
                NOT_KNOWN
                if ratio is None
                else f"x {_marks.told(f'{ratio:.2f}{apart}', row, 'ratio')}",
                text(str(row.method.get("grows", NOT_KNOWN))),
            )
        )
    header = (
        *("model", "launched", "all-reduce", "over", "at", "sizes", "base", "slope, each"),
        *("largest against smallest (95 %)", "so"),
    )
    return known_columns(header, lines, always=4, align="llllllrrrl") if lines else ""


def _classes_table(case: Case) -> str:
    """Return the time of each class by a profiler, beside the sum of its parts in context."""
    lines = []
    for name in CLASSES:
        for seen in (row for row in case.of(passes.CLASS) if row.part == name):
            inside = [
                row
                for row in case.of(passes.IN_CONTEXT)
                if class_of(row.part) == name and row.launch == seen.launch
            ]
            told = sum(row.median_s or 0.0 for row in inside) if inside else None
            apart = None if told is None or seen.median_s is None else seen.median_s - told
            lines.append(
                (
                    text(name),
                    seen.launch or NOT_KNOWN,
                    text(str(seen.method.get("by", NOT_KNOWN))),
                    _text.median(seen),
                    _marks.derived(_text.duration(told), inside, "sum of the parts in context"),
                    _marks.derived(_text.duration(apart), [seen, *inside], "time - its parts"),
                    str(seen.method.get("kernels", NOT_KNOWN)),
                )
            )
    header = ("class", "launched", "seen by", "time", "its parts", "apart", "kernels")
    return known_columns(header, lines, always=3, align="lllrrrr") if lines else ""


def _graphs_table(case: Case) -> str:
    """Return what a captured graph costs once, and its nodes by kind."""
    lines = []
    for op in (passes.INSTANTIATE, passes.UPLOAD, passes.FIRST_LAUNCH):
        for row in case.of(op):
            nodes = ", ".join(
                f"{value} {text(name.removeprefix('nodes_'))}"
                for name, value in row.method.items()
                if name.startswith("nodes_")
            )
            lines.append(
                (
                    row.launch or NOT_KNOWN,
                    text(op.removeprefix("graph_").replace("_", " ")),
                    _text.median(row),
                    str(row.method.get("graphs", NOT_KNOWN)),
                    nodes or NOT_KNOWN,
                )
            )
    header = ("launched", "once", "time", "graphs", "nodes")
    return known_columns(header, lines, always=3, align="llrrl") if lines else ""


def _one(case: Case, op: str, like: Measurement) -> Measurement | None:
    alike = (row for row in case.of(op) if (row.launch, row.dims) == (like.launch, like.dims))
    return next(iter(alike), None)


def _number(row: Measurement, name: str) -> float | None:
    value = row.method.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _seconds(row: Measurement, name: str) -> str:
    return _marks.told(_text.duration(_number(row, name)), row, name)


def _signed(row: Measurement | None, name: str) -> str:
    """Return what a pass gains without a part, and its interval; it may be below zero."""
    if row is None:
        return NOT_KNOWN
    middle, low, high = (_number(row, f"{name}{end}") for end in ("_s", "_low_s", "_high_s"))
    words = _text.duration(middle)
    if low is not None and high is not None:
        words += f" ({_text.duration(low)} to {_text.duration(high)})"
    return _marks.told(words, row, f"{name}_s")


def _between(row: Measurement, name: str) -> str:
    low, high = (_number(row, f"{name}{end}") for end in ("_low_s", "_high_s"))
    if low is None or high is None:
        return NOT_KNOWN
    return _marks.told(f"{_text.duration(low)} to {_text.duration(high)}", row, name)


def _share(part: Measurement | None, whole: Measurement) -> str:
    if part is None:
        return NOT_KNOWN
    share = _text.share(part.median_s, whole.median_s)
    return _marks.derived(share, [part, whole], "part / whole")


def _unexplained(whole: Measurement, name: str) -> str:
    seconds = _number(whole, name)
    share = _text.divided(seconds, whole.median_s)
    if share is None:
        return NOT_KNOWN
    return _marks.told(f"{_text.duration(seconds)} ({share * 100:+.0f} %)", whole, name)


def headline(shown: Iterable[Case]) -> list[str]:
    """Return a sentence a case: what the pass takes, eager and as a graph."""
    lines = []
    for case in shown:
        times = {row.launch: row for row in case.of(passes.FORWARD) if "outside" not in row.dims}
        eager, graph = times.get("eager"), times.get("graph")
        if eager is None and graph is None:
            continue
        known = [
            f"{_text.median(row)} {word}"
            for row, word in ((eager, "eager"), (graph, "as one graph"))
            if row is not None
        ]
        dims = case.first.dims
        shrunk = ", shrunk to a CPU" if dims.get("shrunk") else ""
        lines.append(
            f"A pass of {_text.plural(int(dims.get('rows', 0)), 'row')} of "
            f"{text(str(dims.get('model', '?')))}{shrunk} takes {' and '.join(known)}."
        )
    return lines
