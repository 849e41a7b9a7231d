"""What all-reduces take of the pass that the verdict speaks of, and the best this host could do.

A sweep counts for a pass where its ranks ran on the machine that was measured, or on GPUs and as
many of them as were predicted: what gloo does between processes of a CPU says nothing of those.
"""

from collections.abc import Sequence

from reports import _combinations, _commands, _marks, _sweep, _text
from reports._collected import Collected
from reports._markdown import code, text
from reports._subject import Subject, same_case
from reports._text import plural
from verifyscope import hardware, passes
from verifyscope.parts import class_of
from verifyscope.pass_savings import Saving, calls_of
from verifyscope.records import Measurement
from verifyscope.sweep_conclusion import SweepConclusion

_USUAL_ROWS = 4


def all_reduces(
    subject: Subject,
    found: Collected,
    *,
    series: Sequence[_sweep.Series],
    sweeps: Sequence[SweepConclusion],
) -> str:
    """Return the first half of a sentence."""
    told = _profiled(subject, found)
    if told is not None:
        return _of_profile(subject, told, found, sweeps)
    inside = _inside(subject, found)
    swept = nearest(subject, found, sweeps)
    if inside:
        return _where_they_stand(inside, swept)
    if swept is not None:
        return _of_sweep(*swept, found)
    known = [one for one in _sweep.passes(series) if _counts(subject, one.measured, found)]
    if known:
        near = min(known, key=lambda one: abs(one.tokens - _rows(subject)))
        source = near.measured.source + (", on the CPU" if found.on_cpu(near.measured) else "")
        total = _marks.derived(
            _text.duration(near.seconds), [near.measured], f"{near.calls:,} x the time of a call"
        )
        return (
            f"**{total}** of a pass of {plural(near.tokens, 'row')} are all-reduces at "
            f"{_text.median(near.measured)} each ({source})"
        )
    return _of_prediction(subject)


def nearest(
    subject: Subject, found: Collected, sweeps: Sequence[SweepConclusion]
) -> tuple[SweepConclusion, Saving] | None:
    """Return the sweep of this system and what it says of a pass of about as many rows."""
    model = subject.dim("model")
    every = [
        (one, saving)
        for one in sweeps
        for saving in one.savings
        if _is_here(subject, one.contest.environment, one.contest.ranks, found)
        and (model is None or saving.model == model)
    ]
    rows = _rows(subject)
    return min(every, key=lambda each: abs(each[1].tokens - rows), default=None)


def _rows(subject: Subject) -> int:
    """Return the rows of all requests: a message holds them all."""
    rows, requests = subject.dim("rows"), subject.dim("requests")
    each = int(rows) if isinstance(rows, int | float) else _USUAL_ROWS
    return each * requests if isinstance(requests, int) else each


def _counts(subject: Subject, one: Measurement, found: Collected) -> bool:
    model = subject.dim("model")
    if one.source != "measured" or (model is not None and one.dims.get("model") != model):
        return False
    return _is_here(subject, one.environment, one.ranks, found)


def _is_here(subject: Subject, environment: str, ranks: int | None, found: Collected) -> bool:
    """Say whether ranks of that environment are those of the pass; of no pass, any are."""
    best = subject.best
    if best is not None:
        return best.environment == environment and subject.is_whole
    if subject.predicted is None:
        return not subject.imported
    known = found.environments.get(environment)
    gpus = [] if known is None else [hardware.match(gpu.name) for gpu in known.gpus]
    name = None if not gpus or gpus[0] is None else gpus[0].name
    return name == subject.dim("gpu") and ranks == subject.dim("tp")


def _of_profile(
    subject: Subject,
    told: Measurement,
    found: Collected,
    sweeps: Sequence[SweepConclusion],
) -> str:
    how = f"by a profiler, {told.launch}{', on the CPU' if found.on_cpu(told) else ''}"
    whole = max((one.median_s or 0.0 for one in found.passes if _is_whole(one, told)), default=0)
    if (told.median_s or 0.0) > whole:
        # A profiler sees passes of its own, and slows them; a part is never longer than the whole.
        return (
            f"all-reduces took {_text.median(told)} in other passes ({how}), longer than the timed "
            f"pass: what they take of it is **not known**"
        )
    calls = calls_of(str(told.dims.get("model")))
    each = ""
    if calls is not None and told.median_s is not None:
        words = _text.duration(told.median_s / calls)
        each = f" at {_marks.derived(words, [told], f'time / {calls:,} calls')} each"
    swept = nearest(subject, found, sweeps)
    best = "" if swept is None else f", {_best(*swept)}"
    return f"**{_text.median(told)}** of it are all-reduces{each} ({how}){best}"


def _inside(subject: Subject, found: Collected) -> list[Measurement]:
    """Return the all-reduces that were measured where they stand in a pass, by part."""
    best = subject.best
    rows = [
        row
        for row in found.passes
        if best is not None
        and row.op == passes.IN_CONTEXT
        and class_of(row.part) == "all_reduce"
        and row.median_s is not None
        and same_case(row, best)
    ]
    return [row for row in rows if row.launch == rows[0].launch]


def _where_they_stand(
    inside: Sequence[Measurement], swept: tuple[SweepConclusion, Saving] | None
) -> str:
    seconds = sum(row.median_s or 0.0 for row in inside)
    whole = _marks.derived(_text.duration(seconds), inside, "sum of the parts")
    calls = calls_of(str(inside[0].dims.get("model")))
    each = "" if calls is None else _text.duration(seconds / calls)
    at = f" at {_marks.derived(each, inside, f'time / {calls:,} calls')} each" if each else ""
    best = "" if swept is None else f", {_best(*swept)}"
    return f"**{whole}** are all-reduces{at} (measured where they stand, {inside[0].launch}){best}"


def _of_sweep(one: SweepConclusion, saving: Saving, found: Collected) -> str:
    row = one.contest.times(one.contest.default).get(saving.size_bytes)
    each = _text.duration(saving.now_s / saving.calls) if row is None else _text.median(row)
    name = text(_combinations.name(one, found))
    return (
        f"**{_combinations.now(one.contest, saving)}** of a pass of "
        f"{plural(saving.tokens, 'row')} are all-reduces at {each} each (measured, {name}), "
        f"{_best(one, saving)}"
    )


def _best(one: SweepConclusion, saving: Saving) -> str:
    """Return what the best combination takes, where one beats the default beyond noise."""
    name = saving.implementation
    row = None if name is None else one.contest.times(name).get(saving.size_bytes)
    if name is None or row is None or saving.saved is None:
        return "and no combination beats that beyond noise"
    return f"where {code(name)} takes **{_text.median(row)}**"


def _of_prediction(subject: Subject) -> str:
    predicted = subject.predicted
    total = None
    if predicted is not None:
        total = predicted.with_components.by_part().get("all_reduce")
    sweep = _commands.sweep(subject)
    if total is None or total.seconds is None or not total.calls:
        return f"what all-reduces take of it is **not known** ({sweep} measures them)"
    known = [one for one in total.records if one.median_s is not None]
    whole = _marks.derived(_text.duration(total.seconds), known, "time x calls")
    each = _marks.derived(_text.duration(total.seconds / total.calls), known, "mean of a call")
    return (
        f"of what is predicted, *{whole}* are all-reduces at *{each}* each, where this host's best "
        f"is **not known** ({sweep})"
    )


def _is_whole(one: Measurement, part: Measurement) -> bool:
    return one.op == passes.FORWARD and one.launch == part.launch and same_case(one, part)


def _profiled(subject: Subject, found: Collected) -> Measurement | None:
    """Return what a profiler told of the all-reduces of the measured pass."""
    modes = sorted(subject.measured, key=lambda one: one.median_s or 0.0)
    return next(
        (
            row
            for mode in modes
            for row in found.passes
            if row.op == passes.CLASS
            and class_of(row.part) == "all_reduce"
            and row.launch == mode.launch
            and same_case(row, mode)
        ),
        None,
    )
