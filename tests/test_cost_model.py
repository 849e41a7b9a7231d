"""NCCL's cost model: its printed tables digit by digit, its choices, its crossovers to the byte."""

from dataclasses import replace
from itertools import pairwise

import pytest

from collectives._model.constants import Version, constants
from collectives._model.cost import (
    Cell,
    Graph,
    Topology,
    choose,
    cost_table,
    ranges,
    unverified,
)

# What a public log of 8 x H200 with NCCL 2.30.4 prints for an all-reduce: us / GB/s.
H200 = {
    "tree/ll": "15.2/43.6",
    "tree/ll128": "31.5/128.8",
    "tree/simple": "64.4/165.6",
    "ring/ll": "15.0/80.6",
    "ring/ll128": "40.6/189.3",
    "ring/simple": "56.0/205.7",
    "nvls/simple": "25.0/272.0",
}
# What a public log of two nodes over sockets with NCCL 2.29.7 prints, one GPU a node.
SOCKETS = {
    "broadcast": {"ring/ll": "9.3/1.2", "ring/ll128": "18.0/0.0", "ring/simple": "22.4/2.4"},
    "reduce": {"ring/ll": "9.3/1.2", "ring/ll128": "18.0/0.0", "ring/simple": "22.4/2.4"},
    "all_gather": {
        "ring/ll": "11.6/2.4",
        "ring/ll128": "22.5/0.0",
        "ring/simple": "22.4/4.8",
        "pat/simple": "17.6/3.6",
    },
    "reduce_scatter": {
        "ring/ll": "11.6/2.4",
        "ring/ll128": "22.5/0.0",
        "ring/simple": "22.4/4.8",
        "pat/simple": "17.6/3.6",
    },
    "all_reduce": {
        "tree/ll": "16.8/0.5",
        "tree/ll128": "31.0/0.0",
        "tree/simple": "36.4/1.9",
        "ring/ll": "16.6/1.2",
        "ring/ll128": "31.0/0.0",
        "ring/simple": "36.4/2.4",
    },
}
FAILED = Graph(channel_gb_s=0.1, channels=1, path="SYS")
V29: Version = (2, 29, 7)


def pcie(channel_gb_s: float = 24, channels: int = 2, *, ranks: int = 8) -> Topology:
    graph = Graph(channel_gb_s=channel_gb_s, channels=channels, path="PHB")
    return Topology(ranks=ranks, ring=graph, tree=graph)


def sockets() -> Topology:
    ring = Graph(channel_gb_s=1.2, channels=2, path="LOC", inter_path="PHB")
    tree = replace(ring, channel_gb_s=2.4, plain_tree=True)
    return Topology(ranks=2, nodes=2, ring=ring, tree=tree)


def printed(cells: list[Cell]) -> dict[str, str]:
    """The cells as NCCL prints them: what is off has no bandwidth."""
    return {
        cell.name: f"{cell.latency_us:.1f}/{0 if cell.off else cell.bandwidth_gb_s:.1f}"
        for cell in cells
    }


def starts(topology: Topology, version: Version = V29, high: int = 2**33) -> list[tuple[int, str]]:
    found = ranges(cost_table(topology, version), low=1, high=high)
    return [(one.start, one.cell.name) for one in found]


def cells(topology: Topology, version: Version, function: str = "all_reduce") -> dict[str, Cell]:
    return {cell.name: cell for cell in cost_table(topology, version, function)}


def test_the_table_of_eight_h200_comes_out_to_the_printed_digit() -> None:
    graph = Graph(channel_gb_s=30, channels=12, path="NVL")
    nvls = Graph(channel_gb_s=40, channels=8, inter_gb_s=60, path="NVL")
    topology = Topology(ranks=8, ring=graph, tree=graph, nvls=nvls, capability=90)
    assert printed(cost_table(topology, (2, 30, 4))) == H200


@pytest.mark.parametrize("function", SOCKETS)
def test_the_table_of_two_nodes_over_sockets_comes_out_to_the_printed_digit(function: str) -> None:
    assert printed(cost_table(sockets(), V29, function)) == SOCKETS[function]


def test_a_failed_search_makes_ring_simple_the_choice_from_3863_bytes() -> None:
    failed = Topology(ranks=8, ring=FAILED, tree=FAILED)
    assert starts(failed) == [(1, "ring/ll"), (3863, "ring/simple")]
    assert starts(replace(failed, ranks=4)) == [(1, "ring/ll"), (2001, "ring/simple")]
    assert failed.ring.simple_order
    assert not pcie(15).ring.simple_order


@pytest.mark.parametrize(
    ("channel_gb_s", "tree", "crossover"),
    [(24.0, None, 1_854_172), (38.0, None, 2_935_772), (15.0, FAILED, 1_158_858)],
)
def test_with_a_graph_ll_stays_the_choice_up_to_megabytes(
    channel_gb_s: float, tree: Graph | None, crossover: int
) -> None:
    topology = pcie(channel_gb_s)
    topology = topology if tree is None else replace(topology, tree=tree)
    assert starts(topology) == [(1, "ring/ll"), (crossover, "ring/simple")]


@pytest.mark.parametrize(
    ("channel_gb_s", "size", "expected_us"),
    [(24, 14336, 22), (24, 57344, 25), (24, 458752, 54), (38, 32768, 22), (38, 262144, 33)],
)
def test_what_nccl_believes_of_a_verify_sized_message(
    channel_gb_s: float, size: int, expected_us: int
) -> None:
    best = choose(cost_table(pcie(channel_gb_s), V29), size)
    assert best.name == "ring/ll"
    assert round(best.time_us(size)) == expected_us
    assert best.seconds(size) == pytest.approx(best.time_us(size) * 1e-6)


def test_a_range_begins_at_the_first_byte_at_which_its_cell_is_the_least() -> None:
    graph = Graph(channel_gb_s=30, channels=12, path="NVL")
    tables = [
        cost_table(pcie(6), (2, 18, 3)),
        cost_table(Topology(ranks=64, ring=graph, tree=graph, capability=90), (2, 30)),
        cost_table(sockets(), V29),
        cost_table(replace(sockets(), ranks=16, nodes=4), V29),
    ]
    for table in tables:
        found = ranges(table, low=1, high=2**30)
        assert found[0].start == 1
        for before, one in pairwise(found):
            assert choose(table, one.start) is one.cell
            assert choose(table, one.start - 1) is before.cell
        for size in (1, 63, 64, 65, 1000, 4096, 12345, 999_999, 2**24 + 1, 2**30):
            last = [one for one in found if one.start <= size][-1]
            assert choose(table, size) is last.cell


@pytest.mark.parametrize(
    ("version", "latency_us"),
    [
        ((2, 18, 1), 14 * 28.0),
        ((2, 18, 3), 14 * 6.0),
        ((2, 18), 14 * 6.0),
        ((2, 19), 14 * 28.0),
        ((2, 22, 3), 14 * 28.0),
        ((2, 23), 8.4 + 14 * 4.0),
        ((2, 30), 8.4 + 14 * 4.0),
    ],
)
def test_the_latency_of_tree_simple_changes_with_the_version(
    version: Version, latency_us: float
) -> None:
    assert cells(pcie(), version)["tree/simple"].latency_us == pytest.approx(latency_us)


@pytest.mark.parametrize(("version", "share"), [((2, 20), 0.25), ((2, 21), 0.5), ((2, 30), 0.5)])
def test_ring_ll_moves_a_quarter_of_the_bus_up_to_2_20(version: Version, share: float) -> None:
    assert cells(pcie(), version)["ring/ll"].bandwidth_gb_s == pytest.approx(48 * share * 8 / 14)


@pytest.mark.parametrize(
    ("version", "ring_ll128", "tree"),
    [
        ((2, 24), 36.7, 38.7),
        ((2, 25), 73.4, 77.4),
        ((2, 27), 73.4, 77.4),
        ((2, 28, 9), 73.4, 70.0),
        ((2, 29, 2), 34.5, 70.0),
        ((2, 29, 7), 40.0, 70.0),
        ((2, 29), 40.0, 70.0),
        ((2, 30, 7), 40.0, 70.0),
        ((2, 32, 6), 40.0, 70.0),
    ],
)
def test_the_ceilings_of_blackwell_are_those_of_the_version(
    version: Version, ring_ll128: float, tree: float
) -> None:
    known = constants(version, capability=120)
    assert (known.ring_ll128_gb_s[0], known.tree_gb_s[0]) == (ring_ll128, tree)


@pytest.mark.parametrize(
    ("capability", "ll"), [(70, 39.0), (86, 87.7), (90, 141.0), (100, 282.0), (120, 282.0)]
)
def test_the_ceiling_of_ll_goes_by_the_gpu_and_between_nodes_by_the_processor(
    capability: int, ll: float
) -> None:
    assert constants((2, 30), capability=capability).ll_gb_s[0] == ll
    assert constants((2, 30), capability=capability, nodes=2).ll_gb_s[1] == 39.0
    assert constants((2, 30), capability=capability, nodes=2, amd=True).ll_gb_s[1] == 22.5


@pytest.mark.parametrize(
    ("path", "capability", "version", "on"),
    [
        ("NVL", 90, (2, 30), True),
        ("NVB", 90, (2, 30), True),
        ("PIX", 120, (2, 30), False),
        ("SYS", 120, (2, 30), False),
        ("NVL", 89, (2, 26), False),
        ("NVL", 89, (2, 27), True),
        ("NVL", 120, (2, 24), False),
        ("NVL", 120, (2, 25), True),
        ("NVB", 90, (2, 18, 1), False),
        ("NVL", 61, (2, 30), False),
    ],
)
def test_ll128_is_on_behind_nvlink_only(
    path: str, capability: int, version: Version, on: bool
) -> None:
    graph = Graph(channel_gb_s=20, channels=4, path=path)
    topology = Topology(ranks=8, ring=graph, tree=graph, capability=capability)
    assert (cells(topology, version)["ring/ll128"].off is None) == on


def test_a_plain_tree_loses_15_percent_and_a_tree_s_factor_goes_by_size() -> None:
    plain = replace(pcie(), tree=replace(pcie().tree, plain_tree=True))
    whole, less = (cells(known, V29)["tree/simple"] for known in (pcie(), plain))
    assert less.bandwidth_gb_s == pytest.approx(0.85 * whole.bandwidth_gb_s)
    assert whole.bandwidth_gb_s == pytest.approx(48 * 0.92 / 2)
    at_64k = whole.time_us(65536) - whole.latency_us
    assert at_64k == pytest.approx(65536 / (1000 * whole.bandwidth_gb_s * 0.6))
    beyond = whole.time_us(2**29) - whole.latency_us
    assert beyond == pytest.approx(2**29 / (1000 * whole.bandwidth_gb_s))


def test_the_plateau_of_a_ring_over_nodes_is_a_factor_on_its_latency() -> None:
    ring = cells(sockets(), V29)["ring/simple"]
    below, above = 64 * 2 * 4 - 1, 64 * 2 * 4
    jump = ring.time_us(above) - ring.time_us(below)
    assert jump == pytest.approx(0.4 * ring.latency_us, abs=0.01)
    assert cells(pcie(), V29)["ring/simple"].plateau == 1.0


def test_up_to_2_22_a_ring_over_nodes_counts_one_more_hop_each_way() -> None:
    ring = Graph(channel_gb_s=10, channels=2, path="NVL", inter_path="PHB")
    topology = Topology(ranks=16, nodes=2, ring=ring, tree=ring, capability=90)
    before, after = (cells(topology, version)["ring/ll"] for version in ((2, 22), (2, 23)))
    assert before.latency_us == pytest.approx(6.6 + (30 - 4) * 1.0 + 4 * 2.7)
    assert after.latency_us == pytest.approx(6.6 + (30 - 2) * 1.0 + 2 * 2.7)


def test_a_version_is_unverified_after_2_30_and_unknown_before_2_18() -> None:
    assert [unverified(known) for known in ((2, 30), (2, 30, 7), (2, 31), (2, 32, 6), (3, 0))] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert printed(cost_table(pcie(), (2, 32))) == printed(cost_table(pcie(), (2, 30)))
    with pytest.raises(ValueError, match=r"2\.17 is before 2\.18"):
        constants((2, 17), capability=90)


def test_with_everything_off_there_is_no_choice() -> None:
    off = [replace(cell, off="told so") for cell in cost_table(pcie(), V29)]
    with pytest.raises(ValueError, match="every algorithm and protocol is off"):
        choose(off, 1024)
