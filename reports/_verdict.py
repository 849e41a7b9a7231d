"""The verdict in three sentences: how long a verify takes, what of it could go, whether it pays.

Each number is from a record and says whether it was measured, imported or predicted; what no
record knows is said, with the command that would find out. Numbers of different systems are not
put together: where the files tell of several, the sentence says so.
"""

from collections.abc import Sequence

from reports import _budget, _combinations, _forecast, _marks, _speculation, _sweep, _systems, _text
from reports._collected import Collected
from reports._forecast import Forecast
from reports._markdown import code, text
from reports._text import plural
from verifyscope import passes, predictions, speculation
from verifyscope.parts import class_of
from verifyscope.records import Finding, Measurement
from verifyscope.sweep_conclusion import SweepConclusion

_USUAL_ROWS = 4
_ENOUGH = 0.02  # of the pass: what changes less is no lever
_MOST_ACTIONS = 3
_BREAK_EVEN = ("break-even", "speculation-break-even")


def verdict(
    found: Collected,
    *,
    series: Sequence[_sweep.Series],
    sweeps: Sequence[SweepConclusion],
    predicted: Sequence[_budget.Pass],
) -> str:
    """Return the three sentences as Markdown."""
    wholes = _forecast.forecasts(found.predicted_passes)
    whole = next((wholes[one.made_by] for one in predicted if one.made_by in wholes), None)
    first = predicted[0] if predicted else None
    return " ".join(
        (
            _takes(found, first, whole),
            _could_go(found, first, whole, series=series, sweeps=sweeps),
            _pays(found, whole),
        )
    )


# ---- How long a verify takes ----


def _takes(found: Collected, first: _budget.Pass | None, whole: Forecast | None) -> str:
    measured = measured_passes(found)
    if measured:
        best = min(measured, key=lambda one: one.median_s or 0.0)
        where = ", on the CPU" if found.on_cpu(best) else ""
        where += ", of a stub shrunk to fit, no time of the real model" * _is_shrunk(best)
        said = (
            f"A verify{_rows(best)} takes **{_text.median(best)}** (measured, {best.launch}{where})"
        )
        return f"{said}{_beside(first, whole)}."
    observed = _observed(whole)
    if observed is not None:
        seconds, one = observed
        by = text(str(one.method.get("observed", "given")))
        return (
            f"A verify{_rows(one)} took **{_text.duration(seconds)}** (observed, not here: {by})"
            f"{_beside(first, whole)}."
        )
    theirs = _imported(found)
    if len(theirs) == 1:
        return f"A verify{_rows(theirs[0])} took **{_text.median(theirs[0])}** (imported)."
    if theirs:
        least = min(theirs, key=lambda one: one.median_s or 0.0)
        most = max(theirs, key=lambda one: one.median_s or 0.0)
        which = text(_systems.which(found.kernels, theirs))
        return (
            f"{len(theirs)} imported times of verifies, {which}, go from "
            f"{_text.median(least)} to {_text.median(most)}{_beside(first, whole)}."
        )
    return (
        f"How long a verify takes is **not known**: no record is of a whole pass"
        f"{_beside(first, whole)}."
    )


def measured_passes(found: Collected) -> list[Measurement]:
    """Return the modes of the pass that speaks for the report: of a GPU, of all layers' sizes."""
    whole = [one for one in found.passes if one.op == passes.FORWARD and "outside" not in one.dims]
    if not whole:
        return []
    best = min(whole, key=lambda one: (found.on_cpu(one), _is_shrunk(one), one.median_s or 0.0))
    return [one for one in whole if same_case(one, best)]


def same_case(one: Measurement, other: Measurement) -> bool:
    """Say whether two records are of one case in one run."""
    return one.environment == other.environment and (
        (one.case, one.method.get("pass")) == (other.case, other.method.get("pass"))
    )


def _is_shrunk(one: Measurement) -> bool:
    return one.dims.get("shrunk") is True


def _imported(found: Collected) -> list[Measurement]:
    return [
        one
        for one in found.kernels
        if one.source == "imported" and one.mode == "verify" and one.op in ("verify", "cycle")
    ]


def _observed(whole: Forecast | None) -> tuple[float, Measurement] | None:
    """Return the time that a prediction was held against, and a record that has it."""
    for one in whole.excess if whole is not None else ():
        seconds = one.dims.get("observed_s")
        if isinstance(seconds, int | float):
            return float(seconds), one
    return None


def _rows(one: Measurement) -> str:
    rows = one.dims.get("rows")
    return f" of {plural(int(rows), 'row')}" if isinstance(rows, int | float) else ""


def _beside(first: _budget.Pass | None, whole: Forecast | None) -> str:
    """Return what is predicted of a pass."""
    if first is None:
        return ""
    floor = f"*{first.whole.time()}*"
    if not first.components:
        return f"; predicted floor of {text(_budget.title(first))}: {floor}"
    played = whole.mode(predictions.GRAPH) if whole is not None else None
    time = f"*{_text.median(played)}*" if played else f"*{first.with_components.whole.time()}*"
    return (
        f"; predicted for {text(_budget.title(first))}: {time} with what others measured of its "
        f"parts, {floor} as the floor of its bytes and flops"
    )


# ---- What of it could go ----


def _could_go(
    found: Collected,
    first: _budget.Pass | None,
    whole: Forecast | None,
    *,
    series: Sequence[_sweep.Series],
    sweeps: Sequence[SweepConclusion],
) -> str:
    return f"{_all_reduces(found, first, series, sweeps)}; {_replay(found, whole)}."


def _all_reduces(
    found: Collected,
    first: _budget.Pass | None,
    series: Sequence[_sweep.Series],
    sweeps: Sequence[SweepConclusion],
) -> str:
    """Return what all-reduces take of a pass, and the best that this host can do."""
    told = _profiled(found)
    if told is not None:
        how = f"measured by a profiler, {told.launch}{', on the CPU' if found.on_cpu(told) else ''}"
        whole = max(
            (one.median_s or 0.0 for one in found.passes if _is_whole(one, told)), default=0
        )
        if (told.median_s or 0.0) <= whole:
            return f"**{_text.median(told)}** of it are all-reduces ({how})"
        # A profiler sees passes of its own, and slows them; a part is never longer than the whole.
        return (
            f"All-reduces took {_text.median(told)} in other passes ({how}), which is longer than "
            f"the timed pass: what they take of it is **not known**"
        )
    savings = [(saving, one) for one in sweeps for saving in one.savings]
    if savings:
        saving, one = min(savings, key=lambda each: abs(each[0].tokens - _USUAL_ROWS))
        each = _text.duration(saving.now_s / saving.calls)
        saved, name = saving.saved, saving.implementation
        best = (
            "and no combination beats that beyond noise"
            if saved is None or name is None
            else f"where {code(name)} would save {_text.duration(saved.value)}"
        )
        return (
            f"**{_text.duration(saving.now_s)}** of a pass of {plural(saving.tokens, 'row')} are "
            f"all-reduces at {each} each (measured, {text(_combinations.name(one, found))}), {best}"
        )
    known = _sweep.passes(series)
    if known:
        near = min(known, key=lambda each: abs(each.tokens - _USUAL_ROWS))
        source = near.measured.source + (", on the CPU" if found.on_cpu(near.measured) else "")
        return (
            f"**{_text.duration(near.seconds)}** of a pass of {plural(near.tokens, 'row')} are "
            f"all-reduces at {_text.median(near.measured)} each ({source})"
        )
    total = first.with_components.by_part().get("all_reduce") if first is not None else None
    if total is not None and total.seconds is not None and total.calls:
        each = _text.duration(total.seconds / total.calls)
        return (
            f"*{_text.duration(total.seconds)}* of the predicted pass are all-reduces at *{each}* "
            f"each, which {code('python -m collectives.sweep')} would measure on this host"
        )
    return (
        f"What all-reduces take of it is **not known** ({code('python -m collectives.sweep')} "
        f"measures them)"
    )


def _is_whole(one: Measurement, part: Measurement) -> bool:
    same = (one.case, one.launch, one.environment) == (part.case, part.launch, part.environment)
    return one.op == passes.FORWARD and same


def _profiled(found: Collected) -> Measurement | None:
    """Return what a profiler told of the all-reduces of the measured pass."""
    modes = measured_passes(found)
    return next(
        (
            row
            for row in found.passes
            if row.op == passes.CLASS
            and class_of(row.part) == "all_reduce"
            and any(row.launch == one.launch and same_case(row, one) for one in modes)
        ),
        None,
    )


def _replay(found: Collected, whole: Forecast | None) -> str:
    """Return what replaying the pass as one graph would save."""
    modes = {one.launch: one for one in measured_passes(found)}
    eager, graph = modes.get("eager"), modes.get("graph")
    source, shown = "measured", ""
    if eager is None or graph is None:
        eager = whole.mode(predictions.EAGER) if whole is not None else None
        graph = whole.mode(predictions.GRAPH) if whole is not None else None
        source, shown = "predicted", "*"
    if eager is None or graph is None or eager.median_s is None or graph.median_s is None:
        return "what graph replay would save is **not known**"
    saved_s = eager.median_s - graph.median_s
    if saved_s <= _ENOUGH * eager.median_s:
        return f"graph replay would save next to nothing ({source})"
    words = _marks.of(graph, _text.duration(saved_s)) if not shown else _text.duration(saved_s)
    return f"graph replay would save {shown}{words}{shown} ({source})"


def actions(found: Collected, predicted: Sequence[_budget.Pass]) -> str:
    """Return the levers worth most, each alone; where none was computed, the dearest findings."""
    wholes = _forecast.forecasts(found.predicted_passes)
    whole = next((wholes[one.made_by] for one in predicted if one.made_by in wholes), None)
    levers = [] if whole is None else _worth_most(whole)
    if levers:
        return f"**Worth most** (*predicted*, each alone): {'; '.join(levers)}."
    dear = sorted(
        (one for one in found.findings if one.worth_s and one.next_action),
        key=lambda one: -(one.worth_s or 0.0),
    )
    said = [
        f"{text(one.next_action or '')} ({text(one.name)}, {_text.duration(one.worth_s)})"
        for one in dear[:_MOST_ACTIONS]
    ]
    return f"**Worth most**, by findings: {'; '.join(said)}." if said else ""


def _worth_most(whole: Forecast) -> list[str]:
    """Return the levers that save most against the pass as it is, with their tokens a second."""
    base = next((one for one in whole.levers if one.dims.get("number") == 0), None)
    now_s = None if base is None else _dim(base, "alone_s")
    if base is None or now_s is None:
        return []
    saved = [(now_s - (_dim(one, "alone_s") or now_s), one) for one in whole.levers]
    large = sorted((each for each in saved if each[0] > _ENOUGH * now_s), key=lambda each: -each[0])
    return [
        f"{text(one.implementation)} *{_marks.of(one, f'-{_text.duration(saved_s)}')}*"
        f"{_more_tokens(base, one)}"
        for saved_s, one in large[:_MOST_ACTIONS]
    ]


def _more_tokens(base: Measurement, one: Measurement) -> str:
    """Return the tokens a second that a lever adds, between no and every draft accepted."""
    ends = []
    for end in ("least", "most"):
        old, new = (_dim(each, f"alone_{end}_tokens_per_s") for each in (base, one))
        if old is None or new is None:
            return ""
        ends.append(f"{new - old:+.1f}")
    return f", {' to '.join(dict.fromkeys(ends))} tok/s"


def _dim(one: Measurement, name: str) -> float | None:
    value = one.dims.get(name)
    return float(value) if isinstance(value, int | float) else None


# ---- Whether it pays ----


def _pays(found: Collected, whole: Forecast | None) -> str:
    observed = _observed(whole)
    method = whole.levers[0].method if whole is not None and whole.levers else {}
    plain_s, accepted = method.get("plain_s"), method.get("accepted")
    if observed is not None and isinstance(plain_s, int | float):
        least = speculation.break_even_accepted_by_verify(observed[0], plain_token_s=plain_s)
        known = (
            f"it is {_text.ratio(float(accepted))}"
            if isinstance(accepted, int | float)
            else "what it is, no record says"
        )
        by = text(str(method.get("plain", "given")))
        return (
            f"Acceptance must exceed **{_text.ratio(least)}** tokens a verify to pay, against "
            f"{_text.duration(plain_s)} a plain token ({by}), draft and host not counted; {known}."
        )
    said = [one for one in found.findings if one.name in _BREAK_EVEN]
    if len(said) == 1:
        return f"{_sentence(said[0])}."
    by_load = _speculation.in_short(found)
    if by_load:
        return by_load
    several = f" ({len(said)} findings on it)" if said else ""
    return (
        f"Which acceptance it must reach to pay is **not known**{several}: "
        f"{code('python -m reports.speculation')} says it from a verify and a plain step."
    )


def _sentence(finding: Finding) -> str:
    words = text(finding.sentence).rstrip(".")
    return words[:1].upper() + words[1:]
