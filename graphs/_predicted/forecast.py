"""All that is said of one pass before it has run: floor, components, timeline, levers, excess.

A `Question` holds what does not change from case to case; `forecast` answers it for one number of
rows at one context. Nothing here was measured on the GPU that is named, except where a component
says so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from graphs import agreement, prediction, what_if
from graphs._predicted import components as component
from graphs._predicted import excess, field, levers, played
from graphs._predicted.components import Component, Total
from graphs._predicted.excess import Facts, Hypothesis
from graphs._predicted.field import Observed
from graphs._predicted.launches import Costs, Launches
from graphs._predicted.levers import Sizes
from graphs._predicted.measured_files import Measured
from graphs._predicted.played import Played, Uneven
from graphs._predicted.points import Point
from graphs.agreement import Agreement
from graphs.collective_times import Times
from graphs.layers import forward
from graphs.prediction import Bandwidth, Prediction, Sum, summed
from graphs.what_if import Cycle, Row, Setting
from verifyscope.hardware import Gpu
from verifyscope.models import Model
from verifyscope.parts import PARTS, class_of
from verifyscope.records import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """What a user knows of the pass and its cycle; None is not known.

    launch: how the pass is launched now; share: verify's share of a cycle, 0 .. 1.
    """

    launch: Launch = "eager"
    observed_s: float | None = None
    earlier_s: float | None = None
    plain_s: float | None = None
    share: float | None = None
    accepted: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of every case, and what is known for all of them."""

    model: Model
    tp: int
    requests: int
    gpu: Gpu
    bandwidth: Bandwidth
    times: Times
    points: tuple[Point, ...]
    measured: Measured
    costs: Costs
    launches: Launches
    uneven: Uneven
    spoken: Spoken
    sizes: Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """The seconds of a plain token, and where they come from."""

    seconds: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One case. `floor` is bytes and flops without collectives; `plain` None is not known.

    warm_at_floor: parts whose published times were left out because they cannot have been cold.
    """

    prediction: Prediction
    components: tuple[Component, ...]
    total: Total
    floor: Sum
    played: tuple[Played, ...]
    what_if: tuple[Row, ...]
    plain: Plain | None
    observed: Observed | None
    hypotheses: tuple[Hypothesis, ...]
    orientation: tuple[str, ...]
    agreements: tuple[Agreement, ...]
    warm_at_floor: tuple[str, ...]
    costs: Costs
    uneven: Uneven
    spoken: Spoken

    def mode(self, launch: Launch) -> Played:
        """Return the pass as it was played in a mode."""
        return next(one for one in self.played if one.launch == launch)


def forecast(question: Question, *, rows: int, context: int) -> Forecast:
    """Return what is predicted of a pass of `rows` rows at `context`."""
    cases = _cases(question, context)
    predicted, found = cases(rows)
    asked = predicted.forward.asked
    modes = tuple(_play(found, launch, question) for launch in played.MODES)
    plain = _plain(question, cases)
    observed = _observed(question, predicted)
    total = component.total(found)
    return Forecast(
        prediction=predicted,
        components=found,
        total=total,
        floor=floor(predicted),
        played=modes,
        what_if=_what_if(question, cases, rows=rows, plain=plain),
        plain=plain,
        observed=observed,
        hypotheses=() if observed is None else _hypotheses(observed, total, found, predicted),
        orientation=tuple(field.orientation(asked, gpu=question.gpu.name)),
        agreements=tuple(agreement.compare(question.measured.passes, modes, asked)),
        warm_at_floor=tuple(_warm_at_floor(found, question.points)),
        costs=question.costs,
        uneven=question.uneven,
        spoken=question.spoken,
    )


def floor(predicted: Prediction) -> Sum:
    """Return the sum of what has bytes and flops; collectives have none."""
    return summed(line for line in predicted.lines if line.op.message_bytes is None)


def _warm_at_floor(found: Sequence[Component], points: Sequence[Point]) -> Iterator[str]:
    """Yield the parts of weights that are at their floor though others published times of them."""
    published = {point.part for point in points if point.basis == "public"}
    at_floor = {one.line.op.part for one in found if one.basis == "floor"}
    if "routed_experts" in published & at_floor:
        yield "routed_experts"
    if "dense_gemm" in published:
        yield from (part for part in PARTS if class_of(part) == "dense_gemm" and part in at_floor)


_Cases = Callable[[int], tuple[Prediction, tuple[Component, ...]]]


def _cases(question: Question, context: int) -> _Cases:
    """Return what gives the prediction of a number of rows, each made once."""

    @cache
    def case(rows: int) -> tuple[Prediction, tuple[Component, ...]]:
        predicted = prediction.predict(
            forward(
                question.model,
                tp=question.tp,
                rows=rows,
                context=context,
                requests=question.requests,
            ),
            gpu=question.gpu,
            bandwidth=question.bandwidth,
            times=question.times,
        )
        return predicted, component.components(predicted, question.points)

    return case


def _play(found: Sequence[Component], launch: Launch, question: Question) -> Played:
    return played.play(
        found,
        launch,
        costs=question.costs,
        launches=question.launches,
        uneven=question.uneven,
    )


def _pass_s(found: Sequence[Component], launch: Launch, question: Question) -> float:
    """Return the pass; with uneven ranks where somebody asked for them."""
    uneven = question.uneven
    alike = Uneven(ranks=uneven.ranks) if uneven.assumed else uneven
    one = played.play(found, launch, costs=question.costs, launches=question.launches, uneven=alike)
    return one.pass_s if one.uneven_s is None else one.uneven_s


def _plain(question: Question, cases: _Cases) -> Plain | None:
    if question.spoken.plain_s is not None:
        return Plain(seconds=question.spoken.plain_s, source="given by --plain-ms")
    _, found = cases(1)
    if not component.total(found).complete:
        return None
    seconds = _pass_s(found, "graph", question)
    return Plain(
        seconds=seconds, source="predicted: a pass of 1 row as one graph, with the same levers"
    )


def _what_if(
    question: Question, cases: _Cases, *, rows: int, plain: Plain | None
) -> tuple[Row, ...]:
    predicted, found = cases(rows)
    asked, spoken = predicted.forward.asked, question.spoken
    if rows == 1:
        return ()

    @cache
    def simulate(setting: Setting) -> float:
        return _pass_s(levers.changed(cases(setting.rows)[1], setting), setting.launch, question)

    def plain_s(setting: Setting) -> float:
        if plain is None or spoken.plain_s is not None:
            return spoken.plain_s or 0.0
        return simulate(replace(setting, rows=1, launch="graph", accepted=None))

    return tuple(
        what_if.table(
            Setting(rows=rows, launch=spoken.launch, accepted=spoken.accepted),
            levers.levers(
                found,
                asked,
                gpu=question.gpu.name,
                points=question.points,
                sizes=question.sizes,
            ),
            Cycle(
                simulate=simulate,
                floor_s=lambda some: floor(cases(some)[0]).seconds,
                plain_s=None if plain is None else plain_s,
                observed_s=spoken.observed_s,
                share=spoken.share,
                requests=asked.requests,
            ),
        )
    )


def _observed(question: Question, predicted: Prediction) -> Observed | None:
    spoken = question.spoken
    if spoken.observed_s is None:
        return field.founding(predicted.forward.asked, gpu=question.gpu.name)
    source = "given by --observed-ms"
    return Observed(observed_s=spoken.observed_s, earlier_s=spoken.earlier_s, source=source)


def _hypotheses(
    observed: Observed, total: Total, found: Sequence[Component], predicted: Prediction
) -> tuple[Hypothesis, ...]:
    facts = _facts(found, predicted)
    ways: Mapping[excess.Against, tuple[float | None, bool]] = {
        "earlier run": (observed.earlier_s, True),
        "prediction": (total.seconds, total.complete),
    }
    return tuple(
        one
        for against, (seconds, complete) in ways.items()
        if seconds is not None
        for one in excess.hypotheses(
            observed.observed_s,
            against=against,
            against_s=seconds,
            facts=facts,
            complete=complete,
        )
    )


def _facts(found: Sequence[Component], predicted: Prediction) -> Facts:
    asked = predicted.forward.asked
    reduces = [one for one in found if one.line.op.part == "all_reduce"]
    reads = [one.line for one in found if one.line.op.part == "attention"]
    kv_bytes = max(line.op.kv_bytes for line in reads)
    return Facts(
        model=asked.model.name,
        ranks=asked.tp,
        layers=asked.model.layers,
        rows=asked.rows,
        all_reduces=sum(one.line.calls for one in reduces),
        message_bytes=(reduces[0].line.op.message_bytes or 0) if reduces else 0,
        row_bytes=(reduces[0].line.op.message_bytes or 0) // asked.all_rows if reduces else 1,
        all_reduce_s=reduces[0].seconds if reduces else None,
        launches=sum(one.line.calls for one in found),
        read_s=kv_bytes / predicted.bandwidth.bytes_per_s,
        context=asked.context,
    )
