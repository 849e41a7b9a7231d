"""What sections of kernels share: growth with T beside the roofline's, bounds kept, who and where.

Rows that no GPU has measured are predicted ones, in italics: what their bytes, flops and launches
give. The roofline of a row is its roof and its launches (`method`: roof_s, nodes, node_s), or its
floor of bytes and flops where that is all that is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports import _marks, _text, _verify
from reports._collected import Collected
from reports._kernels import Case, Op, known_columns
from reports._markdown import code, text
from reports._points import points, rows
from reports._text import NOT_KNOWN, plural
from reports._verify import Curve
from verifyscope.records import Measurement

_MOST_T = 8
_MOST_CURVES = 40
_REACHABLE_SHARE = 0.85  # of the roof, where a row of an earlier version does not say


@dataclass(frozen=True, slots=True)
class Folded:
    """A table of what matters most, and one of the rest; "" where there is nothing."""

    shown: str
    others: str
    left_out: int = 0


def axis(ops: Sequence[Op], found: Collected, *, above: float) -> Folded:
    """Return time(T) of an op: base, slope and floor, and growth against the roofline's.

    ops: the measured and the predicted cases of one op. above: how much more than the roofline's
    growth is too much. The curves of most T are shown first, measured ones before predicted ones.
    """
    curves = [curve for op in ops for curve in _verify.curves(op)]
    if not curves:
        return Folded("", "")
    first = max(curves, key=lambda curve: len(curve.by_tokens)).fixed
    alike = [curve for curve in curves if curve.fixed == first]
    others = [curve for curve in curves if curve.fixed != first]
    return Folded(
        _axis_table(alike, found, above),
        _axis_table(others[:_MOST_CURVES], found, above) if others else "",
        left_out=max(0, len(others) - _MOST_CURVES),
    )


def _axis_table(curves: Sequence[Curve], found: Collected, above: float) -> str:
    tokens = sorted({t for curve in curves for t in curve.by_tokens if t != 1})[:_MOST_T]
    lines = []
    for curve in curves:
        mark = marked(curve.by_tokens[1])
        ratios = [_verify.grown(curve, t) if t in curve.by_tokens else NOT_KNOWN for t in tokens]
        base, slope = curve.fit() or (None, None)
        cells = (
            _text.median(curve.by_tokens[1]),
            *ratios,
            _verify.fitted(curve, _text.duration(base)),
            _verify.fitted(curve, _text.duration(slope)),
            _floors(curve),
        )
        point = _verify.differing(curve, curves)
        lines.append(
            (
                *who(curve.by_tokens[1], found),
                point,
                *map(mark, cells),
                _against_roofline(curve, above),
            )
        )
    header = ("implementation", "on", "point", "T=1", *(f"T={t}" for t in tokens))
    header += ("base", "slope", "floor", "growth over the roofline's")
    align = "lll" + "r" * (len(tokens) + 4) + "l"
    return known_columns(header, merged(lines), always=1, align=align)


def verdicts(op: Op) -> list[str]:
    """Return how many rows of each own implementation are within their bound, and what limits."""
    lines = []
    for name in dict.fromkeys(row.point.main.implementation for row in op.rows):
        held = [
            row.point.main
            for row in op.rows
            if row.point.main.implementation == name and "limited_by" in row.point.main.method
        ]
        if not held:
            continue
        limits = [str(one.method["limited_by"]) for one in held]
        counts = ", ".join(
            f"{word} in {limits.count(word)}"
            for word in ("bytes", "flops", "nodes")
            if word in limits
        )
        judged = [one for one in held if "within_bound" in one.method]
        within = sum(one.method["within_bound"] is True for one in judged)
        share = held[0].method.get("reachable_share", _REACHABLE_SHARE)
        verdict = (
            f"{within} of {plural(len(judged), 'row')} within roof / {share} + nodes; "
            if judged
            else ""
        )
        lines.append(f"{code(op.name)} {code(name)}: {verdict}limited by {counts}.")
    return lines


def predicted_ops(found: Collected, parts: Sequence[str]) -> tuple[Op, ...]:
    """Gather predictions of kernels by op and case, where no GPU has measured the same."""
    if not found.predicted_kernels:
        return ()
    measured = {
        (one.op, one.implementation, one.case) for one in found.kernels if not found.on_cpu(one)
    }
    cases: dict[str, dict[str, list[Measurement]]] = {}
    for one in found.predicted_kernels:
        if one.median_s is None or (one.op, one.implementation, one.case) in measured:
            continue
        if one.part in parts:
            cases.setdefault(one.op, {}).setdefault(one.case, []).append(one)
    return tuple(
        Op(name, tuple(Case(tuple(rows(points(of_case), {}))) for of_case in by_case.values()))
        for name, by_case in cases.items()
    )


def beside_table(ops: Sequence[Op], found: Collected) -> str:
    """Return what each op takes, from its quickest to its slowest case; "" without any."""
    lines = []
    for op in ops:
        groups: dict[tuple[str, str], list[Measurement]] = {}
        for row in op.rows:
            main = row.point.main
            groups.setdefault((main.implementation, main.environment), []).append(main)
        for measured in groups.values():
            timed = sorted(measured, key=lambda one: one.median_s or 0.0)
            quickest, slowest = timed[0], timed[-1]
            name, where = who(quickest, found)
            mark = marked(quickest)
            times = (time(quickest), time(slowest))
            cells = (f"{len(timed):,}", *map(mark, times), code(slowest.case))
            lines.append((name, code(op.name), where, *cells))
    lines = [(op, name, *cells) for name, op, *cells in merged(lines)]
    header = ("step", "implementation", "on", "cases", "quickest", "slowest", "slowest case")
    return known_columns(header, lines, always=2, align="lllrrrl") if lines else ""


def merged(lines: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Join lines that read alike but for their first cell, as predictions of several kernels do.

    Which records their numbers come from makes no difference; those of the first line are kept.
    """
    alike: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for line in lines:
        alike.setdefault(tuple(map(_marks.removed, line[1:])), []).append(line)
    return [
        (", ".join(dict.fromkeys(line[0] for line in same)), *same[0][1:])
        for same in alike.values()
    ]


def who(one: Measurement, found: Collected) -> tuple[str, str]:
    """Return the implementation, and where it was measured or for what it is predicted."""
    if one.source == "predicted":
        return code(one.implementation), f"*predicted: {text(str(one.method.get('gpu', 'a GPU')))}*"
    words = [found.letter(one.environment)] if len(found.environments) > 1 else []
    words += ["CPU"] if found.on_cpu(one) else []
    return code(one.implementation), ", ".join(words)


def marked(one: Measurement) -> Callable[[str], str]:
    """Return what puts a predicted value into italics."""
    if one.source != "predicted":
        return str
    return lambda cell: cell if cell == NOT_KNOWN else f"*{cell}*"


def time(one: Measurement) -> str:
    """Return a time; of a prediction that knows no node's time, the launches that come on top."""
    time, nodes = _text.median(one), one.method.get("nodes")
    if one.source != "predicted" or "node_s" in one.method or not isinstance(nodes, int):
        return time
    return f"{time} + {nodes} launch{'' if nodes == 1 else 'es'}"


def _floors(curve: Curve) -> str:
    floors = [one.floor_s for one in curve.by_tokens.values() if one.floor_s is not None]
    if not floors:
        return NOT_KNOWN
    least, most = _text.duration(min(floors)), _text.duration(max(floors))
    words = least if least == most else f"{least} to {most}"
    return _marks.derived(
        words, curve.by_tokens.values(), "least and largest floor_s", predicted=True
    )


def _against_roofline(curve: Curve, above: float) -> str:
    """Return the worst of (time(T) / time(1)) / (roofline(T) / roofline(1)), and its verdict."""
    first = curve.by_tokens[1]
    if first.source == "predicted":
        return NOT_KNOWN
    worst: tuple[float, int] | None = None
    for tokens, one in curve.by_tokens.items():
        grown = _text.divided(curve.seconds(tokens), curve.one_s)
        least = _text.divided(_roofline_s(one), _roofline_s(first))
        over = _text.divided(grown, least)
        if tokens != 1 and over is not None and (worst is None or over > worst[0]):
            worst = over, tokens
    if worst is None:
        return NOT_KNOWN
    over, tokens = worst
    formula = f"(time(T={tokens}) / time(T=1)) / (the same of roof and launches)"
    ratio = _marks.derived(_text.ratio(over), [curve.by_tokens[tokens], first], formula)
    words = f"{ratio} at T={tokens}"
    return f"{words}, within {above}" if over <= above else f"**{words}, above {above}**"


def _roofline_s(one: Measurement) -> float | None:
    """Return the roof and the launches of a row, or its floor where no more is known."""
    roof_s, nodes, node_s = (one.method.get(name) for name in ("roof_s", "nodes", "node_s"))
    if not isinstance(roof_s, int | float):
        return one.floor_s
    if isinstance(nodes, int) and isinstance(node_s, int | float):
        return roof_s + nodes * node_s
    return float(roof_s)
