"""`python -m collectives.predict --ranks 8 --graph-bw 24 --channels 2`: what NCCL would choose.

time = latency + bytes / bandwidth by NCCL's own cost model of that version, for a topology that is
given or read from an INFO log; beside it what the log chose and what a run measured. Rows on
stdout begin with what they are: model, cell, range, size, measured, fit, fitted. All of it is
predicted but the rows that say measured. Exit status 0, 2 for a wrong question.

    --log FILE       graph, ranks, version, settings and choices from NCCL_DEBUG=INFO with the
                     subsystems INIT, ENV, GRAPH, TUNING
    --records RUN    the predicted records go there; measured rows that are there are compared
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verifyscope import cli
from verifyscope.errors import UsageError

if TYPE_CHECKING:
    from collectives._model.cost import Topology
    from collectives._model.measured import Row
    from collectives._model.prediction import Size
    from ingest.nccl_facts import NcclLog

PROGRAM = "python -m collectives.predict"
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
_FILE = "predicted.jsonl"
_DEFAULT_GPU = "rtx-pro-6000-server"
_LARGEST_RANKS = 2**16

application = cli.app("Predict what NCCL chooses, by size, and what it believes that it takes.")


@application.command()
def main(
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "--gpus", help="Ranks; without it, those of the log."),
    ] = None,
    graph_bw: Annotated[
        float | None,
        typer.Option(help="GB/s of one channel, as the `Pattern 4` line of GRAPH says it."),
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="Channels of the ring, of the same line.")
    ] = None,
    tree_bw: Annotated[
        float | None, typer.Option(help="GB/s of one channel of the tree  [default: the ring's]")
    ] = None,
    tree_channels: Annotated[
        int | None, typer.Option(help="Channels of the tree  [default: the ring's]")
    ] = None,
    plain_tree: Annotated[
        bool, typer.Option("--plain-tree", help="The tree is `Pattern 3`, not 1 or 2.")
    ] = False,
    path: Annotated[
        str, typer.Option(help="The farthest step of a given graph: NVL, PIX, PXB, PHB or SYS.")
    ] = "PHB",
    nodes: Annotated[int, typer.Option(help="Machines of a given graph.")] = 1,
    gpu: Annotated[
        str | None,
        typer.Option(help=f"The GPU, for some ceilings of the model  [default: {_DEFAULT_GPU}]"),
    ] = None,
    nccl: Annotated[
        str | None, typer.Option(help="NCCL's version, such as 2.29  [default: the log's, or 2.30]")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="An NCCL log: graph, version, settings, choices.")
    ] = None,
    op: Annotated[str, typer.Option(help=", ".join(OPERATIONS) + ".")] = "all_reduce",
    algo: Annotated[str | None, typer.Option(help="As NCCL_ALGO, such as ring.")] = None,
    proto: Annotated[str | None, typer.Option(help="As NCCL_PROTO, such as LL,Simple.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Sizes of this model: tokens x hidden x 2 bytes.")
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option("--rows", "--tokens", help="Tokens a call, such as 1,2,4,8; needs --model."),
    ] = None,
    min_bytes: Annotated[str | None, typer.Option(help="Least power of two, such as 8K.")] = None,
    max_bytes: Annotated[str | None, typer.Option(help="Largest, such as 64M.")] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Append the records to this file or run, and compare with the measured rows in "
            "it  [default: a new folder under runs/]",
        ),
    ] = None,
    sweep: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Compare with the measured rows of this run instead."),
    ] = None,
) -> None:
    """Predict NCCL's choice and time by size, for a graph that is given or read from a log."""
    from collectives._model import prediction, table
    from collectives._model import records as rows
    from verifyscope import runs
    from verifyscope.errors import choose

    choose("operation", op, list(OPERATIONS))
    known = None if log is None else _read_log(log)
    version, text = _version(nccl, known)
    settings = _settings(algo, proto, known, op)
    topology = _topology_of(
        known=known,
        ranks=ranks,
        graph=(graph_bw, channels),
        tree=(tree_bw, tree_channels, plain_tree),
        path=path,
        nodes=nodes,
        gpu=gpu or _DEFAULT_GPU,
    )
    try:
        found = prediction.predict(
            function=op,
            topology=topology,
            version=version,
            version_text=text,
            settings=settings,
            sizes=_sizes(model, tokens, min_bytes, max_bytes),
            ranks=ranks,
            log=known,
            rows=_rows(records, sweep, op),
        )
    except ValueError as error:
        raise UsageError(f"nothing to predict: {error}") from None
    inside = records is not None and records.is_dir()
    with runs.start(records / _FILE if records and inside else records, "predict") as run:
        for record in rows.records(found, run.environment):
            run.append(record)
    table.show(found)
    if gpu is None and topology is not None:
        cli.note(f"--gpu is not given: the ceilings are those of {_DEFAULT_GPU}")
    cli.note(f"records: {run.path}")


def _read_log(path: Path) -> "NcclLog":
    from ingest.log import numbered_lines
    from ingest.nccl_log import read_log

    try:
        with path.open("rb") as file:
            found = read_log(numbered_lines(file))
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise UsageError(f"--log {path}: {reason}; give a log that this user can read") from None
    if not (found.searches or found.entries or found.choices):
        raise UsageError(
            f"--log {path} holds no graph, table or choice of NCCL; log with NCCL_DEBUG=INFO and "
            f"NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING, or give --graph-bw and --channels"
        )
    return found


def _version(given: str | None, log: "NcclLog | None") -> tuple[tuple[int, ...], str | None]:
    """Return the version to model and its text; the text is None where nobody said it."""
    import re

    from collectives._model.constants import FIRST, LAST

    library = None if log is None else log.loaded
    text = given or (library.version if library is not None else None)
    if text is None:
        return LAST, None
    parts = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,4}))?(?:\+\S*)?", text)
    if parts is None:
        raise UsageError(f"--nccl {text!r} is no version; give one like 2.29 or 2.29.7")
    version = tuple(int(part) for part in parts.groups() if part is not None)
    if version < FIRST:
        raise UsageError(f"NCCL {text} is before 2.18, the first version whose model is known here")
    return version, text


def _settings(
    algo: str | None, proto: str | None, log: "NcclLog | None", op: str
) -> list[tuple[str, str]]:
    """Return NCCL_ALGO and NCCL_PROTO: what is given, else what the log has."""
    from collectives._model.topology import settings_of

    found = {} if log is None else settings_of(log, op)
    found |= {name: value for name, value in (("NCCL_ALGO", algo), ("NCCL_PROTO", proto)) if value}
    return sorted(found.items())


def _topology_of(
    *,
    known: "NcclLog | None",
    ranks: int | None,
    graph: tuple[float | None, int | None],
    tree: tuple[float | None, int | None, bool],
    path: str,
    nodes: int,
    gpu: str,
) -> "Topology | None":
    """Return the topology that is given, else the log's; None where the log has only a table."""
    from collectives._model import topology
    from verifyscope.hardware import find_gpu

    capability = find_gpu(gpu).capability
    if capability is None:
        raise UsageError(f"--gpu {gpu}: its compute capability is not known; give another one")
    if graph != (None, None):
        if ranks is None and known is not None and known.largest is not None:
            ranks = known.largest.ranks
        return _given(ranks, graph, tree, path=path, nodes=nodes, capability=capability)
    if tree != (None, None, False):
        raise UsageError("--tree-bw, --tree-channels and --plain-tree need --graph-bw")
    if known is None:
        raise UsageError("give --graph-bw and --channels (of a `Pattern 4` line), or --log FILE")
    if ranks is not None:
        _require("--ranks", ranks, 2, _LARGEST_RANKS)
    try:
        return topology.from_log(known, ranks=ranks, capability=capability)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _given(
    ranks: int | None,
    graph: tuple[float | None, int | None],
    tree: tuple[float | None, int | None, bool],
    *,
    path: str,
    nodes: int,
    capability: int,
) -> "Topology":
    from collectives._model.cost import PATHS, Graph, Topology
    from verifyscope.errors import choose

    ring_gb_s, ring_channels = graph
    if ranks is None or ring_gb_s is None or ring_channels is None:
        raise UsageError("--ranks, --graph-bw and --channels belong together; give all three")
    tree_gb_s, tree_channels, plain = tree
    _require("--ranks", ranks, 2, _LARGEST_RANKS)
    _require("--nodes", nodes, 1, ranks)
    if ranks % nodes:
        raise UsageError(f"--ranks {ranks} do not fill --nodes {nodes} alike; give a multiple")
    _require_graph(graph, ("--graph-bw", "--channels"))
    _require_graph(tree[:2], ("--tree-bw", "--tree-channels"))
    kind = choose("path", path.upper(), list(PATHS))
    inter_path = "PHB" if nodes > 1 else None
    return Topology(
        ranks=ranks,
        nodes=nodes,
        capability=capability,
        ring=Graph(
            channel_gb_s=ring_gb_s, channels=ring_channels, path=kind, inter_path=inter_path
        ),
        tree=Graph(
            channel_gb_s=ring_gb_s if tree_gb_s is None else tree_gb_s,
            channels=ring_channels if tree_channels is None else tree_channels,
            path=kind,
            inter_path=inter_path,
            plain_tree=plain,
        ),
    )


def _require_graph(graph: tuple[float | None, int | None], options: tuple[str, str]) -> None:
    bandwidth, channels = graph
    _require(options[0], 1.0 if bandwidth is None else bandwidth, 0.01, 100_000)
    _require(options[1], 1 if channels is None else channels, 1, 64)


def _require(option: str, given: float, low: float, high: float) -> None:
    if not low <= given <= high:
        raise UsageError(f"{option} {given:g} is out of range; give {low:g} to {high:g}")


def _sizes(
    model: str | None, tokens: str | None, min_bytes: str | None, max_bytes: str | None
) -> "list[Size]":
    """Return the sizes that a sweep of these options measures."""
    from collectives._model.prediction import Size
    from collectives._sweep.points import points
    from verifyscope import units

    planned = points(
        on_device=True,
        dtype="bfloat16",
        model=model,
        tokens=None if tokens is None else units.parse_list(tokens, units.parse_count),
        min_bytes=None if min_bytes is None else units.parse_bytes(min_bytes),
        max_bytes=None if max_bytes is None else units.parse_bytes(max_bytes),
    )
    return [
        Size(size_bytes=point.size_bytes, tokens=point.tokens, model=point.model)
        for point in planned
        if not point.in_place
    ]


def _rows(records: Path | None, sweep: Path | None, op: str) -> "list[Row]":
    """Return the measured rows of `sweep`; without it, those that `records` holds already."""
    if sweep is not None:
        found = _read_rows(sweep, op)
        if not found:
            raise UsageError(f"--sweep {sweep} holds no measured {op} of NCCL; give another run")
        return found
    if records is None or not records.exists():
        return []
    filled = records.is_dir() or (records.is_file() and records.stat().st_size > 0)
    return _read_rows(records, op) if filled else []


def _read_rows(path: Path, op: str) -> "list[Row]":
    from collectives._model import measured
    from verifyscope import records

    warnings: list[str] = []
    found = list(measured.rows(records.read([path], warnings), op))
    for warning in warnings:
        cli.note(warning)
    return found


if __name__ == "__main__":
    cli.run(application, PROGRAM)
