"""Each finding on an NCCL log against a case that must raise it and a near miss that must not."""

from pathlib import Path

import pytest

from ingest import __main__ as command
from ingest import nccl_log_records
from ingest.log import Log
from ingest.nccl_findings import Suspicion
from ingest.nccl_log import read_log
from ingest.nccl_log_findings import suspicions
from ingest.nccl_setting_findings import unseen
from verifyscope import cli
from verifyscope.records import Finding, Reader

P0, P1 = "a:1:1 [0] NCCL INFO ", "a:2:2 [1] NCCL INFO "
W0 = "a:1:1 [0] init.cc:9 NCCL WARN "
PATTERN = "Pattern {}, crossNic 0, nChannels {}, bw {}/{}, type {}/PIX, sameChannels 1"
FAILED = P0 + PATTERN.format(4, 1, "0.100000", "0.100000", "SYS")
HEALTHY = P0 + PATTERN.format(4, 2, "24.000000", "24.000000", "PHB")
SLOW = P0 + PATTERN.format(4, 2, "15.000000", "15.000000", "SYS")
NVLINK = P0 + PATTERN.format(4, 12, "30.000000", "30.000000", "NVL")
NEAR = P0 + PATTERN.format(4, 2, "24.000000", "24.000000", "PXB")
NO_NVLS = P0 + PATTERN.format(5, 0, "0.000000", "0.000000", "NVL")
FELL_BACK = P0 + "Could not find a path for pattern 4, falling back to simple order"
SHM = P0 + "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
P2P = P0 + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
NET = P0 + "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0"
ONE_NODE = P0 + "comm 0xa rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0"
TWO_NODES = P0 + "comm 0xa rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0"
START = "comm 0x{p} rank {r} nranks 2 cudaDev {r} busId {r}000 commId 0x9a - Init {s}"
R0, R1 = P0 + START.format(p="a", r=0, s="START"), P1 + START.format(p="b", r=1, s="START")
D0, D1 = R0.replace("START", "COMPLETE"), R1.replace("START", "COMPLETE")
V23, V29 = P0 + "NCCL version 2.23.4+cuda12.6", P0 + "NCCL version 2.29.7+cuda12.9"
TUNER = P0 + "TUNER/Plugin: Using nccl_ofi_tuner (v3)"
CALLED = (
    "AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x1 count 512 datatype 9 op 0 root 0 comm 0xa "
    "[nranks=2] stream 0x2"
)
PEER_TEST = (
    "WARNING Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P "
    "test failed."
)
ACS = "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{} CmpltRedir{} UpstreamFwd+ EgressCtrl-"


def chose(size: int, algorithm: str, protocol: str) -> str:
    return (
        P0
        + f"AllReduce: {size} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..1}}"
    )


def was_set(name: str, value: str, by: str = P0) -> str:
    return by + f"{name} set by environment to {value}"


def found(*lines: str) -> dict[str, Suspicion]:
    return {one.name: one for one in suspicions(read_log(enumerate(lines, 1)))}


CASES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    # A search failed, or only NVLS is not there and the ring is slow.
    "pattern": ("graph-simple-order", (FAILED,), (SLOW, NO_NVLS)),
    "fallback": ("graph-simple-order", (FELL_BACK,), (HEALTHY,)),
    "table": (
        "graph-simple-order",
        (
            P0 + "  Algorithm   |  Ring  |",
            P0 + "    AllReduce | 20.6/ 0.0 | 49.0/ 0.0 | 88.2/ 0.1 |",
        ),
        (
            P0 + "  Algorithm   |  Ring  |",
            P0 + "    AllReduce | 20.6/ 1.2 | 49.0/ 0.0 | 88.2/ 2.4 |",
        ),
    ),
    "early": (
        "graph-simple-order",
        (chose(1024, "RING", "LL"), chose(4096, "RING", "SIMPLE")),
        (was_set("NCCL_PROTO", "Simple"), chose(4096, "RING", "SIMPLE")),
    ),
    "late": (
        "graph-simple-order",
        (chose(4096, "RING", "SIMPLE"),),
        (chose(2097152, "RING", "SIMPLE"),),
    ),
    # Through the host's memory: the way is long, or short, or the user wants it so.
    "level": ("shm-because-p2p-level", (HEALTHY, SHM), (NEAR, SHM)),
    "level-unknown": ("shm-because-p2p-level", (SLOW, SHM), (FAILED, SHM)),
    "level-disabled": (
        "shm-because-p2p-level",
        (HEALTHY, SHM),
        (HEALTHY, SHM, was_set("NCCL_P2P_DISABLE", "1")),
    ),
    "disabled": (
        "shm-because-p2p-disabled",
        (SHM, was_set("NCCL_P2P_DISABLE", "1")),
        (P2P, was_set("NCCL_P2P_DISABLE", "0")),
    ),
    "unknown": ("shm-transport", (SHM,), (P2P,)),
    "net": ("net-on-one-node", (ONE_NODE, NET), (TWO_NODES, NET)),
    # Peer access.
    "refused": (
        "p2p-refused",
        (P0 + "P2P is disabled between connected GPUs 1 and 0. You can repress", SHM),
        (HEALTHY, SHM),
    ),
    "write-verify": ("p2p-capable-but-failed-write-verify", (P2P, PEER_TEST), (SHM, PEER_TEST)),
    "capable": (
        "p2p-capable-but-failed-write-verify",
        (PEER_TEST, P0 + "Check P2P Type isAllDirectP2p 0 directMode 0 isAllCudaP2p 1"),
        (PEER_TEST, P0 + "Check P2P Type isAllDirectP2p 0 directMode 0 isAllCudaP2p 0"),
    ),
    "acs": ("acs-redirect", (ACS.format("+", "+"),), (ACS.format("-", "-"),)),
    "acs-hint": (
        "acs-redirect",
        (W0 + "HINT: In many cases this error occurs when ACS is enabled",),
        (P0 + "ACS is not looked at",),
    ),
    # Settings.
    "plugin": (
        "plugin-injected-env",
        (P0 + "NET/OFI Adding NCCL_PROTO=simple to environment", was_set("NCCL_PROTO", "simple")),
        (was_set("NCCL_PROTO", "simple"),),
    ),
    "ll128-inverted": (
        "ll128-past-gate",
        (was_set("NCCL_PROTO", "^Simple"),),
        (was_set("NCCL_PROTO", "^LL128"),),
    ),
    "ll128-by-function": (
        "ll128-past-gate",
        (was_set("NCCL_PROTO", "allreduce:^LL"),),
        (was_set("NCCL_PROTO", "allreduce:LL,Simple"),),
    ),
    "ll128-on-pcie": (
        "ll128-on-pcie",
        (HEALTHY, chose(65536, "RING", "LL128")),
        (NVLINK, chose(65536, "RING", "LL128")),
    ),
    "unknown-word": (
        "setting-ignored",
        (V23, was_set("NCCL_PROTO", "LL,Fast")),
        (V23, was_set("NCCL_PROTO", "LL,simple")),
    ),
    "unknown-word-later": (
        "setting-ignored",
        (V23, was_set("NCCL_PROTO", "LL,Fast")),
        (V29, was_set("NCCL_PROTO", "LL,Fast")),
    ),
    "not-followed": (
        "setting-ignored",
        (was_set("NCCL_ALGO", "Tree"), chose(8192, "RING", "LL")),
        (was_set("NCCL_ALGO", "broadcast:Tree"), chose(8192, "RING", "LL")),
    ),
    "protocol-not-followed": (
        "setting-ignored",
        (was_set("NCCL_PROTO", "Simple"), chose(8192, "RING", "LL")),
        (was_set("NCCL_PROTO", "Simple"), chose(8192, "RING", "SIMPLE")),
    ),
    "unavailable": (
        "combination-unavailable",
        (W0 + "No algorithm/protocol available for function AllReduce with datatype ncclFloat32.",),
        (W0 + "something else",),
    ),
    "refused-word": (
        "setting-refused",
        (W0 + 'Unrecognized element token "fast" when parsing "LL,fast"',),
        (was_set("NCCL_PROTO", "LL"),),
    ),
    "one-rank-only": (
        "setting-not-everywhere",
        (R0, R1, was_set("NCCL_PROTO", "LL"), was_set("NCCL_BUFFSIZE", "1048576.", P1)),
        (R0, R1, was_set("NCCL_PROTO", "LL"), was_set("NCCL_PROTO", "LL", P1)),
    ),
    "another-value": (
        "setting-not-everywhere",
        (R0, R1, was_set("NCCL_BUFFSIZE", "1."), was_set("NCCL_BUFFSIZE", "2.", P1)),
        (R0, R1, was_set("NCCL_BUFFSIZE", "1."), was_set("NCCL_DEBUG", "INFO", P1)),
    ),
    "tuner": ("tuner-plugin", (TUNER,), (P0 + "TUNER/Plugin: Could not find: libx.so",)),
    # Choices, start, warnings.
    "enqueue": ("choices-at-enqueue-only", (chose(8192, "RING", "LL"),), (P0 + CALLED,)),
    "silent": (
        "choice-not-logged",
        (P0 + CALLED,),
        (P0 + CALLED, chose(1024, "RING", "LL")),
    ),
    "versions": ("mixed-nccl-versions", (V29, V23), (V29, "INFO vLLM is using nccl==2.29.7")),
    "not-ready": ("communicator-not-ready", (R0, R1, D0), (R0, R1, D0, D1)),
    "not-all-seen": ("communicator-not-ready", (R0, R1), (R0,)),
    "warnings": ("nccl-warnings", (W0 + "Call to connect returned",), (P0 + "fine",)),
    "cut": (
        "log-not-whole",
        (P0 + "  Algorithm   |  Ring  |", P0 + "    AllReduce | 20.6/ 0.0 | 49.0"),
        (P0 + "  Algorithm   |  Ring  |",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_finding_is_raised_by_its_case_and_not_by_the_near_miss(case: str) -> None:
    name, raises, near_miss = CASES[case]
    raised = found(*raises)
    assert name in raised
    assert raised[name].evidence
    assert raised[name].next_action or name == "nccl-warnings"
    assert name not in found(*near_miss)


def test_the_evidence_of_a_failed_search_is_its_lines() -> None:
    failed = found(HEALTHY, FAILED, FELL_BACK)["graph-simple-order"]
    assert failed.evidence == (
        (2, "pattern 4, 1 channels x 0.1 GB/s, SYS"),
        (3, "pattern 4: simple order"),
    )
    assert failed.confidence == "sure"
    assert found(*CASES["early"][1])["graph-simple-order"].confidence == "likely"


def test_a_finding_names_the_level_that_the_user_gave() -> None:
    sentence = found(HEALTHY, SHM, was_set("NCCL_P2P_LEVEL", "PIX"))[
        "shm-because-p2p-level"
    ].sentence
    assert "farther than NCCL_P2P_LEVEL=PIX allows" in sentence
    assert "the default level PXB" in found(HEALTHY, SHM)["shm-because-p2p-level"].sentence


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((P0 + "NCCL version 2.18.5+cuda12.2", P0 + CALLED), "NCCL 2.18.5+cuda12.2 does not print"),
        ((R1, P1 + CALLED), "this is not rank 0"),
        ((R0, P0 + CALLED), "the TUNING subsystem is not logged"),
    ],
)
def test_why_a_choice_is_not_logged_is_told_by_version_and_rank(
    lines: tuple[str, ...], why: str
) -> None:
    assert why in found(*lines)["choice-not-logged"].sentence


def test_a_setting_that_was_asked_for_and_never_read_is_found() -> None:
    log = read_log(enumerate([was_set("NCCL_ALGO", "Ring")], 1))
    names = [one.name for one in unseen(log, {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"})]
    assert names == ["setting-ignored"]
    silent = read_log(enumerate([V29], 1))
    assert list(unseen(silent, {"NCCL_PROTO": "LL"})) == []


def test_the_verdict_is_one_sentence_with_the_choices_by_size() -> None:
    lines = [
        V29,
        R0,
        ONE_NODE,
        HEALTHY,
        was_set("NCCL_BUFFSIZE", "1048576."),
        P2P,
        chose(8192, "RING", "LL"),
        chose(65536, "RING", "LL"),
        chose(2097152, "RING", "SIMPLE"),
        FELL_BACK,
    ]
    log = read_log(enumerate(lines, 1))
    verdict = nccl_log_records.verdict(log, list(suspicions(log)))
    assert verdict.sentence == (
        "NCCL 2.29.7+cuda12.9; 2 ranks on one node; ring 2 x 24 GB/s over PHB; via P2P/CUMEM; "
        "NCCL_BUFFSIZE=1048576; all_reduce: ring/ll from 8K, ring/simple from 2M; "
        "look at graph-simple-order"
    )
    assert verdict.evidence == (
        (1, "2.29.7+cuda12.9"),
        (2, "2 ranks"),
        (7, "all_reduce of 8192 B: ring/ll on 2 channels"),
        (9, "all_reduce of 2097152 B: ring/simple on 2 channels"),
    )


def test_ingest_prints_the_verdict_first_and_keeps_the_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = tmp_path / "nccl.txt", tmp_path / "records.jsonl"
    log.write_text("\n".join((V29, FAILED, chose(8192, "RING", "SIMPLE"), "")))
    with pytest.raises(SystemExit) as ended:
        cli.run(command.application, command.PROGRAM, [str(log), "--records", str(out)])
    assert not ended.value.code
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("NCCL 2.29.7+cuda12.9; ring 1 x 0.1 GB/s over SYS; all_reduce: ")
    assert any(line.startswith("nccl.txt:2\tgraph-simple-order\t") for line in printed)
    kept = {one.name: one for one in Reader(out) if isinstance(one, Finding)}
    assert kept["graph-simple-order"].evidence[0].file == "nccl.txt"
    assert kept["graph-simple-order"].next_action


def test_the_example_is_a_line_of_the_format_and_a_table_alone_is_not() -> None:
    assert nccl_log_records.recognises(nccl_log_records.EXAMPLE.encode())
    assert not nccl_log_records.recognises(b"# nThread 1 nGpus 8 minBytes 8\nNCCL version 2.27.3\n")


def test_a_log_that_says_nothing_has_no_finding() -> None:
    log = Log(file="a", lines=iter([(1, "hello")]), environment="e", command="c")
    assert list(nccl_log_records.read(log)) == []
