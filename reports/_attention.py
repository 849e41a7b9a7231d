"""The section of attention: how time grows with T, its three forms, what a step does beside it.

A form is how a verify pass is computed: *verify* reads each key once, *decode* makes each draft
token a request of its own, *extend* lets one block a head walk the whole prefix. Rows that no GPU
has measured are predicted ones, in italics: what their bytes, flops and launches give.

The roofline of a row is its roof and its launches (`method`: roof_s, nodes, node_s), or its floor
of bytes and flops where that is all that is known.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from reports import _text, _verify
from reports._collected import Collected
from reports._kernels import Case, Op, known_columns
from reports._markdown import code, text
from reports._points import points, rows
from reports._text import NOT_KNOWN, plural
from reports._verify import Curve
from verifyscope.records import Compiled, Measurement, Mode

MODES: tuple[Mode, ...] = ("verify", "decode", "extend")
ABOVE_ROOFLINE = 1.3
_PARTS = ("attention", "metadata", "sampling")
_MOST_T = 8
_MOST_CURVES = 40


@dataclass(frozen=True, slots=True)
class Attention:
    """What the section shows.

    ops: the attention of a verify pass; beside: what a step does besides, merges and acceptance;
    predicted: ops whose own kernels nobody has timed on a GPU; builds: their compiled kernels.
    """

    ops: tuple[Op, ...]
    beside: tuple[Op, ...]
    predicted: tuple[Op, ...]
    builds: tuple[Compiled, ...]

    @property
    def all_ops(self) -> tuple[Op, ...]:
        """Return the measured ops."""
        return (*self.ops, *self.beside)

    @property
    def is_there(self) -> bool:
        """Say whether there is anything to show."""
        return bool(self.all_ops or self.predicted)


def attention(found: Collected, ops: Sequence[Op], builds: Iterable[Compiled]) -> Attention:
    """Sort out what belongs to attention; the rest of `ops` and `builds` is shown elsewhere."""
    mine = [op for op in ops if belongs(op)]
    predicted = _predicted(found)
    shown = {op.name for op in (*mine, *predicted)}
    return Attention(
        ops=tuple(op for op in mine if _has_forms(op)),
        beside=tuple(op for op in mine if not _has_forms(op)),
        predicted=predicted,
        builds=tuple(build for build in builds if build.op in shown),
    )


def belongs(op: Op) -> bool:
    """Say whether an op is attention or what a step does beside it, and is no imported event."""
    first = op.cases[0].first
    return first.part in _PARTS and first.source == "measured"


@dataclass(frozen=True, slots=True)
class Folded:
    """A table of what matters most, and one of the rest; "" where there is nothing."""

    shown: str
    others: str
    left_out: int = 0


def names(attention: Attention) -> list[str]:
    """Return the ops that have forms, measured or predicted."""
    every = (*attention.ops, *attention.predicted)
    return list(dict.fromkeys(op.name for op in every if _has_forms(op)))


def axis(attention: Attention, name: str, found: Collected) -> Folded:
    """Return time(T) of an op: base, slope and floor, and growth against the roofline's.

    The curves of most T are shown first, measured ones before predicted ones.
    """
    curves = [curve for op in _of(attention, name) for curve in _verify.curves(op)]
    if not curves:
        return Folded("", "")
    first = max(curves, key=lambda curve: len(curve.by_tokens)).fixed
    alike = [curve for curve in curves if curve.fixed == first]
    others = [curve for curve in curves if curve.fixed != first]
    return Folded(
        _axis_table(alike, found),
        _axis_table(others[:_MOST_CURVES], found) if others else "",
        left_out=max(0, len(others) - _MOST_CURVES),
    )


def _axis_table(curves: Sequence[Curve], found: Collected) -> str:
    tokens = sorted({t for curve in curves for t in curve.by_tokens if t != 1})[:_MOST_T]
    lines = []
    for curve in curves:
        mark = _marked(curve.by_tokens[1])
        ratios = [
            _text.ratio(_text.divided(curve.seconds(t), curve.one_s))
            if t in curve.by_tokens
            else NOT_KNOWN
            for t in tokens
        ]
        base, slope = curve.fit() or (None, None)
        cells = (
            _text.duration(curve.one_s),
            *ratios,
            _signed(base),
            _signed(slope),
            _floors(curve),
        )
        point = _verify.differing(curve, curves)
        lines.append(
            (
                *_who(curve.by_tokens[1], found),
                point,
                *map(mark, cells),
                _against_roofline(curve),
            )
        )
    header = ("implementation", "on", "point", "T=1", *(f"T={t}" for t in tokens))
    header += ("base", "slope", "floor", "growth over the roofline's")
    align = "lll" + "r" * (len(tokens) + 4) + "l"
    return known_columns(header, _merged(lines), always=1, align=align)


def forms(attention: Attention, name: str, found: Collected) -> Folded:
    """Return the forms of an op side by side, those of the point of most T first."""
    ops = _of(attention, name)
    every = [curve for op in ops for curve in _verify.curves(op)]
    most = max(every, key=lambda curve: len(curve.by_tokens), default=None)
    shown = set() if most is None else {one.case for one in most.by_tokens.values()}
    lines = [line for op in ops for case in op.cases for line in _forms(case, found)]
    header = ("case", "kernels", "on", *MODES)

    def made(chosen: Sequence[tuple[str, ...]]) -> str:
        turned = [(kernels, where, case, *cells) for case, kernels, where, *cells in chosen]
        again = [(case, kernels, where, *cells) for kernels, where, case, *cells in _merged(turned)]
        return (
            known_columns(header, again, always=2, align="lll" + "r" * len(MODES)) if again else ""
        )

    return Folded(
        made([line for line in lines if line[0] in {code(case) for case in shown}]),
        made([line for line in lines if line[0] not in {code(case) for case in shown}]),
    )


def _merged(lines: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Join lines that differ in their first cell alone, as predictions of several kernels do."""
    named: dict[tuple[str, ...], list[str]] = {}
    for first, *others in lines:
        named.setdefault(tuple(others), []).append(first)
    return [(", ".join(dict.fromkeys(firsts)), *others) for others, firsts in named.items()]


def _of(attention: Attention, name: str) -> list[Op]:
    return [op for op in (*attention.ops, *attention.predicted) if op.name == name]


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
        verdict = (
            f"{within} of {plural(len(judged), 'row')} within roof / 0.85 + nodes; "
            if judged
            else ""
        )
        lines.append(f"{code(op.name)} {code(name)}: {verdict}limited by {counts}.")
    return lines


def predicted_verdicts(attention: Attention) -> list[str]:
    """Return what limits the cases that are predicted, in their verify form."""
    lines = []
    for op in attention.predicted:
        if not _has_forms(op):
            continue
        limits: dict[str, str] = {}
        for row in op.rows:
            if row.point.main.mode in (None, "verify"):
                limits[row.point.main.case] = str(row.point.main.method.get("limited_by"))
        counts = ", ".join(
            f"{word} in {[*limits.values()].count(word)}" for word in dict.fromkeys(limits.values())
        )
        where = op.rows[0].point.main.method.get("gpu", "a GPU")
        lines.append(
            f"*{code(op.name)}, predicted for {text(str(where))}: of {plural(len(limits), 'case')} "
            f"limited by {counts}.*"
        )
    return lines


def beside_table(attention: Attention, found: Collected) -> str:
    """Return what each op beside attention takes, from its quickest to its slowest case."""
    lines = []
    for op in (*attention.beside, *(op for op in attention.predicted if not _has_forms(op))):
        groups: dict[tuple[str, str], list[Measurement]] = {}
        for row in op.rows:
            main = row.point.main
            groups.setdefault((main.implementation, main.environment), []).append(main)
        for measured in groups.values():
            timed = sorted(measured, key=lambda one: one.median_s or 0.0)
            quickest, slowest = timed[0], timed[-1]
            name, where = _who(quickest, found)
            mark = _marked(quickest)
            times = (_time(quickest), _time(slowest))
            cells = (f"{len(timed):,}", *map(mark, times), code(slowest.case))
            lines.append((name, code(op.name), where, *cells))
    lines = [(op, name, *cells) for name, op, *cells in _merged(lines)]
    header = ("step", "implementation", "on", "cases", "quickest", "slowest", "slowest case")
    return known_columns(header, lines, always=2, align="lllrrrl") if lines else ""


def missing(attention: Attention) -> list[str]:
    """Return what is not in the records, and how to get it."""
    lines = []
    gpu_rows = {
        op.name for op in attention.ops if any(row.point.main.kind == "own" for row in op.rows)
    }
    for name in names(attention):
        if name not in gpu_rows:
            lines.append(
                f"No own kernel of {code(name)} was timed: on a GPU, "
                f"{code(f'pytest suites/ --benchmark-only -k {name}')}."
            )
    if not attention.builds:
        lines.append(
            f"No compiled kernel: {code('python -m kernels --compile --records FILE')}; no GPU is "
            f"needed."
        )
    if not attention.beside:
        lines.append(
            f"Nothing of planning, masks, trees and acceptance: "
            f"{code('pytest suites/ --benchmark-only')} times them too."
        )
    return lines


def _predicted(found: Collected) -> tuple[Op, ...]:
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
        cases.setdefault(one.op, {}).setdefault(one.case, []).append(one)
    return tuple(
        Op(name, tuple(Case(tuple(rows(points(of_case), {}))) for of_case in by_case.values()))
        for name, by_case in cases.items()
        if next(iter(by_case.values()))[0].part in _PARTS
    )


def _has_forms(op: Op) -> bool:
    """Say whether the op is attention over a cache: its cases have a context and a tree of T."""
    first = op.cases[0].first
    return first.part == "attention" and "context" in first.dims


def _forms(case: Case, found: Collected) -> Iterable[tuple[str, ...]]:
    """Yield a line for each family of kernels that computes more than one form."""
    families: dict[tuple[str, object], dict[Mode, Measurement]] = {}
    for row in case.rows:
        main = row.point.main
        if main.kind != "own" or main.mode is None:
            continue
        family = main.implementation.removesuffix(f"_{main.mode}")
        families.setdefault((family, row.point.circumstances), {})[main.mode] = main
    for (family, _), by_mode in families.items():
        verify = by_mode.get("verify")
        if verify is None or len(by_mode) < 2:
            continue
        cells = [_form_cell(by_mode.get(mode), verify) for mode in MODES]
        _, where = _who(verify, found)
        yield (code(verify.case), code(family), where, *cells)


def _form_cell(one: Measurement | None, verify: Measurement) -> str:
    if one is None:
        return NOT_KNOWN
    moved = one.method.get("moved_bytes", one.touched_bytes)
    size = _text.size(moved if isinstance(moved, int | float) else None)
    words = f"{_text.duration(one.median_s)}, {size}"
    if one is not verify:
        words += f", {_text.ratio(_text.divided(one.median_s, verify.median_s))} x"
    return _marked(one)(words)


def _who(one: Measurement, found: Collected) -> tuple[str, str]:
    """Return the implementation, and where it was measured or for what it is predicted."""
    if one.source == "predicted":
        return code(one.implementation), f"*predicted: {text(str(one.method.get('gpu', 'a GPU')))}*"
    words = [found.letter(one.environment)] if len(found.environments) > 1 else []
    words += ["CPU"] if found.on_cpu(one) else []
    return code(one.implementation), ", ".join(words)


def _marked(one: Measurement) -> Callable[[str], str]:
    """Return what puts a predicted value into italics."""
    if one.source != "predicted":
        return str
    return lambda cell: cell if cell == NOT_KNOWN else f"*{cell}*"


def _time(one: Measurement) -> str:
    """Return a time; of a prediction that knows no node's time, the launches that come on top."""
    time, nodes = _text.duration(one.median_s), one.method.get("nodes")
    if one.source != "predicted" or "node_s" in one.method or not isinstance(nodes, int):
        return time
    return f"{time} + {nodes} launch{'' if nodes == 1 else 'es'}"


def _signed(seconds: float | None) -> str:
    if seconds is None or seconds >= 0:
        return _text.duration(seconds)
    return f"-{_text.duration(-seconds)}"


def _floors(curve: Curve) -> str:
    floors = [one.floor_s for one in curve.by_tokens.values() if one.floor_s is not None]
    if not floors:
        return NOT_KNOWN
    least, most = _text.duration(min(floors)), _text.duration(max(floors))
    return least if least == most else f"{least} to {most}"


def _against_roofline(curve: Curve) -> str:
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
    words = f"{_text.ratio(over)} at T={tokens}"
    return (
        f"{words}, within {ABOVE_ROOFLINE}"
        if over <= ABOVE_ROOFLINE
        else f"**{words}, above {ABOVE_ROOFLINE}**"
    )


def _roofline_s(one: Measurement) -> float | None:
    """Return the roof and the launches of a row, or its floor where no more is known."""
    roof_s, nodes, node_s = (one.method.get(name) for name in ("roof_s", "nodes", "node_s"))
    if not isinstance(roof_s, int | float):
        return one.floor_s
    if isinstance(nodes, int) and isinstance(node_s, int | float):
        return roof_s + nodes * node_s
    return float(roof_s)
