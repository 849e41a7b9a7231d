"""The kernel's log (dmesg) and its command line: IOMMU, PCIe errors, faults of the NVIDIA driver.

Of the command line only the parameters in PARAMETERS are kept. What counts: whether what devices
send is translated, transfers that the IOMMU refused, errors on PCIe links, and Xid numbers, by
which the driver tells what became of a GPU.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeVar

from ingest.conclusions import Conclusion, Seen, listed
from ingest.facts import Read
from ingest.log import Log
from ingest.pci_address import normal
from verifyscope.privacy import redacted

EXAMPLE = (
    "[    0.690429] iommu: Default domain type: Translated",
    "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro amd_iommu=on iommu=pt",
)
NOTHING = "a kernel log that says nothing of IOMMU, PCIe and GPUs; give dmesg whole, as root"
# Parameters that decide how a device reaches another one.
PARAMETERS: Mapping[str, str] = MappingProxyType(
    {
        "iommu": "whether devices' addresses are translated",
        "amd_iommu": "whether an AMD IOMMU is used",
        "intel_iommu": "whether an Intel IOMMU is used",
        "iommu.passthrough": "whether devices' addresses are translated",
        "iommu.strict": "when translations are dropped",
        "pci": "how bridges are set up; disable_acs_redir= turns redirection off",
        "pcie_acs_override": "groups are split as if access control were there",
        "pcie_aspm": "links that sleep",
        "pcie_aspm.policy": "links that sleep",
        "numa": "whether memory has nodes",
        "numa_balancing": "pages that move between nodes",
    }
)
IommuMode = Literal["off", "passthrough", "translated"]
_Key = TypeVar("_Key")
_MOST_EVENTS = 1000
_MODES = ("iommu", "amd_iommu", "intel_iommu")

# Plain words are found fast: a log of gigabytes is looked through for them.
_SIGNS = (
    b"iommu: Default domain type: ",
    b"Kernel command line: ",
    b"BOOT_IMAGE=",
    b"root=/dev/",
    b"root=UUID=",
    b"iommu=",
    b"AMD-Vi: ",
    b"DMAR: ",
    b"PCIe Bus Error: severity",
    b"NVRM: Xid ",
)
_DOMAIN = re.compile(r"iommu: Default domain type: (Translated|Passthrough)\b")
_COMMAND_LINE = re.compile(
    r"Kernel command line: (.*)|^((?:BOOT_IMAGE=|(?:\S+ )*root=(?:/dev/|(?:PART)?UUID=|LABEL=)).*)"
)
_ADDRESS = r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_FAULT = re.compile(
    rf"(?:{_ADDRESS}: )?AMD-Vi: Event logged \[IO_PAGE_FAULT(?: device={_ADDRESS})?"
    rf"|DMAR: \[DMA (?:Read|Write)[^\]]*\] Request device \[{_ADDRESS}\]"
)
_BUS_ERROR = re.compile(rf"{_ADDRESS}: (?:AER: )?PCIe Bus Error: severity=(\w+)")
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.\d)?\): (\d{1,3})\b")
_PARAMETER = re.compile(r"([\w.]{1,40})=(\S{1,120})")
_CPU = re.compile(r"smpboot: CPU0: (.{1,80}?) \(family")


@dataclass(slots=True, kw_only=True)
class Event:
    """What was logged of one device: how often, and where first."""

    line: int
    count: int = 0


@dataclass(slots=True, kw_only=True)
class KernelLog:
    """All that counts. faults and errors are by address; xids by address and number.

    mode: how the kernel sets up devices that have no rule of their own; None is not said.
    """

    parameters: dict[str, str] = field(default_factory=dict)
    parameters_line: int | None = None
    mode: IommuMode | None = None
    mode_line: int | None = None
    processor: str | None = None
    faults: dict[str, Event] = field(default_factory=dict)
    errors: dict[tuple[str, str], Event] = field(default_factory=dict)
    xids: dict[tuple[str, int], Event] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Say whether nothing was found."""
        return not (self.parameters or self.mode or self.faults or self.errors or self.xids)


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` has such lines."""
    return any(sign in head for sign in _SIGNS)


def read_kernel_log(lines: Iterable[tuple[int, str]]) -> KernelLog:
    """Return what numbered lines say."""
    found = KernelLog()
    for number, text in lines:
        if domain := _DOMAIN.search(text):
            found.mode = "translated" if domain[1] == "Translated" else "passthrough"
            found.mode_line = number
        elif command := _COMMAND_LINE.search(text):
            words = command[1] or command[2] or ""
            found.parameters, found.parameters_line = parameters(words), number
        elif fault := _FAULT.search(text):
            address = next((part for part in fault.groups() if part), "")
            _count(found.faults, normal(address) or "a device", number)
        elif error := _BUS_ERROR.search(text):
            _count(found.errors, (normal(error[1]) or error[1], error[2].lower()), number)
        elif xid := _XID.search(text):
            _count(found.xids, (f"{xid[1]}.0", int(xid[2])), number)
        elif found.processor is None and (cpu := _CPU.search(text)):
            found.processor = cpu[1]
    return found


def parameters(command_line: str) -> dict[str, str]:
    """Return the parameters of a kernel's command line that are in PARAMETERS."""
    given = _PARAMETER.findall(command_line)
    return {name: redacted(value) for name, value in given if name in PARAMETERS}


def mode_of(given: Mapping[str, str]) -> IommuMode | None:
    """Return what parameters of the kernel ask of the IOMMU; None where they leave it open."""
    words = {word for name in _MODES for word in given.get(name, "").split(",") if word}
    if "off" in words:
        return "off"
    if "pt" in words or given.get("iommu.passthrough") in ("1", "on", "y"):
        return "passthrough"
    return None


def read(log: Log) -> Iterator[Read]:
    """Yield what the log says."""
    known = read_kernel_log(log.lines)
    for one in conclusions(known, log.file):
        yield one.finding(environment=log.environment, command=log.command)


def conclusions(known: KernelLog, file: str) -> Iterator[Conclusion]:
    """Yield what the log says was set, refused and broken."""
    if known.mode or known.parameters:
        yield Conclusion(
            name="kernel-settings",
            sentence="the kernel: " + "; ".join(_settings(known)),
            seen=tuple(_seen_settings(known, file)),
            verdict=False,
        )
    if known.faults:
        total = sum(event.count for event in known.faults.values())
        yield Conclusion(
            name="iommu-faults",
            sentence=f"the IOMMU refused {total} transfers of {listed(sorted(known.faults))}: what "
            "a device sent did not arrive",
            seen=tuple(
                Seen(file, e.line, f"{who}, {e.count} x") for who, e in known.faults.items()
            ),
            next_action="boot with iommu=pt (or amd_iommu=off, intel_iommu=off), and let "
            "python -m collectives.host write and compare between the GPUs",
            confidence="likely",
            verdict=False,
        )
    if known.errors:
        yield _bus_errors(known, file)
    if known.xids:
        named = dict.fromkeys(number for _, number in known.xids)
        yield Conclusion(
            name="gpu-xid",
            sentence=f"the driver reports Xid {listed([str(number) for number in named])}",
            seen=tuple(
                Seen(file, event.line, f"{who} Xid {number}, {event.count} x")
                for (who, number), event in known.xids.items()
            ),
            next_action="look the number up in NVIDIA's list of Xid errors before measuring",
            verdict=False,
        )


def _bus_errors(known: KernelLog, file: str) -> Conclusion:
    kinds = Counter[str]()
    for (_, severity), event in known.errors.items():
        kinds[severity] += event.count
    counted = listed([f"{count} {severity}" for severity, count in kinds.most_common()])
    return Conclusion(
        name="pcie-errors",
        sentence=f"PCIe links report errors ({counted}): packets are sent again, or lost",
        seen=tuple(
            Seen(file, event.line, f"{who} {severity}, {event.count} x")
            for (who, severity), event in known.errors.items()
        ),
        next_action="reseat card and riser, or take the link one generation down in the firmware; "
        "then look again",
        verdict=False,
    )


def _settings(known: KernelLog) -> Iterator[str]:
    if known.mode:
        yield f"the IOMMU's default is {known.mode}"
    yield from (f"{name}={value}" for name, value in known.parameters.items())


def _seen_settings(known: KernelLog, file: str) -> Iterator[Seen]:
    if known.mode:
        yield Seen(file, known.mode_line, f"default domain type: {known.mode}")
    for name, value in known.parameters.items():
        yield Seen(file, known.parameters_line, f"{name}={value}")


def _count(events: dict[_Key, Event], key: _Key, line: int) -> None:
    if key in events or len(events) < _MOST_EVENTS:
        events.setdefault(key, Event(line=line)).count += 1
