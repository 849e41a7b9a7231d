"""What a machine says of itself, from a /sys and a /proc that are written down; saved texts."""

import gzip
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives._host import configuration, findings, machine, saved, table
from collectives._host.facts import Host
from collectives._host.records import as_json
from ingest import nccl_conf
from tests.fake_nvml import H200, FakeNvml
from tests.test_ingest_gpus import query, text, xml
from tests.test_ingest_host import DMESG, GPU, bridge
from verifyscope.errors import UsageError

BUSES = ("00000000:01:00.0", "00000000:C1:00.0")


def described(bus: str, **fields: Any) -> dict[str, Any]:
    return {
        **H200,
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId=bus),
        "nvmlDeviceGetCurrPcieLinkGeneration": 1,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=3),
        **fields,
    }


def tree(root: Path, files: dict[str, str], links: dict[str, str] | None = None) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for name, target in (links or {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(root / target)
    return root


def two_gpus(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    gpus = [described(bus, **fields) for bus in BUSES]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(gpus))


def look(root: Path) -> Host:
    return machine.look(root, printed=lambda command: (None, f"{command[0]} is not installed"))


GROUPS = {
    "sys/kernel/iommu_groups/7/type": "DMA-FQ\n",
    "sys/kernel/iommu_groups/9/type": "identity\n",
    "sys/bus/pci/devices/0000:01:00.0/numa_node": "0\n",
    "sys/bus/pci/devices/0000:c1:00.0/numa_node": "-1\n",
    "sys/devices/system/node/node0/cpulist": "0-31\n",
    "sys/devices/system/node/node10/cpulist": "64-95\n",
    "sys/devices/system/node/node2/cpulist": "32-63\n",
    "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=secret amd_iommu=on token=abc\n",
    "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu vme hypervisor sse\n",
    "proc/driver/nvidia/params": 'EnableMSI: 1\nRegistryDwords: "ForceP2P=0x11"\nDmaRemap: 0\n',
}
BOTH_IN_7 = {
    "sys/bus/pci/devices/0000:01:00.0/iommu_group": "sys/kernel/iommu_groups/7",
    "sys/bus/pci/devices/0000:c1:00.0/iommu_group": "sys/kernel/iommu_groups/7",
}


def test_sys_and_proc_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    two_gpus(
        monkeypatch,
        nvmlDeviceGetTopologyCommonAncestor=lambda other: 50,
        nvmlDeviceGetP2PStatus=lambda other, kind: 0,
    )
    host = look(tree(tmp_path, GROUPS, BOTH_IN_7))
    assert [(gpu.idle.bus, gpu.node, gpu.group) for gpu in host.gpus] == [
        ("0000:01:00.0", 0, "7"),
        ("0000:c1:00.0", None, "7"),  # -1 is the kernel's word for not known
    ]
    state = host.gpus[0].idle
    assert (state.generation, state.generation_most, state.width) == (1, 5, 16)
    assert (state.readings.use, state.busy) == (3, False)
    (pair,) = host.pairs
    assert (pair.path, pair.refused, pair.asked) == ("SYS", None, True)
    assert host.iommu is not None
    assert (host.iommu.mode, host.iommu.seen[0].value) == ("translated", "DMA-FQ of GPU 1")
    assert [(node.index, node.processors) for node in host.nodes] == [
        (0, "0-31"), (2, "32-63"), (10, "64-95"),
    ]  # fmt: skip
    assert host.virtual is True
    assert host.driver == {"RegistryDwords": "ForceP2P=0x11"}
    assert host.parameters == {"amd_iommu": "on"}
    assert host.why_no_lspci == "lspci is not installed"
    assert host.kernel is None


def test_a_refusal_of_the_driver_is_kept_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    two_gpus(monkeypatch, nvmlDeviceGetP2PStatus=lambda other, kind: {0: 0, 1: 2}[kind])
    (pair,) = look(tmp_path).pairs
    assert (pair.path, pair.refused) == (None, "not supported by the GPU")


@pytest.mark.parametrize(
    ("files", "links", "mode"),
    [
        ({}, {}, None),  # no such folder
        ({"sys/kernel/iommu_groups": ""}, {}, None),  # no folder at all
        ({"sys/kernel/iommu_groups/9/type": "identity"}, {}, "passthrough"),
        ({"sys/kernel/iommu_groups/9/type": "DMA"}, {}, "translated"),
        ({"sys/kernel/iommu_groups/9/devices": ""}, {}, "on"),
        ({"sys/kernel/iommu_groups/9/devices": "", "proc/cmdline": "root=/dev/a iommu=pt"}, {},
         "passthrough"),
        # What other devices have does not count where the GPUs have a group.
        ({"sys/kernel/iommu_groups/7/type": "identity", "sys/kernel/iommu_groups/9/type": "DMA"},
         BOTH_IN_7, "passthrough"),
    ],
)  # fmt: skip
def test_the_mode_of_the_iommu(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    files: dict[str, str],
    links: dict[str, str],
    mode: str | None,
) -> None:
    two_gpus(monkeypatch)
    host = look(tree(tmp_path, files, links))
    assert (None if host.iommu is None else host.iommu.mode) == mode


def test_an_empty_folder_of_groups_means_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    two_gpus(monkeypatch)
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    host = look(tmp_path)
    assert host.iommu is not None
    assert host.iommu.mode == "off"


def test_without_a_driver_the_rest_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(driver=False))
    texts = {"lspci -vvv": bridge() + GPU.format(address="c2:00.0"), "dmesg": DMESG}
    host = machine.look(
        tree(tmp_path, GROUPS), printed=lambda command: (texts[" ".join(command)], None)
    )
    assert host.why_no_gpu == "no NVIDIA driver: libnvidia-ml.so.1 is not found"
    assert host.gpus == ()
    assert len(host.nodes) == 3
    assert host.lspci is not None
    assert [device.address for device in host.lspci.devices.all] == ["0000:c0:01.1", "0000:c2:00.0"]
    assert host.kernel is not None
    assert (host.kernel.file, host.kernel.log.mode) == ("dmesg", "translated")


def test_a_command_is_run_or_says_why_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, script in (("lspci", "echo $1"), ("silent", ":"), ("odd", "exec nowhere")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    assert machine._printed(("lspci", "-vvv")) == ("-vvv\n", None)
    assert machine._printed(("silent",)) == (None, "silent prints nothing")
    assert machine._printed(("odd",)) == (None, "odd prints nothing")
    assert machine._printed(("missing",)) == (None, "missing is not installed")


def test_configuration_files_have_live_and_dead_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, everywhere = tmp_path / "own.conf", tmp_path / "nccl.conf"
    monkeypatch.setattr(nccl_conf, "EVERYWHERE", everywhere)
    own.write_text("# NCCL_ALGO=Ring\nNCCL_PROTO=LL\nexport NCCL_ALGO=Tree\nSECRET_KEY = x\n")
    everywhere.write_text("NCCL_PROTO=Simple\nNCCL_BUFFSIZE = 1048576\nNCCL_P2P_LEVEL=SYS\n")
    found = configuration.look({"NCCL_CONF_FILE": str(own), "NCCL_P2P_LEVEL": "PXB"})
    assert [(known.name, known.value, known.file, known.line) for known in found.settings] == [
        ("NCCL_PROTO", "LL", "own.conf", 2)
    ]
    assert [(known.name, known.value, known.file, known.line) for known in found.dead] == [
        ("NCCL_ALGO", "Tree", "own.conf", 3),
        ("NCCL_BUFFSIZE", "1048576", "nccl.conf", 2),
    ]


MATRIX = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-31\t0\nGPU1\tSYS\t X \t32-63\t1\n"
)


def files(folder: Path, **contents: str) -> list[Path]:
    found = []
    for name, content in contents.items():
        found.append(folder / f"{name}.txt")
        found[-1].write_text(content)
    return found


def test_saved_texts_are_put_together_by_address_and_number(tmp_path: Path) -> None:
    lspci = bridge(buses=("c1", "c1")) + GPU.format(address="c1:00.0")
    smi = text(query(bus="01"), query(bus="C1", generation=1))
    host = saved.read(files(tmp_path, smi=smi, topo=MATRIX, lspci=lspci, dmesg=DMESG))
    assert [(gpu.idle.bus, gpu.node, gpu.group) for gpu in host.gpus] == [
        ("0000:01:00.0", 0, None),
        ("0000:c1:00.0", 1, "40"),
    ]
    assert [(gpu.seen.file, gpu.seen.line) for gpu in host.gpus] == [
        ("smi.txt", 5),
        ("smi.txt", 38),
    ]
    node = host.gpus[1].node_seen
    assert node is not None
    assert (node.file, node.line) == ("topo.txt", 3)
    (pair,) = host.pairs
    assert (pair.path, pair.seen.line, pair.asked) == ("SYS", 2, False)
    assert host.iommu is not None
    assert (host.iommu.mode, host.iommu.seen[0].line) == ("translated", 3)
    assert host.processor == "AMD EPYC 9575F 64-Core Processor"
    assert host.saved == ("smi.txt", "topo.txt", "lspci.txt", "dmesg.txt")


def test_one_file_may_hold_all_of_them_and_be_packed(tmp_path: Path) -> None:
    whole = DMESG + "x" * 2**20 + "\n" + bridge() + GPU.format(address="c2:00.0") + MATRIX
    path = tmp_path / "nvidia-bug-report.log.gz"
    path.write_bytes(gzip.compress((whole + text(query())).encode()))
    host = saved.read([path])
    assert [gpu.idle.name for gpu in host.gpus] == ["NVIDIA Test GPU"]
    assert len(host.pairs) == 1
    assert host.lspci is not None
    assert host.kernel is not None
    assert host.kernel.log.mode == "translated"


def test_the_xml_of_nvidia_smi_has_addresses_too(tmp_path: Path) -> None:
    host = saved.read(files(tmp_path, smi=xml()))
    assert [(gpu.idle.bus, gpu.idle.width) for gpu in host.gpus] == [("0000:01:00.0", 16)]


@pytest.mark.parametrize("names", [("topo",), ("lspci",)])
def test_a_matrix_or_lspci_alone_has_gpus_as_well(tmp_path: Path, names: tuple[str, ...]) -> None:
    contents = {"topo": MATRIX, "lspci": bridge() + GPU.format(address="c2:00.0")}
    host = saved.read(files(tmp_path, **{name: contents[name] for name in names}))
    if names == ("topo",):
        assert [(gpu.index, gpu.node) for gpu in host.gpus] == [(0, 0), (1, 1)]
    else:
        (gpu,) = host.gpus
        state = gpu.idle
        assert (state.name, state.bus) == ("RTX PRO 6000 Blackwell", "0000:c2:00.0")
        assert (state.generation, state.generation_most) == (1, 5)
        assert (state.width, state.width_most, gpu.node) == (8, 16, 1)


def test_a_command_line_beside_a_log_without_its_start_counts(tmp_path: Path) -> None:
    late = "\n".join(line for line in DMESG.splitlines() if "command line" not in line)
    host = saved.read(files(tmp_path, dmesg=late, cmdline="root=UUID=a iommu=pt amd_iommu=off"))
    assert host.iommu is not None
    assert (host.iommu.mode, host.iommu.seen[0].file) == ("off", "cmdline.txt")
    assert host.parameters == {"iommu": "pt", "amd_iommu": "off"}


def test_a_second_text_of_a_kind_is_named_and_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = saved.read(files(tmp_path, one=MATRIX, two=MATRIX.replace("SYS", "PIX")))
    assert [pair.path for pair in host.pairs] == ["SYS"]
    assert capsys.readouterr().err == (
        "two.txt: its nvidia-smi topo -m is not used, that of one.txt is\n"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [("hello\n", "says nothing of a host; what is read: nvidia-smi topo -m"), ("", "says nothing")],
)
def test_a_file_that_says_nothing_is_one_line(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        saved.read(files(tmp_path, odd=content))
    with pytest.raises(UsageError, match="no such file"):
        saved.read([tmp_path / "missing.txt"])


WHOLE = DMESG + bridge() + GPU.format(address="c2:00.0") + MATRIX + text(query(), query(bus="C2"))


@settings(
    deadline=None,
    derandomize=True,
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_damaged_texts_are_judged_or_refused_in_a_line(tmp_path: Path, data: st.DataObject) -> None:
    whole = WHOLE
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(whole)))
        odd = data.draw(st.sampled_from(["", "9" * 400, "\0", "GPU7 ", "=", ":", "\n\t\t", "-1"]))
        whole = whole[:at] + odd + whole[at + data.draw(st.integers(0, 40)) :]
    path = tmp_path / "odd.log"
    path.write_text(whole)
    try:
        host = saved.read([path])
    except UsageError:
        return
    found = findings.conclusions(host)
    table.show(host, found)
    assert msgspec.json.decode(as_json(host, found))
