"""The budget of one pass as a waterfall: from the floor of its bytes to how long it took.

    floors by class + what its parts take above them + all-reduces + idle + unexplained = the whole

All of it is of one system (reports/_subject.py). What is predicted ends in what was measured or
observed of the same pass, and alone in the predicted time. A measured pass that was taken apart has
its parts where they stand. *Unexplained* is what is left over; it may be below zero.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reports import _budget, _marks, _text
from reports._collected import Collected
from reports._forecast import Forecast
from reports._markdown import code, text
from reports._steps import Step, Waterfall, merged
from reports._subject import Subject, number, same_case
from verifyscope import passes
from verifyscope.parts import CLASSES, IDLE, UNEXPLAINED, Class, class_of
from verifyscope.predictions import EAGER
from verifyscope.records import Measurement

_COLLECTIVES = ("all_reduce", "other_collective")


def waterfall(subject: Subject, found: Collected) -> Waterfall | None:
    """Return the waterfall of what the report is about; None where nothing is known of a pass."""
    apart = _taken_apart(subject, found)
    if apart is not None:
        return apart
    if subject.predicted is None:
        return None
    return _of_prediction(subject, subject.predicted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What is predicted of the whole pass; `words` are marked, with "at least" where it is that."""

    seconds: float
    records: tuple[Measurement, ...]
    words: str


def predicted(subject: Subject) -> Predicted | None:
    """Return the time of the pass as it is played, else of its parts alone."""
    if subject.predicted is None:
        return None
    parts, mode = subject.predicted.with_components, played(subject)
    least = "at least " if parts.whole.unknown else ""
    if mode is not None and mode.median_s is not None:
        return Predicted(
            seconds=mode.median_s, records=(mode,), words=f"{least}{_text.median(mode)}"
        )
    seconds = parts.whole.seconds
    if seconds is None:
        return None
    words = _marks.derived(_text.duration(seconds), parts.records, "sum of time x calls")
    return Predicted(seconds=seconds, records=parts.records, words=f"{least}{words}")


# ---- A prediction, and what was seen of it ----


def _of_prediction(subject: Subject, one: _budget.Pass) -> Waterfall | None:
    parts, mode, known = one.with_components, played(subject), predicted(subject)
    busy_s = parts.whole.seconds
    if busy_s is None or known is None:
        return None
    steps = [*_floors(one), *_above(one), *_collectives(parts)]
    if mode is not None and mode.median_s is not None:
        steps.append(_idle(mode, mode.median_s - busy_s))
    last = _end(subject, mode)
    if last is None:
        least = "at least " if parts.whole.unknown else ""
        last = Step(
            name="predicted", seconds=known.seconds, kind="whole", part="", records=known.records,
            source="predicted", how=f"predicted: {least}the sum of these",
        )  # fmt: skip
    else:
        steps.append(_unexplained(last, known.seconds, (*last.records, *known.records)))
    return Waterfall(
        title=f"From the floor of its bytes to what was {last.name}: {_budget.title(one)}",
        steps=(*merged(steps, last.seconds), last),
        notes=tuple(_notes(parts, mode)),
    )


def _floors(one: _budget.Pass) -> Iterator[Step]:
    """Yield the floor of each class, the largest first, with what it reads."""
    sums = one.by_class()
    for name, total in sorted(sums.items(), key=lambda each: -(each[1].floor_s or 0.0)):
        if total.floor_s:
            kept = (("weights", total.dim("weight_bytes")), ("KV", total.dim("kv_bytes")))
            read = [f"{_text.size(count)} of {what}" for what, count in kept if count]
            yield Step(
                name=f"{name}: {' and '.join(read)}" if read else f"{name}: bytes and flops",
                seconds=total.floor_s,
                kind="floor",
                part=name,
                records=tuple(record for record in total.records if record.floor_s),
                source="predicted",
                how="predicted: floor",
            )


def _above(one: _budget.Pass) -> Iterator[Step]:
    """Yield what each class takes above its floor, by those who measured it."""
    floors = one.by_class()
    for name, total in one.with_components.by_class().items():
        floor_s = floors[name].floor_s or 0.0
        if name in _COLLECTIVES or total.seconds is None:
            continue
        above_s = total.seconds - floor_s
        if above_s:
            given = [record for record in total.records if record not in floors[name].records]
            yield Step(
                name=f"{name} above its floor" if floor_s else name,
                seconds=above_s,
                kind="above",
                part=name,
                records=tuple(given) or total.records,
                source="predicted",
                how=_how(given),
            )


def _collectives(one: _budget.Pass) -> Iterator[Step]:
    for name, total in one.by_class().items():
        if name in _COLLECTIVES and total.seconds:
            known = [record for record in total.records if record.median_s is not None]
            largest = max(one.by_part().items(), key=lambda each: _if_of(name, *each))[1]
            each_s = _text.divided(largest.seconds, largest.calls)
            yield Step(
                name=f"{name}: {largest.calls:,} x {_text.duration(each_s)}",
                seconds=total.seconds,
                kind="collective",
                part=name,
                records=tuple(known),
                source="predicted",
                how=_how(known),
            )


def _if_of(name: Class, part: str, total: _budget.Sum) -> float:
    return total.seconds or 0.0 if class_of(part) == name else -1.0


def _idle(mode: Measurement, seconds: float) -> Step:
    return Step(
        name=f"launches and idle, {mode.implementation}",
        seconds=seconds,
        kind="idle",
        part=IDLE,
        records=(mode,),
        source="predicted",
        how="predicted: timeline",
    )


def _how(given: Sequence[Measurement]) -> str:
    names = dict.fromkeys(one.implementation for one in given)
    return f"predicted: {_text.listed(names)}" if names else "predicted"


def played(subject: Subject) -> Measurement | None:
    """Return the timeline of the mode that was measured, else of the one that the levers change."""
    forecast = subject.forecast
    if forecast is None:
        return None
    best = subject.best
    if best is not None and best.launch is not None:
        return forecast.mode(best.launch)
    return forecast.mode(_now(forecast)) or next(iter(forecast.timeline), None)


def _now(forecast: Forecast) -> str:
    """Return how the pass is launched that levers are held against."""
    said = str(forecast.levers[0].method.get("now", "")) if forecast.levers else ""
    return said.removeprefix("predicted ") if said.startswith("predicted ") else EAGER


def _end(subject: Subject, mode: Measurement | None) -> Step | None:
    """Return the whole that the prediction is held against."""
    best, observed = subject.best, subject.observed
    if best is not None and best.median_s is not None:
        same = mode is None or mode.launch == best.launch
        return Step(
            name="measured", seconds=best.median_s, kind="whole", part="", records=(best,),
            source="measured", how=f"measured, {best.launch}" + ("" if same else ": another mode"),
        )  # fmt: skip
    if observed is None:
        return None
    imported = observed.record.source == "imported"
    return Step(
        name="imported" if imported else "observed",
        seconds=observed.seconds,
        kind="whole",
        part="",
        records=(observed.record,),
        source="imported",
        how=observed.by,
    )


def _unexplained(last: Step, known_s: float, records: tuple[Measurement, ...]) -> Step:
    more = last.seconds >= known_s
    return Step(
        name="unexplained" if more else "predicted too long",
        seconds=last.seconds - known_s,
        kind="unexplained",
        part=UNEXPLAINED,
        records=records,
        source=_marks.weakest(records),
        how=f"{last.name}, less the rest",
    )


def _notes(parts: _budget.Pass, mode: Measurement | None) -> Iterator[str]:
    unknown = dict.fromkeys(one.part for one in parts.whole.unknown)
    if unknown:
        command = code("python -m graphs.replay ... --all-reduce-us")
        what = _text.listed(map(text, unknown))
        yield f"Not known and in no line: {what} ({command}, or a sweep in --measured)."
    if mode is None:
        yield "Launches and idle time are in no line: this prediction has no timeline."


# ---- A measured pass that was taken apart ----


def _taken_apart(subject: Subject, found: Collected) -> Waterfall | None:
    """Return the parts of a measured pass where they stand, above their floors where these are."""
    best = subject.best
    if best is None:
        return None
    mine = [row for row in found.passes if same_case(row, best) and row.median_s is not None]
    whole = min(
        (row for row in mine if row.op == passes.ACCOUNT),
        key=lambda row: row.launch != best.launch,
        default=None,
    )
    if whole is None or whole.median_s is None:
        return None
    parts = [
        row
        for row in mine
        if row.op == passes.IN_CONTEXT and (row.launch, row.dims) == (whole.launch, whole.dims)
    ]
    if not parts:
        return None
    steps = list(_measured_steps(subject, parts))
    last = Step(
        name="measured", seconds=whole.median_s, kind="whole", part="", records=(whole,),
        source="measured", how=f"measured, {whole.launch}, taken apart",
    )  # fmt: skip
    known_s = sum(step.seconds for step in steps)
    steps.append(_unexplained(last, known_s, (whole, *parts)))
    cpu = ", on the CPU" if found.on_cpu(best) else ""
    return Waterfall(
        title=f"From its parts to the whole, measured{cpu}: {best.case}",
        steps=(*merged(steps, whole.median_s), last),
        notes=tuple(_of_rounds(best, whole)),
    )


def _measured_steps(subject: Subject, parts: Sequence[Measurement]) -> Iterator[Step]:
    """Yield the floors of the same pass, where it was predicted, and each class above its own."""
    floors: dict[Class, Step] = {}
    if subject.predicted is not None:
        for step in _floors(subject.predicted):
            floors[class_of(step.part)] = step
    by_class: dict[Class, list[Measurement]] = {}
    for name in CLASSES:
        if mine := [row for row in parts if class_of(row.part) == name]:
            by_class[name] = mine
    held = {name: step for name, step in floors.items() if name in by_class}
    yield from held.values()
    for name in sorted(by_class, key=lambda one: (one in _COLLECTIVES, -_seconds(by_class[one]))):
        rows = tuple(by_class[name])
        floor_s = held[name].seconds if name in held else 0.0
        yield Step(
            name=f"{name} above its floor" if name in held else name,
            seconds=_seconds(rows) - floor_s,
            kind="collective" if name in _COLLECTIVES else "above",
            part=name,
            records=rows if name not in held else (*rows, *held[name].records),
            source="measured" if name not in held else "predicted",
            how=f"measured, where it stands{', less its floor' if name in held else ''}",
        )


def _seconds(rows: Sequence[Measurement]) -> float:
    return sum(row.median_s or 0.0 for row in rows)


def _of_rounds(best: Measurement, whole: Measurement) -> Iterator[str]:
    yield f"Timed whole, not taken apart, the pass took {_text.median(best)} ({best.launch})."
    left, low, high = (
        number(whole.method, f"in_context_unexplained{end}") for end in ("_s", "_low_s", "_high_s")
    )
    if left is not None and low is not None and high is not None:
        words = f"{_text.duration(left)} (95 %: {_text.duration(low)} to {_text.duration(high)})"
        yield f"Round by round, {_marks.derived(words, [whole], 'of its method')} are unexplained."
