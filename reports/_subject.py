"""The one system that the first screen speaks of, so that numbers of two are never put together.

In this order: a whole pass that was measured on GPUs, with the prediction of the same pass; what is
predicted of a pass, with how long somebody saw it take; what others timed; a stub that was shrunk
to fit a CPU, or some layers of a model, which are no time of it. A verify that a log has belongs to
a prediction only where its time is the one that the prediction was held against, and the log names
no other system.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports import _budget, _forecast
from reports._collected import Collected
from reports._forecast import Forecast
from verifyscope import hardware, passes, systems
from verifyscope.records import Measurement, Value

_USUAL_ROWS = 4
_ALIKE = 0.01  # two printed times of one pass
_SAME_PASS = ("model", "tp", "rows", "requests", "context")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """How long a predicted pass took elsewhere: `record` has it, `by` says who saw it.

    record is imported, or what the prediction says of the excess.
    """

    seconds: float
    record: Measurement
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is known of one system; `imported` are verifies of others, which may be of several.

    measured: the modes of one pass. is_whole: they are of a real model on GPUs.
    """

    measured: tuple[Measurement, ...] = ()
    is_whole: bool = False
    predicted: _budget.Pass | None = None
    forecast: Forecast | None = None
    observed: Observed | None = None
    imported: tuple[Measurement, ...] = ()

    @property
    def best(self) -> Measurement | None:
        """Return the fastest measured mode."""
        return min(self.measured, key=lambda one: one.median_s or 0.0, default=None)

    def mode(self, launch: str) -> Measurement | None:
        """Return the measured mode of that launch."""
        return next((one for one in self.measured if one.launch == launch), None)

    def dim(self, name: str) -> Value | None:
        """Return what names the pass: model, tp, rows, requests, context or gpu."""
        if self.best is not None:
            return self.best.dims.get(name)
        if self.predicted is not None:
            return dict(self.predicted.words).get(name)
        return self.imported[0].dims.get(name) if len(self.imported) == 1 else None


def subject(found: Collected, predicted: Sequence[_budget.Pass]) -> Subject:
    """Return what the report is about; an empty one where no record is of a pass."""
    wholes = _forecast.forecasts(found.predicted_passes)
    measured = measured_passes(found)
    is_whole = bool(measured) and not is_no_time_of_a_model(measured[0], found)
    theirs = tuple(_imported(found))
    if is_whole:
        chosen = next((one for one in predicted if _is_of(measured[0], one, found)), None)
        forecast = None if chosen is None else wholes.get(chosen.made_by)
        return Subject(measured=measured, is_whole=True, predicted=chosen, forecast=forecast)
    if predicted:
        chosen = min(predicted, key=lambda one: _order(one, wholes))
        forecast = wholes.get(chosen.made_by)
        observed = _observed(chosen, forecast, theirs)
        return Subject(predicted=chosen, forecast=forecast, observed=observed, imported=theirs)
    if measured and not (theirs and found.on_cpu(measured[0])):
        return Subject(measured=measured)
    return Subject(imported=theirs)


def measured_passes(found: Collected) -> tuple[Measurement, ...]:
    """Return the modes of the pass that speaks for the report: of a GPU, of all layers' sizes."""
    whole = [one for one in found.passes if one.op == passes.FORWARD and "outside" not in one.dims]
    if not whole:
        return ()
    best = min(
        whole,
        key=lambda one: (found.on_cpu(one), is_shrunk(one), is_part(one), one.median_s or 0.0),
    )
    return tuple(one for one in whole if same_case(one, best))


def is_no_time_of_a_model(one: Measurement, found: Collected) -> bool:
    """Say whether a pass ran without a GPU, or of a model that is not all there."""
    return found.on_cpu(one) or is_shrunk(one) or is_part(one)


def is_shrunk(one: Measurement) -> bool:
    """Say whether a pass is of a stub whose sizes were shrunk."""
    return one.dims.get("shrunk") is True


def is_part(one: Measurement) -> bool:
    """Say whether a pass is of the first layers of a model."""
    return "-first-" in str(one.dims.get("model"))


def same_case(one: Measurement, other: Measurement) -> bool:
    """Say whether two records are of one case in one run."""
    return one.environment == other.environment and (
        (one.case, one.method.get("pass")) == (other.case, other.method.get("pass"))
    )


def number(given: Mapping[str, Value], name: str) -> float | None:
    """Return a number of a record's dims or method."""
    value = given.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _imported(found: Collected) -> list[Measurement]:
    return [
        one
        for one in found.kernels
        if one.source == "imported" and one.mode == "verify" and one.op in ("verify", "cycle")
    ]


def _is_of(measured: Measurement, one: _budget.Pass, found: Collected) -> bool:
    """Say whether a prediction is of the pass that was measured, on the GPU that ran it."""
    words = dict(one.words)
    if any(words.get(name) != measured.dims.get(name) for name in _SAME_PASS):
        return False
    environment = found.environments.get(measured.environment)
    names = [] if environment is None else [gpu.name for gpu in environment.gpus]
    known = hardware.match(names[0]) if names else None
    return known is not None and known.name == words.get("gpu")


def _may_be_of(log: Measurement, words: Mapping[str, Value]) -> bool:
    """Say whether a log names neither other rows nor another model or TP than a prediction."""
    model, tp = words.get("model"), words.get("tp")
    mine = systems.System(
        model=model if isinstance(model, str) else None, tp=tp if isinstance(tp, int) else None
    )
    same_rows = log.dims.get("rows", words.get("rows")) == words.get("rows")
    return same_rows and systems.apart(systems.of_record(log), mine) is None


def _order(
    one: _budget.Pass, wholes: Mapping[str, Forecast]
) -> tuple[bool, bool, float, float, float]:
    """Order predictions: one that was held against a time, that was played, of usual rows."""
    forecast, words = wholes.get(one.made_by), dict(one.words)
    rows = number(words, "rows") or 1.0
    return (
        forecast is None or not forecast.excess,
        forecast is None,
        number(words, "requests") or 1.0,
        abs(rows - _USUAL_ROWS),
        number(words, "context") or 0.0,
    )


def _observed(
    one: _budget.Pass, forecast: Forecast | None, theirs: Sequence[Measurement]
) -> Observed | None:
    """Return the time that the prediction was held against; of a log where it is that time."""
    found = None if forecast is None else _held_against(forecast)
    if found is None:
        return None
    seconds, held = found
    same = [
        log
        for log in theirs
        if log.op == "verify"
        and log.median_s is not None
        and abs(log.median_s - seconds) <= _ALIKE * seconds
        and _may_be_of(log, dict(one.words))
    ]
    if len(same) == 1 and same[0].median_s is not None:
        place = "a log" if same[0].origin is None else same[0].origin.file
        return Observed(seconds=same[0].median_s, record=same[0], by=f"imported from {place}")
    by = str(held.method.get("observed", "given"))
    return Observed(seconds=seconds, record=held, by=f"observed: {by}")


def _held_against(forecast: Forecast) -> tuple[float, Measurement] | None:
    """Return the time that a prediction was held against; one that is shorter left no excess."""
    excess, base = next(iter(forecast.excess), None), _forecast.base(forecast)
    if excess is not None:
        seconds = number(excess.dims, "observed_s")
        return None if seconds is None else (seconds, excess)
    if base is None or base.method.get("now") != "observed" or base.dims.get("alone_held") is True:
        return None
    seconds = number(base.dims, "alone_s")
    return None if seconds is None else (seconds, base)
