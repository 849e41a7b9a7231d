"""Series of collectives at a glance: a line each, what matters first, and the tables behind.

First what was measured here, then all-reduces, then the ranks that a pass of this report has, then
the most ranks. *Four rows* is the size nearest to that of four rows of 7,168 bfloat16: what an
all-reduce of a verify pass of a large model moves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports import _marks, _provenance, _sweep, _text
from reports._collected import Collected
from reports._kernels import known_columns
from reports._markdown import code, text
from reports._sweep import Series
from reports._text import NOT_KNOWN, plural

MOST_SERIES = 100
MOST_FILES = 20
FOUR_ROWS_BYTES = 4 * 7168 * 2
_NEAR = 2.0  # a size further off than this factor says nothing of four rows
_MOST_COLUMNS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FileView:
    """The series of one file as Markdown."""

    name: str
    about: str
    table: str


def ordered(series: Sequence[Series], found: Collected) -> list[Series]:
    """Return the series, what matters to a verify pass first."""
    wanted = _ranks_of_passes(found)
    return sorted(
        series,
        key=lambda one: (
            one.imported,
            one.first.op != "all_reduce",
            one.first.ranks not in wanted,
            -(one.first.ranks or 0),
            _provenance.file(one.first),
        ),
    )


def overview(series: Sequence[Series], found: Collected) -> str:
    """Return a line for each series."""
    lines = [_line(one, found) for one in series[:MOST_SERIES]]
    header = (
        *("collective", "by", "ranks", "type", "timed", "four rows", "largest busbw"),
        *("flags", "on", "from", "sizes", "bytes"),
    )
    return known_columns(header, lines, always=2, align="llrllrrlllrl") if lines else ""


def files(series: Sequence[Series], found: Collected) -> list[FileView]:
    """Return the tables of each file: one series by all that is known, several side by side."""
    groups: dict[str, list[Series]] = {}
    for one in series:
        groups.setdefault(_provenance.file(one.first), []).append(one)
    return [_file_view(name, of_file, found) for name, of_file in groups.items()]


def _ranks_of_passes(found: Collected) -> set[int]:
    """Return the ranks that the report is about: of what was measured, else of predictions."""
    measured = {one.ranks for one in found.collectives if one.source == "measured" and one.ranks}
    if measured:
        return measured
    given = (one.dims.get("tp") for one in (*found.passes, *found.predicted))
    return {tp for tp in given if isinstance(tp, int)} or {8}


def _line(one: Series, found: Collected) -> tuple[str, ...]:
    first = one.first
    sizes = [size for size, _ in one.points]
    return (
        text(first.op),
        code(first.implementation),
        NOT_KNOWN if first.ranks is None else f"{first.ranks}",
        text(", ".join(str(first.dims[dim]) for dim in ("dtype", "redop") if dim in first.dims)),
        text(", ".join((*_sweep.mode(first), *_sweep.asked(first)))),
        _four_rows(one),
        _largest_busbw(one),
        ", ".join(f"**{text(flag)}**" for flag in _sweep.shared_flags(one)),
        _on(one, found),
        code(_provenance.file(first)) if one.imported else "measured here",
        f"{len(sizes):,}",
        f"{sizes[0]:,} to {sizes[-1]:,}" if len(sizes) > 1 else f"{sizes[0]:,}",
    )


def _on(one: Series, found: Collected) -> str:
    if one.imported:
        return text(_provenance.system(one.first)) or NOT_KNOWN
    letter = found.letter(one.first.environment) if len(found.environments) > 1 else ""
    return ", ".join(word for word in (letter, "CPU" * found.on_cpu(one.first)) if word)


def _four_rows(one: Series) -> str:
    size, row = min(one.points, key=lambda point: abs(math.log(point[0] / FOUR_ROWS_BYTES)))
    if not 1 / _NEAR <= size / FOUR_ROWS_BYTES <= _NEAR:
        return NOT_KNOWN
    at = "" if size == FOUR_ROWS_BYTES else f" at {size:,} B"
    return f"{_text.median(row)}{at}"


def _largest_busbw(one: Series) -> str:
    known = [
        (rate, row) for size, row in one.points if (rate := _sweep.busbw(size, row)) is not None
    ]
    if not known:
        return NOT_KNOWN
    rate, row = max(known, key=lambda pair: pair[0])
    return _marks.derived(_text.rate(rate), [row], "bytes / time x factor")


def _file_view(name: str, of_file: Sequence[Series], found: Collected) -> FileView:
    about = _about(of_file)
    if len(of_file) == 1:
        facts = _sweep.facts(of_file[0])
        table = _sweep.series_table(of_file[0])
        words = f"{facts}\n\n{table}" if facts else table
        left_out = _sweep.left_out(of_file[0])
    else:
        words = "\n\n".join(_matrices(of_file, found))
        left_out = 0
    if left_out:
        words += f"\n\n{plural(left_out, 'size')} more are in the records."
    return FileView(name=code(name), about=about, table=words)


def _about(of_file: Sequence[Series]) -> str:
    rows = sum(len(size.both) for one in of_file for size in one.sizes)
    ops = _text.listed(dict.fromkeys(text(one.first.op) for one in of_file))
    return f"{ops}, {plural(rows, 'row')}"


def _matrices(of_file: Sequence[Series], found: Collected) -> list[str]:
    """Return the times of several series by size, one table a collective and some columns."""
    tables = []
    for op in dict.fromkeys(one.first.op for one in of_file):
        of_op = [one for one in of_file if one.first.op == op]
        common, names = _sweep.short_names(of_op, found)
        for at in range(0, len(of_op), _MOST_COLUMNS):
            columns = range(at, min(at + _MOST_COLUMNS, len(of_op)))
            heads = [text(names[column]) or text(op) for column in columns]
            tables.append(f"{text(common or op)}:")
            tables.append(_matrix([of_op[column] for column in columns], heads))
    return tables


def _matrix(series: Sequence[Series], heads: Sequence[str]) -> str:
    times = [dict(one.points) for one in series]
    sizes = sorted({size for by_size in times for size in by_size})[: _sweep.MOST_SIZES]
    lines = [
        (f"{size:,}", *(_text.median(by_size.get(size)) for by_size in times)) for size in sizes
    ]
    return known_columns(("bytes", *heads), lines, always=1, align="r" * (1 + len(heads)))
