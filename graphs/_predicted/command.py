"""`--predict` from options to what is printed, recorded and written: one case after the other."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from graphs import chrome_trace
from graphs._predicted import components as component
from graphs._predicted import fits, forecast_records, options, played, printing
from graphs._predicted.fits import Axis, Fit
from graphs._predicted.forecast import Forecast, Question, forecast
from graphs._predicted.options import Given
from graphs._predicted.played import Uneven
from graphs.prediction import Sum, summed
from verifyscope import cli, runs, units
from verifyscope.errors import UsageError

__all__ = ["Given", "run"]


def run(given: Given, *, trace: Path | None, records: Path | None, json: Path | None) -> None:
    """Answer what was asked."""
    asked, question = options.cases(given), options.question(given)
    if trace is not None and len(asked) > 1:
        raise UsageError("--trace shows one pass; give one --rows and one --context")
    found = [forecast(question, rows=rows, context=context) for rows, context in asked]
    lines = list(fitted(found))
    with runs.start(records, "predict") as kept:
        for one in found:
            for record in forecast_records.records(one, kept.environment):
                kept.append(record)
        for line in lines:
            kept.append(forecast_records.fitted(line, found[0], kept.environment))
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_bytes(msgspec.json.encode([_as_data(one) for one in found]) + b"\n")
    if trace is not None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        trace.write_bytes(traced(found[0], question))
    for one in found:
        printing.show(one)
    printing.show_fits(lines)
    _warn(found)
    if trace is not None:
        cli.note(f"trace: {trace}")
    cli.note(f"records: {kept.path}")


def fitted(found: Sequence[Forecast]) -> Iterator[Fit]:
    """Yield time(T) at each context and time(L) at each number of rows that have two points."""
    axes: tuple[tuple[Axis, Axis], ...] = (("rows", "context"), ("context", "rows"))
    for axis, other in axes:
        groups: dict[int, list[Forecast]] = {}
        for one in found:
            groups.setdefault(_size(one, other), []).append(one)
        for at, group in groups.items():
            for name in ("byte floor", "components", "eager", "graph"):
                times = {
                    _size(one, axis): seconds
                    for one in group
                    if (seconds := _seconds(one, name)) is not None
                }
                bound = name != "byte floor" and any(
                    each.bound for one in group for each in one.components
                )
                line = fits.fit(name, axis, other=at, seconds=times, bound=bound)
                if line is not None:
                    yield line


def traced(one: Forecast, question: Question) -> bytes:
    """Return a Chrome trace of the pass as it is launched now: a rank, or all that differ."""
    asked, uneven = one.prediction.forward.asked, question.uneven
    launch, costs = question.spoken.launch, question.costs
    if uneven.assumed:
        uneven = Uneven(ranks=1)
    made = played.launched(played.steps(one.components, question.launches), launch, costs)
    timeline = played.run_uneven(made, costs, uneven, ranks=uneven.all_ranks())
    title = (
        f"predicted, not measured: {asked.model.name} tp{asked.tp} rows {asked.rows} context "
        f"{asked.context} on {question.gpu.name}, {launch}"
    )
    return chrome_trace.encoded(timeline, title=title)


def _size(one: Forecast, axis: Axis) -> int:
    asked = one.prediction.forward.asked
    return asked.rows if axis == "rows" else asked.context


def _seconds(one: Forecast, name: str) -> float | None:
    """Return a total of a case; None where a part of it is not known."""
    if name == "byte floor":
        return one.floor.seconds
    if not one.total.complete:
        return None
    if name == "components":
        return one.total.seconds
    return next(mode.pass_s for mode in one.played if mode.launch == name)


def _warn(found: Sequence[Forecast]) -> None:
    """Say on stderr what is allowed and yet unlikely to be meant."""
    first = found[0].prediction
    gpu, per_s = first.gpu, first.bandwidth.bytes_per_s
    if gpu.dram_bytes_per_s is not None and per_s > gpu.dram_bytes_per_s:
        cli.note(
            f"{units.rate(per_s)} is above the {units.rate(gpu.dram_bytes_per_s)} of {gpu.title}"
        )
    asked = max((one.prediction.forward.asked for one in found), key=lambda one: one.context)
    if asked.context > asked.model.max_positions:
        cli.note(
            f"context {asked.context} is above the {asked.model.max_positions} positions of "
            f"{asked.model.name}"
        )


def _as_data(one: Forecast) -> dict[str, object]:
    """Return what --json holds of one case: sizes in bytes, times in seconds, unknown as null."""
    case = one.prediction
    asked = case.forward.asked
    return {
        "model": asked.model.name,
        "tp": asked.tp,
        "rows": asked.rows,
        "requests": asked.requests,
        "context": asked.context,
        "gpu": case.gpu.name,
        "bandwidth": case.bandwidth,
        "floor": _sum_as_data(one.floor),
        "sum": _sum_as_data(summed(case.lines)),
        "parts": {part: _sum_as_data(summed(lines)) for part, lines in case.by_part().items()},
        "components": dataclasses.asdict(component.total(one.components)),
        "ops": [
            {
                "section": each.line.section.name,
                "calls": each.line.calls,
                **dataclasses.asdict(each.line.op),
                "seconds": each.line.seconds,
                "how": each.line.how,
                "component_s": each.seconds,
                "component_from": each.basis,
                "component_how": each.how,
            }
            for each in one.components
        ],
        "timeline": [dataclasses.asdict(mode) for mode in one.played],
        "what_if": [dataclasses.asdict(row) for row in one.what_if],
        "observed": one.observed,
        "excess": [dataclasses.asdict(each) | {"each_s": each.each_s} for each in one.hypotheses],
    }


def _sum_as_data(total: Sum) -> dict[str, object]:
    known = total.complete or total.seconds > 0
    return dataclasses.asdict(total) | {"seconds": total.seconds if known else None}
