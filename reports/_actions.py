"""The two or three actions worth most: what each saves of a pass, in tokens a second, known how.

Of the system that the first screen speaks of: what is unexplained of it, what was measured (replay
as one graph, a combination of a sweep), the levers of its prediction. Where no pass was measured or
predicted, the dearest findings of logs, each with its file.

    tokens/s = requests x accepted / (cycle - saved)

accepted is what the records say, else from 1 to as many as there are rows, and then the gain is a
range. A lever that changes the rows changes what is accepted, as its record says.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from reports import _combinations, _commands, _forecast, _marks, _text
from reports._all_reduces import nearest
from reports._collected import Collected
from reports._first_words import WORTH_MOST
from reports._markdown import code, table, text
from reports._operating_points import OperatingPoint
from reports._steps import Waterfall
from reports._subject import Subject, number
from reports._text import NOT_KNOWN
from reports._verdict import point_of
from verifyscope import units
from verifyscope.records import Finding, Measurement
from verifyscope.sweep_conclusion import SweepConclusion

_MOST = 3
_ENOUGH = 0.02  # of the pass: what saves less is no lever
_COMPARE = "python -m ingest BEFORE AFTER"
_TRACE = "python -m ingest TRACE"
_CONFIRM = {
    "faster MoE": "pytest suites/ --benchmark-only -k fused_moe",
    "faster attention": "pytest suites/ --benchmark-only -k mla_verify",
    "fewer rows": _commands.SPECULATION,
}
_BY_SWEEP = ("protocol", "one-shot all-reduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Action:
    """One row; all but `saved_s` is Markdown."""

    what: str
    saved_s: float
    saves: str
    tokens: str
    known: str
    confirm: str

    def cells(self) -> tuple[str, ...]:
        """Return its row."""
        return (self.what, self.saves, self.tokens, self.known, self.confirm)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cycle:
    """What a saving is taken from: seconds, what a cycle yields at least and most, the records.

    accepted: of each of the `requests`. is_whole: it holds draft and host, too; of a pass alone,
    rates are at most these.
    """

    seconds: float
    is_whole: bool = False
    accepted: tuple[float, float]
    records: tuple[Measurement, ...]
    requests: int = 1

    def gain(self, saved_s: float, lever: Sequence[Measurement]) -> str:
        """Return the tokens a second before and after, or the range of what is gained."""
        if not 0 < saved_s < self.seconds:
            return NOT_KNOWN
        left_s = self.seconds - saved_s
        yields = [self.requests * each for each in dict.fromkeys(self.accepted)]
        rates = [(every / self.seconds, every / left_s) for every in yields]
        if len(rates) == 1:
            words = " → ".join(units.three_digits(rate) for rate in rates[0])
        else:
            words = " to ".join(f"+{after - before:.1f}" for before, after in rates)
        return self.marked(words, lever)

    def marked(self, words: str, lever: Sequence[Measurement]) -> str:
        """Return rates as what comes of the cycle and a lever."""
        told = _marks.derived(words, (*self.records, *lever), "accepted / (cycle - saved)")
        return told if self.is_whole else f"at most {told}"


def actions_table(
    subject: Subject,
    found: Collected,
    *,
    waterfall: Waterfall | None,
    sweeps: Sequence[SweepConclusion],
    points: Sequence[OperatingPoint],
) -> str:
    """Return the table; "" where nothing is known to be worth anything."""
    cycle = _cycle(subject, points)
    known = list(_combination(subject, found, sweeps, cycle))
    if cycle is not None and (subject.is_whole or subject.predicted is not None):
        known += _unexplained(subject, waterfall, cycle)
        known += _replay(subject, cycle)
        known += _levers(subject, cycle)
    elif not subject.measured:
        known += _findings(found)
    shown = sorted(known, key=lambda one: -one.saved_s)[:_MOST]
    header = (WORTH_MOST, "saves", "tok/s", "known how", "confirmed by")
    return table(header, [one.cells() for one in shown], align="lrrll") if shown else ""


def _cycle(subject: Subject, points: Sequence[OperatingPoint]) -> _Cycle | None:
    """Return the cycle of the pass where a log has it, else the pass itself."""
    base = None if subject.forecast is None else _forecast.base(subject.forecast)
    given = None if base is None else number(base.method, "accepted")
    rows = subject.dim("rows")
    most = float(rows) if isinstance(rows, int | float) else 1.0
    accepted = (given, given) if given is not None else (1.0, most)
    at_once = subject.dim("requests")
    requests = at_once if isinstance(at_once, int) else 1
    point = point_of(subject, points)
    if point is not None and point.is_cycle:
        if point.accepted is not None:
            accepted = (point.accepted, point.accepted)
        return _Cycle(
            seconds=point.seconds,
            is_whole=True,
            accepted=accepted,
            records=(point.record,),
            requests=point.requests or requests,
        )
    known = _pass(subject, base)
    if known is None:
        return None
    seconds, rest_s, record = known
    return _Cycle(
        seconds=seconds + rest_s,
        is_whole=rest_s > 0,
        accepted=accepted,
        records=(record,),
        requests=requests,
    )


def _pass(subject: Subject, base: Measurement | None) -> tuple[float, float, Measurement] | None:
    """Return the pass as it is, and the rest of its cycle where the prediction was given one."""
    whole, seen = subject.mode("eager") or subject.best, subject.observed
    if whole is not None and whole.median_s:
        return whole.median_s, 0.0, whole
    if seen is not None:
        return seen.seconds, _forecast.rest_s(base), seen.record
    now_s = None if base is None else number(base.dims, "alone_s")
    return None if base is None or not now_s else (now_s, _forecast.rest_s(base), base)


def _unexplained(subject: Subject, shown: Waterfall | None, cycle: _Cycle) -> Iterator[_Action]:
    if shown is None:
        return
    step = next((one for one in shown.steps if one.kind == "unexplained"), None)
    if step is None or step.seconds < _ENOUGH * cycle.seconds:
        return
    excess = subject.forecast.excess if subject.forecast is not None else ()
    names = dict.fromkeys(one.implementation for one in excess)
    blamed = f": {_text.listed(text(name) for name in names)}?" if names else ""
    saves = _marks.derived(
        _text.duration(step.seconds), step.records, f"{shown.steps[-1].name}, less the rest"
    )
    if subject.measured:  # the mode that was taken apart, of several
        last = shown.steps[-1]
        cycle = replace(cycle, seconds=last.seconds, records=last.records)
    yield _Action(
        what=f"find what takes the unexplained time{blamed}",
        saved_s=step.seconds,
        saves=f"up to {saves}",
        tokens=cycle.gain(step.seconds, step.records),
        known=text(step.how),
        confirm=f"{_commands.sweep(subject)}, {code(_TRACE)}",
    )


def _replay(subject: Subject, cycle: _Cycle) -> Iterator[_Action]:
    eager, graph = subject.mode("eager"), subject.mode("graph")
    if eager is None or graph is None or eager.median_s is None or graph.median_s is None:
        return
    saved_s = eager.median_s - graph.median_s
    if saved_s > _ENOUGH * eager.median_s:
        yield _Action(
            what="replay the verify as one graph",
            saved_s=saved_s,
            saves=_marks.derived(_text.duration(saved_s), (eager, graph), "eager - graph"),
            tokens=cycle.gain(saved_s, (graph,)),
            known="measured",
            confirm=f"{code(_TRACE)} of the server",
        )


def _combination(
    subject: Subject, found: Collected, sweeps: Sequence[SweepConclusion], cycle: _Cycle | None
) -> Iterator[_Action]:
    swept = nearest(subject, found, sweeps)
    if swept is None:
        return
    one, saving = swept
    if saving.saved is None or saving.implementation is None:
        return
    yield _Action(
        what=f"all-reduces by {code(saving.implementation)}",
        saved_s=saving.saved.value,
        saves=_combinations.saved(one.contest, saving),
        tokens=NOT_KNOWN if cycle is None else cycle.gain(saving.saved.value, ()),
        known=f"measured, {_text.plural(saving.tokens, 'row')}",
        confirm=code("python -m collectives.attest -- COMMAND"),
    )


def _levers(subject: Subject, cycle: _Cycle) -> Iterator[_Action]:
    """Yield the levers that save enough, against the pass as it is."""
    forecast = subject.forecast
    base = None if forecast is None else _forecast.base(forecast)
    now_s = None if base is None else number(base.dims, "alone_s")
    if forecast is None or base is None or now_s is None:
        return
    measured = {"graph capture"} if subject.mode("eager") and subject.mode("graph") else set()
    for one in forecast.levers:
        alone_s = number(one.dims, "alone_s")
        if alone_s is None or one.implementation in measured:
            continue
        saved_s = now_s - alone_s
        gains = _gains(base, one, cycle, saved_s)
        if saved_s > _ENOUGH * now_s and min(gains, default=1.0) > 0:
            saves = _marks.derived(_text.duration(saved_s), (base, one), "now - alone")
            yield _Action(
                what=_named(one),
                saved_s=saved_s,
                saves=f"*{saves}*",
                tokens=f"*{_rates(gains, one, cycle, saved_s)}*",
                known="predicted",
                confirm=_confirm(one, subject),
            )


def _named(one: Measurement) -> str:
    """Return a lever and, up to its source, what it is."""
    how = str(one.method.get("how", "")).partition(":")[0].partition(";")[0]
    return f"{text(one.implementation)}: {text(how)}" if how else text(one.implementation)


def _gains(base: Measurement, one: Measurement, cycle: _Cycle, saved_s: float) -> list[float]:
    """Return the least and the most that a lever gains which changes what is accepted, else none.

    Of fewer rows fewer tokens are accepted: such a lever may lose, and then it is none.
    """
    before, after = (_yields(each, rest_s=_forecast.rest_s(base)) for each in (base, one))
    if before is None or after is None or before == after or saved_s >= cycle.seconds:
        return []
    left_s = cycle.seconds - saved_s
    return [new / left_s - old / cycle.seconds for old, new in zip(before, after, strict=True)]


def _rates(gains: Sequence[float], one: Measurement, cycle: _Cycle, saved_s: float) -> str:
    if not gains:
        return cycle.gain(saved_s, (one,))
    words = " to ".join(dict.fromkeys(f"{gain:+.1f}" for gain in gains))
    return cycle.marked(words, (one,))


def _yields(one: Measurement, *, rest_s: float) -> tuple[float, float] | None:
    """Return the least and the most tokens of a cycle: its rates times the cycle they are of."""
    pass_s = number(one.dims, "alone_s")
    least, most = (number(one.dims, f"alone_{end}_tokens_per_s") for end in ("least", "most"))
    if pass_s is None or least is None or most is None:
        return None
    return round(least * (pass_s + rest_s), 6), round(most * (pass_s + rest_s), 6)


def _confirm(one: Measurement, subject: Subject) -> str:
    if one.implementation in _BY_SWEEP:
        return _commands.sweep(subject)
    command = _CONFIRM.get(one.implementation)
    return _commands.replay(subject) if command is None else code(command)


def _findings(found: Collected) -> Iterator[_Action]:
    """Yield the dearest findings, each name once: they may be of different systems."""
    dear: dict[str, Finding] = {}
    for one in sorted(found.findings, key=lambda one: -(one.worth_s or 0.0)):
        if one.worth_s and one.next_action:
            dear.setdefault(one.name, one)
    for one in dear.values():
        files = dict.fromkeys(code(each.file) for each in one.evidence)
        where = f", {_text.listed(files, most=1)}" if files else ""
        yield _Action(
            what=text(one.next_action or ""),
            saved_s=one.worth_s or 0.0,
            saves=_text.duration(one.worth_s),
            tokens=NOT_KNOWN,
            known=f"finding {text(one.name)} ({one.confidence}){where}",
            confirm=code(_COMPARE),
        )
