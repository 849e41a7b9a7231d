"""All combinations side by side: four times of each size, what ran, and what became of the rest.

Each line begins with #, so that a reader of nccl-tests' grammar passes over it. Times are those in
place, as an engine reduces, where there is an in place: microseconds a call.
"""

from collections.abc import Iterator, Sequence

from collectives._sweep.spec import Spec
from collectives._sweep.state import Row, State

_NONE = "-"


def lines(state: State) -> Iterator[str]:
    """Yield the overview of a sweep; nothing where nothing was measured."""
    rows = {at: list(state.rows(at)) for at in range(len(state.spec.combinations))}
    if not any(rows.values()):
        return
    yield "#"
    place = "in place" if _in_place(state.spec) else "out of place"
    yield f"# {state.spec.op}, {place}, us a call: median of all samples of {_starts(state.spec)}"
    yield from _aligned(_filled(list(_cells(state, rows))))
    yield from remarks(state)


def remarks(state: State) -> Iterator[str]:
    """Yield what became of combinations that were not run or not published, with the reason."""
    said: set[str] = set()
    for at, known in enumerate(state.spec.combinations):
        if not known.launched:
            yield f"# {known.label}: not run: {known.reason}"
            continue
        if known.verdict == "unsafe":
            yield f"# {known.label}: unsafe: {known.reason}"
        found: dict[tuple[str, str], list[Row]] = {}
        for row in state.rows(at):
            if row.status != "ok":
                found.setdefault((row.status, row.reason or ""), []).append(row)
        for (status, reason), rows in found.items():
            line = f"{status}: {reason} ({_extent(rows)})"
            everywhere = line in said and status == "unsupported"  # no graphs on this backend
            said.add(line)
            if not everywhere:
                yield f"# {known.label}: {line}"


def _in_place(spec: Spec) -> bool:
    """Say which direction is shown: in place, unless the collective has none."""
    return any(point.in_place for point in spec.points)


def _starts(spec: Spec) -> str:
    return f"{spec.starts} starts"


def _extent(rows: Sequence[Row]) -> str:
    """Say which of a combination's rows it is."""
    timings = list(dict.fromkeys(row.timing.name for row in rows))
    sizes = sorted({row.point.size_bytes for row in rows})
    what = "1 size" if len(sizes) == 1 else f"{len(sizes)} sizes"
    span = f"{sizes[0]} B" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} B"
    return f"{', '.join(timings)}; {what}, {span}"


def _cells(state: State, rows: dict[int, list[Row]]) -> Iterator[tuple[str, ...]]:
    timings = state.spec.timings
    yield ("bytes", "combination", "ran", *(timing.name for timing in timings), "status")
    for at_point, point in enumerate(state.spec.points):
        if point.in_place != _in_place(state.spec):
            continue
        for at, found in rows.items():
            known = {row.timing: row for row in found if row.point == point}
            if not known:
                continue
            verdict = next(iter(known.values())).verdict
            effective = verdict.effective if verdict is not None else {}
            times = (_time(known.get(timing)) for timing in timings)
            label = state.spec.combinations[at].label
            yield (
                str(state.spec.points[at_point].size_bytes),
                label,
                _ran(effective),
                *times,
                _status(list(known.values())),
            )


def _filled(table: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Leave out the columns in which nothing stands."""
    used = [
        at
        for at, column in enumerate(zip(*table, strict=True))
        if any(cell != _NONE for cell in column[1:])
    ]
    return (tuple(line[at] for at in used) for line in table)


def _time(row: Row | None) -> str:
    summary = None if row is None else row.summary
    return _NONE if summary is None else f"{summary.median * 1e6:.2f}"


def _ran(effective: dict[str, str]) -> str:
    words = [effective[name] for name in ("algorithm", "protocol") if name in effective]
    channels = f" x{effective['channels']}" if "channels" in effective else ""
    return ("/".join(words) + channels) or _NONE


def _status(rows: Sequence[Row]) -> str:
    """Return the first status that is wrong; what only graphs lack is said below the table."""
    eager = [row for row in rows if row.timing.launch == "eager"] or list(rows)
    status = next((row.status for row in eager if row.status != "ok"), "ok")
    flags = dict.fromkeys(flag for row in rows for flag in row.flags if row.status == "ok")
    return " ".join([status, *flags])


def _aligned(cells: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """Align numbers right and words left."""
    table = list(cells)
    widths = [max(len(line[at]) for line in table) for at in range(len(table[0]))]
    left = {at for at, name in enumerate(table[0]) if name in ("combination", "ran", "status")}
    for line in table:
        words = (
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield f"# {'  '.join(words).rstrip()}"
