"""What is predicted of a pass as a whole: timeline, levers, what an excess would need, fits.

Each is a record of part "forward" (verifyscope.predictions); those of one pass share the id of
their prediction with the pass's parts. None of it was measured.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports import _budget, _marks, _text
from reports._markdown import table, text
from reports._text import NOT_KNOWN, plural
from verifyscope import predictions, speculation, units
from verifyscope.records import Measurement, Value

_MODES = {
    predictions.EAGER: "eager: each kernel a launch",
    predictions.PIECEWISE: "piecewise graphs, attention outside",
    predictions.GRAPH: "one graph, collectives captured",
}
_MOST_FITS = 24


@dataclass(frozen=True, slots=True)
class Forecast:
    """The records of one prediction, by what they say."""

    timeline: tuple[Measurement, ...]
    levers: tuple[Measurement, ...]
    excess: tuple[Measurement, ...]
    agreements: tuple[Measurement, ...]

    def mode(self, name: str) -> Measurement | None:
        """Return the timeline of a mode."""
        return next((one for one in self.timeline if one.implementation == name), None)


def forecasts(found: Iterable[Measurement]) -> dict[str, Forecast]:
    """Return what is said of each pass, by the id of its prediction."""
    groups: dict[str, dict[str, list[Measurement]]] = {}
    for one in found:
        groups.setdefault(_budget.made_by(one), {}).setdefault(one.op, []).append(one)
    return {
        name: Forecast(
            timeline=tuple(by_op.get(predictions.TIMELINE, ())),
            levers=tuple(sorted(by_op.get(predictions.WHAT_IF, ()), key=_number)),
            excess=tuple(by_op.get(predictions.EXCESS, ())),
            agreements=tuple(by_op.get(predictions.AGREEMENT, ())),
        )
        for name, by_op in groups.items()
    }


# ---- The timeline ----


def timeline_table(one: Forecast) -> str:
    """Return the pass eager, as piecewise graphs and as one graph."""
    lines = [
        (
            text(_MODES.get(mode.implementation, mode.implementation)),
            _text.whole(_dim(mode, "launches")),
            _told(mode, "host_s"),
            _least(mode, "busy_s"),
            _told(mode, "idle_s"),
            _marks.derived(_text.share(_dim(mode, "idle_s"), mode.median_s), [mode], "idle / pass"),
            f"**{_pass(mode)}**",
            _least(mode, "uneven_s"),
            _told(mode, "skew_s"),
        )
        for mode in one.timeline
    ]
    header = (
        *("predicted", "launches", "host launches for", "device busy", "idle", "idle share"),
        *("the pass", "with uneven ranks", "skew costs"),
    )
    return table(header, lines, align="l" + "r" * 8)


def timeline_facts(one: Forecast) -> list[str]:
    """Return what the timeline rests on: launch costs with their source, uneven ranks, gaps."""
    first = one.timeline[0]
    costs = (
        ("a launch", "launch_s", "launch_us"),
        ("a graph", "graph_launch_s", "graph_launch_us"),
        ("between two kernels", "node_s", "node_us"),
    )
    words: dict[str, list[str]] = {}
    for name, key, source in costs:
        seconds, by = first.method.get(key), first.method.get(source)
        if isinstance(seconds, int | float):
            words.setdefault(str(by), []).append(f"{_text.duration(float(seconds))} {name}")
    lines = [f"{', '.join(found)}: {text(by)}." for by, found in words.items()]
    eager = one.mode(predictions.EAGER)
    if eager is not None:
        bound = _text.divided(_dim(eager, "busy_s"), _dim(eager, "launches"))
        if bound:
            lines.append(
                f"From {_text.duration(bound)} a launch on, the host is slower than the device; "
                f"with quicker launches a graph gives nothing here."
            )
    slow, jitter = _dim(first, "slow_rank"), _dim(first, "jitter_s")
    if _dim(first, "uneven_s") is not None and slow:
        late = f", each kernel late by {_text.duration(jitter)} on average" if jitter else ""
        how = first.method.get("uneven", "")
        lines.append(f"Uneven: one rank takes {slow:g} times as long{late} ({text(str(how))}).")
    if "left_out" in first.method:
        lines.append(f"Not in it, because not known: {text(str(first.method['left_out']))}.")
    return lines


# ---- Levers ----


def levers_table(one: Forecast) -> str:
    """Return each lever alone and together with those above it."""
    lines = [
        (
            text(lever.implementation),
            *_worth(lever, "alone"),
            *_worth(lever, "together"),
            text(str(lever.method.get("how", lever.reason or ""))),
        )
        for lever in one.levers
    ]
    header = (
        *("lever", "alone", "tokens/s", "break-even"),
        *("together", "tokens/s", "break-even", "what it is"),
    )
    return table(header, lines, align="lrrrrrrl")


def levers_facts(one: Forecast) -> str:
    """Return what the levers are held against."""
    method = one.levers[0].method
    words = [f"Now: {text(str(method.get('now', NOT_KNOWN)))}."]
    plain = method.get("plain_s")
    if isinstance(plain, int | float):
        words.append(f"A plain token: {_text.duration(plain)}, {text(str(method['plain']))}.")
    share = method.get("share")
    if isinstance(share, int | float):
        words.append(f"The pass is {_text.share(share, 1.0)} of its cycle.")
    else:
        words.append("Draft and host are not in it: their share of a cycle was not given.")
    if "accepted" not in method:
        words.append("Tokens a second from 1 accepted token to as many as there are rows.")
    return " ".join(words)


def steps(one: Forecast) -> list[tuple[str, float]]:
    """Return the pass now and after each lever that is known, together; in seconds."""
    known = [(lever.implementation, _dim(lever, "together_s")) for lever in one.levers]
    return [(name, seconds) for name, seconds in known if seconds is not None]


def base(one: Forecast) -> Measurement | None:
    """Return the pass as it is, against which levers are held."""
    return next((lever for lever in one.levers if lever.dims.get("number") == 0), None)


def rest_s(base: Measurement | None) -> float:
    """Return draft and host of a cycle, of which the pass is a known share; 0 of a pass alone."""
    pass_s = None if base is None else _dim(base, "alone_s")
    share = None if base is None else base.method.get("share")
    if pass_s is None or pass_s <= 0 or not isinstance(share, int | float) or not 0 < share <= 1:
        return 0.0
    return speculation.cycle_s(pass_s, share=share) - pass_s


def _worth(lever: Measurement, name: str) -> tuple[str, str, str]:
    seconds = _dim(lever, f"{name}_s")
    if seconds is None:
        return ("not known", NOT_KNOWN, NOT_KNOWN)
    held = ", held at its floor" if lever.dims.get(f"{name}_held") is True else ""
    least, most = (_dim(lever, f"{name}_{end}_tokens_per_s") for end in ("least", "most"))
    rates = dict.fromkeys(units.three_digits(rate) for rate in (least, most) if rate is not None)
    even = _dim(lever, f"{name}_break_even")
    at_most = "at most " if "at-least" in lever.flags else ""
    return (
        f"{_least(lever, f'{name}_s')}{held}",
        _marks.told(f"{at_most}{NOT_KNOWN.join(rates)}", lever, f"{name} tokens a second")
        if rates
        else NOT_KNOWN,
        _marks.told(_text.ratio(even), lever, f"{name}_break_even"),
    )


# ---- An excess, fits, agreement ----


def excess_table(one: Forecast) -> str:
    """Return what each hypothesis would need, over each time that the pass is held against."""
    by_name: dict[str, list[Measurement]] = {}
    for each in one.excess:
        by_name.setdefault(each.implementation, []).append(each)
    against = list(dict.fromkeys(str(each.dims.get("against")) for each in one.excess))
    lines = [
        (
            text(name),
            *(_needed(ones, what) for what in against),
            text(str(ones[0].method.get("confirm", ""))),
            text(str(ones[0].method.get("kill", ""))),
        )
        for name, ones in by_name.items()
    ]
    header = (
        "hypothesis",
        *(f"over the {text(what)}" for what in against),
        "confirmed by",
        "killed by",
    )
    return table(header, lines, align="l" * len(header))


def excess_facts(one: Forecast) -> str:
    """Return what was observed, and by whom."""
    first = one.excess[0]
    return (
        f"Observed: {_text.duration(_dim(first, 'observed_s'))}, "
        f"{text(str(first.method.get('observed', NOT_KNOWN)))}. That a hypothesis can be divided "
        f"out proves nothing: each names what would."
    )


def _needed(ones: Sequence[Measurement], against: str) -> str:
    one = next((each for each in ones if each.dims.get("against") == against), None)
    if one is None:
        return NOT_KNOWN
    most = "at most " if "at-most" in one.flags else ""
    return (
        f"{most}{_told(one, 'excess_s')}: +{_text.median(one)} for "
        f"{text(str(one.method.get('what', '')))}, {_text.whole(_dim(one, 'count'))} of them"
    )


def agreements_table(found: Iterable[Forecast]) -> str:
    """Return each measured pass beside its prediction."""
    lines = [
        (
            text(_MODES.get(one.implementation, one.implementation)),
            f"{one.dims.get('rows')} rows, {one.dims.get('context')} tokens",
            _told(one, "measured_s"),
            _text.median(one),
            _marks.told(_percent(_dim(one, "off")), one, "off"),
            text(str(one.method.get("verdict", ""))),
        )
        for forecast in found
        for one in forecast.agreements
    ]
    header = ("mode", "pass", "measured", "predicted", "off by", "so")
    return table(header, lines, align="llrrrl") if lines else ""


def fits_table(found: Iterable[Measurement]) -> tuple[str, int]:
    """Return time(T) and time(L), base and slope, and how many lines are left out."""
    fits = (_fit(one) for one in found if one.op == predictions.FIT)
    lines = list({tuple(map(_marks.removed, line)): line for line in fits}.values())
    header = ("predicted", "at", "base", "slope", "farthest point", "sizes")
    shown = table(header, lines[:_MOST_FITS], align="llrrrl") if lines else ""
    return shown, max(0, len(lines) - _MOST_FITS)


def _fit(one: Measurement) -> tuple[str, ...]:
    over_rows = "rows" not in one.dims
    at, unit = (_dim(one, "context"), "token") if over_rows else (_dim(one, "rows"), "row")
    slope = f"{_told(one, 'slope_s')} a {'row' if over_rows else 'token'}"
    return (
        text(one.implementation) + (", an upper bound" if "upper-bound" in one.flags else ""),
        NOT_KNOWN if at is None else plural(int(at), unit),
        _told(one, "base_s"),
        slope,
        _told(one, "worst_s"),
        text(str(one.method.get("sizes", ""))),
    )


def _dim(one: Measurement, name: str) -> float | None:
    value: Value | None = one.dims.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number(one: Measurement) -> float:
    return _dim(one, "number") or 0.0


def _told(one: Measurement, name: str) -> str:
    return _marks.told(_text.duration(_dim(one, name)), one, name)


def _least(one: Measurement, name: str) -> str:
    words = _told(one, name)
    return words if words == NOT_KNOWN or "at-least" not in one.flags else f"at least {words}"


def _pass(one: Measurement) -> str:
    return f"{'at least ' if 'at-least' in one.flags else ''}{_text.median(one)}"


def _percent(share: float | None) -> str:
    return NOT_KNOWN if share is None else f"{share * 100:+.1f} %"
