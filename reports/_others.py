"""What others measured of kernels and of whole steps: a line a series, and behind it its file.

A series is what one file says of one implementation on one GPU. Where it has several T (rows, else
requests) its line says what four take beside one. The table of a file that is too long to read is
of points from the quickest to the slowest, by T; every row of it is in the records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from reports import _marks, _provenance, _text
from reports._kernels import known_columns
from reports._markdown import code, text
from reports._text import NOT_KNOWN, plural
from verifyscope.parts import CLASSES, class_of
from verifyscope.records import Measurement, Value

MOST_SERIES = 80
_MOST_ROWS = 40
_MOST_T = 6
_MOST_DIMS = 4
_WHOLE = ("cycle", "forward", "generation")  # what a verify itself is comes before its parts
_USUAL_T = 4
_AXES = ("rows", "requests")
_FOLLOWS = ("all_rows", "distinct_experts")  # what grows with T is no point of its own


@dataclass(frozen=True, slots=True)
class Series:
    """What one file says of one implementation on one system."""

    rows: tuple[Measurement, ...]

    @property
    def first(self) -> Measurement:
        """Return any of the rows, for what they share."""
        return self.rows[0]

    @property
    def axis(self) -> str | None:
        """Return the dim that T is; None where all rows have the same."""
        return next((name for name in _AXES if len(self.values(name)) > 1), None)

    def values(self, name: str) -> list[Value]:
        """Return the different values of a dim, ascending where they are numbers."""
        found = {one.dims[name] for one in self.rows if name in one.dims}
        if all(isinstance(value, int | float) for value in found):
            return sorted(found, key=lambda value: float(value))
        return sorted(found, key=str)

    def points(self) -> list[dict[int, Measurement]]:
        """Return what differs in T alone, by T; of repeats the last."""
        axis, groups = self.axis, dict[tuple[object, ...], dict[int, Measurement]]()
        for one in self.rows:
            tokens = one.dims.get(axis or "")
            if isinstance(tokens, int):
                groups.setdefault(_fixed(one, axis), {})[tokens] = one
        return list(groups.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class FileView:
    """The rows of one file as Markdown."""

    name: str
    about: str
    table: str


def series(rows: Iterable[Measurement]) -> list[Series]:
    """Return the series: whole steps first, then by class of the part, then as they were read."""
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for one in rows:
        key = (one.op, one.implementation, _provenance.file(one), _provenance.system(one))
        groups.setdefault(key, []).append(one)
    found = [Series(tuple(of_series)) for of_series in groups.values()]
    return sorted(found, key=_order)


def overview(several: Sequence[Series]) -> str:
    """Return a line for each series."""
    lines = [
        (
            code(one.first.op),
            code(one.first.implementation),
            text(_provenance.system(one.first)) or NOT_KNOWN,
            _span(one),
            grown(one),
            f"{len(one.rows):,}",
            _over(one),
            code(_provenance.file(one.first)),
        )
        for one in several[:MOST_SERIES]
    ]
    header = ("what", "by", "on", "time", "four beside one", "points", "over", "from")
    return known_columns(header, lines, always=2, align="lllrlrll")


def sentences(several: Sequence[Series]) -> list[str]:
    """Return what a verify of four tokens takes beside a step of one, for each op that has both."""
    lines = []
    for op in dict.fromkeys(one.first.op for one in several):
        of_op = [one for one in several if one.first.op == op and one.axis == "rows"]
        ratios = [pair for one in of_op for pair in _pairs(one)]
        if ratios:
            files = dict.fromkeys(code(_provenance.file(one.first)) for one in of_op)
            lines.append(
                f"{code(op)}, imported from {_text.listed(files, most=2)}: a verify of "
                f"{_USUAL_T} tokens takes {_ratio(ratios)} times as long as a step of one, "
                f"in the middle of {plural(len(ratios), 'point')}."
            )
    return lines


def files(several: Sequence[Series]) -> list[FileView]:
    """Return the tables of each file."""
    groups: dict[str, list[Series]] = {}
    for one in several:
        groups.setdefault(_provenance.file(one.first), []).append(one)
    return [_file_view(name, of_file) for name, of_file in groups.items()]


def grown(one: Series) -> str:
    """Return time(4) / time(1) in the middle of the points that have both, and its range."""
    pairs = _pairs(one)
    if not pairs:
        return NOT_KNOWN
    return f"x {_ratio(pairs)}, {one.axis}"


def _ratio(pairs: Sequence[tuple[Measurement, Measurement]]) -> str:
    known = [_text.divided(four.median_s, first.median_s) for first, four in pairs]
    ratios = [value for value in known if value is not None]
    if not ratios:
        return NOT_KNOWN
    least, most = _text.ratio(min(ratios)), _text.ratio(max(ratios))
    words = _text.ratio(median(ratios)) + (f" ({least} to {most})" if least != most else "")
    records = [one for pair in pairs for one in pair]
    return _marks.derived(words, records, f"median of time(T={_USUAL_T}) / time(T=1)")


def _pairs(one: Series) -> list[tuple[Measurement, Measurement]]:
    if one.axis is None:
        return []
    return [
        (by_tokens[1], by_tokens[_USUAL_T])
        for by_tokens in one.points()
        if 1 in by_tokens and _USUAL_T in by_tokens
    ]


def _order(one: Series) -> tuple[int, int]:
    part = one.first.part
    if part in _WHOLE:
        return 0, _WHOLE.index(part)
    return 1, CLASSES.index(class_of(part))


def _fixed(one: Measurement, axis: str | None) -> tuple[object, ...]:
    skipped = (axis, *_FOLLOWS)
    return (*((k, v) for k, v in one.dims.items() if k not in skipped), one.launch, one.mode)


def _varying(one: Series) -> dict[str, list[Value]]:
    names = dict.fromkeys(name for row in one.rows for name in row.dims if name not in _FOLLOWS)
    return {name: values for name in names if len(values := one.values(name)) > 1}


def _over(one: Series) -> str:
    """Return the dims that differ within a series, with their range or their values."""
    words = []
    for name, values in _varying(one).items():
        if all(isinstance(value, int | float) for value in values):
            words.append(f"{text(name)} {_text.value(values[0])} to {_text.value(values[-1])}")
        elif len(values) == 2:
            words.append(f"{text(name)} {text(f'{values[0]} or {values[1]}')}")
        else:
            words.append(f"{len(values)} kinds of {text(name)}")
    return "; ".join(words[:_MOST_DIMS]) or NOT_KNOWN


def _span(one: Series) -> str:
    timed = sorted(one.rows, key=lambda row: row.median_s or 0.0)
    least, most = _text.median(timed[0]), _text.median(timed[-1])
    return least if _marks.removed(least) == _marks.removed(most) else f"{least} to {most}"


def _file_view(name: str, of_file: Sequence[Series]) -> FileView:
    count = sum(len(one.rows) for one in of_file)
    samples = dict.fromkeys(
        str(row.method["sample"]) for one in of_file for row in one.rows if "sample" in row.method
    )
    about = f"{plural(count, 'row')}; {text(_text.listed(samples, most=3))}"
    if count <= _MOST_ROWS:
        return FileView(name=code(name), about=about, table=_rows_table(of_file))
    tables = [_points_table(of_op) for of_op in _by_op(of_file)]
    return FileView(name=code(name), about=about, table="\n\n".join(tables))


def _by_op(of_file: Sequence[Series]) -> list[list[Series]]:
    groups: dict[str, list[Series]] = {}
    for one in of_file:
        groups.setdefault(one.first.op, []).append(one)
    return list(groups.values())


def _rows_table(of_file: Sequence[Series]) -> str:
    rows = [row for one in of_file for row in one.rows]
    lines = [
        (
            code(row.op),
            code(row.implementation),
            code(row.case) if row.case != row.op else NOT_KNOWN,
            _text.timed(row),
            _held(row.dims),
            "; ".join(f"**{text(flag)}**" for flag in row.flags),
        )
        for row in rows
    ]
    header = ("what", "by", "case", "time (95 %)", "at", "flags")
    return known_columns(header, lines, always=2, align="lllrll")


def _held(dims: Mapping[str, Value]) -> str:
    words = (
        f"{text(name)} {text(_text.value(dims[name]))}" for name in dims if name not in _FOLLOWS
    )
    return ", ".join(words)


def _points_table(of_op: Sequence[Series]) -> str:
    """Return times by T, of each series some points from the quickest to the slowest."""
    each = max(1, _MOST_ROWS // len(of_op))
    chosen = [
        (one, varying, point)
        for one in of_op
        for varying in [_varying(one)]
        for point in _spread(one.points(), each)
    ]
    if not chosen:
        return _rows_table([Series(_spread_rows(one, each)) for one in of_op])
    tokens = sorted({t for *_, point in chosen for t in point})
    columns = [t for t in tokens if t & (t - 1) == 0][:_MOST_T]  # 1, 2, 4, ...
    lines = [
        (
            code(one.first.implementation),
            text(_provenance.system(one.first)) or NOT_KNOWN,
            _held({k: v for k, v in _any(point).dims.items() if k in varying and k != axis}),
            *(_text.median(point.get(t)) for t in columns),
        )
        for one, varying, point in chosen
        for axis in [one.axis]
    ]
    axis = of_op[0].axis
    header = ("by", "on", "point", *(f"{axis}={t}" for t in columns))
    total = sum(len(one.points()) for one in of_op)
    shown = known_columns(header, lines, always=1, align="lll" + "r" * len(columns))
    words = f"{code(of_op[0].first.op)}: {len(lines)} of {plural(total, 'point')}"
    return f"{words}, from the quickest to the slowest; all rows are in the records.\n\n{shown}"


def _any(point: Mapping[int, Measurement]) -> Measurement:
    return next(iter(point.values()))


def _spread(
    points: Sequence[dict[int, Measurement]], most: int
) -> Sequence[dict[int, Measurement]]:
    """Return at most so many points, evenly from the quickest to the slowest."""
    ordered = sorted(points, key=lambda point: _any(point).median_s or 0.0)
    return [ordered[at] for at in _evenly(len(ordered), most)]


def _spread_rows(one: Series, most: int) -> tuple[Measurement, ...]:
    ordered = sorted(one.rows, key=lambda row: row.median_s or 0.0)
    return tuple(ordered[at] for at in _evenly(len(ordered), most))


def _evenly(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count // 2]
    return [round(at * (count - 1) / (most - 1)) for at in range(most)]
