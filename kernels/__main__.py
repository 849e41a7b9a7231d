"""python -m kernels: what there is, what it takes on GPUs that are not here, whether it is right.

Starts without torch; what needs it is imported by the function that does the work.
"""

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from verifyscope import cli
from verifyscope.errors import Failure, UsageError
from verifyscope.hardware import SHARED_BYTES_PER_BLOCK, find_gpu

PROGRAM = "python -m kernels"
_HELP = """List, compile or check the kernels and the baselines they are measured against.

--list (also when nothing is asked for) prints one line for each op, implementation and case, with
the reason where it cannot be measured on this machine.

--compile 90 120 builds each kernel for the capabilities named (all, if none) without a GPU, and
prints registers, spilled bytes, shared memory, theoretical occupancy with what limits it, and the
instruction classes found. blocks and waves are those of the small case that is built; instr_per_B
are the instructions of the main loop for each byte that it loads: what unpacking costs shows there.

--predict GPU prints what no compiler sees, for each measured case on a GPU of the table: the floor
(bytes or flops), what the form computed moves, launches, and how often their grids fill the GPU.

--check runs every implementation that this machine can execute against its reference: on the GPU,
or without one in Triton's interpreter and, for CUDA C++, on this CPU.

Exit status: 0 fine, 1 a kernel is wrong or fails the gate, 2 usage."""

app = cli.app(None)


@app.command(help=_HELP)
def main(
    capabilities: Annotated[
        list[str] | None,
        typer.Argument(metavar="CAPABILITY", help="for --compile, such as 90 120"),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="print what there is")] = False,
    compile_: Annotated[bool, typer.Option("--compile", help="build for the capabilities")] = False,
    check: Annotated[bool, typer.Option("--check", help="compare with the references")] = False,
    predict: Annotated[
        str | None, typer.Option(metavar="GPU", help="predict the measured cases on this GPU")
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="only this op; may be repeated")
    ] = None,
    implementation: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="only this implementation; may be repeated"),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="only this kind, such as own; may be repeated"),
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", help="--compile: all dtypes and page sizes")
    ] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="--check: only the tiny cases")] = False,
    graph: Annotated[
        bool, typer.Option("--graph", help="--check: the replay of a captured CUDA graph")
    ] = False,
    node_us: Annotated[
        float | None,
        typer.Option(metavar="US", help="--predict: microseconds of an empty graph node there"),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="for one check, build or prediction")
    ] = 300.0,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write the rows as JSON too")
    ] = None,
    records: Annotated[
        Path | None, typer.Option(metavar="FILE", help="append what came out as records")
    ] = None,
) -> None:
    """Parse the command line and do the one thing that it asks for."""
    if importlib.util.find_spec("torch") is None:
        raise Failure("needs the package 'torch', which is not installed; `make setup` installs it")
    from kernels import _commands
    from kernels._points import Selection

    asked = [
        name
        for name, on in (
            ("list", list_),
            ("compile", compile_),
            ("check", check),
            ("predict", predict is not None),
        )
        if on
    ]
    if len(asked) > 1:
        raise UsageError(f"--{' and --'.join(asked)} exclude each other; give one of them")
    mode = asked[0] if asked else "list"
    if capabilities and mode != "compile":
        raise UsageError(f"unexpected {capabilities[0]!r}; capabilities go with --compile")
    for flag, given, belongs in (
        ("--long", long, "compile"),
        ("--tiny", tiny, "check"),
        ("--graph", graph, "check"),
        ("--node-us", node_us is not None, "predict"),
    ):
        if given and mode != belongs:
            raise UsageError(f"{flag} goes with --{belongs}")
    if not timeout > 0:
        raise UsageError(f"--timeout {timeout:g} must be above zero seconds")
    if node_us is not None and not 0 < node_us < math.inf:
        raise UsageError(
            f"--node-us {node_us:g} is no time; give microseconds above 0, such as 1.3"
        )
    gpu = None if predict is None else find_gpu(predict)
    selection = Selection(
        ops=tuple(op or ()), implementations=tuple(implementation or ()), kinds=tuple(kind or ())
    )
    with _commands.output(json, records) as out:
        if mode == "list":
            _commands.list_points(selection, out)
        elif mode == "compile":
            targets = _capabilities(capabilities or [])
            _commands.compile_units(selection, targets, long=long, timeout_s=timeout, out=out)
        elif gpu is not None:
            from kernels._predict_command import predict_points

            node_s = None if node_us is None else node_us / 1e6
            predict_points(selection, gpu, node_s=node_s, timeout_s=timeout, out=out)
        else:
            _commands.check_points(selection, tiny=tiny, graph=graph, timeout_s=timeout, out=out)


def _capabilities(given: Sequence[str]) -> list[int]:
    known = {str(capability): capability for capability in SHARED_BYTES_PER_BLOCK}
    for text in given:
        if text not in known:
            raise UsageError(f"unknown capability {text!r}; known: {', '.join(known)}")
    return list(dict.fromkeys(known[text] for text in given)) or [*known.values()]


if __name__ == "__main__":
    cli.run(app, PROGRAM)
