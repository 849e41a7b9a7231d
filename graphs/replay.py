"""python -m graphs.replay --model kimi-k2.5 --tp 8 --rows 4 --context 8192 --predict GPU
python -m graphs.replay --model kimi-k2.5 --tp 8 --rows 4 --context 8192 --device cuda

With --device a stub of the model's layers runs, and its passes are measured and taken apart:
`graphs` says what that leaves as records. With --predict: what a forward pass on one rank takes,
before it has run. By class and part: the floor, bytes over
bandwidth or flops over peak, whichever is longer; beside it `public components`, what others
measured (verifyscope.published), or what --all-reduce-us, --sweep and --measured say. A part
without a source is `not known`, and a sum that lacks it is "at least". Then the timeline: the pass
eager, as piecewise graphs and as one graph, with the cost of uneven ranks; what each lever would
give; and what would have to be true of a pass that took longer (--observed-ms). With lists of
--rows or --context time(T) and time(L) are fitted.

Records of --predict, all "predicted"; those of one pass share method["prediction"], a fresh id, and
dims model, tp, rows, requests, context, gpu and calls. Numbers are of one call on one rank: times
dims["calls"], and added up by part, they are the budget of a pass.

- implementation "roofline", an op each, part and op as in graphs.layers, in the order of
  verifyscope.parts: median_s is the predicted time, floor_s the same for an op that computes and
  null for a collective; an op whose time is not known is "skipped" with the reason. dims:
  weight_bytes, kv_bytes, activation_bytes; distinct_experts of routed experts; message_bytes of a
  collective, which has no touched_bytes and no flops. method: bytes_per_s and bandwidth (its
  source), time (where it is from).
- implementation "public component" or "measured component": the same op by somebody's measure.
- part "forward", which is never added to the others: op "timeline" (implementation and launch say
  the mode; dims launches, kernels, host_s, busy_s, idle_s, idle_share, uneven_s, skew_s), op
  "what_if" (a lever; dims alone_* and together_*), op "excess" (a hypothesis; median_s is what each
  of dims["count"] would take more), op "fit" (dims base_s, slope_s, worst_s), op "agreement".
"""

from pathlib import Path
from typing import Annotated

import typer

from verifyscope import cli, hardware
from verifyscope.errors import UsageError

_PROGRAM = "python -m graphs.replay"
_HELP = "Measure a stub's forward pass and take it apart, or predict one and what levers give."

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
        typer.Option(
            help="DRAM bytes a second, such as 1.50T for 1.5e12  [default: what others reached on "
            "the GPU, else its nominal one]"
        ),
    ] = None,
    all_reduce_us: Annotated[
        str | None, typer.Option(help="Microseconds of one all-reduce.")
    ] = None,
    sweep: Annotated[
        Path | None, typer.Option(help="A sweep's records, for the times of collectives.")
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Times that go before published ones: records, the folder of a run, or tables "
            "that `python -m ingest` reads; may be repeated.",
        ),
    ] = None,
    launch: Annotated[
        str,
        typer.Option(
            help="How the pass is launched now, for what-if and --trace: eager, piecewise or graph."
        ),
    ] = "eager",
    launches: Annotated[
        str, typer.Option(help="Kernels a call of an op, such as 1 or attention=3,routing=2.")
    ] = "1",
    launch_us: Annotated[
        str | None, typer.Option(help="Microseconds of the host to launch a kernel.")
    ] = None,
    graph_launch_us: Annotated[
        str | None, typer.Option(help="Microseconds of the host to launch a graph.")
    ] = None,
    node_us: Annotated[
        str | None, typer.Option(help="Microseconds of the device between two kernels.")
    ] = None,
    jitter_us: Annotated[
        str | None, typer.Option(help="Microseconds that a kernel is late, on average.")
    ] = None,
    slow_rank: Annotated[
        str | None,
        typer.Option(help="One rank's kernels take this many times as long, such as 1.1."),
    ] = None,
    observed_ms: Annotated[
        str | None, typer.Option(help="Milliseconds that the pass was seen to take.")
    ] = None,
    earlier_ms: Annotated[
        str | None, typer.Option(help="Milliseconds that an earlier run of it took.")
    ] = None,
    plain_ms: Annotated[
        str | None, typer.Option(help="Milliseconds of a plain token  [default: predicted]")
    ] = None,
    share: Annotated[
        str | None, typer.Option(help="The pass's share of a cycle, such as 0.97.")
    ] = None,
    accepted: Annotated[
        str | None, typer.Option(help="Tokens that a cycle yields, such as 1.8.")
    ] = None,
    protocol_us: Annotated[
        str | None, typer.Option(help="What-if: an all-reduce under another protocol.")
    ] = None,
    one_shot_us: Annotated[str | None, typer.Option(help="What-if: a one-shot all-reduce.")] = None,
    fewer_rows: Annotated[
        str | None, typer.Option(help="What-if: so many rows  [default: one fewer]")
    ] = None,
    higher_accepted: Annotated[
        str | None, typer.Option(help="What-if: so many tokens a cycle  [default: all rows]")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write one predicted pass as a Chrome trace, for ui.perfetto.dev."),
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
    from graphs._predicted import command  # here, because --help must start in a blink

    command.run(
        command.Given(
            model=model,
            tp=tp or "1",
            requests=requests,
            rows=rows,
            context=context or "8k",
            predict=predict or "",
            bandwidth=bandwidth,
            all_reduce_us=all_reduce_us,
            sweep=sweep,
            measured=measured or (),
            launch=launch,
            launches=launches,
            launch_us=launch_us,
            graph_launch_us=graph_launch_us,
            node_us=node_us,
            jitter_us=jitter_us,
            slow_rank=slow_rank,
            observed_ms=observed_ms,
            earlier_ms=earlier_ms,
            plain_ms=plain_ms,
            share=share,
            accepted=accepted,
            protocol_us=protocol_us,
            one_shot_us=one_shot_us,
            fewer_rows=fewer_rows,
            higher_accepted=higher_accepted,
        ),
        trace=trace,
        records=records,
        json=json,
    )


if __name__ == "__main__":
    cli.run(app, _PROGRAM)
