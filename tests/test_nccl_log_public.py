"""Public logs of NCCL, where they lie beside the checkout, give what is expected of them."""

import json
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from collectives._model import topology
from collectives._model.cost import Graph, Topology, choose, cost_table
from ingest import nccl_names
from ingest.log import numbered_lines
from ingest.nccl_facts import NcclLog
from ingest.nccl_log import read_log
from ingest.nccl_log_findings import suspicions

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "nccl"

pytestmark = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"no {SHARED.name} logs beside the checkout"
)


def expected(number: str) -> dict[str, Any]:
    found = json.loads((SHARED / "expected.json").read_text())
    (one,) = [known for known in found if known["file"].startswith(number)]
    return dict(one)


def public(number: str) -> NcclLog:
    data = (SHARED / expected(number)["file"]).read_bytes()
    return read_log(numbered_lines(BytesIO(data)))


def cell_name(printed: str) -> tuple[str, str]:
    algorithm, protocol = printed.split("/")
    return nccl_names.algorithm(algorithm), nccl_names.protocol(protocol)


def test_a_plugin_s_settings_transports_channels_and_matrix_are_as_expected() -> None:
    want, log = expected("08"), public("08")
    injected = {s.name: s.value for s in log.settings if s.origin == "plugin"}
    assert injected == want["env_injected_by_plugin"]
    read = {s.name: s.value for s in log.settings if s.origin == "environment"}
    assert read == want["env_set"]
    ways = Counter[str]()
    for known in log.transports:
        ways[known.way] += known.count
    assert ways == want["transports"]
    assert want["tuner_plugin"] in [known.name for known in log.plugins]
    (channels,) = log.channels
    assert (channels.collective, channels.p2p) == (want["coll_channels"], want["p2p_channels"])
    (communicator,) = log.communicators
    assert (communicator.ranks, communicator.nodes) == (want["n_ranks"], want["n_nodes"])
    (row,) = [known for known in log.requests if known.function == "all_reduce"]
    matrix = want["enabled_matrix_allreduce"]
    assert row.protocols == {nccl_names.protocol(w) for w in ("LL", "LL128", "Simple") if matrix[w]}
    assert row.algorithms == {nccl_names.algorithm(w) for w in list(matrix)[3:] if matrix[w]}
    names = {found.name for found in suspicions(log)}
    assert names == {"plugin-injected-env", "tuner-plugin"}


@pytest.mark.parametrize("number", ["11", "19"])
def test_tables_calls_version_and_settings_are_as_expected(number: str) -> None:
    want, log = expected(number), public(number)
    if log.loaded is not None:
        assert log.loaded.version == want["nccl_version"]
    found = {(e.function, e.algorithm, e.protocol): e for e in log.entries}
    checked = 0
    for function, cells in want["tuning_us_GBps"].items():
        for printed, (latency_us, bandwidth_gb_s) in cells.items():
            algorithm, protocol = cell_name(printed)
            entry = found[nccl_names.function(function), algorithm, protocol]
            assert (entry.latency_us, entry.bandwidth_gb_s) == (latency_us, bandwidth_gb_s)
            checked += 1
    assert checked == {"11": 105, "19": 11}[number]
    on = want["enabled_cells"]
    on = on if isinstance(on, dict) else {"AllReduce": on}
    for function, cells in on.items():
        enabled = {
            (e.algorithm, e.protocol)
            for e in log.entries
            if e.enabled and e.function == nccl_names.function(function)
        }
        assert enabled == {cell_name(cell) for cell in cells}
    calls = Counter[tuple[str | None, int, str, int | None]]()
    for known in log.choices:
        calls[known.function, known.size_bytes, known.name, known.channel_count] += known.count
    asked = Counter(
        (
            nccl_names.function(call["func"]),
            call["bytes"],
            "/".join(cell_name(f"{call['algo']}/{call['proto']}")),
            call["channels"],
        )
        for call in want["per_call"]
    )
    assert calls == asked
    read = {s.name: s.value for s in log.settings}
    assert read == want.get("env_set", {})


def test_every_logged_call_is_what_the_printed_table_makes_nccl_take() -> None:
    log = public("11")
    cells = topology.printed_cells(log, "broadcast")
    assert len(log.choices) == 13
    for known in log.choices:
        assert choose(cells, known.size_bytes).name == known.name


@pytest.mark.parametrize("function", nccl_names.FUNCTIONS)
def test_the_model_gives_the_printed_tables_digit_by_digit(function: str) -> None:
    link = Graph(channel_gb_s=30, channels=12, path="NVL")
    nvls = Graph(channel_gb_s=40, channels=8, inter_gb_s=60, path="NVL")
    h200 = Topology(ranks=8, ring=link, tree=link, nvls=nvls, capability=90)
    ring = Graph(channel_gb_s=1.2, channels=2, path="LOC", inter_path="PHB")
    tree = Graph(channel_gb_s=2.4, channels=2, path="LOC", inter_path="PHB", plain_tree=True)
    sockets = Topology(ranks=2, nodes=2, ring=ring, tree=tree)
    for number, wired, version in (("19", h200, (2, 30, 4)), ("11", sockets, (2, 29, 7))):
        entries = {
            (e.algorithm, e.protocol): f"{e.latency_us:.1f}/{e.bandwidth_gb_s:.1f}"
            for e in public(number).entries
            if e.function == function
        }
        for cell in cost_table(wired, version, function) if entries else []:
            bandwidth = 0.0 if cell.off else cell.bandwidth_gb_s
            printed = f"{cell.latency_us:.1f}/{bandwidth:.1f}"
            assert entries[cell.algorithm, cell.protocol] == printed, cell.name


def test_fragments_give_their_calls_paths_rings_and_transports() -> None:
    want = expected("18")["fragments"]
    whole = (SHARED / expected("18")["file"]).read_bytes()
    pieces = {part[:2].decode(): part for part in whole.split(b"### ")[1:]}
    logs = {name: read_log(numbered_lines(BytesIO(piece))) for name, piece in pieces.items()}
    (call,) = logs["F4"].choices
    per_call = want["F4"]["per_call"]
    assert (call.size_bytes, call.time_us, call.count) == (
        64,
        per_call[0]["time_us"],
        len(per_call),
    )
    assert call.name == "tree/ll"
    assert [(t.way, t.count) for t in logs["F5"].transports] == [("SHM/direct/direct", 1)]
    paths = {known.kind: known.gb_s for known in logs["F6"].paths}
    assert paths == {"PHB": want["F6"]["phb_GBps"], "SYS": want["F6"]["sys_GBps"]}
    assert (logs["F6"].path_rows, len(logs["F6"].rings)) == (want["F6"]["path_rows"], 2)
    assert sum(t.count for t in logs["F6"].transports) == 2
    assert {found.name for found in suspicions(logs["F6"])} == {"shm-because-p2p-level"}
    assert {found.name for found in suspicions(logs["F5"])} == {"shm-transport"}
    version = logs["F1"].loaded
    assert version is not None
    assert version.version == want["F1"]["nccl_version"]


def test_tables_of_nccl_tests_alone_give_no_finding_of_the_log() -> None:
    for path in sorted(SHARED.glob("*.txt")):
        if path.name[:2] not in ("08", "11", "18", "19"):
            with path.open("rb") as file:
                log = read_log(numbered_lines(file))
            assert (log.choices, log.settings, log.communicators) == ((), (), ())
            assert list(suspicions(log)) == []
