"""python -m graphs.replay --model kimi-k2.5 --tp 8 --rows 4 --context 8192 --predict GPU

Prints the least time of one forward pass on one rank, by class and part: bytes over bandwidth or
flops over peak, whichever is longer. An all-reduce has the time that --all-reduce-us or --sweep
gives it, else it is `not known`, and a sum that lacks it is "at least".

Records: one Measurement an op, source "predicted", implementation "roofline", part and op as in
graphs.layers, case "<model>-tp8-rows4-context8192-<gpu>". Numbers are of one call on one rank, as
in every record: times dims["calls"], and added up by part, they are the budget of a pass. All
records of one prediction share method["prediction"], a fresh id, and stand in one file one after
the other, in the order of verifyscope.parts. median_s is the predicted time, floor_s the same for
an op that computes and null for a collective; an op whose time is not known is "skipped" with the
reason. dims: model, tp, rows, requests, context, gpu, calls; weight_bytes, kv_bytes,
activation_bytes; distinct_experts of routed experts; message_bytes of a collective, which has no
touched_bytes and no flops. method: bytes_per_s and bandwidth (its source), time (where it is from).
"""

import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from graphs import collective_times, prediction
from graphs.collective_times import Times
from graphs.layers import forward
from graphs.prediction import Bandwidth, Line, Prediction, Sum, summed
from verifyscope import cli, hardware, runs, units
from verifyscope.errors import UsageError
from verifyscope.models import find_model
from verifyscope.parts import CLASSES, class_of

_PROGRAM = "python -m graphs.replay"
_HELP = "Predict the least time of one forward pass, by part: bytes, flops, all-reduce times."
_COLUMNS = ("calls", "a layer", "weights", "KV", "other", "flops", "time", "of known")
_NOT_COUNTED = "launches and host, sampling, metadata, the drafter"

app = cli.app(_HELP)


@app.command(help=_HELP)
def main(
    model: Annotated[str, typer.Option(help="A known model, or the path of a config.json.")],
    tp: Annotated[
        str | None, typer.Option(help="Ranks of tensor parallelism  [default: 1; of a CPU 2]")
    ] = None,
    rows: Annotated[str, typer.Option(help="Tokens a request in the pass, such as 1,4.")] = "1,4",
    context: Annotated[
        str | None,
        typer.Option(help="Cached tokens a request, such as 8k,32k  [default: 8k; of a CPU 256]"),
    ] = None,
    requests: Annotated[str, typer.Option(help="Requests at once.")] = "1",
    predict: Annotated[
        str | None, typer.Option(metavar="GPU", help="The GPU, such as rtx-pro-6000-server.")
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(help="DRAM bytes a second, such as 1.50T for 1.5e12  [default: the GPU's]"),
    ] = None,
    all_reduce_us: Annotated[
        str | None, typer.Option(help="Microseconds of one all-reduce.")
    ] = None,
    sweep: Annotated[
        Path | None, typer.Option(help="A sweep's records, for the times of collectives.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Measure a stub: cuda, or cpu (small sizes, gloo ranks, eager)."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", "--ranks", help="Measure: processes, one a GPU.")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Measure: the first layers only.")] = None,
    quant: Annotated[
        str | None, typer.Option(help="Measure: bf16, fp8 or int4  [default: the model's]")
    ] = None,
    tree: Annotated[
        str | None, typer.Option(help="Measure: the drafts' tree  [default: by --rows]")
    ] = None,
    attention: Annotated[
        str, typer.Option(help="Measure: the form of attention: verify, decode or extend.")
    ] = "verify",
    moe: Annotated[
        str, typer.Option(help="Measure: the path of experts: direct, sorted or auto.")
    ] = "auto",
    impl: Annotated[
        str, typer.Option(help="Measure: implementations: attention=flashinfer,moe=triton.")
    ] = "",
    all_reduce: Annotated[
        str | None, typer.Option(help="Measure: none, one-rank, delay:33us or real.")
    ] = None,
    modes: Annotated[
        str | None,
        typer.Option(help="Measure: eager, graph, piecewise, collectives-outside."),
    ] = None,
    weight_sets: Annotated[
        str | None, typer.Option(help="Measure: distinct layers  [default: all that fit]")
    ] = None,
    ablate: Annotated[bool, typer.Option(help="Measure: take the parts out and in.")] = True,
    seconds: Annotated[float, typer.Option(help="Measure: seconds of rounds, a table.")] = 2.0,
    timeout: Annotated[
        float, typer.Option(help="Measure: seconds without progress until ranks are ended.")
    ] = 180.0,
    records: Annotated[
        Path | None, typer.Option(help="Append records to this file  [default: a new run]")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write every op and sum to this file.")] = None,
) -> None:
    """Predict, or measure, every number of rows at every context."""
    if (predict is None) == (device is None):
        raise UsageError(
            f"give --device cpu or --device cuda to measure a stub, or --predict GPU "
            f"({', '.join(hardware.TABLE)})"
        )
    if device is not None:
        from graphs import measure

        measure.measure(
            measure.Asked(
                device=device,
                model=model,
                rows=rows,
                requests=requests,
                tp=tp,
                context=context,
                gpus=gpus,
                layers=layers,
                quant=quant,
                tree=tree,
                attention=attention,
                moe=moe,
                impl=impl,
                all_reduce=all_reduce,
                modes=modes,
                weight_sets=weight_sets,
                ablate=ablate,
                seconds=seconds,
                timeout=timeout,
                records=records,
                json=json,
            )
        )
        return
    tp, context = tp or "1", context or "8k"
    gpu = hardware.find_gpu(predict or "")
    found, ranks, at_once = find_model(model), units.parse_count(tp), units.parse_count(requests)
    per_s, times = _bandwidth(bandwidth, gpu), _times(all_reduce_us, sweep, ranks)
    cases = [
        prediction.predict(
            forward(found, tp=ranks, rows=row_count, context=cached, requests=at_once),
            gpu=gpu,
            bandwidth=per_s,
            times=times,
        )
        for cached in units.parse_list(context, units.parse_count)
        for row_count in units.parse_list(rows, units.parse_count)
    ]
    with runs.start(records, "predict") as run:
        for case in cases:
            for record in prediction.measurements(case, run.environment):
                run.append(record)
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_bytes(msgspec.json.encode([_as_data(case) for case in cases]) + b"\n")
    for case in cases:
        _print(case)
    _warn(cases)
    cli.note(f"records: {run.path}")


def _print(case: Prediction) -> None:
    """Print a case; what is no row of the table starts with #, as in nccl-tests."""
    asked, total, per_s = case.forward.asked, summed(case.lines), case.bandwidth.bytes_per_s
    print(
        f"# predicted, not measured: {asked.model.name}, tp {asked.tp}, rows {asked.rows}, "
        f"requests {asked.requests}, context {asked.context}, on {case.gpu.title}"
    )
    print(f"# DRAM {units.rate(per_s)}: {case.bandwidth.source}")
    experts = case.by_part().get("routed_experts")
    if experts is not None:
        shape = experts[0].op.shape
        slice_bytes = sum(line.op.weight_bytes for line in experts) / shape["distinct"]
        print(
            f"# experts a layer: {shape['distinct']:.1f} distinct of {shape['experts']:.0f} "
            f"expected, {units.bytes_(slice_bytes)} each"
        )
    _print_table(case)
    for lines in case.by_part().values():
        _print_collective(lines)
    print(
        f"# byte floor: {units.bytes_(total.weight_bytes)} of weights in "
        f"{units.seconds(total.weight_bytes / per_s)}, {units.bytes_(total.kv_bytes)} of KV in "
        f"{units.seconds(total.kv_bytes / per_s)}"
    )
    print(f"# not counted: {_NOT_COUNTED}")


def _print_table(case: Prediction) -> None:
    """Print each class above its parts, and the sum. "other" are activations."""
    rows = list(_rows(case))
    if cli.is_terminal(sys.stdout):
        shown = [[f"  {part}" if part else class_, *cells] for class_, part, cells in rows]
        cli.print_rows(shown, ("part", *_COLUMNS))
        return
    asked = case.forward.asked
    head = (str(asked.rows), str(asked.context))
    print("\t".join(("# rows", "context", "class", "part", *_COLUMNS)))
    cli.print_rows([[*head, class_, part or "sum", *cells] for class_, part, cells in rows], ())


def _rows(case: Prediction) -> Iterator[tuple[str, str | None, list[str]]]:
    """Yield class, part (None for the sum of the class) and cells; at last the sum of all."""
    by_part, known_s = case.by_part(), summed(case.lines).seconds
    for class_ in CLASSES:
        parts = {part: lines for part, lines in by_part.items() if class_of(part) == class_}
        if not parts:
            continue
        yield class_, None, _cells([line for lines in parts.values() for line in lines], known_s)
        for part, lines in parts.items():
            yield class_, part, _cells(lines, known_s)
    yield "sum", None, _cells(case.lines, known_s)


def _cells(lines: Sequence[Line], known_s: float) -> list[str]:
    total = summed(lines)
    row = [str(total.calls)]
    if all(line.op.message_bytes is not None for line in lines):
        row += ["-"] * 5
    else:
        row += [
            units.bytes_(round(total.layer_weight_bytes)) if total.layers else "-",
            units.bytes_(round(total.weight_bytes)),
            units.bytes_(round(total.kv_bytes)),
            units.bytes_(round(total.activation_bytes)),
            units.flops(total.flops),
        ]
    if not total.complete and not total.seconds:
        return [*row, "not known", "-"]
    least = "" if total.complete else "at least "
    return [*row, f"{least}{units.seconds(total.seconds)}", units.percent(total.seconds / known_s)]


def _print_collective(lines: Sequence[Line]) -> None:
    first, calls = lines[0], summed(lines).calls
    if first.op.message_bytes is None:
        return
    what = f"# {first.op.part}: {calls} x {first.op.message_bytes:,} B"
    if first.seconds is None:
        print(f"{what}, not known: {first.how}")
    else:
        print(f"{what}, {units.seconds(first.seconds)} each: {first.how}")


def _warn(cases: Sequence[Prediction]) -> None:
    """Say on stderr what is allowed and yet unlikely to be meant."""
    gpu, per_s = cases[0].gpu, cases[0].bandwidth.bytes_per_s
    if gpu.dram_bytes_per_s is not None and per_s > gpu.dram_bytes_per_s:
        cli.note(
            f"{units.rate(per_s)} is above the {units.rate(gpu.dram_bytes_per_s)} of {gpu.title}"
        )
    asked = max((case.forward.asked for case in cases), key=lambda asked: asked.context)
    if asked.context > asked.model.max_positions:
        cli.note(
            f"context {asked.context} is above the {asked.model.max_positions} positions of "
            f"{asked.model.name}"
        )


def _as_data(case: Prediction) -> dict[str, object]:
    """Return what --json holds of one case: sizes in bytes, times in seconds, unknown as null."""
    asked, total = case.forward.asked, summed(case.lines)
    return {
        "model": asked.model.name,
        "tp": asked.tp,
        "rows": asked.rows,
        "requests": asked.requests,
        "context": asked.context,
        "gpu": case.gpu.name,
        "bandwidth": case.bandwidth,
        "sum": _sum_as_data(total),
        "parts": {part: _sum_as_data(summed(lines)) for part, lines in case.by_part().items()},
        "ops": [
            {
                "section": line.section.name,
                "calls": line.calls,
                **dataclasses.asdict(line.op),
                "seconds": line.seconds,
                "how": line.how,
            }
            for line in case.lines
        ],
    }


def _sum_as_data(total: Sum) -> dict[str, object]:
    known = total.complete or total.seconds > 0
    return dataclasses.asdict(total) | {"seconds": total.seconds if known else None}


def _bandwidth(given: str | None, gpu: hardware.Gpu) -> Bandwidth:
    if given is not None:
        return Bandwidth(bytes_per_s=units.parse_rate(given), source="given by --bandwidth")
    if gpu.dram_bytes_per_s is None:
        raise UsageError(f"the bandwidth of {gpu.name} is not known; give --bandwidth 1.50T")
    source = gpu.source_of("dram_bytes_per_s")
    return Bandwidth(bytes_per_s=gpu.dram_bytes_per_s, source=f"{gpu.name}, {source}")


def _times(all_reduce_us: str | None, sweep: Path | None, ranks: int) -> Times:
    if all_reduce_us is not None and sweep is not None:
        raise UsageError("give --all-reduce-us or --sweep, not both")
    if ranks == 1 and (all_reduce_us is not None or sweep is not None):
        raise UsageError("--tp 1 has no all-reduce; leave out --all-reduce-us and --sweep")
    if sweep is not None:
        return collective_times.from_sweep(sweep, ranks=ranks)
    if all_reduce_us is None:
        return Times()
    try:
        microseconds = float(all_reduce_us)
    except ValueError:
        microseconds = math.nan
    if not 0 < microseconds < math.inf:
        raise UsageError(
            f"--all-reduce-us {all_reduce_us!r} is not a time above zero; give one like 33.5"
        )
    return Times(all_reduce_s=microseconds / 1e6)


if __name__ == "__main__":
    cli.run(app, _PROGRAM)
