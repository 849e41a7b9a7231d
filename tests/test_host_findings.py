"""Each finding on a host by its case and by a near miss, on hosts that are only described."""

from dataclasses import replace
from typing import Any

import pytest

from collectives._attest.logs import Logs
from collectives._host import findings
from collectives._host.facts import (
    HERE,
    Access,
    Broken,
    Check,
    Configuration,
    Gpu,
    Host,
    HostCopy,
    Iommu,
    Kernel,
    Link,
    Listed,
    Pair,
    Probed,
    Rate,
    Together,
    Tried,
)
from ingest import gpu_findings
from ingest.conclusions import Conclusion, Seen
from ingest.kernel_log import Event, KernelLog
from ingest.lspci import read_devices
from ingest.nccl_conf import Configured
from ingest.nccl_log import attributed, read_log
from tests.test_ingest_host import GPU, bridge
from verifyscope.first_findings import OF_HOSTS

SERVER = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
P = "a:1:1 [0] NCCL INFO "
GIB = 2**30


def gpu(
    index: int, *, node: int | None = 0, group: str | None = None, name: str = SERVER, **link: Any
) -> Gpu:
    state: dict[str, Any] = {
        "generation": 5, "generation_most": 5, "width": 16, "width_most": 16, **link,
    }  # fmt: skip
    idle = gpu_findings.Gpu(index=index, line=index + 1, name=name, **state)
    return Gpu(index=index, idle=idle, node=node, group=group, seen=Seen("smi.txt", index + 1, "x"))


def pair(first: int, second: int, path: str | None = "SYS", **fields: Any) -> Pair:
    return Pair(first=first, second=second, path=path, seen=Seen("topo.txt", 2, "x"), **fields)


def host(count: int = 2, path: str | None = "SYS", **fields: Any) -> Host:
    pairs = [pair(a, b, path) for a in range(count) for b in range(a + 1, count)]
    found: dict[str, Any] = {"gpus": tuple(map(gpu, range(count))), "pairs": tuple(pairs), **fields}
    return Host(**found)


def names(described: Host) -> list[str]:
    return [one.name for one in findings.conclusions(described)]


def one(described: Host, name: str) -> Conclusion:
    (found,) = [known for known in findings.conclusions(described) if known.name == name]
    assert found.seen, name
    assert found.next_action, name
    return found


def log(*lines: str, environment: dict[str, str] | None = None) -> Logs:
    found = read_log(enumerate(lines, 1))
    if environment is not None:
        found = attributed(found, environment)
    return Logs(log=found, names=("nccl.log",), starts=(0,), processes=())


def check(writer: int = 0, target: int = 1, **counts: int) -> Check:
    given = {"lost": 0, "wrong": 0, **counts}
    return Check(writer=writer, target=target, way="kernel", size_bytes=(4096,), words=512, **given)


def rate(kind: Together, *writes: tuple[int, int], gb_s: float = 20.0, wrong: int = 0) -> Rate:
    """Writes that ran at once, each at `gb_s` GB/s."""
    seconds = (GIB / (gb_s * 1e9),) * 3
    return Rate(kind=kind, writes=writes, size_bytes=GIB, seconds=seconds, wrong=wrong)


TRANSLATED = Iommu(mode="translated", seen=(Seen(HERE, "IOMMU group 7", "DMA-FQ"),))

PASSED_THROUGH = replace(TRANSLATED, mode="passthrough")


def listed(text: str) -> Listed:
    return Listed(file="lspci.txt", devices=read_devices(enumerate(text.splitlines(), 1)))


def kernel(**events: Any) -> Kernel:
    return Kernel(file="dmesg.txt", log=KernelLog(**events))


CONF = Configured(name="NCCL_PROTO", value="LL", file="nccl.conf", line=3)
ON, OFF = (bridge(on) + GPU.format(address="c2:00.0") for on in "+-")
REFUSED = (pair(0, 1, refused="not supported by the GPU", asked=True),)
AMD: dict[str, Any] = {"processor": "AMD EPYC 9575F"}
ALONE = (rate("alone", (0, 1)), rate("alone", (1, 0)))
PATTERN = P + "Pattern 4, crossNic 0, nChannels {}, bw {}/{}, type SYS/PIX, sameChannels 1"
ACROSS = (gpu(0, node=0), gpu(1, node=1))

CASES: list[tuple[str, Host, Host]] = [
    ("iommu-translated", host(iommu=TRANSLATED), host(iommu=PASSED_THROUGH)),
    ("iommu-translated", host(iommu=TRANSLATED), host(1, iommu=TRANSLATED)),
    ("iommu-translated", host(iommu=TRANSLATED), host(path="NV18", iommu=TRANSLATED)),
    ("acs-redirect", host(lspci=listed(ON)), host(lspci=listed(OFF))),
    ("acs-redirect", host(lspci=listed(ON)), host(path="NV4", lspci=listed(ON))),
    (
        "acs-redirect",  # without lspci the groups of a pair behind one switch show it
        host(path="PIX", gpus=(gpu(0, group="1"), gpu(1, group="2"))),
        host(path="PIX", gpus=(gpu(0, group="1"), gpu(1, group="1"))),
    ),
    (
        "acs-redirect",
        host(path="PXB", gpus=(gpu(0, group="1"), gpu(1, group="2"))),
        host(path="SYS", gpus=(gpu(0, group="1"), gpu(1, group="2"))),
    ),
    ("acs-not-readable", host(why_no_lspci="lspci is not installed"), host(saved=("a.txt",))),
    ("numa-split", host(gpus=ACROSS), host()),
    ("numa-split", host(gpus=ACROSS), host(path="NV18", gpus=ACROSS)),
    ("iommu-faults", host(kernel=kernel(faults={"0000:c1:00.0": Event(line=4, count=2)})), host()),
    ("pcie-errors", host(kernel=kernel(errors={("a", "fatal"): Event(line=4, count=2)})), host()),
    ("gpu-xid", host(kernel=kernel(xids={("a", 79): Event(line=4, count=1)})), host()),
    ("no-p2p", host(pairs=REFUSED), host(pairs=(pair(0, 1, asked=True),))),
    (
        "p2p-partial",
        host(3, pairs=(*REFUSED, pair(0, 2, asked=True), pair(1, 2, asked=True))),
        host(pairs=REFUSED),
    ),
    (
        "p2p-capable-but-failed-write-verify",
        host(tried=Tried(checks=(check(lost=1),))),
        host(tried=Tried(checks=(check(),))),
    ),
    (
        "p2p-capable-but-failed-write-verify",
        host(tried=Tried(checks=(check(),), rates=(rate("both ways", (0, 1), (1, 0), wrong=4),))),
        host(tried=Tried(checks=(check(),), rates=(rate("both ways", (0, 1), (1, 0)),))),
    ),
    (
        "p2p-write-hangs",
        host(tried=Tried(broken=Broken(kind="hang", step="s", reason="r", writes=((0, 1),)))),
        host(tried=Tried(broken=Broken(kind="error", step="s", reason="r", writes=((0, 1),)))),
    ),
    (
        "p2p-write-fails",
        host(tried=Tried(broken=Broken(kind="error", step="s", reason="r", writes=((0, 1),)))),
        host(tried=Tried(broken=Broken(kind="error", step="s", reason="r"))),
    ),
    (
        "gpu-test-broken",
        host(tried=Tried(broken=Broken(kind="error", step="s", reason="r"))),
        host(tried=Tried(why_not="torch is built without CUDA")),
    ),
    (
        "concurrent-writes-slow",
        host(tried=Tried(rates=(*ALONE, rate("both ways", (0, 1), (1, 0), gb_s=12)))),
        host(tried=Tried(rates=(*ALONE, rate("both ways", (0, 1), (1, 0), gb_s=15)))),
    ),
    (
        "p2p-slower-than-host",
        host(tried=Tried(
            rates=(rate("alone", (0, 1), gb_s=10),),
            copies=(HostCopy(gpu=1, to_gpu=True, size_bytes=GIB, seconds=(GIB / 25e9,)),),
        )),
        host(tried=Tried(
            rates=(rate("alone", (0, 1), gb_s=20),),
            copies=(HostCopy(gpu=1, to_gpu=True, size_bytes=GIB, seconds=(GIB / 25e9,)),),
        )),
    ),
    (
        "near-slower-than-far",
        host(3, pairs=(pair(0, 1, "PIX"), pair(0, 2)), tried=Tried(rates=(
            rate("alone", (0, 1), gb_s=8), rate("alone", (0, 2), gb_s=10),
        ))),
        host(3, pairs=(pair(0, 1, "PIX"), pair(0, 2)), tried=Tried(rates=(
            rate("alone", (0, 1), gb_s=9.5), rate("alone", (0, 2), gb_s=10),
        ))),
    ),
    (
        "collective-hangs",
        host(probed=Probed(ranks=2, broken=Broken(kind="hang", step="s", reason="r"))),
        host(probed=Probed(ranks=2, broken=Broken(kind="error", step="s", reason="r"))),
    ),
    (
        "collective-fails",
        host(probed=Probed(ranks=2, broken=Broken(kind="error", step="s", reason="r"))),
        host(probed=Probed(ranks=2)),
    ),
    ("corrupt-values", host(probed=Probed(ranks=2, wrong=3)), host(probed=Probed(ranks=2))),
    ("narrow-link", host(gpus=(gpu(0, width=4), gpu(1))), host()),
    (
        "narrow-link",  # under load a low generation is a fault, at rest it is none
        host(gpus=(gpu(0, generation=1), gpu(1))).with_trials(
            Tried(links=(Link(gpu=0, loaded=True, generation=3, width=16),))
        ),
        host(gpus=(gpu(0, generation=1), gpu(1))).with_trials(
            Tried(links=(Link(gpu=0, loaded=True, generation=5, width=16),))
        ),
    ),
    ("idle-link-is-not-a-fault", host(gpus=(gpu(0, generation=1), gpu(1))), host()),
    ("slot-below-card", host(gpus=(gpu(0, width=8, width_most=8), gpu(1))), host()),
    (
        "slot-below-card",
        host(gpus=(gpu(0, generation=4, generation_most=4), gpu(1))),
        host(gpus=(gpu(0, generation_most=4, name="some other GPU"), gpu(1))),
    ),
    ("gpus-of-different-links", host(gpus=(gpu(0, width_most=8, width=8), gpu(1))), host()),
    ("gpus-of-different-models", host(gpus=(gpu(0, name="NVIDIA H200"), gpu(1))), host()),
    ("shm-because-p2p-level", host(3), host(2)),
    ("shm-because-p2p-level", host(3), host(3, path="PXB")),
    ("shm-because-p2p-level", host(3), host(3, environment={"NCCL_P2P_LEVEL": "SYS"})),
    (
        "shm-because-p2p-level",
        host(3),
        host(3, nccl=log(P + "Channel 00/1 : 0[0] -> 1[1] via P2P/direct pointer")),
    ),
    ("graph-simple-order", host(gpus=ACROSS, **AMD), host(gpus=ACROSS, processor="Intel Xeon")),
    ("graph-simple-order", host(gpus=ACROSS, **AMD), host(**AMD)),
    (
        "graph-simple-order",  # where no node is known, the paths say it
        host(gpus=(gpu(0, node=None), gpu(1, node=None)), **AMD),
        host(path="NODE", gpus=(gpu(0, node=None), gpu(1, node=None)), **AMD),
    ),
    ("graph-simple-order", host(gpus=ACROSS, **AMD), host(path="NV2", gpus=ACROSS, **AMD)),
    (
        "graph-simple-order",
        host(gpus=ACROSS, **AMD),
        host(gpus=(gpu(0, node=0, name="NVIDIA H200"), gpu(1, node=1)), **AMD),
    ),
    (
        "graph-simple-order",
        host(nccl=log(PATTERN.format(1, 0.1, 0.1))),
        host(gpus=ACROSS, **AMD, nccl=log(PATTERN.format(2, "24.0", "24.0"))),
    ),
    (
        "config-injected-env",
        host(configuration=Configuration(settings=(CONF,))),
        host(environment={"NCCL_PROTO": "LL"}),
    ),
    (
        "config-injected-env",  # NCCL says "set by environment" of what the environment lacks
        host(nccl=log(P + "NCCL_PROTO set by environment to LL", environment={})),
        host(nccl=log(P + "NCCL_PROTO set by environment to LL",
                      environment={"NCCL_PROTO": "LL"})),
    ),
    (
        "config-line-without-effect",
        host(configuration=Configuration(dead=(CONF,))),
        host(configuration=Configuration(settings=(CONF,))),
    ),
    (
        "plugin-injected-env",
        host(nccl=log(P + "NET/OFI Setting NCCL_PROTO to \"simple\"")),
        host(nccl=log(P + "NCCL_PROTO set by environment to simple")),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "case", "near"), CASES)
def test_a_finding_is_raised_by_its_case_and_not_by_a_near_miss(
    name: str, case: Host, near: Host
) -> None:
    one(case, name)
    assert name not in names(near)


def test_a_healthy_host_has_no_finding() -> None:
    tried = Tried(
        links=(Link(gpu=0, loaded=True, generation=5, width=16),),
        access=(Access(writer=0, target=1, able=True), Access(writer=1, target=0, able=True)),
        checks=(check(), check(1, 0)),
        rates=(rate("alone", (0, 1)), rate("alone", (1, 0)), rate("both ways", (0, 1), (1, 0))),
        copies=(HostCopy(gpu=1, to_gpu=True, size_bytes=GIB, seconds=(GIB / 25e9,)),),
    )
    healthy = host(path="PIX", lspci=listed(OFF), probed=Probed(ranks=2)).with_trials(tried)
    assert names(healthy) == []


def test_every_named_finding_has_a_place() -> None:
    raised = {name for name, _, _ in CASES}
    late = {"acs-not-readable", "gpu-test-broken", "idle-link-is-not-a-fault"}
    assert raised - set(OF_HOSTS) == late | {"gpus-of-different-models"}
    assert set(findings.FAILED) <= raised


def test_findings_stand_by_their_weight() -> None:
    described = host(3, iommu=TRANSLATED, tried=Tried(checks=(check(lost=1),)))
    assert names(described)[:3] == [
        "p2p-capable-but-failed-write-verify",
        "iommu-translated",
        "shm-because-p2p-level",
    ]


@pytest.mark.parametrize(
    ("described", "confidence"),
    [
        (host(iommu=TRANSLATED), "hint"),
        (host(iommu=TRANSLATED, lspci=listed(ON)), "likely"),
        (host(iommu=TRANSLATED, lspci=listed(ON), tried=Tried(checks=(check(),))), "hint"),
        (host(iommu=TRANSLATED, lspci=listed(ON), tried=Tried(checks=(check(lost=1),))), "likely"),
    ],
)
def test_translation_weighs_by_what_else_is_known(described: Host, confidence: str) -> None:
    assert one(described, "iommu-translated").confidence == confidence


def test_what_groups_show_is_a_hint_and_what_lspci_shows_is_sure() -> None:
    grouped = host(path="PIX", gpus=(gpu(0, group="1"), gpu(1, group="2")))
    assert one(grouped, "acs-redirect").confidence == "hint"
    assert one(replace(grouped, lspci=listed(ON)), "acs-redirect").confidence == "sure"
    overridden = replace(grouped, parameters={"pcie_acs_override": "downstream"})
    assert "acs-redirect" not in names(overridden)


def test_lost_and_changed_words_are_told_apart() -> None:
    bad = Tried(checks=(check(lost=5, wrong=2), check(1, 0)))
    found = one(host(tried=bad), "p2p-capable-but-failed-write-verify")
    assert "on 1 of 2 ways 5 of 512 words were lost and 2 changed" in found.sentence
    assert found.seen == (Seen(HERE, "GPU 0 to 1 by kernel", "5 lost and 2 changed of 512 words"),)
    assert found.confidence == "sure"


def test_access_that_cuda_denies_counts_more_than_what_the_driver_says() -> None:
    access = (Access(writer=0, target=1, able=False), Access(writer=1, target=0, able=True))
    described = host(pairs=(pair(0, 1, asked=True),), tried=Tried(access=access))
    found = one(described, "no-p2p")
    assert found.seen == (Seen(HERE, "GPU 0 and 1", "CUDA says so"),)


@pytest.mark.parametrize(
    ("kind", "writes", "gb_s", "slow"),
    [
        # Three writes out of one GPU share its link: a third each is right.
        ("all to all", [(a, b) for a in range(4) for b in range(4) if a != b], 6.7, False),
        ("all to all", [(a, b) for a in range(4) for b in range(4) if a != b], 4.0, True),
        ("ring", [(0, 1), (1, 2), (2, 3), (3, 0)], 20.0, False),
        ("ring", [(0, 1), (1, 2), (2, 3), (3, 0)], 10.0, True),
    ],
)
def test_a_gpus_own_link_may_be_shared_and_another_may_not(
    kind: Together, writes: list[tuple[int, int]], gb_s: float, slow: bool
) -> None:
    alone = [rate("alone", (a, b)) for a in range(4) for b in range(4) if a != b]
    tried = Tried(rates=(*alone, rate(kind, *writes, gb_s=gb_s)))
    assert ("concurrent-writes-slow" in names(host(4, tried=tried))) == slow


def test_one_slow_pair_of_a_ring_does_not_look_like_a_shared_link() -> None:
    slow_pair = rate("alone", (2, 0), gb_s=5.0)
    ring = rate("ring", (0, 1), (1, 2), (2, 0), gb_s=5.0)
    tried = Tried(rates=(rate("alone", (0, 1)), rate("alone", (1, 2)), slow_pair, ring))
    assert "concurrent-writes-slow" not in names(host(3, tried=tried))


def test_only_what_was_tried_here_fails_the_command() -> None:
    wrong = host(tried=Tried(checks=(check(lost=1),)), probed=Probed(ranks=2, wrong=1))
    found = findings.conclusions(wrong)
    assert list(findings.failed(wrong, found)) == [
        "corrupt-values",
        "p2p-capable-but-failed-write-verify",
    ]
    engine = log(P + "x", "WARNING: lacks GPU P2P capability or P2P test failed",
                 P + "Channel 00/1 : 0[0] -> 1[1] via P2P/direct pointer")  # fmt: skip
    saved = host(saved=("nccl.log",), nccl=engine)
    found = findings.conclusions(saved)
    assert "p2p-capable-but-failed-write-verify" in [one.name for one in found]
    assert list(findings.failed(saved, found)) == []


def test_lspcis_word_on_access_control_replaces_that_of_a_log() -> None:
    remark = log(P + "x", "ACSCtl: SrcValid+ ReqRedir+ CmpltRedir+")
    assert names(host(nccl=remark)).count("acs-redirect") == 1
    both = one(host(nccl=remark, lspci=listed(ON)), "acs-redirect")
    assert both.seen[0].file == "lspci.txt"
