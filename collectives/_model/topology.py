"""What an NCCL log says of the machine becomes the `Topology` of the cost model, or its own table.

Each rank searches for itself, and NCCL then takes the worst over the ranks: fewest channels, least
bandwidth, longest way. So does `from_log`, for the communicator with the most ranks. A log without
`Pattern` lines may still hold the cost table that NCCL computed: `printed_cells` reads that.
"""

from collections.abc import Sequence
from dataclasses import replace

from collectives._model.cost import Cell, Graph, Topology, distance
from ingest.nccl_facts import NVLS, PLAIN_TREE, RING, TREES, NcclLog, Search
from ingest.nccl_names import UnknownToken, allowed


def from_log(log: NcclLog, *, ranks: int | None, capability: int) -> Topology | None:
    """Return the topology of the largest communicator; None without its `Pattern` lines.

    ranks: of the call; without it, those of the communicator. ValueError where neither is known.
    """
    largest = log.largest
    searches = _of_largest(log)
    rings = [known for known in searches if known.pattern == RING and known.channels]
    trees = [known for known in searches if known.pattern in TREES and known.channels]
    nvls = [known for known in searches if known.pattern == NVLS and known.channels]
    if not rings:
        return None
    if ranks is None:
        if largest is None:
            raise ValueError("the log does not say how many ranks there are; give --ranks")
        ranks = largest.ranks
    if ranks < 2:
        raise ValueError("the log is of one rank: there is nothing to choose")
    nodes = largest.nodes if largest is not None and largest.nodes else 1
    channels = log.channels[0].collective if log.channels else None
    ring = _worst(rings)
    return Topology(
        ranks=ranks,
        nodes=nodes if ranks % nodes == 0 else 1,
        ring=ring,
        tree=_worst(trees) if trees else replace(ring, plain_tree=True),
        nvls=_worst(nvls) if nvls else None,
        capability=capability,
        channels=channels,
    )


def _of_largest(log: NcclLog) -> list[Search]:
    largest = log.largest
    own = [
        known
        for known in log.searches
        if largest is not None and known.communicator == largest.index
    ]
    return own or list(log.searches)


def _worst(searches: Sequence[Search]) -> Graph:
    return Graph(
        channel_gb_s=min(known.intra_gb_s for known in searches),
        channels=min(known.channels for known in searches),
        path=_farthest([known.intra_path for known in searches]),
        inter_gb_s=min(known.inter_gb_s for known in searches),
        inter_path=_farthest([known.inter_path for known in searches]),
        plain_tree=max(known.pattern for known in searches) == PLAIN_TREE,
        same_channels=all(known.same_channels for known in searches),
    )


def _farthest(paths: Sequence[str]) -> str:
    return max(paths, key=distance)


def printed_cells(log: NcclLog, function: str) -> list[Cell]:
    """Return the cells of NCCL's printed table that are on: one decimal, so rounded.

    A bandwidth that prints as 0.0 counts as off, as NCCL itself prints what it turned off.
    """
    return [
        Cell(
            function=function,
            algorithm=entry.algorithm,
            protocol=entry.protocol,
            latency_us=entry.latency_us,
            bandwidth_gb_s=entry.bandwidth_gb_s,
        )
        for entry in log.entries
        if entry.function == function and entry.enabled
    ]


def restricted(cells: Sequence[Cell], *, algo: str | None, proto: str | None) -> list[Cell]:
    """Return the cells as NCCL_ALGO=`algo` and NCCL_PROTO=`proto` leave them, in NCCL's grammar.

    What NCCL_PROTO names or leaves over runs past the gate of LL128. ValueError for unknown words.
    """
    return [_restricted(cell, algo, proto) for cell in cells]


def _restricted(cell: Cell, algo: str | None, proto: str | None) -> Cell:
    algorithms = None if algo is None else allowed("NCCL_ALGO", algo, cell.function)
    protocols = None if proto is None else allowed("NCCL_PROTO", proto, cell.function)
    if algorithms is not None and cell.algorithm not in algorithms:
        return replace(cell, off=f"NCCL_ALGO={algo}")
    if protocols is not None and cell.protocol not in protocols:
        return replace(cell, off=f"NCCL_PROTO={proto}")
    if protocols is not None and cell.protocol == "ll128":
        return replace(cell, off=None)
    return cell


def settings_of(log: NcclLog, function: str) -> dict[str, str]:
    """Return NCCL_ALGO and NCCL_PROTO as the log has them, where they say anything."""
    found = {}
    for name in ("NCCL_ALGO", "NCCL_PROTO"):
        setting = log.effective().get(name)
        try:
            if setting is not None and log.allowed(name, function) is not None:
                found[name] = setting.value
        except UnknownToken:
            continue
    return found
