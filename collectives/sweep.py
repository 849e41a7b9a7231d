"""`python -m collectives.sweep --gpus 8`: collectives over real ranks in every combination.

Each combination of algorithm, protocol and further settings runs in fresh processes: a probe shows
whether NCCL really does what is asked and does it right, then silent starts are timed. A sample is
the maximum over ranks of end - start after a barrier. Tables on stdout are in the grammar of
nccl-tests. A wrong value, an ignored setting, and a rank that dies or hangs end with status 1; all
that was measured before is kept, and `--resume` goes on.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from collectives._sweep.operations import OPERATIONS
from verifyscope import cli
from verifyscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectives._sweep.spec import Spec

PROGRAM = "python -m collectives.sweep"
# What may stand beside --resume: all else is taken from the run.
_WITH_RESUME = ("resume", "json", "nccl")

application = cli.app("Time collectives over all ranks of this machine, and check every value.")


@application.command()
def main(
    context: typer.Context,
    op: Annotated[
        str,
        typer.Option(help=f"{', '.join(OPERATIONS)}, or several."),
    ] = "all_reduce",
    ranks: Annotated[
        int | None,
        typer.Option("--gpus", "--ranks", help="Ranks, 8: one a GPU, with gloo one a CPU process."),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="nccl (GPUs; the default) or gloo (CPU processes).")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the combinations with their reasons, and end.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Sizes of this model: tokens x hidden x bytes of the dtype.")
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--rows", "--tokens", help="Tokens a call, such as 1,2,4,8,16; needs --model."
        ),
    ] = None,
    min_bytes: Annotated[str | None, typer.Option(help="Least power of two, such as 8K.")] = None,
    max_bytes: Annotated[
        str | None, typer.Option(help="Largest power of two, such as 64M.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="bfloat16, float16, float32, float8_e4m3fn or float8_e5m2.")
    ] = "bfloat16",
    algos: Annotated[
        str | None,
        typer.Option(help="ring, tree, default (NCCL chooses), ...; else ring,tree."),
    ] = None,
    protos: Annotated[
        str | None,
        typer.Option(help="ll, simple, ll128, ^ll128, default; else ll,simple."),
    ] = None,
    channels: Annotated[
        str | None, typer.Option(help="Channels of the communicator, such as default,2,4.")
    ] = None,
    buffer_bytes: Annotated[
        str | None, typer.Option(help="Buffers of the protocol Simple, such as default,1M,4M.")
    ] = None,
    p2p_level: Annotated[
        str | None, typer.Option(help="Up to which distance GPUs talk directly: PXB,PHB,SYS.")
    ] = None,
    p2p: Annotated[
        str | None, typer.Option(help="Direct access between GPUs: on, off, or on,off.")
    ] = None,
    graph_file: Annotated[
        list[str] | None,
        typer.Option(help="An XML of rings and trees in place of NCCL's search; repeatable."),
    ] = None,
    gpu_order: Annotated[
        list[str] | None,
        typer.Option(help="The device of each rank of a machine, such as 0,2,1,3; repeatable."),
    ] = None,
    bind: Annotated[
        str | None, typer.Option(help="Bind ranks to their NUMA node: numa, none, or numa,none.")
    ] = None,
    launch: Annotated[
        list[str] | None,
        typer.Option(
            "--launch-option",
            help="One or several, such as graph-mixing=0,graph-register=0; repeatable.",
        ),
    ] = None,
    allow_ll128: Annotated[
        bool,
        typer.Option("--allow-ll128", help="Run LL128, too: unsafe on PCIe, so stressed first."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Try what the plan lists as unsupported, but LL128.")
    ] = False,
    others: Annotated[
        str | None,
        typer.Option(
            help="All-reduces beside NCCL's: all, none, symm_mem_one_shot, cupy_nccl, ..."
        ),
    ] = None,
    nccl: Annotated[
        str | None,
        typer.Option(help="Another NCCL than torch's: a libnccl.so.2, or a folder with one."),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(help="Calls in a row: twice the model's layers, 122; with gloo 8."),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Timed isolated calls of a start; 20, with gloo 10.")
    ] = None,
    batches: Annotated[
        int | None, typer.Option(help="Timed calls in a row of a start; 10 times, with gloo 3.")
    ] = None,
    warmup: Annotated[int, typer.Option(help="Samples before them, checked and not timed.")] = 2,
    starts: Annotated[int, typer.Option(help="Fresh starts of each combination, 3 or more.")] = 3,
    stress_calls: Annotated[
        int, typer.Option(help="Calls of each size in the integrity stress of LL128.")
    ] = 200,
    timeout: Annotated[
        float, typer.Option(help="Seconds without progress after which a rank counts as hung.")
    ] = 60.0,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with a run that was ended: its folder or its records file."),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Append the records to this file; else a new folder under runs/."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the table as JSON, with the keys of nccl-tests -J.")
    ] = None,
) -> None:
    """Time collectives over all ranks, size by size, in every combination of the plan.

    More than one machine: start the same command on each; rank 0 plans, records and prints.

    \b
        torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
          --rdzv-endpoint HOST:29500 --rdzv-id 1 -m collectives.sweep OPTIONS

    With Slurm: `srun --ntasks-per-node 1` before it, and the first of the job's hosts as HOST.
    """
    from collectives._sweep import asked, journal, nccl_library, nodes, session

    signal.signal(signal.SIGTERM, _terminate)
    place = nodes.here()
    if place is not None and not place.leads:
        return  # the first process of this machine starts fresh ranks for all
    library = None if nccl is None else nccl_library.find(nccl)
    leads = place is None or place.node == 0
    if resume is not None:
        _only_resume(context)
        if place is not None and not leads:
            session.follow(place, library)
        records = journal.find(resume)
        begun = journal.sweeps(journal.beside(records))
        session.sweep(
            session.Session(records=records, json=json, place=place, sweeps=begun, nccl=library)
        )
        return
    given = asked.Options(
        ops=op,
        ranks=ranks,
        backend=backend,
        model=model,
        tokens=tokens,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        dtype=dtype,
        algos=algos,
        protos=protos,
        channels=channels,
        buffer_bytes=buffer_bytes,
        p2p_level=p2p_level,
        p2p=p2p,
        graph_files=graph_file or (),
        gpu_orders=gpu_order or (),
        bind=bind,
        launches=launch or (),
        allow_ll128=allow_ll128,
        force=force,
        depth=depth,
        iterations=iterations,
        batches=batches,
        warmup=warmup,
        starts=starts,
        stress_calls=stress_calls,
        timeout=timeout,
        nccl=library,
        others=others,
    )
    specs = asked.specs(given, place)
    if leads:
        _warn()
    if plan:
        _print_plan(specs if leads else ())
        return
    if place is not None and not leads:
        session.follow(place, library)
    session.sweep(
        session.Session(records=records, json=json, place=place, specs=specs, nccl=library)
    )


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """End as Ctrl-C does, so that no rank and no temporary file stays."""
    cli.note(f"{PROGRAM}: ended by {signal.Signals(number).name}; what was measured is kept")
    sys.exit(128 + number)


def _only_resume(context: typer.Context) -> None:
    """Raise `UsageError` for an option that the run has answered already."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in _WITH_RESUME:
            option = parameter.opts[0]
            raise UsageError(f"{option} is that of the run; leave it out beside --resume")


def _warn() -> None:
    from collectives._sweep import plan
    from ingest import nccl_conf

    files = {name: known.value for name, known in nccl_conf.configured(os.environ).items()}
    own = plan.warnings(os.environ)
    for warning in (*own, *plan.warnings(files, of="a configuration file of NCCL")):
        cli.note(f"{PROGRAM}: {warning}")


def _print_plan(specs: "Sequence[Spec]") -> None:
    """Print what would be run, and what not, with the reasons; one machine does, for all."""
    rows = []
    for spec in specs:
        for known in spec.combinations:
            settings = " ".join(f"{name}={value}" for name, value in known.requested().items())
            rows.append((spec.op, known.label, known.verdict, settings, known.reason))
    columns = ("collective", "combination", "verdict", "settings", "reason")
    first = 0 if len(specs) > 1 else 1
    cli.print_rows([row[first:] for row in rows], columns[first:])


if __name__ == "__main__":
    cli.run(application, PROGRAM)
