"""The least time of a forward pass: by op, max(bytes / bandwidth, flops / peak), summed by part.

A collective's time is not one of bytes: it is given, or measured by a sweep, or not known, and then
a sum is "at least". Not counted: launches and host, sampling, metadata, the drafter. Nothing here
was measured on the GPU that is named.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from graphs.collective_times import Time, Times
from graphs.layers import Forward, Section
from graphs.ops import Op
from verifyscope import cli
from verifyscope.hardware import Gpu
from verifyscope.parts import PARTS
from verifyscope.predictions import ROOFLINE
from verifyscope.records import Environment, Measurement, Value
from verifyscope.roofline import floor_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """Bytes a second of DRAM that the prediction divides by, and where the number comes from."""

    bytes_per_s: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An op of a section and the seconds of one call; `how` says why they are what they are."""

    section: Section
    op: Op
    seconds: float | None
    how: str

    @property
    def calls(self) -> int:
        """Return how often the pass calls the op."""
        return self.section.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Lines added up, on one rank. `complete` is False if some line's time is not known.

    `layers` is how many layers have any of them, `layer_weight_bytes` their weights a layer.
    """

    calls: int
    layers: int
    weight_bytes: float
    layer_weight_bytes: float
    kv_bytes: float
    activation_bytes: float
    flops: float
    seconds: float
    complete: bool

    @property
    def touched_bytes(self) -> float:
        """Return the bytes that cross the memory bus."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A pass on a GPU: every op's line, in the order of the pass."""

    forward: Forward
    gpu: Gpu
    bandwidth: Bandwidth
    lines: tuple[Line, ...]

    def by_part(self) -> Mapping[str, list[Line]]:
        """Return the lines of each part that the pass has, in the order of verifyscope.parts."""
        present = {line.op.part for line in self.lines}
        return {
            part: [line for line in self.lines if line.op.part == part]
            for part in PARTS
            if part in present
        }


def predict(forward: Forward, *, gpu: Gpu, bandwidth: Bandwidth, times: Times) -> Prediction:
    """Return the prediction of `forward` on `gpu`."""
    lines = []
    for section in forward.sections:
        for op in section.ops:
            if op.message_bytes is None:
                time = Time(_roofline_s(op, gpu, bandwidth), "roofline")
            else:
                time = times.of(op)
            lines.append(Line(section=section, op=op, seconds=time.seconds, how=time.how))
    return Prediction(forward=forward, gpu=gpu, bandwidth=bandwidth, lines=tuple(lines))


def summed(lines: Iterable[Line]) -> Sum:
    """Return the sum of `lines`, each op times its calls."""
    lines = list(lines)
    within = [line for line in lines if line.section.is_layer]
    layers = sum({line.section.name: line.calls for line in within}.values())
    in_layers = sum(line.op.weight_bytes * line.calls for line in within)
    return Sum(
        calls=sum(line.calls for line in lines),
        layers=layers,
        weight_bytes=sum(line.op.weight_bytes * line.calls for line in lines),
        layer_weight_bytes=in_layers / layers if layers else 0.0,
        kv_bytes=sum(line.op.kv_bytes * line.calls for line in lines),
        activation_bytes=sum(line.op.activation_bytes * line.calls for line in lines),
        flops=sum(line.op.flops * line.calls for line in lines),
        seconds=sum(line.seconds * line.calls for line in lines if line.seconds is not None),
        complete=all(line.seconds is not None for line in lines),
    )


def case_name(prediction: Prediction) -> str:
    """Return what records call this pass."""
    asked = prediction.forward.asked
    several = f"-requests{asked.requests}" if asked.requests > 1 else ""
    name = f"{asked.model.name}-tp{asked.tp}-rows{asked.rows}-context{asked.context}{several}"
    return f"{name}-{prediction.gpu.name}"


def measurements(
    prediction: Prediction, environment: Environment, *, own_id: str
) -> Iterator[Measurement]:
    """Yield one record an op, all of prediction `own_id`; see `graphs.replay` for their fields."""
    asked = prediction.forward.asked
    by_op: dict[str, list[Line]] = {}  # an op is the same in dense and in expert layers
    for part_lines in prediction.by_part().values():
        for line in part_lines:
            by_op.setdefault(line.op.name, []).append(line)
    for lines in by_op.values():
        op, seconds = lines[0].op, lines[0].seconds
        collective = op.message_bytes is not None
        yield Measurement(
            source="predicted",
            part=op.part,
            op=op.name,
            implementation=ROOFLINE,
            case=case_name(prediction),
            status="skipped" if seconds is None else "ok",
            reason=f"not known: {lines[0].how}" if seconds is None else None,
            dims=_op_dims(prediction, op, summed(lines).calls),
            median_s=seconds,
            floor_s=None if collective else seconds,
            touched_bytes=None if collective else op.cost.touched_bytes,
            flops=None if collective else op.flops,
            ranks=asked.tp,
            method={
                "prediction": own_id,
                "bytes_per_s": prediction.bandwidth.bytes_per_s,
                "bandwidth": prediction.bandwidth.source,
                "time": lines[0].how,
            },
            environment=environment.id,
            command=cli.command_line(),
            commit=environment.commit,
        )


def pass_dims(prediction: Prediction, *, calls: int = 1) -> dict[str, Value]:
    """Return the dims that name this pass in every record of it."""
    asked = prediction.forward.asked
    return {
        "model": asked.model.name,
        "tp": asked.tp,
        "rows": asked.rows,
        "requests": asked.requests,
        "context": asked.context,
        "gpu": prediction.gpu.name,
        "calls": calls,
    }


def _op_dims(prediction: Prediction, op: Op, calls: int) -> dict[str, Value]:
    dims = pass_dims(prediction, calls=calls)
    if op.message_bytes is not None:
        return dims | {"message_bytes": op.message_bytes}
    if "distinct" in op.shape:
        dims["distinct_experts"] = op.shape["distinct"]
    return dims | {
        "weight_bytes": op.weight_bytes,
        "kv_bytes": op.kv_bytes,
        "activation_bytes": op.activation_bytes,
    }


def _roofline_s(op: Op, gpu: Gpu, bandwidth: Bandwidth) -> float:
    peaks = gpu.peak_flops_per_s  # without fp8 such weights are computed in bf16
    peak = peaks.get(op.arithmetic, peaks.get("bf16"))
    return floor_s(op.cost, bytes_per_s=bandwidth.bytes_per_s, flops_per_s=peak)
