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
_DETAIL = ("calls", "model", "tp", "requests", "rows", "context", "gpu")


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
    """Gather the predicted records by pass; of a part that was predicted twice the last counts."""
    groups: dict[tuple[tuple[str, Value], ...], dict[tuple[object, ...], Measurement]] = {}
    for one in predicted:
        words = tuple((name, one.dims[name]) for name in _PASS if name in one.dims)
        groups.setdefault(words, {})[one.part, one.op, one.implementation, one.case] = one
    return [Pass(words, tuple(group.values())) for words, group in groups.items()]


def calls(one: Measurement) -> int:
    """Return how often the pass makes this call."""
    value = one.dims.get("calls", 1)
    return int(value) if isinstance(value, int | float) else 1


def title(one: Pass) -> str:
    """Return what the pass is, as plain text."""
    names = {"tp": "TP {}", "rows": "{} rows", "context": "{} tokens of context", "gpu": "on {}"}
    names["requests"] = "{} requests"
    words = []
    for name, value in one.words:
        if name == "requests" and value == 1:
            continue
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        words.append(names.get(name, "{}").format(shown))
    return ", ".join(words)


def parts_table(one: Pass) -> str:
    """Return the parts of a pass with their class, calls, bytes, time and share."""
    whole = one.whole
    lines = [
        (
            text(part),
            text(class_of(part)),
            f"{total.calls:,}",
            _text.size(total.touched_bytes),
            total.time(),
            _text.share(total.seconds, whole.seconds),
            _reasons(total.unknown),
        )
        for part, total in one.by_part().items()
    ]
    lines.append(
        (
            "**the pass**",
            "",
            "",
            f"**{_text.size(whole.touched_bytes)}**",
            f"**{whole.time()}**",
            "",
            "",
        )
    )
    share = "share of what is known" if whole.unknown else "share"
    header = ("part", "class", "calls", "bytes a rank", "predicted time", share, "notes")
    if all(line[-1] == "" for line in lines):
        return table(header[:-1], [line[:-1] for line in lines], align="llrrrr")
    return table(header, lines, align="llrrrrl")


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
        found.append(title(Pass(words, ())) or title(one))
    return found


def largest(one: Pass) -> tuple[str, Sum] | None:
    """Return the part of most time."""
    known = [(part, total) for part, total in one.by_part().items() if total.seconds]
    return known[0] if known else None


def _per_pass(one: Measurement, of_a_call: float | None) -> float | None:
    return None if of_a_call is None else of_a_call * calls(one)


def _added(numbers: Iterable[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _reasons(unknown: Sequence[Measurement]) -> str:
    return "; ".join(dict.fromkeys(text(one.reason or "") for one in unknown))
