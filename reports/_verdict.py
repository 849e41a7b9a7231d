"""The verdict in three sentences: how long a verify takes, what of it could go, whether it pays.

A report of logs alone begins with the finding that they are about (reports/_leading.py).

Each number is from a record and marked as its, and says whether it was measured, imported or
predicted. All are of the one system that the first screen speaks of (reports/_subject.py); what no
record knows of it is said, with the command that would find out.
"""

import re
from collections.abc import Iterator, Sequence

from reports import (
    _commands,
    _forecast,
    _marks,
    _speculation,
    _sweep,
    _systems,
    _text,
    _waterfall,
)
from reports._all_reduces import all_reduces
from reports._collected import Collected
from reports._leading import leading
from reports._markdown import code, text
from reports._operating_points import OperatingPoint
from reports._subject import Observed, Subject, is_part, is_shrunk, number
from reports._text import plural
from verifyscope import predictions, speculation
from verifyscope.records import Finding, Measurement
from verifyscope.sweep_conclusion import SweepConclusion

_ENOUGH = 0.02  # of the pass: what changes less is no lever
_BREAK_EVEN = ("break-even", "speculation-break-even")
_NOT_KNOWN = "**not known**"
_ASKED = (
    "how long a verify takes",
    "what of it all-reduces are",
    "what graph replay would save",
    "which acceptance pays",
)


def verdict(
    subject: Subject,
    found: Collected,
    *,
    series: Sequence[_sweep.Series],
    sweeps: Sequence[SweepConclusion],
    points: Sequence[OperatingPoint],
) -> str:
    """Return the three sentences as Markdown."""
    takes, pays = _takes(subject, found), _pays(subject, found, points)
    could_go = all_reduces(subject, found, series=series, sweeps=sweeps)
    replay = _replay(subject, found)
    first = leading(subject, found)
    if first:
        sentences = [first, *_rest((takes, could_go, replay, pays))]
    else:
        sentences = [takes, f"{could_go}; {replay}", pays]
    return _once(" ".join(f"{one[:1].upper()}{one[1:]}." for one in sentences))


def _rest(said: Sequence[str]) -> Iterator[str]:
    """Yield what is known of a pass behind a finding, then what is not, in one sentence."""
    yield from (one for one in said if _NOT_KNOWN not in one)
    unknown = [what for one, what in zip(said, _ASKED, strict=True) if _NOT_KNOWN in one]
    if unknown:
        *others, last = unknown
        words = f"{', '.join(others)} and {last} are" if others else f"{last} is"
        yield (
            f"{words} {_NOT_KNOWN}: "
            f"{code(_commands.DIAGNOSE)} measures what it can and predicts the rest"
        )


def _once(sentences: str) -> str:
    """Return the sentences without a command in brackets that was named before."""
    named: set[str] = set()

    def kept(found: re.Match[str]) -> str:
        again = found[1] in named
        named.add(found[1])
        return "" if again else found[0]

    return re.sub(r" \((`[^`]+`)\)", kept, sentences)


# ---- How long a verify takes ----


def _takes(subject: Subject, found: Collected) -> str:
    best = subject.best
    if best is not None:
        return _measured(subject, best, found)
    if subject.observed is not None:
        return _observed(subject, subject.observed)
    if subject.predicted is not None:
        return _predicted(subject)
    theirs = subject.imported
    if len(theirs) == 1:
        what = "a verify" if theirs[0].op == "verify" else "a cycle with a verify"
        return f"{what}{_rows(subject)} took **{_text.median(theirs[0])}** (imported)"
    if theirs:
        least, most = (end(theirs, key=lambda one: one.median_s or 0.0) for end in (min, max))
        which = text(_systems.which(found.kernels, theirs))
        return (
            f"{len(theirs)} imported times of {_whole_names(theirs)}, {which}, go from "
            f"{_text.median(least)} to {_text.median(most)}"
        )
    predict = _commands.replay(subject, "--predict GPU")
    return f"how long a verify takes is {_NOT_KNOWN}: no record is of a whole pass ({predict})"


def _whole_names(theirs: Sequence[Measurement]) -> str:
    ops = {one.op for one in theirs}
    names = (("verify", "verifies"), ("cycle", "whole cycles"))
    return " and ".join(name for op, name in names if op in ops)


def _measured(subject: Subject, best: Measurement, found: Collected) -> str:
    where = ", on the CPU" if found.on_cpu(best) else ""
    said = (
        f"a verify{_rows(subject)} takes **{_text.median(best)}** (measured, {best.launch}{where})"
    )
    if is_shrunk(best):
        return f"{said}: of a stub shrunk to fit, no time of the real model"
    if is_part(best):
        return f"{said}: of {text(str(best.dims.get('model')))}, not of all its layers"
    mode = _waterfall.played(subject)
    if mode is None or mode.launch != best.launch:
        return said
    return f"{said}, where *{_least(mode)}{_text.median(mode)}* was predicted"


def _observed(subject: Subject, observed: Observed) -> str:
    took = _marks.of(observed.record, _text.duration(observed.seconds))
    if observed.record.median_s != observed.seconds:
        took = _marks.told(_text.duration(observed.seconds), observed.record, "observed_s")
    said = f"a verify{_rows(subject)} took **{took}** ({text(observed.by)})"
    known = _waterfall.predicted(subject)
    if known is None:
        return said
    records = (*known.records, observed.record)
    left_s = observed.seconds - known.seconds
    words = _text.duration(abs(left_s))
    left = _marks.derived(words, records, "what was seen, less what is predicted")
    if left_s < 0:
        return f"{said}, which is {left} less than predicted"
    return f"{said}; *{known.words}* of it are predicted, **{left}** are unexplained"


def _predicted(subject: Subject) -> str:
    known = _waterfall.predicted(subject)
    measure = _commands.replay(subject)
    if known is None or subject.predicted is None:
        return f"how long a verify{_rows(subject)} takes is {_NOT_KNOWN} ({measure})"
    whole = subject.predicted.whole
    floor = _marks.derived(
        _text.duration(whole.floor_s), whole.records, "sum of floor_s x calls", predicted=True
    )
    floor = "all" if whole.floor_s == known.seconds else f"*{floor}*"
    return (
        f"a verify{_rows(subject)} is predicted to take *{known.words}*, {floor} of it the floor "
        f"of its bytes; what it really takes is {_NOT_KNOWN} ({measure})"
    )


def _rows(subject: Subject) -> str:
    rows = subject.dim("rows")
    return f" of {plural(int(rows), 'row')}" if isinstance(rows, int | float) else ""


def _least(one: Measurement) -> str:
    return "at least " if "at-least" in one.flags else ""


# ---- What replaying the pass as one graph would save ----


def _replay(subject: Subject, found: Collected) -> str:
    eager, graph = subject.mode("eager"), subject.mode("graph")
    source, shown = "measured", "**"
    if eager is None or graph is None:
        forecast = subject.forecast
        eager = None if forecast is None else forecast.mode(predictions.EAGER)
        graph = None if forecast is None else forecast.mode(predictions.GRAPH)
        source, shown = "predicted", "*"
    if eager is None or graph is None or eager.median_s is None or graph.median_s is None:
        best = subject.best
        why = ": a CPU has no graphs" if best is not None and found.on_cpu(best) else ""
        return f"what graph replay would save is {_NOT_KNOWN}{why} ({_commands.replay(subject)})"
    saved_s = eager.median_s - graph.median_s
    if saved_s <= _ENOUGH * eager.median_s:
        return f"graph replay would save next to nothing ({source})"
    words = _marks.derived(_text.duration(saved_s), (eager, graph), "eager - graph")
    return f"graph replay would save {shown}{words}{shown} ({source})"


# ---- Whether it pays ----


def _pays(subject: Subject, found: Collected, points: Sequence[OperatingPoint]) -> str:
    mine = point_of(subject, points)
    if mine is not None and mine.plain is not None:
        return _by_point(mine)
    told = _by_prediction(subject, mine)
    if told:
        return told
    said = [one for one in found.findings if one.name in _BREAK_EVEN]
    if len(said) == 1:
        return _sentence(said[0])
    by_load = "" if subject.measured else _speculation.in_short(points)
    if by_load:
        return by_load.rstrip(".")
    several = f" ({len(said)} findings on it)" if said else ""
    return (
        f"which acceptance it must reach to pay is {_NOT_KNOWN}{several}: "
        f"{code('python -m reports.speculation')} says it from a verify and a plain step"
    )


def point_of(subject: Subject, points: Sequence[OperatingPoint]) -> OperatingPoint | None:
    """Return the operating point that is the pass of which the report speaks."""
    observed = subject.observed
    record = subject.best if observed is None else observed.record
    if record is None and len(subject.imported) == 1:
        record = subject.imported[0]
    return None if record is None else next((one for one in points if one.record is record), None)


def _by_point(one: OperatingPoint) -> str:
    plain = one.plain
    if plain is None:
        return ""
    records = (one.record, plain.record)
    even = _marks.derived(_text.ratio(one.break_even), records, "cycle / plain step")
    least = "" if one.is_cycle else "at least "
    what = "" if one.is_cycle else ", draft and host not counted"
    return (
        f"acceptance must exceed {least}**{even}** to pay, against {_text.median(plain.record)} a "
        f"plain token{what}; {_acceptance(one, None)}"
    )


def _acceptance(read: OperatingPoint | None, given: float | None) -> str:
    """Return what the acceptance is: as it was read, else as it was given to a prediction."""
    if read is not None and read.accepted is not None:
        accepted = _marks.derived(_text.ratio(read.accepted), [read.record], "as read")
        return f"its runs imply **{accepted}**" if read.is_implied else f"it is **{accepted}**"
    if given is not None:
        return f"it is **{_text.ratio(given)}**"
    return f"what it is, no record says ({code(_commands.INGEST)} reads it)"


def _by_prediction(subject: Subject, read: OperatingPoint | None) -> str:
    """Return what the prediction says: of the time that was seen, else of the predicted one."""
    forecast = subject.forecast
    base = None if forecast is None else _forecast.base(forecast)
    plain_s = None if base is None else number(base.method, "plain_s")
    if base is None or plain_s is None:
        return ""
    known = _acceptance(read, number(base.method, "accepted"))
    plain = _marks.told(_text.duration(plain_s), base, "plain_s")
    by = text(str(base.method.get("plain", "given")).partition(":")[0])
    seen, best = subject.observed, subject.best
    verify_s = number(base.dims, "alone_s")
    records: tuple[Measurement, ...] = (base,)
    if best is not None:
        verify_s, records = best.median_s, (best, base)
    elif seen is not None:
        verify_s, records = seen.seconds, (seen.record, base)
    if verify_s is None or verify_s <= 0 or plain_s <= 0:  # no pass can take that
        return ""
    rest_s = _forecast.rest_s(base)
    least = speculation.break_even_accepted(verify_s + rest_s, plain_token_s=plain_s)
    how, what = "verify / plain token", ", draft and host not counted"
    if rest_s:
        how, what = "verify / share / plain token", ", draft and host counted"
    even = _marks.derived(_text.ratio(least), records, how)
    shown = "*" if len(records) == 1 else "**"
    return (
        f"acceptance must exceed {shown}{even}{shown} to pay, against {plain} a plain token "
        f"({by}){what}; {known}"
    )


def _sentence(finding: Finding) -> str:
    return text(finding.sentence).rstrip(".")
