"""What `python -m graphs.replay --predict` prints of each case: tables, and lines that begin by #.

A terminal gets aligned tables, anything else tab-separated rows that begin with rows, context and
what they are (a class of parts, `timeline`, `what-if`, `excess`, `fit`, `agreement`).
"""

import sys
from collections.abc import Iterable, Iterator, Sequence

from graphs._predicted import components as component
from graphs._predicted import fits, played
from graphs._predicted.components import Component
from graphs._predicted.excess import Hypothesis
from graphs._predicted.forecast import Forecast
from graphs.prediction import summed
from graphs.what_if import Row, Worth
from verifyscope import cli, units
from verifyscope.parts import CLASSES, class_of

_PARTS = (
    "calls",
    "a layer",
    "weights",
    "KV",
    "other",
    "flops",
    "floor",
    "of it",
    "with components",
)
_TIMELINE = (
    "launches",
    "host",
    "device busy",
    "idle",
    "idle share",
    "pass",
    "uneven ranks",
    "more",
)
_WHAT_IF = ("pass", "tokens/s", "break-even", "together", "tokens/s", "break-even", "what")
_EXCESS = ("confirmed by", "killed by")
_FIT = ("over", "base", "slope", "farthest point", "sizes")
_AGREEMENT = ("measured", "predicted", "off", "so")
_NOT_COUNTED = "launches and host (the timeline has them), sampling, metadata, the drafter"


def show(forecast: Forecast) -> None:
    """Print a case."""
    _print_what(forecast)
    _print_parts(forecast)
    _print_sums(forecast)
    _print_timeline(forecast)
    _print_what_if(forecast)
    _print_excess(forecast)
    _print_agreements(forecast)


def show_fits(found: Sequence[fits.Fit]) -> None:
    """Print the lines through several cases."""
    rows = [
        (
            f"{one.name}{', an upper bound' if one.bound else ''}",
            f"{one.axis}, at {'context' if one.axis == 'rows' else 'rows'} {one.other:,}",
            units.seconds(one.base_s),
            f"{units.seconds(one.slope_s)} a {'row' if one.axis == 'rows' else 'token'}",
            units.seconds(one.worst_s),
            ", ".join(map(str, one.sizes)),
        )
        for one in found
    ]
    if rows:
        _print_table("fit", "", "", _FIT, rows)


def _print_what(forecast: Forecast) -> None:
    case = forecast.prediction
    asked, per_s = case.forward.asked, case.bandwidth.bytes_per_s
    cli.print_remark(
        f"predicted, not measured: {asked.model.name}, tp {asked.tp}, rows {asked.rows}, "
        f"requests {asked.requests}, context {asked.context}, on {case.gpu.title}"
    )
    cli.print_remark(f"DRAM {units.rate(per_s)}: {case.bandwidth.source}")
    experts = case.by_part().get("routed_experts")
    if experts is not None:
        shape = experts[0].op.shape
        slice_bytes = sum(line.op.weight_bytes for line in experts) / shape["distinct"]
        cli.print_remark(
            f"experts a layer: {shape['distinct']:.1f} distinct of {shape['experts']:.0f} "
            f"expected, {units.bytes_(slice_bytes)} each"
        )


# ---- Floors and components ----


def _print_parts(forecast: Forecast) -> None:
    """Print each class above its parts, and the sum. "other" are activations."""
    rows = list(_part_rows(forecast))
    if cli.is_terminal(sys.stdout):
        shown = [[f"  {part}" if part else class_, *cells] for class_, part, cells in rows]
        cli.print_rows(shown, ("part", *_PARTS, "from"))
        return
    asked = forecast.prediction.forward.asked
    head = (str(asked.rows), str(asked.context))
    print("\t".join(("# rows", "context", "class", "part", *_PARTS, "from")))
    cli.print_rows([[*head, class_, part or "sum", *cells] for class_, part, cells in rows], ())


def _part_rows(forecast: Forecast) -> Iterator[tuple[str, str | None, list[str]]]:
    """Yield class, part (None for the sum of the class) and cells; at last the sum of all."""
    by_part, floor_s = _by_part(forecast), forecast.floor.seconds
    for class_ in CLASSES:
        parts = {part: ones for part, ones in by_part.items() if class_of(part) == class_}
        if not parts:
            continue
        yield class_, None, _cells([one for ones in parts.values() for one in ones], floor_s)
        for part, ones in parts.items():
            yield class_, part, _cells(ones, floor_s)
    yield "sum", None, _cells(forecast.components, floor_s)


def _cells(found: Sequence[Component], floor_s: float) -> list[str]:
    with_bytes = [one.line for one in found if one.line.op.message_bytes is None]
    row = [str(sum(one.line.calls for one in found))]
    if with_bytes:
        total = summed(with_bytes)
        row += [
            units.bytes_(round(total.layer_weight_bytes)) if total.layers else "-",
            units.bytes_(round(total.weight_bytes)),
            units.bytes_(round(total.kv_bytes)),
            units.bytes_(round(total.activation_bytes)),
            units.flops(total.flops),
            units.seconds(total.seconds),
            units.percent(total.seconds / floor_s),
        ]
    else:
        row += ["-"] * 7
    bases = dict.fromkeys(one.basis for one in found if one.basis != "floor")
    return [*row, _total(found), ", ".join(bases) or "floor"]


def _total(found: Iterable[Component]) -> str:
    whole = component.total(found)
    if not whole.complete and not whole.seconds:
        return "not known"
    return f"{'' if whole.complete else 'at least '}{units.seconds(whole.seconds)}"


def _print_sums(forecast: Forecast) -> None:
    for part, ones in _by_part(forecast).items():
        timed = [one for one in ones if one.basis != "floor"]
        if timed:
            _print_component(part, timed)
    total, per_s = forecast.floor, forecast.prediction.bandwidth.bytes_per_s
    cli.print_remark(
        f"byte floor: {units.bytes_(total.weight_bytes)} of weights in "
        f"{units.seconds(total.weight_bytes / per_s)}, {units.bytes_(total.kv_bytes)} of KV in "
        f"{units.seconds(total.kv_bytes / per_s)}: {units.seconds(total.seconds)} with "
        f"activations, before communication"
    )
    kinds = sorted({one.basis for one in forecast.components} - {"floor", "not known"})
    if kinds:
        names = " and ".join(f"{kind} components" for kind in reversed(kinds))
        cli.print_remark(
            f"{names}, the rest at its floor: {_total(forecast.components)}, which is no floor"
        )
    if forecast.warm_at_floor:
        cli.print_remark(
            f"{', '.join(forecast.warm_at_floor)}: counted at the floor, for published times of "
            f"so few rows were taken with the weights in the L2 and cannot be cold"
        )
    cli.print_remark(f"not counted: {_NOT_COUNTED}")
    for line in forecast.orientation:
        cli.print_remark(f"orientation, of the field: {line}")


def _by_part(forecast: Forecast) -> dict[str, list[Component]]:
    return {
        part: [one for one in forecast.components if one.line.op.part == part]
        for part in forecast.prediction.by_part()
    }


def _print_component(part: str, ones: Sequence[Component]) -> None:
    """Say what each call takes and whose time that is; ops that one call does together are one."""
    first, size = ones[0], ones[0].line.op.message_bytes
    message = "" if size is None else f" of {size:,} B"
    by_op: dict[str, int] = {}
    for one in ones:
        by_op[one.line.op.name] = by_op.get(one.line.op.name, 0) + one.line.calls
    calls = sum(by_op.values()) if size is not None else max(by_op.values())
    if first.seconds is None:
        cli.print_remark(f"{part}: {calls} x {size or 0:,} B, not known: {first.how}")
        return
    whole_s = component.total(ones).seconds
    words = f"{units.seconds(whole_s / calls)}{message}"
    if calls > 1:
        words = f"{calls} x {words} = {units.seconds(whole_s)}"
    cli.print_remark(f"{part}: {words}, {first.basis}: {first.how}")


# ---- Timeline ----


def _print_timeline(forecast: Forecast) -> None:
    rows = [(one.launch, *_timeline_cells(one)) for one in forecast.played]
    _print(forecast, "timeline", _TIMELINE, rows)
    costs, uneven = forecast.costs, forecast.uneven
    named = (
        ("a launch", costs.launch),
        ("a graph's launch", costs.graph),
        ("between two kernels", costs.node),
    )
    by_source: dict[str, list[str]] = {}
    for name, cost in named:
        by_source.setdefault(cost.source, []).append(f"{units.seconds(cost.seconds)} {name}")
    for source, words in by_source.items():
        cli.print_remark(f"{', '.join(words)}: {source}")
    eager = forecast.mode("eager")
    bound = units.seconds(played.host_bound_above_s(eager))
    cli.print_remark(
        f"from {bound} a launch on, the host is slower than the device ({eager.launches:,} "
        f"launches a pass); with quicker launches a graph gives nothing here"
    )
    if uneven.is_there:
        told = f"one of {uneven.ranks} ranks takes {uneven.slow_rank:g} times as long"
        if uneven.jitter_s:
            told += f", each kernel {units.seconds(uneven.jitter_s)} more on average"
        cli.print_remark(
            f"uneven ranks: {told}{' (assumed: --slow-rank)' if uneven.assumed else ''}"
        )
    if eager.left_out:
        cli.print_remark(f"not in the timeline, because not known: {', '.join(eager.left_out)}")


def _timeline_cells(one: played.Played) -> list[str]:
    least = "at least " if one.left_out else ""
    uneven = "-" if one.uneven_s is None else f"{least}{units.seconds(one.uneven_s)}"
    return [
        f"{one.launches:,}",
        units.seconds(one.host_s),
        f"{least}{units.seconds(one.busy_s)}",
        units.seconds(one.idle_s),
        units.percent(one.idle_share),
        f"{least}{units.seconds(one.pass_s)}",
        uneven,
        "-" if one.skew_s is None else units.seconds(one.skew_s),
    ]


# ---- Levers ----


def _print_what_if(forecast: Forecast) -> None:
    if not forecast.what_if:
        return
    least = "" if forecast.total.complete else "at least "
    rows = [(row.name, *_lever_cells(row, least)) for row in forecast.what_if]
    _print(forecast, "what-if", _WHAT_IF, rows)
    spoken = forecast.spoken
    now = (
        f"launched {spoken.launch} (--launch)"
        if spoken.observed_s is None
        else "observed; what the prediction does not explain stays"
    )
    cli.print_remark(
        f"now: {now}; together: with all levers above; never below the floor of its bytes"
    )
    if spoken.share is None:
        cli.print_remark(
            "tokens/s and break-even are of the pass alone; --share tells the rest of a cycle"
        )
    if spoken.accepted is None:
        cli.print_remark(
            "tokens/s from 1 accepted token to as many as rows; --accepted tells how many"
        )
    if forecast.plain is None:
        cli.print_remark("break-even: a plain token is not known; give --plain-ms")
    else:
        plain = forecast.plain
        cli.print_remark(f"plain token: {units.seconds(plain.seconds)}, {plain.source}")


def _lever_cells(row: Row, least: str) -> list[str]:
    return [*_worth_cells(row.alone, least), *_worth_cells(row.together, least), row.how]


def _worth_cells(worth: Worth | None, at_least: str) -> list[str]:
    if worth is None:
        return ["not known", "-", "-"]
    least, most = (units.three_digits(rate) for rate in worth.tokens_per_s)
    rates = least if least == most else f"{least} to {most}"
    held = ", held at its floor" if worth.held else ""
    return [
        f"{at_least}{units.seconds(worth.pass_s)}{held}",
        f"at most {rates}" if at_least else rates,
        "-" if worth.break_even is None else f"{worth.break_even:.2f}",
    ]


# ---- Hypotheses and measured passes ----


def _print_excess(forecast: Forecast) -> None:
    observed = forecast.observed
    if observed is None:
        return
    cli.print_remark(f"observed {units.seconds(observed.observed_s)}: {observed.source}")
    if observed.known:
        cli.print_remark(f"known of it: {observed.known}")
    if not forecast.hypotheses:
        cli.print_remark("it is no longer than what it is held against: nothing to explain")
        return
    by_name: dict[str, list[Hypothesis]] = {}
    for one in forecast.hypotheses:
        by_name.setdefault(one.name, []).append(one)
    against = dict.fromkeys(one.against for one in forecast.hypotheses)
    header = [f"over the {name}" for name in against]
    cells = {name: list(_excess_cells(ones, list(against))) for name, ones in by_name.items()}
    if cli.is_terminal(sys.stdout):  # its lines are too short for what would confirm and kill
        _print(forecast, "excess", header, [(name, *own) for name, own in cells.items()])
        for name, ones in by_name.items():
            print(f"# {name}: confirmed by {ones[0].confirm}")
            print(f"# {name}: killed by {ones[0].kill}")
        return
    rows = [(name, *cells[name], ones[0].confirm, ones[0].kill) for name, ones in by_name.items()]
    _print(forecast, "excess", (*header, *_EXCESS), rows)


def _excess_cells(ones: Sequence[Hypothesis], against: Sequence[str]) -> Iterator[str]:
    """Yield the excess over each time, divided as the hypothesis has it."""
    for name in against:
        one = next((each for each in ones if each.against == name), None)
        if one is None:
            yield "-"
            continue
        most = "at most " if one.at_most else ""
        yield (
            f"{most}{units.seconds(one.excess_s)}: +{units.seconds(one.each_s)} for {one.what}, "
            f"{one.count} of them"
        )


def _print_agreements(forecast: Forecast) -> None:
    rows = [
        (
            one.launch,
            units.seconds(one.measured_s),
            f"{'at least ' if one.left_out else ''}{units.seconds(one.predicted_s)}",
            units.percent(one.off),
            one.verdict,
        )
        for one in forecast.agreements
    ]
    if rows:
        _print(forecast, "agreement", _AGREEMENT, rows)


def _print(
    forecast: Forecast, kind: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    asked = forecast.prediction.forward.asked
    _print_table(kind, str(asked.rows), str(asked.context), header, rows)


def _print_table(
    kind: str, rows_: str, context: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    if cli.is_terminal(sys.stdout):
        print()
        cli.print_rows(rows, (kind, *header))
        return
    print("\t".join(("# rows", "context", "what", kind, *header)))
    cli.print_rows([(rows_, context, kind, *row) for row in rows], ())
