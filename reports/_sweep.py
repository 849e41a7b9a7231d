"""The section of collectives: time against size, and what a verify pass spends in all-reduces.

    algbw = bytes / time      busbw = algbw x factor of the collective and its ranks

A series is one collective by one implementation over some ranks from one source: its sizes make a
table and a line of the plot. A tensor-parallel pass reduces twice a layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reports import _marks, _text
from reports._collected import Collected, is_collective
from reports._markdown import table, text
from reports._text import NOT_KNOWN
from verifyscope import bandwidth
from verifyscope.pass_savings import calls_of
from verifyscope.records import Measurement, Value

MOST_SERIES = 12
MOST_SIZES = 40
_HEADER = (
    "bytes",
    "rows",
    "time",
    "p99",
    "algbw",
    "busbw",
    "in-place time",
    "in-place p99",
    "in-place busbw",
    "notes",
)


@dataclass(frozen=True, slots=True)
class Size:
    """What one size took, out of place and in place; either may be missing or have no time."""

    size_bytes: int
    out_of_place: Measurement | None
    in_place: Measurement | None

    @property
    def both(self) -> list[Measurement]:
        """Return what there is."""
        return [one for one in (self.out_of_place, self.in_place) if one is not None]

    @property
    def timed(self) -> Measurement | None:
        """Return the one that has a time, out of place first."""
        return next((one for one in self.both if one.median_s is not None), None)


@dataclass(frozen=True, slots=True)
class Series:
    """The sizes of one collective in one set of circumstances, ascending."""

    sizes: tuple[Size, ...]
    points: tuple[tuple[int, Measurement], ...]  # of each size the one that has a time

    @property
    def first(self) -> Measurement:
        """Return any measurement, for what they share."""
        return self.points[0][1]

    @property
    def imported(self) -> bool:
        """Say whether somebody else measured this."""
        return self.first.source == "imported"


def all_series(found: Collected) -> list[Series]:
    """Gather what ran, and what did not run beside it; measured series first."""
    groups: dict[tuple[object, ...], dict[tuple[int, bool], Measurement]] = {}
    for one in (*found.collectives, *filter(is_collective, found.not_run)):
        size = _size(one)
        if size is not None:
            at = (size, one.dims.get("in_place") is True)
            latest = groups.setdefault(_circumstances(one), {})
            if one.median_s is not None or at not in latest:
                latest[at] = one
    series = [_series(group) for group in groups.values()]
    return sorted((one for one in series if one.points), key=lambda one: one.imported)


def name(series: Series, found: Collected) -> str:
    """Return what sets a series apart, as plain text."""
    return ", ".join(_words(series, found))


def short_names(several: Sequence[Series], found: Collected) -> tuple[str, list[str]]:
    """Return what all the series have in common, and of each name the rest."""
    every = [_words(one, found) for one in several]
    common = [word for word in every[0] if all(word in words for words in every)]
    rest = [", ".join(word for word in words if word not in common) for words in every]
    return ", ".join(common), rest


def _words(series: Series, found: Collected) -> list[str]:
    first = series.first
    words = [first.op, first.implementation]
    if first.ranks is not None:
        words.append(_text.plural(first.ranks, "rank"))
    words += [str(first.dims[dim]) for dim in ("dtype", "redop") if dim in first.dims]
    if found.on_cpu(first):
        words.append("CPU")
    words += [*mode(first), *asked(first)]
    if series.imported:
        words.append(f"imported from {first.origin.file}" if first.origin else "imported")
    else:
        words.append("measured")
        if len(found.environments) > 1:
            words.append(f"on {found.letter(first.environment)}")
    return words


def asked(one: Measurement) -> list[str]:
    """Return the settings that were asked for; a combination says them by its name."""
    if " " in one.implementation and one.source == "measured":
        return []
    return [f"{setting}={given}" for setting, given in one.requested.items()]


def mode(one: Measurement) -> list[str]:
    """Return how calls were launched; nothing for single calls that nobody says more of."""
    depth = one.depth or 1
    if depth > 1:
        return [f"{one.launch or 'calls'} x {depth}"]
    return ["graph"] if one.launch == "graph" else []


def series_table(series: Series) -> str:
    """Return a row a size; columns in which nothing is known are left out."""
    shared = shared_flags(series)
    lines = [_cells(size, shared) for size in series.sizes[:MOST_SIZES]]
    known = [
        at
        for at, column in enumerate(zip(*lines, strict=True))
        if at == 0 or any(cell not in ("", NOT_KNOWN) for cell in column)
    ]
    return table(
        [_HEADER[at] for at in known],
        [[line[at] for at in known] for line in lines],
        align="".join("rrrrrrrrrl"[at] for at in known),
    )


def left_out(series: Series) -> int:
    """Return how many sizes the table leaves out."""
    return max(0, len(series.sizes) - MOST_SIZES)


def shared_flags(series: Series) -> tuple[str, ...]:
    """Return the flags that every measurement of a series has, so that they are said once."""
    every = [one for size in series.sizes for one in size.both]
    return tuple(flag for flag in series.first.flags if all(flag in one.flags for one in every))


def facts(series: Series) -> str:
    """Return what is said once for the whole series: flags, and how it was timed."""
    words = [f"**{text(flag)}**" for flag in shared_flags(series)]
    words += [f"{text(key)} {text(_text.value(value))}" for key, value in _method(series).items()]
    return ", ".join(words)


def _method(series: Series) -> dict[str, Value]:
    """Return the entries of `method` that are the same for all sizes."""
    others = [one.method for _, one in series.points]
    return {
        key: value
        for key, value in series.first.method.items()
        if all(other.get(key) == value for other in others)
    }


@dataclass(frozen=True, slots=True)
class Pass:
    """What the all-reduces of one forward pass cost at `tokens` rows: `calls` times one call."""

    series: Series
    measured: Measurement
    model: str
    tokens: int
    calls: int

    @property
    def seconds(self) -> float:
        """Return the time of all calls, each as long as one alone."""
        return self.calls * (self.measured.median_s or 0.0)

    def time(self) -> str:
        """Return the time of all calls, marked as derived from that of one."""
        formula = f"{self.calls:,} calls x the time of one"
        return _marks.derived(_text.duration(self.seconds), [self.measured], formula)


def passes(series: Sequence[Series]) -> list[Pass]:
    """Return the passes whose message size was measured, of the models whose layers are known."""
    found = []
    for one in series:
        for _, measured in one.points:
            model, tokens = str(measured.dims.get("model")), measured.dims.get("tokens")
            calls = calls_of(model)
            if measured.op == "all_reduce" and calls is not None and isinstance(tokens, int):
                found.append(Pass(one, measured, model, tokens, calls))
    return found


def passes_table(passes: Sequence[Pass], found: Collected) -> str:
    """Return what a pass spends in all-reduces, by model and rows."""
    series = {id(one.series): one.series for one in passes}
    names = dict(zip(series, short_names(list(series.values()), found)[1], strict=True))
    lines = [
        (
            text(names[id(one.series)]),
            text(one.model),
            f"{one.tokens:,}",
            _text.whole(_size(one.measured)),
            _text.median(one.measured),
            f"{one.calls:,}",
            one.time(),
        )
        for one in passes
    ]
    header = ("series", "model", "rows", "bytes a call", "a call", "calls", "a pass")
    if len(series) == 1:
        return table(header[1:], [line[1:] for line in lines], align="lrrrrr")
    return table(header, lines, align="llrrrrr")


def _circumstances(one: Measurement) -> tuple[object, ...]:
    return (
        one.source,
        one.op,
        one.implementation,
        one.ranks,
        one.dims.get("dtype"),
        one.dims.get("redop"),
        one.launch,
        one.depth or 1,
        one.environment,
        None if one.origin is None else one.origin.file,
        tuple(sorted(one.requested.items())),
    )


def _series(group: dict[tuple[int, bool], Measurement]) -> Series:
    sizes = tuple(
        Size(size, group.get((size, False)), group.get((size, True)))
        for size in sorted({size for size, _ in group})
    )
    timed = ((size.size_bytes, size.timed) for size in sizes)
    return Series(sizes, tuple((size, one) for size, one in timed if one is not None))


def _size(one: Measurement) -> int | None:
    size = one.dims.get("bytes")
    return int(size) if isinstance(size, int | float) and size > 0 else None


def _cells(size: Size, shared: Sequence[str]) -> tuple[str, ...]:
    out, in_place = size.out_of_place, size.in_place
    tokens = size.both[0].dims.get("tokens")
    return (
        f"{size.size_bytes:,}",
        NOT_KNOWN if tokens is None else text(_text.value(tokens)),
        _time(out),
        _p99(out),
        _rate(_algbw(size.size_bytes, out), out, "bytes / time"),
        _rate(busbw(size.size_bytes, out), out, "bytes / time x factor"),
        _time(in_place),
        _p99(in_place),
        _rate(busbw(size.size_bytes, in_place), in_place, "bytes / time x factor"),
        _notes(size, shared),
    )


def _time(one: Measurement | None) -> str:
    return _text.timed(one)


def _p99(one: Measurement | None) -> str:
    return NOT_KNOWN if one is None else _marks.told(_text.duration(one.p99_s), one, "p99_s")


def _rate(bytes_per_s: float | None, one: Measurement | None, formula: str) -> str:
    return _marks.derived(_text.rate(bytes_per_s), [one], formula)


def _algbw(size_bytes: int, one: Measurement | None) -> float | None:
    return None if one is None else _text.divided(size_bytes, one.median_s)


def busbw(size_bytes: int, one: Measurement | None) -> float | None:
    """Return algbw times the factor of the collective and its ranks; None for a single rank."""
    if one is None or one.ranks is None or not one.median_s:
        return None
    factor = bandwidth.bus_factor(one.op, one.ranks)
    rate = _algbw(size_bytes, one)
    # One rank moves nothing over a bus: its factor is 0, and 0 would read as a measurement.
    return None if not factor or rate is None else rate * factor


def _notes(size: Size, shared: Sequence[str]) -> str:
    """Return flags and reasons; what both directions share is said once, without a direction."""
    out, in_place = (
        [] if one is None else _remarks(one, shared) for one in (size.out_of_place, size.in_place)
    )
    both = [remark for remark in out if remark in in_place]
    notes = [*both, *(remark for remark in out if remark not in both)]
    notes += [f"in place {remark}" for remark in in_place if remark not in both]
    return "; ".join(notes)


def _remarks(one: Measurement, shared: Sequence[str]) -> list[str]:
    remarks = [f"**{text(flag)}**" for flag in one.flags if flag not in shared]
    if one.status != "ok":
        remarks.append(f"**{one.status}**: {text(one.reason or '')}")
    return remarks
