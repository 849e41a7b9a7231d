"""time_us = latency_us + bytes / (1000 x bandwidth_gb_s): NCCL takes the cell with the least time.

A cell is an algorithm and a protocol for one function. Everything here is in NCCL's own units (us,
GB/s = 1e9 bytes/s, bytes), so that its printed table can be held against a cell digit by digit;
`Cell.seconds` is for the rest of the project. n ranks, k nodes, bus = channels x channel_gb_s:

    ring            latency = base + (steps - net steps) hop + net steps x net hop
                    bandwidth = bus' x n / steps; steps = 2 (n - 1) for an all-reduce, n - 1 for a
                    gather or a reduce-scatter; bus' = bus (simple), a half (ll), 0.92 (ll128)
    tree            latency = base + 2 ((n / k - 1) hop + log2(k) net hop); bandwidth = bus' / 2
    nvls            an all-reduce on one NVSwitch node; pat: gather and scatter, one GPU a node
    ceilings, and a factor on the tree by size, keep bus' down

CollNet and NVLS trees are never on without a plugin or on one node, and are left out. The model
knows nothing of shared memory against peer access, of contention or of launches: trust it for the
choice and the crossover, and fit times to measurements (`fit.py`). Source: src/graph/tuning.cc of
NCCL 2.18 to 2.30; no code of it is here. Pure functions, no I/O.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from collectives._model.constants import LAST, Constants, Hop, Version, constants
from ingest.nccl_names import PROTOCOLS

# How far two GPUs, or a GPU and a network card, are from each other, nearest first.
PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
SIMPLE_ORDER_GB_S = 0.1  # what a failed search leaves, on one channel

# The factor on the tree's bandwidth, by floor(log2(bytes / 64)); 1 from 512 MiB on.
_TREE_FACTORS: Mapping[str, tuple[float, ...]] = {
    protocol: tuple(map(float, row.split()))
    for protocol, row in {
        "ll": "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1",
        "ll128": "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1",
        "simple": ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9",
    }.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What the search found for one algorithm, as its `Pattern` line says it.

    path, inter_path: the farthest step inside a node and to the network, of PATHS.
    plain_tree: pattern 3, or only one GPU in a node; balanced and split trees are not plain.
    """

    channel_gb_s: float
    channels: int
    path: str = "PHB"
    inter_gb_s: float | None = None
    inter_path: str | None = None
    plain_tree: bool = False
    same_channels: bool = True

    @property
    def simple_order(self) -> bool:
        """Say whether the search failed."""
        return self.channel_gb_s <= SIMPLE_ORDER_GB_S

    def bus_gb_s(self, nodes: int) -> float:
        """Return the bandwidth of all channels; from three nodes on that of the network counts."""
        inter = self.channel_gb_s if self.inter_gb_s is None else self.inter_gb_s
        return self.channels * (self.channel_gb_s if nodes <= 2 else inter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One communicator: its ranks and what NCCL found for each algorithm.

    capability: 10 x major + minor of the least GPU. amd: the processors are AMD's, which counts
    between nodes only. net_latency_us: what the network card says of itself. channels: of the
    communicator; without them, twice those of the ring.
    """

    ranks: int
    ring: Graph
    tree: Graph
    nvls: Graph | None = None
    nodes: int = 1
    capability: int = 120
    amd: bool = False
    net_latency_us: float = 0.0
    channels: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One entry of NCCL's table; `off` says why NCCL does not choose it, None where it may.

    `bandwidth_gb_s` is 0 in NCCL's own table where a cell is off; here it is what it would be.
    plateau_bytes: the size from which `plateau` is a factor on the latency (a ring over nodes).
    """

    function: str
    algorithm: str
    protocol: str
    latency_us: float
    bandwidth_gb_s: float
    off: str | None = None
    plateau: float = 1.0
    plateau_bytes: int = 0

    @property
    def name(self) -> str:
        """Return "ring/ll" and the like."""
        return f"{self.algorithm}/{self.protocol}"

    def seconds(self, size_bytes: int) -> float:
        """Return what NCCL believes that a call takes."""
        return self.time_us(size_bytes) * 1e-6

    def time_us(self, size_bytes: int) -> float:
        """Return the same in NCCL's unit."""
        if not self.bandwidth_gb_s:
            return math.inf
        latency_us = self.latency_us * (self.plateau if size_bytes >= self.plateau_bytes else 1.0)
        return latency_us + size_bytes / (1000 * self.bandwidth_gb_s * self._factor(size_bytes))

    def _factor(self, size_bytes: int) -> float:
        if self.algorithm != "tree" or size_bytes < 64:
            return 1.0
        octave = (size_bytes // 64).bit_length() - 1
        factors = _TREE_FACTORS[self.protocol]
        return factors[octave] if octave < len(factors) else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """From `start` bytes on, up to the next range, NCCL takes `cell`."""

    start: int
    cell: Cell


def unverified(version: Version) -> bool:
    """Say whether the model of `version` is an assumption: the constants of 2.30 are used."""
    return version[:2] > LAST


def cost_table(topology: Topology, version: Version, function: str = "all_reduce") -> list[Cell]:
    """Return the cells of one function in NCCL's order; ValueError for a version before 2.18."""
    known = constants(
        version, capability=topology.capability, nodes=topology.nodes, amd=topology.amd
    )
    return list(_cells(topology, known, function))


def _cells(topology: Topology, known: Constants, function: str) -> Iterator[Cell]:
    algorithms = {"all_reduce": ("tree", "ring", "nvls")}.get(function, ("ring", "pat"))
    for algorithm in algorithms:
        if algorithm == "pat" and (function in ("broadcast", "reduce") or not known.pat_share):
            continue
        if algorithm == "nvls":
            yield from _nvls(topology, known, function)
            continue
        for protocol in PROTOCOLS if algorithm != "pat" else ("simple",):
            bandwidth = _bandwidth_gb_s(topology, known, function, algorithm, protocol)
            late = topology.nodes > 1 and (function, algorithm, protocol) == _PLATEAU
            yield Cell(
                function=function,
                algorithm=algorithm,
                protocol=protocol,
                latency_us=_latency_us(topology, known, function, algorithm, protocol),
                bandwidth_gb_s=bandwidth,
                off=_off(topology, known, algorithm, protocol)
                or (None if bandwidth > 0 else "no bandwidth"),
                plateau=(1.9 if topology.capability < 80 else 1.4) if late else 1.0,
                plateau_bytes=_plateau_bytes(topology) if late else 0,
            )


_PLATEAU = ("all_reduce", "ring", "simple")


def _plateau_bytes(topology: Topology) -> int:
    """Return the least size that gives each channel of each rank 64 bytes."""
    return 64 * topology.ranks * (topology.channels or 2 * topology.ring.channels)


def steps(function: str, ranks: int) -> int:
    """Return the steps of a ring: what one byte goes through."""
    if function == "all_reduce":
        return 2 * (ranks - 1)
    return ranks - 1 if function in ("all_gather", "reduce_scatter") else ranks


def _latency_us(
    topology: Topology, known: Constants, function: str, algorithm: str, protocol: str
) -> float:
    base = known.base_us[algorithm, protocol]
    nodes, ranks = topology.nodes, topology.ranks
    if algorithm == "pat":
        return (
            base
            + int(math.log2(nodes)) * _net_us(topology, known, "tree", protocol) / 3.5
            + (ranks * 2.8)
        )
    graph = topology.ring if algorithm == "ring" else topology.tree
    inside: Hop = "nvlink" if graph.path == "NVL" else "pci"
    local = known.hop_us[inside][algorithm, protocol]
    if algorithm == "tree":
        far = _net_us(topology, known, "tree", protocol)
        return base + 2 * ((ranks // nodes - 1) * local + int(math.log2(nodes)) * far)
    if function in ("broadcast", "reduce"):
        return base + _chain_us(topology, known, inside, protocol)
    over_net = _net_steps(known, function, nodes)
    far = _net_us(topology, known, _net_row(topology, known), protocol) if nodes > 1 else 0.0
    if nodes > 1:
        local = max(local, (2.0 if topology.amd else 1.0) * (3 if protocol == "simple" else 1))
    return base + (steps(function, ranks) - over_net) * local + over_net * far


def _chain_us(topology: Topology, known: Constants, inside: Hop, protocol: str) -> float:
    """Return the latency of a ring that is walked once: one hop where all channels are the same."""
    hop: Hop = inside if topology.nodes == 1 else "net"
    if topology.ring.same_channels:
        return known.hop_us[hop]["ring", protocol]
    row = "tree" if protocol == "simple" else "ring"
    return topology.ranks * known.hop_us[hop][row, protocol]


def _net_steps(known: Constants, function: str, nodes: int) -> int:
    if nodes == 1:
        return 0
    if function == "all_reduce":
        return 2 * nodes if known.extra_net_hop else 2 * (nodes - 1)
    return nodes - 1


def _net_row(topology: Topology, known: Constants) -> str:
    alone = topology.ranks == topology.nodes and not known.extra_net_hop
    return "tree" if alone else "ring"


def _net_us(topology: Topology, known: Constants, row: str, protocol: str) -> float:
    own = topology.net_latency_us * (2 if protocol == "simple" else 1)
    return known.hop_us["net"][row, protocol] + own


def _bandwidth_gb_s(
    topology: Topology, known: Constants, function: str, algorithm: str, protocol: str
) -> float:
    nodes, ranks = topology.nodes, topology.ranks
    row = min(nodes, 3) - 1
    graph = topology.ring if algorithm == "ring" else topology.tree
    bus = graph.bus_gb_s(nodes)
    if algorithm == "ring":
        if protocol == "ll":
            whole = nodes > 1 or function in ("all_reduce", "reduce")
            share = known.ll_share if whole else known.ll_share_of_others
            bus = min(known.ll_gb_s[row], bus * share)
        elif protocol == "ll128":
            share = known.ring_ll128_alone if ranks == nodes else 0.92
            bus = min(bus * share, graph.channels * known.ring_ll128_gb_s[row])
        return bus * ranks / steps(function, ranks)
    if algorithm == "tree":
        bus = min(bus * 0.92, graph.channels * known.tree_gb_s[row])
        if protocol == "ll":
            bus = min(bus / 3.8, known.ll_gb_s[row])
        elif protocol == "ll128":
            share = 7 / 9 if nodes == 1 else 120 / 128
            bus = min(bus * share, graph.channels * known.tree_ll128_gb_s[row])
        return bus * (known.plain_tree if graph.plain_tree else 1.0) / 2
    return bus * (known.pat_share or 0.0)


def _nvls(topology: Topology, known: Constants, function: str) -> Iterator[Cell]:
    graph = topology.nvls
    if graph is None or graph.channels < 2 or topology.nodes > 1 or known.version < (2, 19):
        return
    inter = graph.channel_gb_s if graph.inter_gb_s is None else graph.inter_gb_s
    if known.nvls_efficiency is None:
        bandwidth = graph.channels * min(graph.channel_gb_s, inter) * 5 / 6
    else:
        pipelined = 2 * graph.channel_gb_s * known.nvls_efficiency
        pipelined *= (graph.channels - 1) / graph.channels
        bandwidth = graph.channels * min(pipelined, inter)
        bandwidth *= topology.ranks / steps(function, topology.ranks)
    yield Cell(
        function=function,
        algorithm="nvls",
        protocol="simple",
        latency_us=known.nvls_us if graph.path == "NVL" else 0.0,
        bandwidth_gb_s=bandwidth,
        off=None if bandwidth > 0 else "no NVSwitch multicast",
    )


def _off(topology: Topology, known: Constants, algorithm: str, protocol: str) -> str | None:
    """Return why NCCL would not take the cell by itself."""
    if algorithm == "pat" and topology.nodes != topology.ranks:
        return "PAT needs one GPU a node"
    if protocol != "ll128":
        return None
    graph = topology.ring if algorithm == "ring" else topology.tree
    if graph.path not in known.ll128_paths:
        return f"LL128 is unsafe over {graph.path}: it needs NVLink"
    farthest = "PXN" if topology.capability >= 90 else "PXB"
    inter = graph.inter_path or ("PHB" if topology.nodes > 1 else "LOC")
    if topology.nodes > 1 and distance(inter) > distance(farthest):
        return f"LL128 is unsafe over {inter} to the network"
    listed = known.ll128_capabilities
    if topology.capability < 70 or (listed is not None and topology.capability not in listed):
        return f"LL128 is off on compute capability {topology.capability / 10:.1f}"
    return None


def distance(path: str) -> int:
    """Return how far a step is; one that is not known is the farthest."""
    return PATHS.index(path) if path in PATHS else len(PATHS)


def choose(cells: Sequence[Cell], size_bytes: int) -> Cell:
    """Return what NCCL takes: the least time of those that are on, the first of equals."""
    on = [cell for cell in cells if cell.off is None and cell.bandwidth_gb_s > 0]
    if not on:
        raise ValueError(
            "every algorithm and protocol is off; NCCL 2.24 and later stop with an error here, "
            "earlier ones fall back to Ring"
        )
    return min(on, key=lambda cell: cell.time_us(size_bytes))


def ranges(cells: Sequence[Cell], *, low: int, high: int) -> list[Range]:
    """Return the choices from `low` to `high` bytes, each from the exact byte it begins at."""
    found: list[Range] = []
    for start, end in _stretches(cells, low, high):
        at = start
        while at < end:
            cell = choose(cells, at)
            if not found or found[-1].cell is not cell:
                found.append(Range(start=at, cell=cell))
            at = _overtaken(cells, cell, at, end)
    return found


def _stretches(cells: Sequence[Cell], low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches of sizes in which the time of every cell is a straight line."""
    bends = {64 * 2**octave for octave in range(high.bit_length())}
    bends |= {cell.plateau_bytes for cell in cells}
    ends = [*sorted(bend for bend in bends if low < bend <= high), high + 1]
    yield from zip([low, *ends], ends, strict=False)


def _overtaken(cells: Sequence[Cell], cell: Cell, at: int, end: int) -> int:
    """Return the first size after `at`, up to `end`, at which `cell` is no longer chosen."""
    low, high = at, end - 1
    if low >= high or choose(cells, high) is cell:
        return end  # straight lines: what is best at both ends is best between them
    while high - low > 1:
        middle = (low + high) // 2
        if choose(cells, middle) is cell:
            low = middle
        else:
            high = middle
    return high
