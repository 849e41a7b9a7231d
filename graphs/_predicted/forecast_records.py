"""The records of a forecast; `graphs.replay` says what they hold.

All are "predicted" and share method["prediction"]. Ops have part and op of graphs.layers; what is
said of the pass as a whole has part "forward", which is never added to the parts it holds.
"""

from collections.abc import Iterator, Mapping

import msgspec

from graphs import prediction
from graphs._predicted import excess, fits, played
from graphs._predicted.components import Component
from graphs._predicted.forecast import Forecast
from graphs.agreement import Agreement
from graphs.what_if import Row, Worth
from verifyscope import cli
from verifyscope.predictions import (
    AGREEMENT,
    EXCESS,
    FIT,
    MEASURED,
    PUBLIC,
    TIMELINE,
    WHAT_IF,
    WHOLE,
)
from verifyscope.records import Environment, Launch, Measurement, Value, new_id

_COMPONENTS: Mapping[str, str] = {"public": PUBLIC, "measured": MEASURED}


def records(forecast: Forecast, environment: Environment) -> Iterator[Measurement]:
    """Yield floors, components, timelines, levers, hypotheses and agreements of one pass."""
    maker = _Maker(forecast, environment)
    yield from prediction.measurements(forecast.prediction, environment, own_id=maker.own_id)
    yield from maker.components()
    for one in forecast.played:
        yield maker.timeline(one)
    for number, row in enumerate(forecast.what_if):
        yield maker.lever(row, number)
    for hypothesis in forecast.hypotheses:
        yield maker.hypothesis(hypothesis)
    for agreement in forecast.agreements:
        yield maker.agreement(agreement)


def fitted(fit: fits.Fit, of: Forecast, environment: Environment) -> Measurement:
    """Return the record of a fit over several forecasts like `of`; median_s is their mean."""
    maker = _Maker(of, environment)
    dims = {name: value for name, value in maker.dims().items() if name != fit.axis}
    dims["context" if fit.axis == "rows" else "rows"] = fit.other
    return maker.whole(
        FIT,
        f"{fit.name} over {fit.axis}",
        median_s=fit.mean_s,
        dims=dims
        | {
            "base_s": fit.base_s,
            "slope_s": fit.slope_s,
            "worst_s": fit.worst_s,
            "points": len(fit.sizes),
        },
        method={"sizes": ", ".join(map(str, fit.sizes))},
        flags=("upper-bound",) if fit.bound else (),
    )


class _Maker:
    """Makes the records of one pass, which share an id."""

    def __init__(self, forecast: Forecast, environment: Environment) -> None:
        self._forecast, self._environment = forecast, environment
        self.own_id = new_id()

    def dims(self) -> dict[str, Value]:
        """Return the dims that name the pass."""
        return prediction.pass_dims(self._forecast.prediction)

    def whole(
        self,
        op: str,
        implementation: str,
        *,
        median_s: float | None,
        dims: Mapping[str, Value],
        method: Mapping[str, Value],
        launch: Launch | None = None,
        flags: tuple[str, ...] = (),
        reason: str | None = None,
    ) -> Measurement:
        """Return a record of the pass as a whole."""
        predicted = self._forecast.prediction
        return Measurement(
            source="predicted",
            part=WHOLE,
            op=op,
            implementation=implementation,
            case=prediction.case_name(predicted),
            status="skipped" if median_s is None else "ok",
            reason=reason,
            dims=dict(dims),
            launch=launch,
            flags=flags,
            median_s=median_s,
            ranks=predicted.forward.asked.tp,
            method={"prediction": self.own_id, **method},
            environment=self._environment.id,
            command=cli.command_line(),
            commit=self._environment.commit,
        )

    def components(self) -> Iterator[Measurement]:
        """Yield a record for each op whose time is somebody's, once for all sections."""
        calls: dict[str, int] = {}
        first: dict[str, Component] = {}
        for one in self._forecast.components:
            name = one.line.op.name
            calls[name] = calls.get(name, 0) + one.line.calls
            first.setdefault(name, one)
        for name, one in first.items():
            if one.basis not in _COMPONENTS:
                continue
            whole = self.whole(
                name,
                _COMPONENTS[one.basis],
                median_s=one.seconds,
                dims=prediction.pass_dims(self._forecast.prediction, calls=calls[name]),
                method={"time": one.how},
                flags=("upper-bound",) if one.bound else (),
            )
            yield msgspec.structs.replace(whole, part=one.line.op.part)

    def timeline(self, one: played.Played) -> Measurement:
        """Return a played pass."""
        forecast, costs = self._forecast, self._forecast.costs
        known = {"uneven_s": one.uneven_s, "skew_s": one.skew_s}
        uneven = forecast.uneven
        return self.whole(
            TIMELINE,
            one.launch,
            launch=one.launch,
            median_s=one.pass_s,
            flags=("at-least",) if one.left_out else (),
            dims={
                **self.dims(),
                "launches": one.launches,
                "kernels": one.kernels,
                "host_s": one.host_s,
                "busy_s": one.busy_s,
                "idle_s": one.idle_s,
                "idle_share": one.idle_share,
                "slow_rank": uneven.slow_rank,
                "jitter_s": uneven.jitter_s,
                **{name: value for name, value in known.items() if value is not None},
            },
            method={
                "launch_s": costs.launch.seconds,
                "graph_launch_s": costs.graph.seconds,
                "node_s": costs.node.seconds,
                **costs.sources,
                "uneven": "assumed, as an example" if uneven.assumed else "given",
                **({"left_out": ", ".join(one.left_out)} if one.left_out else {}),
            },
        )

    def lever(self, row: Row, number: int) -> Measurement:
        """Return a lever alone and together with those above it."""
        dims: dict[str, Value] = {**self.dims(), "number": number}
        for name, worth in (("alone", row.alone), ("together", row.together)):
            if worth is not None:
                dims |= {f"{name}_{key}": value for key, value in _worth(worth).items()}
        plain = self._forecast.plain
        spoken = self._forecast.spoken
        return self.whole(
            WHAT_IF,
            row.name,
            median_s=None if row.alone is None else row.alone.pass_s,
            reason=row.how if row.alone is None else None,
            dims=dims,
            method={
                "how": row.how,
                "now": "observed"
                if spoken.observed_s is not None
                else f"predicted {spoken.launch}",
                **({} if plain is None else {"plain_s": plain.seconds, "plain": plain.source}),
                **({} if spoken.share is None else {"share": spoken.share}),
                **({} if spoken.accepted is None else {"accepted": spoken.accepted}),
            },
            flags=tuple(self._lever_flags(row)),
        )

    def _lever_flags(self, row: Row) -> Iterator[str]:
        if row.alone is not None and row.alone.held:
            yield "at-byte-floor"
        if row.alone is not None and not self._forecast.total.complete:
            yield "at-least"

    def hypothesis(self, one: excess.Hypothesis) -> Measurement:
        """Return what each of the blamed would have to take more."""
        observed = self._forecast.observed
        return self.whole(
            EXCESS,
            one.name,
            median_s=one.each_s,
            flags=("at-most",) if one.at_most else (),
            dims={
                **self.dims(),
                "against": one.against,
                "excess_s": one.excess_s,
                "count": one.count,
                **({} if observed is None else {"observed_s": observed.observed_s}),
            },
            method={
                "what": one.what,
                "confirm": one.confirm,
                "kill": one.kill,
                **({} if observed is None else {"observed": observed.source}),
            },
        )

    def agreement(self, one: Agreement) -> Measurement:
        """Return a prediction beside the measured pass of its mode."""
        origin = one.measured.origin
        return self.whole(
            AGREEMENT,
            one.launch,
            launch=one.launch,
            median_s=one.predicted_s,
            dims={**self.dims(), "measured_s": one.measured_s, "off": one.off},
            method={
                "verdict": one.verdict,
                "measured": one.measured.id if origin is None else origin.file,
            },
        )


def _worth(worth: Worth) -> dict[str, Value]:
    least, most = worth.tokens_per_s
    found: dict[str, Value] = {
        "s": worth.pass_s,
        "least_tokens_per_s": least,
        "most_tokens_per_s": most,
        "held": worth.held,
    }
    return found if worth.break_even is None else found | {"break_even": worth.break_even}
