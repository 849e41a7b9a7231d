"""The opening lines of a report: what the data say, and nothing that they do not."""

from collections.abc import Mapping, Sequence

from reports import (
    _budget,
    _changes,
    _combinations,
    _compiled,
    _forecast,
    _kernels,
    _not_run,
    _others,
    _sweep,
    _text,
    _verify,
)
from reports._collected import Collected
from reports._forecast import Forecast
from reports._kernels import Kernels
from reports._markdown import bullets, code, text
from reports._text import plural
from verifyscope import predictions
from verifyscope.sweep_conclusion import SweepConclusion

_MOST_OF_A_KIND = 6
_USUAL_TOKENS = 4


def summary(
    found: Collected,
    not_run: Sequence[_not_run.Group],
    *,
    kernels: Kernels,
    curves: Mapping[str, Sequence[_verify.Curve]],
    series: Sequence[_sweep.Series],
    sweeps: Sequence[SweepConclusion],
    passes: Sequence[_budget.Pass],
    changes: Sequence[_changes.Change],
    stub: Sequence[str],
) -> str:
    """Return the lines: counts, then passes, kernels, collectives, prediction, compile gate.

    stub: what the measured passes say.
    """
    lines = [
        _counts(found, not_run),
        *_wrong(not_run),
        *_changes.counts(changes, found)[:_MOST_OF_A_KIND],
        *stub[:_MOST_OF_A_KIND],
        *_kernel_lines(found, kernels, curves=curves),
        *_sweep_lines(found, sweeps),
        *_all_reduce_lines(
            found, [one for one in series if not _combinations.is_swept(one.first, sweeps)]
        ),
        *_budget_lines(passes, _forecast.forecasts(found.predicted_passes)),
        *_compiled_lines(found),
    ]
    if found.findings:
        lines.append(f"{plural(len(found.findings), 'finding')}, below.")
    return bullets(lines)


def _counts(found: Collected, not_run: Sequence[_not_run.Group]) -> str:
    timed = (*found.kernels, *found.collectives, *found.traces, *found.passes)
    imported = sum(one.source == "imported" for one in timed)
    measured = len(timed) - imported
    words = [f"**{plural(measured, 'point')} measured**" if measured else "**Nothing measured**"]
    if imported:
        words.append(f"{imported:,} imported")
    predicted = (*found.predicted, *found.predicted_passes, *found.predicted_kernels)
    if predicted:
        words.append(f"{len(predicted):,} predicted")
    if found.compiled:
        words.append(plural(len(found.compiled), "kernel build"))
    for status in dict.fromkeys(group.status for group in not_run):
        count = sum(group.count for group in not_run if group.status == status)
        words.append(f"{count:,} {status}")
    return f"{', '.join(words)}."


def _wrong(not_run: Sequence[_not_run.Group]) -> list[str]:
    """Return what is wrong, and why most of the rest did not run."""
    wrong = [group for group in not_run if group.status in _not_run.WRONG]
    lines = [
        f"**{group.status}**: {_text.listed(map(code, group.who))}: {text(group.reason)}"
        for group in wrong[:_MOST_OF_A_KIND]
    ]
    others = [group for group in not_run if group.status not in _not_run.WRONG]
    if others:
        most = max(others, key=lambda group: group.count)
        total = sum(group.count for group in others)
        of_them = "all" if most.count == total else f"{most.count:,}"
        lines.append(
            f"{total:,} did not run or do not count; {of_them} of them: {text(most.reason)}."
        )
    return lines


def _kernel_lines(
    found: Collected, kernels: Kernels, *, curves: Mapping[str, Sequence[_verify.Curve]]
) -> list[str]:
    lines = []
    for op in kernels.ops:
        if op.is_plan:
            continue
        lines += [f"{code(op.name)}: {line}" for line in _kernels.headline(op, found)]
        lines += _curve_line(curves[op.name][:_MOST_OF_A_KIND], found)
    return lines + _others.sentences(_others.series(kernels.others))[:_MOST_OF_A_KIND]


def _curve_line(curves: Sequence[_verify.Curve], found: Collected) -> list[str]:
    """Return what the most tokens cost beside one, by the fastest of the fullest curves."""
    if not curves:
        return []
    curve = min(curves, key=lambda one: (-len(one.by_tokens), one.one_s))
    most = max(curve.by_tokens)
    first = curve.by_tokens[1]
    where = " on the CPU" if found.on_cpu(first) else ""
    if first.source == "imported" and first.origin is not None:
        where = f", imported from {code(first.origin.file)}"
    return [
        f"{code(curve.op)}: a verify of {most} tokens takes {_verify.grown(curve, most)} times as "
        f"long as a step of one with {code(curve.implementation)}{where}."
    ]


def _sweep_lines(found: Collected, sweeps: Sequence[SweepConclusion]) -> list[str]:
    """Return what each sweep of combinations recommends, and what it saves a pass near 4 rows."""
    lines = []
    for one in sweeps[:_MOST_OF_A_KIND]:
        title = text(_combinations.name(one, found))
        taken = [code(known.implementation) for known in one.recommended.ranges]
        said = f"take {_text.listed(taken)}" if taken else text(one.silent_because or "")
        nearest = min(
            one.savings, key=lambda known: abs(known.tokens - _USUAL_TOKENS), default=None
        )
        if nearest is not None:
            said += (
                f"; all-reduces of a pass of {text(nearest.model)} with "
                f"{plural(nearest.tokens, 'row')}: {nearest.calls:,} calls, "
                f"**{_text.duration(nearest.now_s)}**"
            )
            if nearest.saved is not None:
                saved = nearest.saved
                low_high = _text.interval(saved.value, low_s=saved.low, high_s=saved.high)
                said += f", of which **{low_high}** would be saved"
        lines.append(f"{title}: {said}.")
    return lines


def _all_reduce_lines(found: Collected, series: Sequence[_sweep.Series]) -> list[str]:
    """Return the cost of a pass for each series that has one: at 4 rows, or the nearest to it."""
    nearest: dict[int, _sweep.Pass] = {}
    for one in _sweep.passes(series):
        known = nearest.get(id(one.series))
        if known is None or abs(one.tokens - _USUAL_TOKENS) < abs(known.tokens - _USUAL_TOKENS):
            nearest[id(one.series)] = one
    return [
        f"All-reduces of a pass of {text(one.model)} with {plural(one.tokens, 'row')}: "
        f"{one.calls:,} x {_text.median(one.measured)} = "
        f"**{_text.duration(one.seconds)}** ({text(_sweep.name(one.series, found))})."
        for one in list(nearest.values())[:_MOST_OF_A_KIND]
    ]


def _budget_lines(passes: Sequence[_budget.Pass], wholes: Mapping[str, Forecast]) -> list[str]:
    lines = []
    for one in passes[:_MOST_OF_A_KIND]:
        whole, largest = one.whole, _budget.largest(one)
        line = f"Predicted for {text(_budget.title(one))}: **{whole.time()}**"
        if largest:
            part, total = largest
            line += (
                f"; its largest part is {text(part)}, {_text.duration(total.seconds)} "
                f"({_text.share(total.seconds, whole.seconds)}"
                f"{' of what is known' if whole.unknown else ''})"
            )
        unknown = (one.with_components if one.components else one).whole.unknown
        if one.components:
            line += f"; with components {one.with_components.whole.time()}"
        if unknown:
            names = dict.fromkeys(record.part for record in unknown)
            line += f"; not known: {_text.listed(map(text, names))}"
        if one.made_by in wholes:
            line += _modes(wholes[one.made_by])
        lines.append(f"{line}.")
    return lines


def _modes(whole: Forecast) -> str:
    """Return the pass eager and as one graph, where both were played."""
    eager, graph = whole.mode(predictions.EAGER), whole.mode(predictions.GRAPH)
    if eager is None or graph is None:
        return ""
    least = "at least " if eager.flags else ""
    return f"; eager {least}{_text.median(eager)}, as one graph {least}{_text.median(graph)}"


def _compiled_lines(found: Collected) -> list[str]:
    builds = _compiled.latest(found.compiled)
    if not builds:
        return []
    failed = len(_compiled.failures(builds))
    gpus = _text.listed((f"sm_{one}" for one in _compiled.capabilities(builds)), most=8)
    verdict = f"**{failed:,} refused**" if failed else "all within their limits"
    return [f"{plural(len(builds), 'kernel build')} for {gpus}: {verdict}."]
