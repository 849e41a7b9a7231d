"""The status of each point is decided from what NCCL logs, and what is kept of a log is public."""

from dataclasses import replace
from pathlib import Path

import pytest

from collectives._sweep import kept_logs, probe
from collectives._sweep.combination import Combination
from collectives._sweep.messages import ConfigurationFile, Joined, Logs, ReadBack
from collectives._sweep.probe import Probe
from ingest.nccl_facts import NcclLog
from tests.sweep_jobs import some_points
from verifyscope.records import Status

POINTS = some_points(sizes=(1024, 1024))
RING_LL = Combination(backend="nccl", algorithm="ring", protocol="ll")
CHOSEN = "AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"
ASKED = ("NCCL_ALGO set by environment to Ring", "NCCL_PROTO set by environment to LL")


def log(*texts: str, version: str = "2.29.7") -> NcclLog:
    return kept_logs.read(logs(f"NCCL version {version}+cuda12.9", *texts))


def logs(*texts: str, rank: int = 0) -> Logs:
    lines = "".join(f"box-7:4711:4711 [0] NCCL INFO {text}\n" for text in texts)
    return Logs(((rank, f"rank-{rank}.nccl.log", lines.encode()),))


def rank(number: int, settings: dict[str, str], **others: object) -> Joined:
    files = others.get("files", ())
    bound = others.get("bound")
    assert isinstance(files, tuple)
    return Joined(
        rank=number,
        pid=1,
        device=number,
        bus="0",
        name="GPU",
        loaded_version="2.29.7",
        read_back=ReadBack(
            settings=settings, files=files, bound=bound if isinstance(bound, str) else None
        ),
    )


def judged(
    known: NcclLog | None,
    *,
    asked: Combination = RING_LL,
    ranks: tuple[Joined, ...] | None = None,
    wrong: int = 0,
) -> tuple[Status, str | None, dict[str, str], str | None]:
    settings = asked.requested()
    seen = Probe(
        op="all_reduce",
        combination=asked,
        ranks=ranks or (rank(0, settings), rank(1, settings)),
        wrong={(POINTS[0], "eager"): 0, (POINTS[0], "graph"): wrong},
        log=known,
    )
    first = probe.verdicts(seen, POINTS)[0]
    return first.status, first.reason, first.effective, first.proof


def test_what_was_asked_for_and_is_shown_is_ok_with_its_proof() -> None:
    status, reason, effective, proof = judged(log(*ASKED, CHOSEN))
    assert (status, reason) == ("ok", None)
    assert (effective["algorithm"], effective["protocol"], effective["channels"]) == (
        "ring",
        "ll",
        "2",
    )
    assert effective["nccl_version"] == "2.29.7+cuda12.9"
    assert proof == (
        "NCCL's log of the probe, line 4: 1024 Bytes -> ring/ll on channels 0 to 1; "
        "settings read back on 2 of 2 ranks"
    )


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ((*ASKED, CHOSEN.replace("LL", "SIMPLE")), "asked for ring/ll, NCCL took ring/simple"),
        ((*ASKED, CHOSEN.replace("RING", "TREE")), "asked for ring/ll, NCCL took tree/ll"),
        (ASKED, "NCCL's log shows no choice for 1024 B"),
        (
            (ASKED[0], CHOSEN),
            "NCCL read no NCCL_PROTO: this version does not know it, or nothing needed it",
        ),
        (
            (*ASKED, 'NET/OFI Setting NCCL_PROTO to "simple"', CHOSEN),
            "a plugin set NCCL_PROTO=simple, not LL",
        ),
    ],
)
def test_what_nccl_did_not_do_is_ignored_and_says_what_it_did(
    texts: tuple[str, ...], reason: str
) -> None:
    assert judged(log(*texts))[:2] == ("ignored", reason)


def test_a_setting_that_one_rank_lacks_is_ignored() -> None:
    ranks = (rank(0, RING_LL.environment()), rank(1, {"NCCL_ALGO": "Ring"}))
    status, reason, effective, proof = judged(log(*ASKED, CHOSEN), ranks=ranks)
    assert (status, reason) == ("ignored", "NCCL_PROTO is not set on rank 1, not LL")
    assert effective["NCCL_PROTO"] == "LL (rank 0), not set (rank 1)"
    assert "settings read back on 1 of 2 ranks" in (proof or "")


def test_wrong_values_are_corrupt_whatever_else_there_is() -> None:
    status, reason, *_ = judged(log(CHOSEN.replace("LL", "SIMPLE")), wrong=7)
    assert (status, reason) == ("corrupt", "7 values are wrong in the probe; it is not timed")


def test_an_nccl_that_logs_no_choice_proves_nothing() -> None:
    status, reason, *_ = judged(log(*ASKED, version="2.19.3"))
    assert status == "unsupported"
    assert "NCCL 2.19.3+cuda12.9 does not log what it chooses" in (reason or "")
    bare = Combination(backend="nccl")
    assert judged(log(version="2.19.3"), asked=bare)[:2] == ("ok", None)


def test_the_default_is_ok_and_says_what_was_chosen() -> None:
    injected = log('NET/OFI Setting NCCL_PROTO to "simple"', CHOSEN)
    files = (ConfigurationFile("nccl.conf", {"NCCL_BUFFSIZE": "1"}),)
    ranks = (rank(0, {"NCCL_BUFFSIZE": "1"}, files=files), rank(1, {"NCCL_BUFFSIZE": "1"}))
    status, _, effective, proof = judged(injected, asked=Combination(backend="nccl"), ranks=ranks)
    assert status == "ok"
    assert effective["set_by_plugin"] == "NCCL_PROTO=simple"
    assert effective["configuration_file"] == "nccl.conf: NCCL_BUFFSIZE=1"
    assert effective["NCCL_BUFFSIZE"] == "1"
    assert (effective["algorithm"], effective["protocol"]) == ("ring", "ll")
    assert proof is not None
    assert proof.endswith("ring/ll on channels 0 to 1")


def test_all_but_ll128_is_ignored_only_where_ll128_ran() -> None:
    asked = Combination(backend="nccl", protocol="^ll128")
    read = "NCCL_PROTO set by environment to ^LL128"
    assert judged(log(read, CHOSEN), asked=asked)[0] == "ok"
    assert judged(log(read, CHOSEN.replace("LL", "LL128")), asked=asked)[:2] == (
        "ignored",
        "asked for all but LL128, NCCL took ring/ll128",
    )


def test_channels_and_transports_are_held_to_what_was_asked_for() -> None:
    made = "4 coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels "
    made += "per peer"
    shm = "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
    p2p = "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    two = Combination(backend="nccl", channels=2)
    read = [f"{name} set by environment to 2." for name in two.environment()]
    assert judged(log(*read, made), asked=two)[:2] == (
        "ignored",
        "asked for 2 channels, NCCL made 4",
    )
    assert judged(log(*read, made.replace("4", "2", 1)), asked=two)[0] == "ok"
    off = Combination(backend="nccl", p2p=False)
    read = ["NCCL_P2P_DISABLE set by environment to 1."]
    assert judged(log(*read, p2p), asked=off)[1] == "asked for no P2P, and ranks talk over P2P"
    assert judged(log(*read, shm), asked=off)[0] == "ok"
    on = Combination(backend="nccl", p2p=True)
    read = ["NCCL_P2P_LEVEL set by environment to SYS"]  # of a 0 NCCL says nothing
    assert judged(log(*read, shm), asked=on)[1] == "asked for P2P, and ranks talk over shm"
    status, _, effective, _ = judged(log(*read, p2p), asked=on)
    assert (status, effective["transport"]) == ("ok", "p2p")


def test_a_graph_file_counts_by_its_name_and_a_binding_as_it_is_read_back() -> None:
    asked = Combination(backend="nccl", graph_file="/somewhere/rings.xml", bind="numa")
    settings = {"NCCL_GRAPH_FILE": "rings.xml"}
    read = log("NCCL_GRAPH_FILE set by environment to /somewhere/rings.xml")
    bound = tuple(rank(number, settings, bound="numa") for number in (0, 1))
    assert judged(read, asked=asked, ranks=bound)[0] == "ok"
    loose = (bound[0], rank(1, settings, bound="none: this machine tells no NUMA nodes"))
    assert judged(read, asked=asked, ranks=loose)[:2] == (
        "ignored",
        "rank 1 is bound to none: this machine tells no NUMA nodes",
    )


def test_an_order_of_gpus_counts_by_the_devices_that_ranks_have() -> None:
    asked = Combination(backend="nccl", gpu_order=(1, 0))
    swapped = (replace(rank(0, {}), device=1), replace(rank(1, {}), device=0))
    status, _, effective, _ = judged(log(), asked=asked, ranks=swapped)
    assert (status, effective["gpu_order"]) == ("ok", "1,0")
    assert judged(log(), asked=asked, ranks=(rank(0, {}), rank(1, {})))[:2] == (
        "ignored",
        "rank 0 has device 0, not 1",
    )


def test_settings_without_anybody_who_reads_them_are_ignored() -> None:
    assert judged(None)[:2] == ("ignored", "NCCL_ALGO is set, and nothing here reads it")


@pytest.mark.parametrize(
    "text",
    [
        "Error : no algorithm/protocol available for function AllReduce with datatype ncclBfloat16",
        "No algorithm/protocol nor symKernelId available for function AllReduce",
    ],
)
def test_a_refusal_of_nccl_is_found_in_every_wording(text: str) -> None:
    line = f"box:1:1 [0] enqueue.cc:2:f NCCL WARN {text}\n"
    read = kept_logs.read(Logs(((0, "rank-0.nccl.log", line.encode()),)))
    assert text in (probe.refusal(read) or "")
    assert probe.refusal(log(CHOSEN)) is None
    assert probe.refusal(None) is None


PRIVATE = (
    "NCCL_COMM_ID set by environment to 10.1.2.3:4567",
    "NCCL_DEBUG_FILE set by environment to /home/alice/nccl.log",
    "NCCL_SOCKET_IFNAME set by environment to eth-secret",
    "NCCL_HOSTID set by environment to rack7 node3",
    'NET/OFI Setting NCCL_HOSTID to "rack7"',
    "NET/Socket : Using [0]eth0:10.20.30.40<0> [1]eth1:fe80::1234:5678:9abc:def0%eth1<0>",
    "Bootstrap : Using box-7:10.20.30.40<0>",
    "NCCL_GRAPH_FILE set by environment to /home/alice/rings.xml",
    CHOSEN,
)


def test_a_kept_log_has_no_host_address_folder_or_unlisted_setting(tmp_path: Path) -> None:
    found = logs(*PRIVATE)
    topology = b'<system version="1"><cpu numaid="0" host_hash="0x1234abcd5678ef00"/></system>'
    both = Logs((*found.files, (0, "topology.xml", topology)))
    assert kept_logs.keep(both, tmp_path / "probe" / "nccl")
    kept = (tmp_path / "probe" / "nccl" / "rank-0.nccl.log").read_text()
    for word in (
        "10.",
        "alice",
        "/home",
        "box-7",
        "4711",
        "fe80",
        "eth-secret",
        "COMM_ID",
        "rack7",
    ):
        assert word not in kept
    assert "NCCL_GRAPH_FILE set by environment to rings.xml" in kept
    assert "NCCL_HOSTID set by environment to <host>\n" in kept
    assert f"rank0:0:0 [0] NCCL INFO {CHOSEN}" in kept
    xml = (tmp_path / "probe" / "nccl" / "topology.xml").read_text()
    assert xml == '<system version="1"><cpu numaid="0" host_hash="0x0"/></system>'
    # What is kept says the same as what was read.
    again = kept_logs.read(Logs(((0, "rank-0.nccl.log", kept.encode()),)))
    assert [choice.name for choice in again.choices] == ["ring/ll"]
