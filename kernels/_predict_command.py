"""What `python -m kernels --predict GPU` does: a row for each implementation and measured case."""

from collections.abc import Callable

from kernels import _predict, _select
from kernels._commands import MOST_PROCESSES, Output, conditions_of, digits, watched
from kernels._points import Predicted, Selection
from kernels._workers import Lost, work
from verifyscope import cli, units
from verifyscope.errors import Failure
from verifyscope.hardware import Gpu

_HEADER = (
    *("op", "implementation", "mode", "case", "floor", "touched", "moved", "flops", "limited_by"),
    *("launches", "predicted", "blocks", "waves", "reason"),
)


def predict_points(
    selection: Selection, gpu: Gpu, *, node_s: float | None, timeout_s: float, out: Output
) -> None:
    """Predict and print each row as it comes; `Failure` if a point could not be asked."""
    asked = _select.asked(selection, gpu=gpu.name, node_s=node_s)
    conditions = conditions_of(MOST_PROCESSES, timeout_s, {"TRITON_INTERPRET": "0"})
    cli.note(_said(gpu, node_s))
    out.begin(_HEADER)
    lost = 0
    with (
        work(
            "kernels._predict:predict_point", asked, conditions=conditions, kin=lambda one: one.kin
        ) as results,
        watched(results, len(asked), "predicting") as answers,
    ):
        for one, row in zip(asked, answers, strict=True):
            if isinstance(row, Lost):
                cli.note(f"{one.op}/{one.implementation} on {one.case}: {row.reason}")
                lost += 1
            else:
                _print(row, out)
    if lost:
        raise Failure(f"{lost} of {len(asked)} points could not be predicted")


def _said(gpu: Gpu, node_s: float | None) -> str:
    """Return what the rows are divided by."""
    dram, peak = gpu.dram_bytes_per_s, gpu.peak_flops_per_s.get("bf16")
    rates = (
        "bandwidth not known" if dram is None else units.rate(dram),
        "peak not known" if peak is None else f"{units.flops(peak)}/s in bf16 and fp16",
        "launches not counted: give --node-us"
        if node_s is None
        else f"{units.seconds(node_s)} a launch",
    )
    return f"predicted, not measured: {gpu.title}, {', '.join(rates)}"


def _print(row: Predicted, out: Output) -> None:
    form = (_in(units.bytes_, row.moved_bytes), _in(units.flops, row.flops), row.limited_by)
    out.add(
        (
            *(row.op, row.implementation, row.mode, row.case),
            *(_in(units.seconds, row.floor_s), _in(units.bytes_, row.touched_bytes), *form),
            *(row.nodes, _in(units.seconds, row.predicted_s)),
            " + ".join(str(grid.blocks) for grid in row.grids),
            " + ".join(digits(grid.waves) or "-" for grid in row.grids),
            row.reason,
        ),
        row,
    )
    out.record(_predict.predicted_measurement(row))


def _in(unit: Callable[[float], str], value: float | None) -> str | None:
    return None if value is None else unit(value)
