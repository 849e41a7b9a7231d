"""What this machine says of itself: NVML, /sys, /proc, lspci, dmesg, NCCL's configuration files.

Nothing is changed and no GPU is touched. `root` is the root of /sys and /proc, for tests.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from collectives._host import configuration
from collectives._host.facts import HERE, Gpu, Host, Iommu, Kernel, Listed, Node, Pair
from ingest import gpu_findings
from ingest.conclusions import Seen
from ingest.kernel_log import mode_of, parameters, read_kernel_log
from ingest.lspci import read_devices
from ingest.pci_address import normal
from verifyscope import environment, nvml, settings
from verifyscope.privacy import redacted

Printed = Callable[[Sequence[str]], tuple[str | None, str | None]]
_ANSWER_S = 30.0
_PACKAGES = {"lspci": " (package pciutils)"}
_TRANSLATED, _IDENTITY = ("DMA", "DMA-FQ", "DMA-SQ"), "identity"
# Settings of the driver that force peer access where it is not offered.
_DRIVER_SETTINGS = ("RegistryDwords", "GrdmaPciTopoCheckOverride", "DmaRemapPeerMmio")
_NAME = re.compile(r"node(\d{1,5})")


def look(root: Path = Path("/"), *, printed: Printed | None = None) -> Host:
    """Return what is known of this machine.

    printed: returns what a command prints, or why it prints nothing; runs it where not given.
    """
    ask = printed or _printed
    with nvml.session() as driver:
        found = driver.gpus()
        gpus = tuple(_gpu(gpu, root) for gpu in found)
        pairs = tuple(_pair(one, other) for one, other in combinations(found, 2))
        why_no_gpu = driver.why_not or (None if gpus else "the driver lists no GPU")
    text, why_no_lspci = ask(("lspci", "-vvv"))
    devices = None
    if text is not None:
        devices = Listed(file="lspci -vvv", devices=read_devices(enumerate(text.splitlines(), 1)))
    given = parameters(_text(root / "proc/cmdline") or "")
    return Host(
        processor=environment.processor(),
        virtual=_virtual(root),
        why_no_gpu=why_no_gpu,
        why_no_lspci=why_no_lspci,
        gpus=gpus,
        pairs=pairs,
        nodes=tuple(_nodes(root)),
        iommu=_iommu(root, gpus, given),
        parameters=given,
        kernel=kernel_log(ask),
        lspci=devices,
        configuration=configuration.look(os.environ),
        environment=settings.in_force(),
        driver=dict(_driver(root)),
    )


def _gpu(gpu: nvml.Gpu, root: Path) -> Gpu:
    address = normal(gpu.bus() or "")
    device = None if address is None else root / "sys/bus/pci/devices" / address
    node = None if device is None else _text(device / "numa_node")
    state = gpu_findings.Gpu(
        index=gpu.index,
        line=None,
        bus=address,
        name=redacted(gpu.text("nvmlDeviceGetName") or "not known"),
        generation=gpu.number("nvmlDeviceGetCurrPcieLinkGeneration"),
        generation_most=gpu.number("nvmlDeviceGetMaxPcieLinkGeneration"),
        width=gpu.number("nvmlDeviceGetCurrPcieLinkWidth"),
        width_most=gpu.number("nvmlDeviceGetMaxPcieLinkWidth"),
        readings=_readings(gpu),
        slowed=gpu.throttle_reasons(),
    )
    return Gpu(
        index=gpu.index,
        idle=state,
        node=int(node) if node is not None and node.isdigit() else None,
        group=None if device is None else _group(device),
        seen=Seen(HERE, f"GPU {gpu.index}", address or "address not known"),
    )


def _readings(gpu: nvml.Gpu) -> gpu_findings.Readings:
    limit = gpu.number("nvmlDeviceGetEnforcedPowerLimit")
    return gpu_findings.Readings(
        use=getattr(gpu.read("nvmlDeviceGetUtilizationRates"), "gpu", None),
        power_w=gpu.power_w(),
        limit_w=None if limit is None else limit / 1000,
        clock_mhz=gpu.number("nvmlDeviceGetClockInfo", nvml.CLOCK_SM),
    )


def _pair(one: nvml.Gpu, other: nvml.Gpu) -> Pair:
    ways = ((one, other), (other, one))
    refusals = [a.why_apart(b, writing=writing) for a, b in ways for writing in (False, True)]
    path = one.path_to(other)
    return Pair(
        first=one.index,
        second=other.index,
        path=path,
        refused=next((why for why in refusals if why is not None), None),
        asked=one.number("nvmlDeviceGetP2PStatus", other._handle, 1) is not None,
        seen=Seen(HERE, f"GPU {one.index} and {other.index}", path or "path not known"),
    )


def _group(device: Path) -> str | None:
    try:
        return (device / "iommu_group").resolve(strict=True).name
    except OSError:
        return None


def _iommu(root: Path, gpus: Sequence[Gpu], given: Mapping[str, str]) -> Iommu | None:
    """Return how the GPUs' transfers are translated; where no GPU has a group, any device's."""
    groups = root / "sys/kernel/iommu_groups"
    try:
        names = sorted(path.name for path in groups.iterdir())
    except OSError:
        return None
    if not names:
        return Iommu(mode="off", seen=(Seen(HERE, "IOMMU groups", "none"),))
    own = {gpu.group: f"GPU {gpu.index}" for gpu in gpus if gpu.group}
    types = {name: _text(groups / name / "type") for name in own or names}
    seen = tuple(
        Seen(HERE, f"IOMMU group {name}", " of ".join(filter(None, (kind, own.get(name)))))
        for name, kind in types.items()
        if kind is not None
    )
    known = set(types.values()) - {None}
    if known & set(_TRANSLATED):
        return Iommu(mode="translated", seen=seen)
    if known and known <= {_IDENTITY}:
        return Iommu(mode="passthrough", seen=seen)
    asked = mode_of(given)
    seen = seen or (Seen(HERE, "IOMMU groups", str(len(names))),)
    return Iommu(mode="passthrough" if asked == "passthrough" else "on", seen=seen)


def _nodes(root: Path) -> Iterator[Node]:
    folder = root / "sys/devices/system/node"
    try:
        found = [
            (match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))
        ]
    except OSError:
        return
    for match, path in sorted(found, key=lambda one: int(one[0][1])):
        yield Node(index=int(match[1]), processors=_text(path / "cpulist") or "")


def _virtual(root: Path) -> bool | None:
    text = _text(root / "proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text or "", re.MULTILINE)
    return None if flags is None else "hypervisor" in flags[1].split()


def _driver(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the settings of NVIDIA's driver that bear on peer access and are set."""
    for line in (_text(root / "proc/driver/nvidia/params") or "").splitlines():
        name, _, value = line.partition(":")
        shown = value.strip().strip('"')
        if name in _DRIVER_SETTINGS and shown not in ("", "0"):
            yield name, redacted(shown)


def kernel_log(printed: Printed | None = None) -> Kernel | None:
    """Return what the kernel's log says by now; None where it is not readable, or says nothing."""
    text, _ = (printed or _printed)(("dmesg",))
    if text is None:
        return None
    log = read_kernel_log(enumerate(text.splitlines(), 1))
    return None if log.empty else Kernel(file="dmesg", log=log)


def _printed(command: Sequence[str]) -> tuple[str | None, str | None]:
    """Return what a command prints, or why it prints nothing."""
    name = command[0]
    program = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        return None, f"{name} is not installed{_PACKAGES.get(name, '')}"
    try:
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{name} does not answer: {type(error).__name__}"
    return (done.stdout, None) if done.stdout else (None, f"{name} prints nothing")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
