"""lspci, the kernel's log and the matrix of nvidia-smi: what is read, each finding and its miss."""

from io import BytesIO

import pytest

from ingest import formats, kernel_log, lspci, topology
from ingest.kernel_log import KernelLog, mode_of, parameters, read_kernel_log
from ingest.log import Log, numbered_lines
from ingest.lspci import read_devices
from ingest.pci_address import normal
from verifyscope.records import Finding

ROOT = """\
{address} PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 153b (rev 01) (prog-if 00)
\tSubsystem: Advanced Micro Devices, Inc. [AMD] Device 1234
\tNUMA node: {node}
\tIOMMU group: 12
\tBus: primary=c0, secondary={first}, subordinate={last}, sec-latency=0
\tCapabilities: [58] Express (v2) Root Port (Slot+), IntMsgNum 0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <64us
\t\tLnkSta:\tSpeed 32GT/s, Width x16
\tCapabilities: [2a0 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{on} CmpltRedir{on} UpstreamFwd+ EgressCtrl-
"""
GPU = """\
{address} 3D controller: NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell] (rev a1)
\tNUMA node: 1
\tIOMMU group: 40
\tCapabilities: [60] Express (v2) Legacy Endpoint, IntMsgNum 0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <1us
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)
"""
CARD = "02:00.0 Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]\n"


def bridge(
    on: str = "+", *, address: str = "c0:01.1", buses: tuple[str, str] = ("c1", "c2")
) -> str:
    return ROOT.format(address=address, node=1, first=buses[0], last=buses[1], on=on)


def findings(text: str, name: str) -> dict[str, Finding]:
    data = text.encode()
    assert [known.name for known in formats.recognise(data)] == [name]
    (known,) = formats.recognise(data)
    log = Log(file="a.txt", lines=numbered_lines(BytesIO(data)), environment="here", command="test")
    return {one.name: one for one in known.read(log) if isinstance(one, Finding)}


def numbered(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.splitlines(), 1))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("c1:00.0", "0000:c1:00.0"),
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("10000:e1:1f.7", "10000:e1:1f.7"),
        ("c1:00", None),
        ("GPU", None),
    ],
)
def test_addresses_have_one_form(text: str, address: str | None) -> None:
    assert normal(text) == address


def test_devices_have_their_link_node_group_and_access_control() -> None:
    found = read_devices(numbered(bridge() + GPU.format(address="c2:00.0")))
    root, gpu = found.all
    assert (root.address, root.buses, root.node, root.group) == ("0000:c0:01.1", (193, 194), 1, 12)
    assert set(root.acs or ()) == {"SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"}
    assert root.acs_line == 11
    assert (gpu.speed_gt_s, gpu.speed_most_gt_s, gpu.width, gpu.width_most) == (2.5, 32, 8, 16)
    assert gpu.acs is None
    assert found.above(gpu) == [root]


def test_a_redirect_above_a_gpu_is_found_with_its_bridge() -> None:
    text = bridge() + GPU.format(address="c2:00.0") + GPU.format(address="e1:00.0")
    found = findings(text, "lspci -vvv")["acs-redirect"]
    assert "redirects on 1 of 1 bridges above 1 of 2 GPUs" in found.sentence
    assert [(e.at, e.value) for e in found.evidence] == [(11, "0000:c0:01.1 ReqRedir+ CmpltRedir+")]
    assert found.confidence == "sure"
    action = found.next_action or ""
    assert "for b in 0000:c0:01.1; do setpci -s $b ECAP_ACS+6.w=0000; done" in action
    assert "pci=disable_acs_redir=0000:c0:01.1 for" in action


@pytest.mark.parametrize(
    "text",
    [
        bridge("-") + GPU.format(address="c2:00.0"),  # off
        bridge(buses=("d1", "d2")) + CARD + GPU.format(address="c2:00.0"),  # above something else
        bridge(address="0001:c0:01.1") + GPU.format(address="c2:00.0"),  # of another domain
    ],
)
def test_a_bridge_that_is_off_or_above_something_else_is_no_finding(text: str) -> None:
    assert findings(text, "lspci -vvv") == {}


def test_control_lines_alone_count_each() -> None:
    on, off = (line for text in (bridge("+"), bridge("-")) for line in text.splitlines()[-1:])
    found = findings(f"{on}\n{off}\n{on}\n", "lspci -vvv")["acs-redirect"]
    assert "redirects on 2 of 3 bridges:" in found.sentence
    assert [e.at for e in found.evidence] == [1, 3]


def test_what_may_not_be_read_is_not_off() -> None:
    hidden = "\n".join(line for line in bridge().splitlines() if "ACS" not in line)
    text = f"{hidden}\n\tCapabilities: <access denied>\n" + GPU.format(address="c2:00.0")
    found = findings(text, "lspci -vvv")
    assert set(found) == {"acs-not-readable"}
    assert found["acs-not-readable"].confidence == "hint"
    assert "root" in (found["acs-not-readable"].next_action or "")
    assert lspci.described(read_devices(numbered(text))) == "not readable: lspci -vvv needs root"


def test_what_stands_in_the_text_is_described() -> None:
    text = bridge("-") + GPU.format(address="c2:00.0")
    assert lspci.described(read_devices(numbered(text))) == "no redirect on 1 bridges above GPUs"
    text = bridge() + GPU.format(address="c2:00.0")
    assert lspci.described(read_devices(numbered(text))) == (
        "redirects on 1 of 1 bridges above GPUs: 0000:c0:01.1"
    )
    assert lspci.described(read_devices(numbered(CARD))) == "no bridge in the text has it"


DMESG = """\
[    0.000000] Kernel command line: BOOT_IMAGE=/vmlinuz root=UUID=secret iommu.strict=0 ip=10.0.0.7
[    0.103333] smpboot: CPU0: AMD EPYC 9575F 64-Core Processor (family: 0x1a, model: 0x2)
[    0.690429] iommu: Default domain type: Translated
[   99.000001] nvidia 0000:c1:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0010 address=0x64]
[   99.000002] nvidia 0000:c1:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0010 address=0x65]
[   99.000003] AMD-Vi: Event logged [IO_PAGE_FAULT device=c2:00.0 domain=0x0011 address=0x65]
[   99.000004] DMAR: [DMA Write NO_PASID] Request device [e1:00.0] fault addr 0xff
[  100.000000] pcieport 0000:c0:01.1: PCIe Bus Error: severity=Corrected, type=Physical Layer
[  101.000000] NVRM: Xid (PCI:0000:c1:00): 31, pid=4242, name=python, Ch 00000008
"""


def test_the_kernels_log_says_what_was_set_refused_and_broken() -> None:
    found = findings(DMESG, "kernel-log")
    assert found["kernel-settings"].sentence == (
        "the kernel: the IOMMU's default is translated; iommu.strict=0"
    )
    assert [(e.at, e.value) for e in found["iommu-faults"].evidence] == [
        (4, "0000:c1:00.0, 2 x"),
        (6, "0000:c2:00.0, 1 x"),
        (7, "0000:e1:00.0, 1 x"),
    ]
    assert "refused 4 transfers" in found["iommu-faults"].sentence
    assert [e.value for e in found["pcie-errors"].evidence] == ["0000:c0:01.1 corrected, 1 x"]
    assert [e.value for e in found["gpu-xid"].evidence] == ["0000:c1:00.0 Xid 31, 1 x"]
    whole = " ".join(str(one) for one in found.values())
    for word in ("secret", "10.0.0.7", "4242", "vmlinuz"):
        assert word not in whole
    assert read_kernel_log(numbered(DMESG)).processor == "AMD EPYC 9575F 64-Core Processor"


@pytest.mark.parametrize(
    ("line", "mode"),
    [
        ("root=UUID=a ro iommu=pt", "passthrough"),
        ("root=UUID=a amd_iommu=on iommu=pt", "passthrough"),
        ("root=UUID=a iommu.passthrough=1", "passthrough"),
        ("root=UUID=a intel_iommu=off", "off"),
        ("root=UUID=a amd_iommu=off iommu=pt", "off"),
        ("root=UUID=a amd_iommu=on", None),
        ("root=UUID=a", None),
    ],
)
def test_the_command_line_asks_a_mode_of_the_iommu(line: str, mode: str | None) -> None:
    assert mode_of(parameters(line)) == mode


def test_a_saved_command_line_keeps_listed_parameters_alone() -> None:
    found = findings("BOOT_IMAGE=/vmlinuz root=/dev/sda token=abc iommu=pt quiet\n", "kernel-log")
    assert found["kernel-settings"].sentence == "the kernel: iommu=pt"
    acs = "pci=disable_acs_redir=0000:00:01.1;0000:00:01.3"
    assert parameters(acs) == {"pci": "disable_acs_redir=0000:00:01.1;0000:00:01.3"}


def test_an_empty_log_says_nothing() -> None:
    assert read_kernel_log([(1, "usb 1-1: new device"), (2, "")]) == KernelLog()
    assert list(kernel_log.conclusions(KernelLog(), "a")) == []


MATRIX = (
    "\x1b[4m\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tSYS\tPIX\t0-23,48-71\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tNODE\tSYS\t0-23,48-71\t0\t\tN/A\n"
    "GPU2\tSYS\tNODE\t X \tSYS\t\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\tSYS\t X \n"
)


def test_the_matrix_gives_each_pair_and_each_node() -> None:
    found = topology.read_matrix(numbered_lines(BytesIO(MATRIX.encode())))
    assert [(row.gpu, row.line, row.node) for row in found.rows] == [
        (0, 2, 0),
        (1, 3, 0),
        (2, 4, 1),
    ]
    assert [(row.gpu, other, path) for row, other, path in found.pairs()] == [
        (0, 1, "NV18"),
        (0, 2, "SYS"),
        (1, 2, "NODE"),
    ]


@pytest.mark.parametrize(
    ("rest", "node"),
    [("0-31  0", 0), ("0-31 1 N/A", 1), ("1 N/A", 1), ("N/A N/A N/A", None), ("", None)],
)
def test_the_node_stands_behind_the_processors(rest: str, node: int | None) -> None:
    found = topology.read_matrix([(1, "GPU0 GPU1"), (2, f"GPU0  X  PHB {rest}")])
    assert [row.node for row in found.rows] == [node]
