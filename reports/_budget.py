"""The section of the predicted budget: where the time of a pass must go at least.

A predicted record is one part (or one op of it) of a pass: the time of a call, and `calls` in its
dims. Parts add up to classes and to the pass; where a time is not known the sums say "at least".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports import _text
from reports._markdown import table, text
from reports._text import NOT_KNOWN
from verifyscope.parts import CLASSES, Class, class_of
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


@dataclass(frozen=True, slots=True)
class Pass:
    """One predicted pass; `words` are the dims that name it."""

    words: tuple[tuple[str, Value], ...]
    records: tuple[Measurement, ...]

    @property
    def whole(self) -> Sum:
        """Return the sum over all parts."""
        return Sum(self.records)

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
    groups: dict[tuple[object, ...], dict[tuple[str, str], Measurement]] = {}
    for one in predicted:
        dims = tuple(one.dims.get(name) for name in _PASS)
        made_by = one.method.get("prediction", one.environment + one.command)
        groups.setdefault((dims, made_by), {})[one.part, one.op] = one
    distinct: dict[tuple[object, ...], Pass] = {}
    for group in map(list, map(dict.values, groups.values())):
        told = tuple((one.part, one.op, one.median_s, one.touched_bytes) for one in group)
        words = _words(group)
        distinct[words, told] = Pass(words, tuple(group))
    return list(distinct.values())


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
            f"floor of bytes and flops {_text.duration(whole.floor_s)}."
        )
    return " ".join(words)


def parts_table(one: Pass) -> str:
    """Return the parts of a pass with their class, calls, bytes, time and share."""
    whole = one.whole
    lines: list[Sequence[str]] = [
        (
            text(part),
            text(class_of(part)),
            f"{total.calls:,}",
            _text.size(total.dim("weight_bytes")),
            _text.size(total.dim("kv_bytes")),
            _text.size(total.touched_bytes),
            total.time(),
            _text.share(total.seconds, whole.seconds),
            _notes(total),
        )
        for part, total in one.by_part().items()
    ]
    sums = (whole.dim("weight_bytes"), whole.dim("kv_bytes"), whole.touched_bytes)
    bold = (f"**{cell}**" for cell in (*map(_text.size, sums), whole.time()))
    lines.append(("**the pass**", "", f"{whole.calls:,}", *bold, "", ""))
    share = "of what is known" if whole.unknown else "share"
    header = ("part", "class", "calls", "weights", "KV", "all bytes", "time", share, "notes")
    return table(header, lines, align="llrrrrrrl")


def classes_table(several: Sequence[Pass], labels: Sequence[str]) -> str:
    """Return the classes of several passes side by side."""
    sums = [one.by_class() for one in several]
    lines = []
    for name in CLASSES:
        if any(name in by_class for by_class in sums):
            cells = [by_class[name].time() if name in by_class else NOT_KNOWN for by_class in sums]
            lines.append((text(name), *cells))
    lines.append(("**the pass**", *(f"**{one.whole.time()}**" for one in several)))
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


def _notes(total: Sum) -> str:
    """Return why a time is not known, where a collective's comes from, and what an MoE touches."""
    notes = [text(one.reason or "") for one in total.unknown]
    for one in total.records:
        distinct, source = one.dims.get("distinct_experts"), one.method.get("time")
        if isinstance(distinct, int | float):
            notes.append(f"{distinct:.1f} distinct experts")
        if one.median_s is not None and one.floor_s is None and source is not None:
            notes.append(text(_text.value(source)))
    return "; ".join(dict.fromkeys(notes))
