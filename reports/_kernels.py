"""The section of kernels: an overview of each op, and a table of each case."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from reports import _marks, _text
from reports._collected import Collected
from reports._markdown import code, table, text
from reports._points import Point, Row, points, rows
from reports._text import NOT_KNOWN, plural
from verifyscope import records, units
from verifyscope.records import Kind, Measurement, Value
from verifyscope.stats import Verdict

MOST_ROWS = 1000
CEILINGS = ("memory_ceiling", "matrix_ceiling", "empty_kernel")
_KINDS: dict[Kind, str] = {
    "own": "own",
    "baseline-direct": "direct baseline",
    "baseline-composed": "composed baseline",
    "baseline-different-work": "different work",
}
_VERDICTS: tuple[Verdict, ...] = ("faster", "same", "slower", "unsure")
_MOST_COLUMNS = 6
_HEADER = (
    "implementation",
    "kind",
    "time (95 %)",
    "warm",
    "to baseline",
    "of floor",
    "bandwidth",
    "limited by",
    "bound",
    "notes",
)


@dataclass(frozen=True, slots=True)
class Case:
    """The rows of one case; all have its name, its dims and its cost."""

    rows: tuple[Row, ...]

    @property
    def first(self) -> Measurement:
        """Return any of its measurements, for what they share."""
        return self.rows[0].point.main


@dataclass(frozen=True, slots=True)
class Op:
    """An op and its measured cases."""

    name: str
    cases: tuple[Case, ...]

    @property
    def is_plan(self) -> bool:
        """Say whether this is work beside a kernel: planning, packing, metadata."""
        return self.cases[0].first.part == "metadata"

    @property
    def rows(self) -> list[Row]:
        """Return the rows of all cases."""
        return [row for case in self.cases for row in case.rows]


@dataclass(frozen=True, slots=True)
class Kernels:
    """What the section shows; `left_out` counts the cases that are beyond MOST_ROWS.

    others: imported rows of cases of which nothing was measured here.
    """

    ops: tuple[Op, ...]
    ceilings: tuple[Measurement, ...]
    others: tuple[Measurement, ...]
    left_out: int

    @property
    def measured(self) -> list[Measurement]:
        """Return the measurements that are shown."""
        mains = (row.point.main for op in self.ops for row in op.rows)
        return [*self.ceilings, *mains, *self.others]


def kernels(found: Collected) -> Kernels:
    """Sort the measured kernels into ops and cases, and compare what can be compared."""
    ceilings: dict[tuple[str, str, str], Measurement] = {}
    by_case: dict[tuple[str, str], list[Measurement]] = {}
    for one in found.kernels:
        if one.part in CEILINGS:
            ceilings[one.op, one.case, one.environment] = one
        else:
            by_case.setdefault((one.op, one.case), []).append(one)
    others = {
        at: measured
        for at, measured in by_case.items()
        if all(one.source == "imported" for one in measured)
    }
    by_case = {at: measured for at, measured in by_case.items() if at not in others}
    shown: dict[tuple[str, str], list[Point]] = {}
    room = MOST_ROWS
    # What is left out, if anything is, is work beside kernels first.
    for at, measured in sorted(by_case.items(), key=lambda item: item[1][0].part == "metadata"):
        here = points(measured)
        if len(here) > room and shown:
            break
        shown[at] = here[:room]
        room -= len(here)
    ids = {point.main.id for here in shown.values() if len(here) > 1 for point in here}
    samples = records.samples(found.paths, ids, warnings=found.warnings)
    ops: dict[str, list[Case]] = {}
    for (op, _), here in shown.items():
        ops.setdefault(op, []).append(Case(tuple(rows(here, samples))))
    return Kernels(
        ops=tuple(Op(name, tuple(of_op)) for name, of_op in ops.items()),
        ceilings=tuple(ceilings.values()),
        others=tuple(one for measured in others.values() for one in measured),
        left_out=len(by_case) - len(shown),
    )


def ceilings_table(kernels: Kernels, found: Collected) -> str:
    """Return what memory, matrix units and an empty kernel of each machine gave."""
    lines = []
    for one in kernels.ceilings:
        flops_per_s = _text.divided(one.flops, one.median_s)
        matrix = one.part == "matrix_ceiling" and flops_per_s is not None
        rate = (
            _marks.derived(f"{units.flops(flops_per_s)}/s", [one], "flops / time")
            if matrix and flops_per_s
            else _text.bandwidth(one)
        )
        time = _text.timed(one)
        rate = NOT_KNOWN if one.part == "empty_kernel" else rate
        lines.append(
            (
                code(one.op),
                code(one.case),
                rate,
                time,
                _notes(Point(main=one, warm=None, earlier_s=()), found),
            )
        )
    return table(("ceiling", "case", "rate", "time (95 %)", "notes"), lines, align="llrrl")


def headline(op: Op, found: Collected) -> list[str]:
    """Return a sentence for each own implementation that has a baseline: how often it wins.

    The decode and extend forms of attention stand beside the verify form, not for themselves.
    """
    names = dict.fromkeys(row.point.main.implementation for row in op.rows)
    held = {
        name: [
            row
            for row in op.rows
            if row.point.main.implementation == name
            and row.point.main.kind == "own"
            and row.point.main.mode in (None, "verify")
            and row.ratio
        ]
        for name in names
    }
    return [_headline(name, of_name, found=found) for name, of_name in held.items() if of_name]


def _headline(name: str, held: Sequence[Row], *, found: Collected) -> str:
    ratios = [row.ratio for row in held if row.ratio is not None]
    values = [ratio.value for ratio in ratios if ratio.value is not None]
    verdicts = [ratio.verdict for ratio in ratios]
    counts = [f"{verdicts.count(word)} {word}" for word in _VERDICTS if word in verdicts]
    baselines = dict.fromkeys(row.baseline.main.implementation for row in held if row.baseline)
    where = " on the CPU" if all(found.on_cpu(row.point.main) for row in held) else ""
    middle = _text.ratio(median(values)) if values else NOT_KNOWN
    least, most = (
        _text.ratio(end) for end in (min(values, default=None), max(values, default=None))
    )
    if least != most:
        middle += f" ({least} to {most})"
    compared = [one.point.main for one in held] + [
        one.baseline.main for one in held if one.baseline
    ]
    middle = _marks.derived(middle, compared, "median of time / time of the baseline, by case")
    return (
        f"{code(name)} takes {middle} of the time of {_text.listed(map(code, baselines))}{where} "
        f"in {plural(len(held), 'case')}: {', '.join(counts)}."
    )


def overview(op: Op, found: Collected) -> str | None:
    """Return a table of all cases by implementation; None for a single case or too many columns."""
    several = len({row.point.main.environment for row in op.rows}) > 1
    labels = {id(row): _label(row.point, found, several=several) for row in op.rows}
    columns = list(dict.fromkeys(labels.values()))
    if len(op.cases) < 2 or not 2 <= len(columns) <= _MOST_COLUMNS:
        return None
    lines = []
    for case in op.cases:
        cells = {labels[id(row)]: _overview_cell(row) for row in case.rows}
        times = [cells.get(column, NOT_KNOWN) for column in columns]
        lines.append((code(case.first.case), _text.floor(case.first), *times))
    header = ("case", "floor", *columns)
    return known_columns(header, lines, always=1, align="lr" + "r" * len(columns))


@dataclass(frozen=True, slots=True)
class Shared:
    """What every row of an op has in common, so that it is said once."""

    notes: tuple[str, ...]
    dims: dict[str, Value]

    @staticmethod
    def of(op: Op, found: Collected) -> "Shared":
        """Look through all rows of `op`."""
        every = [_note_list(row.point, found) for row in op.rows]
        notes = [note for note in every[0] if all(note in one for one in every)]
        first = op.cases[0].first.dims if len(op.cases) > 1 else {}
        dims = {
            name: value
            for name, value in first.items()
            if all(case.first.dims.get(name) == value for case in op.cases)
        }
        return Shared(tuple(notes), dims)


def dim_words(dims: Mapping[str, Value]) -> list[str]:
    """Return each dim as Markdown."""
    return [f"{text(name)} {text(_text.value(value))}" for name, value in dims.items()]


def case_line(case: Case, shared: Shared) -> str:
    """Return what the case is: its own dims, its bytes and its floor."""
    first = case.first
    own = {name: value for name, value in first.dims.items() if name not in shared.dims}
    words = dim_words(own)
    if first.touched_bytes is not None:
        words.append(f"touches {_text.size(first.touched_bytes)}")
    if first.floor_s is not None:
        words.append(f"floor {_text.floor(first)}")
    return ", ".join(words)


def case_table(case: Case, shared: Shared, *, found: Collected) -> str:
    """Return one row for each implementation; columns in which nothing is known are left out."""
    lines = [_cells(row, shared, found=found) for row in case.rows]
    return known_columns(_HEADER, lines, always=3, align="llrrlrrlll")


def op_table(op: Op, shared: Shared, *, found: Collected) -> str | None:
    """Return one table of all cases, if none of them has anything to compare; else None."""
    if any(len(case.rows) > 1 for case in op.cases):
        return None
    lines = [(code(row.point.main.case), *_cells(row, shared, found=found)) for row in op.rows]
    return known_columns(("case", *_HEADER), lines, always=4, align="lllrrlrrlll")


def known_columns(
    header: Sequence[str], lines: Sequence[Sequence[str]], *, always: int, align: str
) -> str:
    """Return a table without the columns in which nothing is known, but for the first `always`."""
    known = [
        at
        for at, column in enumerate(zip(*lines, strict=True))
        if at < always or any(cell not in ("", NOT_KNOWN) for cell in column)
    ]
    return table(
        [header[at] for at in known],
        [[line[at] for at in known] for line in lines],
        align="".join(align[at] for at in known),
    )


def has_interval_verdicts(kernels: Kernels) -> bool:
    """Say whether a verdict rests on printed intervals alone."""
    return any(row.ratio and not row.ratio.from_samples for op in kernels.ops for row in op.rows)


def _cells(row: Row, shared: Shared, *, found: Collected) -> tuple[str, ...]:
    main, warm = row.point.main, row.point.warm
    return (
        code(main.implementation),
        _KINDS[main.kind],
        _text.timed(main),
        _text.median(warm),
        _to_baseline(row),
        _text.of_floor(main),
        _text.bandwidth(main),
        str(main.method.get("limited_by", NOT_KNOWN)),
        _bound(main),
        "; ".join(note for note in _note_list(row.point, found) if note not in shared.notes),
    )


def _bound(main: Measurement) -> str:
    """Return what the row is held to, and whether it stays within."""
    bound_s = main.method.get("bound_s")
    if not isinstance(bound_s, int | float):
        return NOT_KNOWN
    words = _text.duration(bound_s)
    words = _marks.derived(words, [main], "bound_s of the record", predicted=True)
    return f"within {words}" if main.method.get("within_bound") is True else f"**above {words}**"


def _to_baseline(row: Row) -> str:
    if row.is_baseline:
        return "the baseline"
    if row.ratio is None:
        return NOT_KNOWN
    return f"{ratio(row)} {row.ratio.verdict}" + ("" if row.ratio.from_samples else " \\*")


def ratio(row: Row) -> str:
    """Return the time of a row over its baseline's, marked as derived from both."""
    if row.ratio is None or row.baseline is None:
        return NOT_KNOWN
    main, other = row.point.main, row.baseline.main
    formula = f"{main.implementation} / {other.implementation}"
    return _marks.derived(_text.ratio(row.ratio.value), [main, other], formula)


def _overview_cell(row: Row) -> str:
    time = _text.median(row.point.main)
    return time if row.ratio is None else f"{time}, {_to_baseline(row)}"


def _label(point: Point, found: Collected, *, several: bool) -> str:
    words = [code(point.main.implementation)]
    if several:
        words.append(f"on {found.letter(point.main.environment)}")
    words += [f"{text(name)}={text(value)}" for name, value in point.main.requested.items()]
    return " ".join(words)


def _notes(point: Point, found: Collected) -> str:
    return "; ".join(_note_list(point, found))


def _note_list(point: Point, found: Collected) -> list[str]:
    main = point.main
    notes = []
    if len(found.environments) > 1:
        notes.append(f"on {found.letter(main.environment)}")
    if found.on_cpu(main):
        notes.append("CPU")
    if main.source != "measured":
        notes.append(main.source + (f" from {code(main.origin.file)}" if main.origin else ""))
    if main.launch == "graph" and main.depth:
        notes.append(f"graph of {main.depth:,} calls")
    elif main.launch:
        notes.append(main.launch)
    if main.cache in ("warm", "flushed"):
        notes.append(main.cache)
    notes += [f"**{text(flag)}**" for flag in main.flags]
    notes += [f"{text(name)} {text(value)}" for name, value in _settings(main).items()]
    if point.earlier_s and main.median_s is not None:
        all_s = (*point.earlier_s, main.median_s)
        spread = _text.span(main.median_s, low_s=min(all_s), high_s=max(all_s))
        notes.append(f"last of {len(all_s)} runs, {spread}")
    return notes


def _settings(measured: Measurement) -> dict[str, str]:
    """Return what was asked for and what was in force, side by side where they differ."""
    told = dict(measured.effective)
    for name, asked in measured.requested.items():
        got = told.get(name)
        told[name] = asked if got == asked else f"{asked} asked, {got or 'not known'} in force"
    return told
