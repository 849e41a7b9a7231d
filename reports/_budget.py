"""The predicted budget of a pass: what its parts take at least, and beside it what others measured.

A predicted record is one part (or one op of it) of a pass: the time of a call, and `calls` in its
dims. Parts add up to classes and to the pass; where a time is not known the sums say "at least".
`public components` are somebody's measured times and never floors: an op that has one takes it in
the sums "with components", every other op its floor.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports import _marks, _text
from reports._markdown import table, text
from reports._text import NOT_KNOWN
from verifyscope.parts import CLASSES, Class, class_of
from verifyscope.predictions import COMPONENTS
from verifyscope.records import Measurement, Value

_PASS = ("model", "tp", "mode", "requests", "rows", "context", "gpu")
_SMALL = 0.01  # a class of less than this share of the pass has no segment of its own


@dataclass(frozen=True, slots=True)
class Sum:
    """Seconds, bytes and floor of some records; what is not known adds nothing and is counted."""

    records: tuple[Measurement, ...]

    @property
    def seconds(self) -> float | None:
        """Return the known seconds of the pass; None if none is known."""
        known = [_per_pass(one, one.median_s) for one in self.records]
        return _added(known)

    @property
    def touched_bytes(self) -> float | None:
        """Return the known bytes of the pass."""
        return _added(_per_pass(one, one.touched_bytes) for one in self.records)

    def dim(self, name: str) -> float | None:
        """Return the sum of a dim that counts per call, such as `weight_bytes`."""
        given = ((one, one.dims.get(name)) for one in self.records)
        return _added(
            _per_pass(one, value) for one, value in given if isinstance(value, int | float)
        )

    @property
    def floor_s(self) -> float | None:
        """Return the byte and flop floor of those that have one."""
        return _added(_per_pass(one, one.floor_s) for one in self.records)

    @property
    def calls(self) -> int:
        """Return the calls in a pass."""
        return sum(calls(one) for one in self.records)

    @property
    def unknown(self) -> list[Measurement]:
        """Return the records that have no time."""
        return [one for one in self.records if one.median_s is None]

    def time(self) -> str:
        """Return the time, "at least" where a part of it is not known."""
        if self.seconds is None:
            return "not known"
        return (
            f"at least {_text.duration(self.seconds)}"
            if self.unknown
            else _text.duration(self.seconds)
        )

    def shown(self) -> str:
        """Return the time as a page shows it, marked as derived from the records."""
        return _marks.derived(self.time(), self.records, "sum of calls x the time of one")


@dataclass(frozen=True, slots=True)
class Pass:
    """One predicted pass; `words` are the dims that name it, `made_by` the id of the prediction.

    records: an op each, by floors and given times; components: those ops that somebody measured.
    """

    words: tuple[tuple[str, Value], ...]
    records: tuple[Measurement, ...]
    components: tuple[Measurement, ...] = ()
    made_by: str = ""

    @property
    def whole(self) -> Sum:
        """Return the sum over all parts."""
        return Sum(self.records)

    @property
    def with_components(self) -> "Pass":
        """Return the pass with somebody's time for each op that has one."""
        known = {(one.part, one.op): one for one in self.components}
        chosen = tuple(known.get((one.part, one.op), one) for one in self.records)
        return Pass(self.words, chosen, made_by=self.made_by)

    def by_part(self) -> dict[str, Sum]:
        """Return the sums of the parts, the longest first, the unknown ones last."""
        groups: dict[str, list[Measurement]] = {}
        for one in self.records:
            groups.setdefault(one.part, []).append(one)
        sums = {part: Sum(tuple(of_part)) for part, of_part in groups.items()}
        return dict(sorted(sums.items(), key=lambda item: -(item[1].seconds or -1.0)))

    def by_class(self) -> dict[Class, Sum]:
        """Return the sums of the classes that the pass has, in the order of the list of classes."""
        return {
            name: Sum(tuple(of_class))
            for name in CLASSES
            if (of_class := [one for one in self.records if class_of(one.part) == name])
        }


def passes(predicted: Iterable[Measurement]) -> list[Pass]:
    """Gather the predicted records by pass; a prediction that was made twice stands once."""
    groups: dict[tuple[object, ...], dict[tuple[str, ...], Measurement]] = {}
    for one in predicted:
        dims = tuple(one.dims.get(name) for name in _PASS)
        key = (one.part, one.op, *({one.implementation} & set(COMPONENTS)))
        groups.setdefault((dims, made_by(one)), {})[key] = one
    distinct: dict[tuple[object, ...], Pass] = {}
    for (_, name), group in groups.items():
        floors = [one for one in group.values() if one.implementation not in COMPONENTS]
        others = [one for one in group.values() if one.implementation in COMPONENTS]
        if not floors:
            continue
        told = tuple(
            (one.part, one.op, one.implementation, one.median_s, one.touched_bytes)
            for one in (*floors, *others)
        )
        words = _words(floors)
        distinct[words, told] = Pass(words, tuple(floors), tuple(others), str(name))
    return list(distinct.values())


def made_by(one: Measurement) -> str:
    """Return the id of the prediction that a record is of."""
    return str(one.method.get("prediction", one.environment + one.command))


def _words(records: Sequence[Measurement]) -> tuple[tuple[str, Value], ...]:
    """Return what names a pass: its dims, the bandwidth, and what an all-reduce takes."""
    first = records[0]
    words = [(name, first.dims[name]) for name in _PASS if name in first.dims]
    rate = first.method.get("bytes_per_s")
    if isinstance(rate, int | float):
        words.append(("bandwidth", _text.rate(rate)))
    for one in records:
        if one.part == "all_reduce":
            time = "not known" if one.median_s is None else _text.duration(one.median_s)
            words.append(("all_reduce", time))
            break
    return tuple(words)


def calls(one: Measurement) -> int:
    """Return how often the pass makes this call."""
    value = one.dims.get("calls", 1)
    return int(value) if isinstance(value, int | float) else 1


_PHRASES = {
    "tp": "TP {}",
    "rows": "{} rows",
    "context": "{} tokens of context",
    "gpu": "on {}",
    "requests": "{} requests",
    "bandwidth": "at {}",
    "all_reduce": "all-reduce {}",
}


def title(one: Pass) -> str:
    """Return what the pass is, as plain text."""
    return _phrases(word for word in one.words if word[0] != "all_reduce")


def _phrases(given: Iterable[tuple[str, Value]]) -> str:
    words = []
    for name, value in given:
        if name in ("requests", "rows") and value == 1:
            words += ["1 row"] if name == "rows" else []
            continue
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        words.append(_PHRASES.get(name, "{}").format(shown))
    return ", ".join(words)


def facts(one: Pass) -> str:
    """Return what the prediction divides by, and the floor that its bytes alone make."""
    whole, first = one.whole, one.records[0]
    words = []
    if "bandwidth" in first.method:
        words.append(f"Bandwidth: {text(_text.value(first.method['bandwidth']))}.")
    weights, cached = whole.dim("weight_bytes"), whole.dim("kv_bytes")
    if weights is not None and cached is not None and whole.floor_s is not None:
        words.append(
            f"{_text.size(weights)} of weights and {_text.size(cached)} of KV a rank; "
            f"floor of bytes and flops {_floor(whole)}."
        )
    if one.components:
        total = one.with_components.whole
        names = " and ".join(f"{name}s" for name in _names(one.components))
        words.append(f"With {names}, which are no floor: **{total.shown()}**.")
    return " ".join(words)


def _floor(whole: Sum) -> str:
    return _marks.derived(_text.duration(whole.floor_s), whole.records, "sum of calls x floor_s")


def _names(components: Iterable[Measurement]) -> Iterable[str]:
    present = {one.implementation for one in components}
    return (name for name in COMPONENTS if name in present)


def parts_table(one: Pass) -> str:
    """Return the parts of a pass with their class, calls, bytes, time and share.

    Behind them what somebody measured: `with components` is the part's time by those.
    """
    whole, other = one.whole, one.with_components
    of_others = other.by_part()
    lines: list[Sequence[str]] = [
        (
            text(part),
            text(class_of(part)),
            f"{total.calls:,}",
            _text.size(total.dim("weight_bytes")),
            _text.size(total.dim("kv_bytes")),
            _text.size(total.touched_bytes),
            total.shown(),
            _text.share(total.seconds, whole.seconds),
            of_others[part].shown() if of_others[part] != total else NOT_KNOWN,
            _notes(total, of_others[part]),
        )
        for part, total in one.by_part().items()
    ]
    sums = (whole.dim("weight_bytes"), whole.dim("kv_bytes"), whole.touched_bytes)
    bold = [f"**{cell}**" for cell in (*map(_text.size, sums), whole.shown())]
    last = f"**{other.whole.shown()}**" if one.components else NOT_KNOWN
    lines.append(("**the pass**", "", f"{whole.calls:,}", *bold, "", last, ""))
    share = "of what is known" if whole.unknown else "share"
    header: Sequence[str] = (
        *("part", "class", "calls", "weights", "KV", "all bytes", "time", share),
        *("with components", "notes"),
    )
    if not one.components:
        at = header.index("with components")
        header, lines = _without(header, at), [_without(line, at) for line in lines]
    return table(header, lines, align="llrrrrrr" + ("rl" if one.components else "l"))


def _without(cells: Sequence[str], at: int) -> tuple[str, ...]:
    return (*cells[:at], *cells[at + 1 :])


def classes_table(several: Sequence[Pass], labels: Sequence[str]) -> str:
    """Return the classes of several passes side by side."""
    sums = [one.by_class() for one in several]
    lines = []
    for name in CLASSES:
        if any(name in by_class for by_class in sums):
            cells = [by_class[name].shown() if name in by_class else NOT_KNOWN for by_class in sums]
            lines.append((text(name), *cells))
    lines.append(("**the pass**", *(f"**{one.whole.shown()}**" for one in several)))
    lines.append(("bytes a rank", *(_text.size(one.whole.touched_bytes) for one in several)))
    return table(("predicted", *map(text, labels)), lines, align="l" + "r" * len(several))


def labels(several: Sequence[Pass]) -> list[str]:
    """Return short names: of the dims only those that differ, all of them for a single pass."""
    if len(several) == 1:
        return [title(several[0])]
    every = [dict(one.words) for one in several]
    found = []
    for one in several:
        words = tuple(
            (name, value)
            for name, value in one.words
            if any(other.get(name) != value for other in every)
        )
        found.append(_phrases(words) or title(one))
    return found


def segments(one: Pass) -> list[tuple[str, float]]:
    """Return the classes and their seconds; small ones are one segment at the end."""
    known = [(name, total.seconds) for name, total in one.by_class().items() if total.seconds]
    least = _SMALL * sum(seconds for _, seconds in known)
    large: list[tuple[str, float]] = [(n, seconds) for n, seconds in known if seconds >= least]
    small = sum(seconds for _, seconds in known if seconds < least)
    return [*large, ("smaller classes", small)] if small else large


def largest(one: Pass) -> tuple[str, Sum] | None:
    """Return the part of most time."""
    known = [(part, total) for part, total in one.by_part().items() if total.seconds]
    return known[0] if known else None


def _per_pass(one: Measurement, of_a_call: float | None) -> float | None:
    return None if of_a_call is None else of_a_call * calls(one)


def _added(numbers: Iterable[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _notes(total: Sum, other: Sum) -> str:
    """Return why a time is not known, where one comes from, and what an MoE touches."""
    notes = [] if not other.unknown else [text(one.reason or "") for one in total.unknown]
    for one in total.records:
        distinct, source = one.dims.get("distinct_experts"), one.method.get("time")
        if isinstance(distinct, int | float):
            notes.append(f"{distinct:.1f} distinct experts")
        if one.median_s is not None and one.floor_s is None and source is not None:
            notes.append(text(_text.value(source)))
    for one in other.records:
        if one.implementation in COMPONENTS and "time" in one.method:
            bound = "at most: " if "upper-bound" in one.flags else ""
            notes.append(f"{bound}{text(_text.value(one.method['time']))}")
    return "; ".join(dict.fromkeys(notes))
