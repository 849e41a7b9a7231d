"""Lines of time against rows from a run: time(rows) = base + slope x rows, by least squares.

What a run may hold, the surest first:

    a pass        records of part forward that name rows: measured, imported or predicted
    parts         a pass predicted part by part, added up; "at least" where a part is not known
    an op         a kernel timed at several T: what it adds a row is times `calls` the slope of the
                  pass, which lacks what all else adds; its base is not the pass's

Rows are those of all requests together. At and between the rows of a run its own times count, and
the slope beyond them. What is taken is said, with how far its points lie off the line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import linear_regression

from reports import _budget, _text, _verify
from verifyscope.draft_length import Line
from verifyscope.errors import UsageError
from verifyscope.predictions import TIMELINE, WHOLE
from verifyscope.records import Launch, Measurement, Source, Value

_PASS_OPS = (WHOLE, TIMELINE)
_NAMES_A_PASS = ("tp", "context", "layers", "weight_sets")  # beside every word, such as the model
_GROWS = (
    *("rows", "draft_tokens", "requests", "all_rows", "tree", "distinct_experts", "tokens"),
    *("acceptance", "calls"),
)
_ORDER: tuple[Source, ...] = ("measured", "imported", "predicted")
_LAUNCHES = ("graph", "piecewise", "eager", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A line, and where it comes from. base_s: None where only the slope is known.

    points: (rows, seconds) that it was fitted to; off: how far the worst of them lies from it, as a
    part of it. at_least: a part of the pass is not in it. environment: of its records, by id.
    """

    source: Source | None
    what: str
    base_s: float | None
    slope_s: float
    points: tuple[tuple[int, float], ...] = ()
    off: float | None = None
    at_least: bool = False
    environment: str | None = None

    @classmethod
    def given(cls, base_s: float | None, slope_s: float) -> "Known":
        """Return a line of the command line."""
        return cls(source=None, what="given", base_s=base_s, slope_s=slope_s)

    def with_base(self, base_s: float, how: str) -> "Known":
        """Return the line with a base that it did not have."""
        return replace(self, base_s=base_s, points=(), what=f"{self.what}, {how}")

    def seconds(self, rows: float) -> float:
        """Return the time of a pass of `rows`; `ValueError` of a line that has no base."""
        return self.line.seconds(rows)

    @property
    def line(self) -> Line:
        """Return the line to compute with: between its points, those count."""
        if self.base_s is None:
            raise ValueError(f"of the line {self.what} only the slope is known")
        return Line(base_s=self.base_s, slope_s=self.slope_s, points=self.points)

    def words(self, rows: int) -> str:
        """Return where the time of so many rows comes from."""
        said = "1 row" if rows == 1 else f"{rows} rows"
        known = any(rows == at for at, _ in self.points)
        return f"{'the time' if known else 'the line'} at {said}"

    @property
    def most_rows(self) -> int | None:
        """Return the most rows that it was fitted to."""
        return max((rows for rows, _ in self.points), default=None)


def of_passes(measured: Sequence[Measurement]) -> list[Known]:
    """Return the lines of whole passes, the surest first."""
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for one in measured:
        if one.part == WHOLE and one.op in _PASS_OPS and _rows(one) and one.median_s:
            groups.setdefault(_alike(one, _pass_dims(one)), []).append(one)
    ranked = [(_rank(line, None), line) for line in of_parts(measured)]
    for group in groups.values():
        by_rows = {_rows(one): one.median_s or 0.0 for one in group}
        first = group[0]
        what = _words(first, f"{first.op} by {first.implementation}", _pass_dims(first))
        line = _fitted(what, by_rows, source=first.source)
        if line is not None:
            line = replace(line, environment=first.environment)
            ranked.append((_rank(line, first.launch), line))
    return [line for _, line in sorted(ranked, key=lambda one: one[0])]


def of_parts(measured: Iterable[Measurement]) -> list[Known]:
    """Return the lines of passes that were predicted part by part."""
    parts = [
        one
        for one in measured
        if one.source == "predicted" and "calls" in one.dims and one.part != WHOLE
    ]
    groups: dict[tuple[object, ...], dict[int, _budget.Pass]] = {}
    for one in _budget.passes(parts):
        rows = _rows(one.records[0])
        words = tuple(word for word in one.words if word[0] not in ("rows", "requests"))
        if rows and one.whole.seconds:
            groups.setdefault(words, {})[rows] = one
    found = []
    for by_rows in groups.values():
        first = next(iter(by_rows.values()))
        named = replace(first, words=tuple(w for w in first.words if w[0] not in _GROWS))
        at_least = any(one.whole.unknown for one in by_rows.values())
        line = _fitted(
            f"parts of a pass of {_budget.title(named)}",
            {rows: one.whole.seconds or 0.0 for rows, one in by_rows.items()},
            source="predicted",
        )
        if line is not None:
            found.append(replace(line, at_least=at_least))
    return found


def of_op(measured: Iterable[Measurement], op: str, *, calls: int) -> list[Known]:
    """Return the lines of the implementations of `op`, each times `calls`, without a base."""
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for one in measured:
        if one.op == op and one.median_s and _rows(one):
            groups.setdefault(_alike(one, _op_dims(one)), []).append(one)
    found = []
    for group in groups.values():
        by_rows: dict[int, float] = {}
        for one in group:  # of several trees of one T the slowest counts
            rows = _rows(one)
            by_rows[rows] = max(by_rows.get(rows, 0.0), one.median_s or 0.0)
        first = group[0]
        name = f"{calls} x {first.op} by {first.implementation}"
        what = _words(first, name, _op_dims(first))
        line = _fitted(what, by_rows, source=first.source, calls=calls)
        if line is not None:
            found.append(replace(line, base_s=None, at_least=True, environment=first.environment))
    return sorted(found, key=lambda line: (-len(line.points), line.slope_s))


def choose(lines: Sequence[Known], wanted: str | None, *, of: str) -> Known:
    """Return the first line whose description holds `wanted`; `UsageError` if there is none."""
    matching = [line for line in lines if wanted is None or wanted in line.what]
    if matching:
        return _rising(matching[0], of)
    if lines:
        known = "; ".join(line.what for line in lines[:6])
        raise UsageError(f"no line of {of} holds {wanted!r}; there are: {known}")
    raise UsageError(
        f"{of} holds no time at two or more numbers of rows; measure a pass at --rows 1,2,4,8 "
        f"(python -m graphs.replay), name a kernel that was timed by --op, or read the log of a "
        f"server (python -m ingest)"
    )


def _rising(line: Known, of: str) -> Known:
    """Return `line`; `UsageError` where its points are no line of a time."""
    no_time = line.base_s is not None and line.seconds(1) <= 0
    if line.slope_s < 0 or no_time:
        fault = "leaves no time for 1 row" if no_time else "does not grow with rows"
        raise UsageError(
            f"{line.what} of {of} {fault} ({line.slope_s * 1e3:.3g} ms a row): its points are too "
            f"few or too noisy; measure it again, or give --base-ms and --slope-ms"
        )
    return line


def _fitted(
    what: str, by_rows: dict[int, float], *, source: Source, calls: int = 1
) -> Known | None:
    if len(by_rows) < 2:
        return None
    points = tuple((rows, calls * seconds) for rows, seconds in sorted(by_rows.items()))
    slope, base = linear_regression([float(x) for x, _ in points], [y for _, y in points])
    off = max(abs((base + slope * rows) / seconds - 1) for rows, seconds in points)
    return Known(source=source, what=what, base_s=base, slope_s=slope, points=points, off=off)


def _rows(one: Measurement) -> int:
    """Return the rows of all requests of a pass; 0 where they are not named."""
    tokens, requests = _verify.tokens_of(one), one.dims.get("requests", 1)
    return tokens * requests if tokens and isinstance(requests, int) else 0


def _alike(one: Measurement, dims: Mapping[str, Value]) -> tuple[object, ...]:
    origin = None if one.origin is None else one.origin.file
    asked = tuple(sorted(one.requested.items()))
    timing = (one.launch, one.cache, one.ranks, asked)
    named = tuple(dims.items())
    return (one.source, one.op, one.implementation, timing, named, one.environment, origin)


def _pass_dims(one: Measurement) -> dict[str, Value]:
    """Return the dims that name a pass; what else stands there was found of it."""
    return {
        name: value
        for name, value in one.dims.items()
        if name not in _GROWS and (isinstance(value, str | bool) or name in _NAMES_A_PASS)
    }


def _op_dims(one: Measurement) -> dict[str, Value]:
    return {name: value for name, value in one.dims.items() if name not in _GROWS}


def _rank(line: Known, launch: Launch | None) -> tuple[int, bool, int, int]:
    """Return the place of a line: measured, whole, replayed from a graph, of most points."""
    source = _ORDER.index(line.source or "predicted")
    return source, line.at_least, _LAUNCHES.index(launch), -len(line.points)


def _words(one: Measurement, first: str, dims: Mapping[str, Value]) -> str:
    known = (word for word in (one.launch, one.cache) if word is not None)
    return ", ".join(
        [first, *known, *(f"{name} {_text.value(value)}" for name, value in dims.items())]
    )
