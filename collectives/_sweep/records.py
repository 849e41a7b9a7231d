"""A row becomes a record: a median with its interval, or why there is none.

What the fields hold is said in combination.py. What a start of workers costs, and what part of the
whole was spent in samples, are rows of their own: parts of the host.
"""

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from collectives._others.entries import moves
from collectives._sweep.backend import Backend
from collectives._sweep.collective import Collective
from collectives._sweep.combination import CHOICE_VARIABLES, Combination
from collectives._sweep.journal import ProbeDone
from collectives._sweep.points import Point
from collectives._sweep.spec import Spec
from collectives._sweep.state import Row, State
from verifyscope import stats
from verifyscope.records import Environment, Measurement, Value

EVERY_SIZE = "every-size"
_INTERVAL = "bootstrap of all samples, widened to the medians of the starts"


class Recorder:
    """Makes the records of one sweep."""

    def __init__(
        self, state: State, *, backend: Backend, collective: Collective, environment: Environment
    ) -> None:
        self.state, self.backend, self.collective = state, backend, collective
        self.environment = environment

    @property
    def spec(self) -> Spec:
        """Return what the sweep was asked to do."""
        return self.state.spec

    def row(self, at: int, row: Row) -> Measurement:
        """Return the record of a row of combination `at`."""
        summary = row.summary
        probe = self.state.probes.get(at)
        return Measurement(
            id=self._id(row.combination, case(self.spec, row.point), row.timing.name),
            source="measured",
            part=self.collective.part,
            op=self.collective.name,
            implementation=row.combination.label,
            kind="baseline-direct",
            case=case(self.spec, row.point),
            status=row.status,
            reason=row.reason,
            dims=self._dims(row.point),
            launch=row.timing.launch,
            depth=row.timing.depth,
            flags=row.flags,
            requested=self._requested(row.combination),
            effective=dict(row.verdict.effective) if row.verdict else {},
            proof=row.verdict.proof if row.verdict else None,
            median_s=summary.median if summary else None,
            low_s=summary.low if summary else None,
            high_s=summary.high if summary else None,
            p90_s=summary.p90 if summary else None,
            p99_s=summary.p99 if summary else None,
            count=summary.count if summary else None,
            ranks=self.spec.ranks,
            method=self._method(at, row, probe),
            environment=self.environment.id,
            command=self.environment.command,
            commit=self.environment.commit,
        )

    def listed(self, combination: Combination) -> Measurement:
        """Return the record of a combination that was planned and not launched."""
        return Measurement(
            id=self._id(combination, EVERY_SIZE, ""),
            source="measured",
            part=self.collective.part,
            op=self.collective.name,
            implementation=combination.label,
            kind="baseline-direct",
            case=EVERY_SIZE,
            status="unsupported",
            reason=combination.reason,
            requested=self._requested(combination),
            ranks=self.spec.ranks,
            environment=self.environment.id,
            command=self.environment.command,
            commit=self.environment.commit,
        )

    def starts(self) -> Iterator[tuple[Measurement, tuple[float, ...]]]:
        """Yield what starting took: importing torch, and joining in each combination."""
        state = self.state
        if state.imports_s:
            found = tuple(state.imports_s)
            yield self._host("process_start", "fork server", "imports", found), found
        for at, combination in enumerate(self.spec.combinations):
            seconds = [probe.join_s] if (probe := state.probes.get(at)) else []
            for (place, _), done in sorted(state.starts.items()):
                seconds += [each.join_s for each in done if place == at]
            if seconds:
                taken = tuple(seconds)
                label = combination.label
                yield self._host("process_start", label, "process-start", taken), taken

    def measuring(self, *, wall_s: float, starts_s: float, samples_s: float) -> Measurement:
        """Return what the sweep took without its starts, and how much of that was in samples."""
        rest_s = max(wall_s - starts_s, 0.0)
        made = self._host("sweep", self.spec.backend, "measuring", (rest_s,))
        method: dict[str, Value] = {
            "wall_s": round(wall_s, 3),
            "process_start_s": round(starts_s, 3),
            "samples_s": round(samples_s, 3),
            "measured_share": round(samples_s / rest_s, 4) if rest_s else 0.0,
            "sample": "wall time of this invocation without process start",
        }
        return _with_method(made, method)

    def _host(
        self, op: str, implementation: str, name: str, seconds: Sequence[float]
    ) -> Measurement:
        summary = stats.summarise(seconds)
        return Measurement(
            id=_digest(self.state.run, self.spec.op, op, implementation, name),
            source="measured",
            part="host",
            op=op,
            implementation=implementation,
            case=name,
            status="ok",
            dims={"collective": self.spec.op},
            median_s=summary.median,
            low_s=summary.low,
            high_s=summary.high,
            count=summary.count,
            ranks=self.spec.ranks,
            method={"clock": "monotonic clock of the sweep"},
            environment=self.environment.id,
            command=self.environment.command,
            commit=self.environment.commit,
        )

    def _id(self, combination: Combination, name: str, timing: str) -> str:
        return _digest(self.state.run, self.spec.op, combination.label, name, timing)

    def _dims(self, point: Point) -> dict[str, Value]:
        dims: dict[str, Value] = {
            "bytes": point.size_bytes,
            "elements": point.elements,
            "dtype": self.spec.dtype,
            "in_place": point.in_place,
            "redop": self.collective.redop,
        }
        if self.spec.nodes > 1:
            dims["nodes"] = self.spec.nodes
        if point.tokens is not None and point.model is not None:
            dims |= {"tokens": point.tokens, "model": point.model}
        return dims

    def _requested(self, combination: Combination) -> dict[str, str]:
        """Return what was inherited and counts, and what the combination asks for."""
        inherited = {
            name: value
            for name, value in self.environment.settings.items()
            if moves(combination, self.backend).chooses
            and "NCCL" in name
            and name not in CHOICE_VARIABLES
            and not name.startswith("NCCL_DEBUG")
        }
        calls = moves(combination, self.backend).chooses
        library = {"nccl": self.spec.nccl} if self.spec.nccl is not None and calls else {}
        return inherited | library | combination.requested()

    def _method(self, at: int, row: Row, probe: ProbeDone | None) -> dict[str, Value]:
        spec, device = self.spec, self.backend.on_device
        sampled = spec.iterations if row.timing.depth == 1 else spec.batches
        many = "" if row.timing.depth == 1 else f", divided by {row.timing.depth} calls"
        method: dict[str, Value] = {
            "iterations": sampled,
            "warmup": spec.warmup,
            "sample": f"maximum over ranks of end - start, after a barrier{many}",
            "clock": _clock(device=device, hidden=row.timing.depth == 1 or _is_graph(row)),
            "checked": _checked(row),
            "interval": _INTERVAL,
            "order": "combinations forwards and backwards in turn",
        }
        name, words = self._direction(row)
        if words is not None:
            method[name] = words
        if probe is not None:
            method["device"] = probe.devices[0].name
            chooses = moves(row.combination, self.backend).chooses
            library = "nccl_version" if device and chooses else "torch_version"
            if chooses or not device:
                method[library] = probe.loaded_version
        if row.starts:
            method |= _starts(row)
        stress = self.state.stresses.get(at)
        if stress is not None:
            method["stress"] = f"{stress.calls} calls of {stress.sizes} sizes, random data"
        if device and row.starts:
            method["launch_exposed"] = row.exposed
        return method

    def _direction(self, row: Row) -> tuple[str, str | None]:
        """Return what the direction of a row is, where that needs a word."""
        moved_by = moves(row.combination, self.backend)
        if row.point.in_place:
            return "in_place", moved_by.in_place
        own = moved_by is self.backend
        return "out_of_place", self.collective.out_of_place if own else moved_by.out_of_place


def case(spec: Spec, point: Point) -> str:
    """Return the name of a point, such as "57344B-bfloat16-out-of-place"."""
    direction = "in-place" if point.in_place else "out-of-place"
    return f"{point.size_bytes}B-{spec.dtype}-{direction}"


def _starts(row: Row) -> dict[str, Value]:
    medians = row.medians
    middle = stats.summarise(medians).median
    found: dict[str, Value] = {"starts": len(medians)}
    found |= {f"start_{at}_median_s": seconds for at, seconds in enumerate(medians)}
    found["spread"] = (max(medians) - min(medians)) / middle if middle else 0.0
    found["samples_per_start"] = " ".join(str(len(start)) for start in row.starts)
    return found


def _clock(*, device: bool, hidden: bool) -> str:
    if not device:
        return "perf_counter of the host"
    return f"CUDA events{' behind a spin of 1 ms' if hidden else ', the host launches meanwhile'}"


def _checked(row: Row) -> str:
    if row.checked:
        return "every value of every call"
    return (
        "the isolated calls of the same starts: these share buffers, and sums of sums are inexact"
    )


def _is_graph(row: Row) -> bool:
    return row.timing.launch == "graph"


def _with_method(made: Measurement, method: dict[str, Value]) -> Measurement:
    return msgspec.structs.replace(made, method=made.method | method)


def _digest(*words: str) -> str:
    return hashlib.sha256("|".join(words).encode()).hexdigest()[:16]
