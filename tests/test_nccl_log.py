"""Each line of NCCL's own log gives its fact, whatever stands around it, and nothing private."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest import nccl_log, nccl_names
from ingest.nccl_facts import NcclLog
from ingest.nccl_log import attributed, read_log
from ingest.nccl_log_findings import suspicions
from verifyscope.settings import SETTINGS

A = "alpha:4711:4711 [0] NCCL INFO "
B = "beta-2:4712:4712 [1] NCCL INFO "
CALL = "AllReduce: 57344 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}"


def log(*lines: str) -> NcclLog:
    return read_log(enumerate(lines, 1))


@pytest.mark.parametrize(
    ("line", "function", "name", "channels", "time_us"),
    [
        ("57344 Bytes -> Algo 1 proto 0 time 25.207382", None, "ring/ll", None, 25.207382),
        (
            "AllReduce: 57344 Bytes -> Algo 0 proto 2 time 9.5",
            "all_reduce",
            "tree/simple",
            None,
            9.5,
        ),
        (CALL, "all_reduce", "ring/ll", 4, None),
        (CALL + " cgaClusterSize 1", "all_reduce", "ring/ll", 4, None),
        (
            "ReduceScatter: 57344 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={2..2}",
            "reduce_scatter",
            "nvlstree/simple",
            1,
            None,
        ),
        (
            "AllGather [Symmetric]: 57344 Bytes -> Kernel AllGather_LL nchannels 8 nthreads 512 "
            "nWorks 1",
            "all_gather",
            "AllGather_LL",
            8,
            None,
        ),
    ],
)
def test_a_choice_is_read_in_the_form_of_every_version(
    line: str, function: str | None, name: str, channels: int | None, time_us: float | None
) -> None:
    (choice,) = log(A + line).choices
    assert (choice.function, choice.size_bytes, choice.name) == (function, 57344, name)
    assert (choice.channel_count, choice.time_us) == (channels, time_us)
    assert (choice.line, choice.count, choice.process) == (1, 1, 0)


def test_the_time_that_2_31_expects_goes_to_the_choice_after_it() -> None:
    best = (
        "Best tuning { .id = 7, .valid = 1, timeUs = 1.0, .timeUs = 24.5,  .algo = RING, "
        ".proto = LL, .symKernelId = 0, nChannels = 4 }"
    )
    found = log(A + best, A + CALL, A + CALL.replace("57344", "65536"))
    assert [known.time_us for known in found.choices] == [24.5, None]
    other = log(A + best.replace("LL,", "SIMPLE,"), A + CALL)
    assert other.choices[0].time_us is None


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "[1,0]<stdout>:{}",
        "[3] {}",
        "0: {}",
        "(VllmWorker TP0 pid=4711) {}",
        "[2026-05-01 10:00:00] {}",
        "2026-05-01T10:00:00.123Z {}",
        "        4096          1024     float     sum      -1{}",
    ],
)
def test_what_stands_before_a_message_does_not_matter(around: str) -> None:
    found = log(around.format(A + CALL))
    assert [known.name for known in found.choices] == ["ring/ll"]
    assert [known.device for known in found.processes] == [0]


def test_messages_glued_into_one_line_are_two() -> None:
    found = log(A + CALL + B + CALL.replace("57344", "65536"))
    assert [(known.size_bytes, known.process) for known in found.choices] == [
        (57344, 0),
        (65536, 1),
    ]
    assert [known.node for known in found.processes] == [0, 1]


def test_lines_without_any_prefix_are_read_too() -> None:
    found = log(
        "Pattern 4, crossNic 0, nChannels 2, bw 24.000000/24.000000, type PHB/PIX, sameChannels 1",
        CALL,
    )
    assert found.searches[0].channels == 2
    assert found.choices[0].process is None


def test_equal_facts_are_one_with_a_count_and_their_first_line() -> None:
    found = log(A + CALL, A + CALL, B + CALL, A + CALL)
    assert [(known.process, known.line, known.count) for known in found.choices] == [
        (0, 1, 3),
        (1, 3, 1),
    ]


@pytest.mark.parametrize(
    ("line", "name", "value", "origin"),
    [
        ("NCCL_PROTO set by environment to LL,Simple", "NCCL_PROTO", "LL,Simple", "environment"),
        ("NCCL_BUFFSIZE set by environment to 8388608.", "NCCL_BUFFSIZE", "8388608", "environment"),
        ("NCCL_P2P_LEVEL set by environment to SYS", "NCCL_P2P_LEVEL", "SYS", "environment"),
        ("NET/OFI Adding NCCL_PROTO=simple to environment", "NCCL_PROTO", "simple", "plugin"),
        ('NET/OFI Setting NCCL_PROTO to "simple"', "NCCL_PROTO", "simple", "plugin"),
        (
            "NCCL_GRAPH_FILE set by environment to /home/carol/box/graph.xml",
            "NCCL_GRAPH_FILE",
            "graph.xml",
            "environment",
        ),
    ],
)
def test_a_setting_has_its_value_and_who_set_it(
    line: str, name: str, value: str, origin: str
) -> None:
    (setting,) = log(A + line).settings
    assert (setting.name, setting.value, setting.origin) == (name, value, origin)


def test_what_the_start_did_not_set_comes_from_a_configuration_file() -> None:
    found = log(
        A + "NCCL_PROTO set by environment to LL",
        A + "NCCL_ALGO set by environment to Ring",
        A + "NET/OFI Adding NCCL_BUFFSIZE=1048576 to environment",
        A + "NCCL_BUFFSIZE set by environment to 1048576.",
    )
    known = attributed(found, {"NCCL_ALGO": "Ring"}).effective()
    assert {name: setting.origin for name, setting in known.items()} == {
        "NCCL_PROTO": "configuration file",
        "NCCL_ALGO": "environment",
        "NCCL_BUFFSIZE": "plugin",
    }


def test_ranks_nodes_and_devices_of_a_communicator_come_from_interleaved_starts() -> None:
    start = (
        "ncclCommInitRank comm 0x{p} rank {r} nranks 2 cudaDev {r} nvmlDev {r} busId c{r}000 "
        "commId 0x9a - Init {s}"
    )
    found = log(
        B + "[Rank 1] " + start.format(p="b", r=1, s="START"),
        A + start.format(p="a", r=0, s="START"),
        A + "comm 0xa rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
        B + start.format(p="b", r=1, s="COMPLETE"),
    )
    (known,) = found.communicators
    assert (known.ranks, known.nodes, known.line) == (2, 2, 1)
    assert [(m.rank, m.process, m.device, m.bus, m.ready) for m in known.members] == [
        (0, 1, 0, "c0000", False),
        (1, 0, 1, "c1000", True),
    ]


def test_ranks_without_a_name_of_their_communicator_are_gathered_by_count() -> None:
    start = "comm 0x{p} rank {r} nranks 2 cudaDev {r} busId 1000 - Init {s}"
    lines = [start.format(p=r, r=r, s=s) for r in (0, 1) for s in ("START", "COMPLETE")]
    assert [len(known.members) for known in log(*(A + line for line in lines)).communicators] == [2]


def test_a_search_belongs_to_the_communicator_that_its_process_began_last() -> None:
    start = "comm 0x{c} rank 0 nranks {n} cudaDev 0 busId 1 commId 0x{c} - Init START"
    pattern = (
        "Pattern 4, crossNic 0, nChannels {}, bw 12.000000/12.000000, type SYS/SYS, sameChannels 1"
    )
    found = log(
        A + start.format(c="a", n=8),
        A + pattern.format(2),
        A + start.format(c="b", n=4),
        A + pattern.format(1),
    )
    assert [(known.channels, known.communicator) for known in found.searches] == [(2, 0), (1, 1)]
    assert found.searches[0].intra_gb_s == 12.0
    assert found.largest is not None
    assert found.largest.ranks == 8


HEAD = (
    "  Algorithm   |            Tree            |            Ring            |",
    "  Protocol    |   LL |   LL128 |  Simple |   LL |   LL128 |  Simple |",
    " Max NThreads |  512 |     640 |     512 |  512 |     640 |     256 |",
)
ROW = (
    "    AllReduce |    20.8/   5.8 |    40.6/   0.0 |    64.4/  22.1 |"
    "    20.6/  13.7 |    49.0/   0.0 |    88.2/  27.4 |"
)


def test_a_cost_table_has_latency_bandwidth_and_what_is_off() -> None:
    found = log(*(A + line for line in (*HEAD, ROW)))
    cells = {f"{e.algorithm}/{e.protocol}": (e.latency_us, e.bandwidth_gb_s) for e in found.entries}
    assert cells == {
        "tree/ll": (20.8, 5.8),
        "tree/ll128": (40.6, 0.0),
        "tree/simple": (64.4, 22.1),
        "ring/ll": (20.6, 13.7),
        "ring/ll128": (49.0, 0.0),
        "ring/simple": (88.2, 27.4),
    }
    assert [entry.enabled for entry in found.entries] == [True, False, True, True, False, True]
    assert {entry.function for entry in found.entries} == {"all_reduce"}


def test_tables_of_two_processes_do_not_mix() -> None:
    other = HEAD[0].replace("Tree", "NVLS").replace("Ring", " PAT")
    found = log(A + HEAD[0], B + other, A + ROW, B + ROW)
    assert {entry.algorithm for entry in found.entries if entry.line == 3} == {"tree", "ring"}
    assert {entry.algorithm for entry in found.entries if entry.line == 4} == {"nvls", "pat"}


@pytest.mark.parametrize("cut", [len(ROW) - 3, len(ROW) - 20, 40])
def test_a_cut_row_counts_for_nothing_and_is_named(cut: int) -> None:
    found = log(A + HEAD[0], A + ROW[:cut])
    assert found.entries == ()
    assert found.torn == (2,)


def test_the_matrix_is_what_is_asked_for_over_lines_without_a_prefix() -> None:
    found = log(
        A + "Enabled NCCL Func/Proto/Algo Matrix:",
        "     Function |       LL     LL128    Simple   |          Tree           Ring  ",
        "    AllReduce |        1         2         0   |             0              1  ",
    )
    (known,) = found.requests
    assert known.function == "all_reduce"
    assert known.protocols == {"ll", "ll128"}
    assert known.algorithms == {"ring"}


@pytest.mark.parametrize(
    ("line", "kind", "way"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "p2p", "P2P/CUMEM/read"),
        ("Channel 03/0 : 0[0] -> 1[1] via P2P/IPC", "p2p", "P2P/IPC"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer", "p2p", "P2P/direct"),
        ("Channel 01 : 0[0] -> 1[1] via SHM/direct/direct", "shm", "SHM/direct/direct"),
        ("Channel 01 : 0[c1000] -> 1[c2000] via SHM/CE/CE", "shm", "SHM/CE/CE"),
        ("Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Libfabric/0", "net", "NET/Libfabric/0"),
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/3(1)/GDRDMA/Shared", "net", "NET/IB/3(1)"),
    ],
)
def test_a_transport_says_how_and_between_whom(line: str, kind: str, way: str) -> None:
    (known,) = log(A + line).transports
    assert (known.kind, known.way, known.source, known.target) == (kind, way, 0, 1)


def test_versions_paths_rings_channels_plugins_and_peer_access_are_read() -> None:
    found = log(
        "NCCL version 2.27.3+cuda12.9",
        A + "vLLM is using nccl==2.27.3",
        "[2026-03-03 11:06:05 TP0] sglang is using nccl==2.27.5",
        A
        + "GPU/CE000 :GPU/0-4e000 (5/10.0/SYS) GPU/0-ce000 (0/5000.0/LOC) GPU/0-cf000 (4/24.0/PHB)"
        " CPU/0-1 (2/24.0/PHB)",
        A + "Ring 01 : 7 -> 0 -> 1",
        A + "4 coll channels, 4 collnet channels, 0 nvls channels, 8 p2p channels, 2 p2p channels "
        "per peer",
        A + "8 coll channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer",
        A + "TUNER/Plugin: Could not find: libnccl-tuner.so",
        A + "TUNER/Plugin: Using nccl_ofi_tuner (v3)",
        A + "TUNER/Plugin: Using internal tuner plugin.",
        A + "Check P2P Type isAllDirectP2p 0 directMode 0 isAllCudaP2p 1",
        A + "Check P2P Type intraNodeP2pSupport 1 directMode 0",
        A
        + "P2P is disabled between connected GPUs 1 and 0. You can repress this message with X=1.",
        A + "Could not enable P2P between dev 0(=c1000) and dev 1(=c2000)",
    )
    assert [known.version for known in found.libraries] == [
        "2.27.3+cuda12.9",
        "2.27.3",
        "2.27.5",
    ]
    assert found.libraries[0].number == (2, 27, 3)
    assert {(known.kind, known.gb_s) for known in found.paths} == {("SYS", 10.0), ("PHB", 24.0)}
    assert found.path_rows == 1
    assert [(r.channel, r.before, r.rank, r.after) for r in found.rings] == [(1, 7, 0, 1)]
    assert [known.collective for known in found.channels] == [4, 8]
    assert [(known.kind, known.name) for known in found.plugins] == [
        ("tuner", "nccl_ofi_tuner (v3)")
    ]
    assert [(p.allowed, p.capable) for p in found.peer_access] == [(False, True), (True, None)]
    assert [known.by for known in found.refusals] == ["NCCL", "driver"]


def test_calls_of_every_rank_are_counted_by_size() -> None:
    call = (
        "AllReduce: opCount {} sendbuff 0x7f recvbuff 0x7f count 28672 datatype 9 op 0 root 0 "
        "comm 0x55 [nranks=8] stream 0x66"
    )
    (known,) = log(A + call.format(0), A + call.format("1f")).calls
    assert (known.function, known.elements, known.datatype) == ("all_reduce", 28672, 9)
    assert known.count == 2


PRIVATE = ("carol", "alpha", "10.1.2.3", "eth7", "s3cr3t", "4711", "/home", "node-17")


def test_nothing_private_is_kept() -> None:
    host = "alpha.cluster.example:4711:4799 [0] "
    found = log(
        host + "NCCL INFO Bootstrap: Using eth7:10.1.2.3<0>",
        host + "NCCL INFO NCCL_COMM_ID set by environment to 10.1.2.3:4000",
        host + "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth7",
        host + "NCCL INFO HF_TOKEN set by environment to s3cr3t",
        host + "NCCL INFO NCCL_HOSTID set by environment to node-17",
        host + "NCCL INFO NCCL_DEBUG_FILE set by environment to /home/carol/nccl.log",
        host + "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
        host + "NCCL INFO NET/OFI Adding NCCL_TUNER_PLUGIN=/home/carol/lib/tune.so to environment",
        host + "NCCL INFO TUNER/Plugin: Using /home/carol/lib/tune.so",
        host + "misc/socket.cc:512 NCCL WARN Connect of alpha.cluster.example to 10.1.2.3<4711> as "
        "/home/carol/x failed",
        host + "NCCL INFO " + CALL,
    )
    text = repr(found)
    assert [word for word in PRIVATE if word in text] == []
    assert found.unlisted == 3
    (warned,) = found.warned
    assert warned.place == "socket.cc:512"
    assert warned.text.startswith("Connect of <host> to <address>")
    assert {known.name: known.value for known in found.settings} == {
        "NCCL_HOSTID": "<host>",
        "NCCL_DEBUG_FILE": "nccl.log",
        "NCCL_TUNER_PLUGIN": "tune.so",
    }


def test_a_log_of_any_length_is_kept_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_log, "MOST_FACTS", 5)
    lines = [A + CALL.replace("57344", str(size)) for size in range(1, 21)]
    found = log(*lines, *lines[:5])
    assert [known.count for known in found.choices] == [2, 2, 2, 2, 2]
    assert found.dropped == 15


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NCCL ",
        "NCCL INFO ",
        A,
        A + "Pattern 4, crossNic 0, nChannels 2, bw 24.0",
        A + "AllReduce: 5734",
        A + "comm 0xa rank 0 nranks 2 cudaDev",
        A + "|" * 1000,
        A + "AllReduce | " + "/" * 5000,
        "x" * 60_000 + " NCCL INFO " + "y" * 5_000,
        ":".join(["a" * 255] * 200) + " NCCL INFO z",
        A + "Channel 00/0 : 0[0] -> 1[0] via ",
        A + " set by environment to ",
    ],
)
def test_a_cut_or_strange_line_says_nothing_and_breaks_nothing(line: str) -> None:
    found = log(line)
    facts = (found.choices, found.searches, found.communicators, found.entries, found.settings)
    assert not any(facts)


REAL = (
    CALL,
    *HEAD,
    ROW,
    "NCCL_PROTO set by environment to LL,Simple",
    "Pattern 4, crossNic 0, nChannels 2, bw 24.000000/24.000000, type PHB/PIX, sameChannels 1",
    "comm 0xa rank 0 nranks 2 cudaDev 0 busId c000 commId 0x9 - Init START",
    "comm 0xa rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0",
    "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/3(1)/GDRDMA",
    "GPU/CE000 :GPU/0-4e000 (5/10.0/SYS)",
    "4 coll channels, 4 collnet channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer",
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(REAL),
            st.integers(0, 160),
            st.integers(0, 160),
            st.text(max_size=12) | st.sampled_from(("9" * 5000, "-", "|", "NCCL INFO ", A, "\x00")),
            st.sampled_from((A, B, "", "[0] ")),
        ),
        max_size=12,
    )
)
@settings(max_examples=60, deadline=None)
def test_cut_and_broken_lines_never_stop_the_reading(
    pieces: list[tuple[str, int, int, str, str]],
) -> None:
    lines = [prefix + text[:a] + middle + text[b:] for text, a, b, middle, prefix in pieces]
    found = log(*lines)
    assert all(known.size_bytes >= 0 for known in found.choices)
    assert {entry.function for entry in found.entries} <= set(nccl_names.FUNCTIONS)
    assert all(setting.name in SETTINGS for setting in found.settings)
    list(suspicions(found))
