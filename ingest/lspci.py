"""`lspci -vvv`: links, NUMA nodes, IOMMU groups, and what access control (ACS) does between GPUs.

ReqRedir+ or CmpltRedir+ on a bridge above a GPU sends what the GPU writes to another one up to the
root port and, with an IOMMU, through its translation. Only root may read it: without, lspci says
`Capabilities: <access denied>`, which is not "off". Nothing else of a device is kept.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ingest.conclusions import Conclusion, Seen, listed
from ingest.facts import Read
from ingest.log import Log
from ingest.pci_address import bus, normal

EXAMPLE = (
    "c0:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 153b (rev 01)",
    "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-",
)
NOTHING = "output of lspci without a GPU and without access control; give lspci -vvv of root"
REDIRECTS = ("ReqRedir", "CmpltRedir")
MOST_DEVICES = 4096

_SIGN = re.compile(rb"^\s*ACSCtl:\s+SrcValid[+-]|^[0-9a-f:]{5,10}\.\d PCI bridge: ", re.MULTILINE)
_HEAD = re.compile(
    r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([A-Z0-9][^:\[]{2,60}?)"
    r"(?: \[[0-9a-f]{4}\])?: (.*)"
)
_GPU_KINDS = ("VGA compatible controller", "3D controller")
_BUSES = re.compile(r"\s+Bus: primary=\w{2}, secondary=(\w{2}), subordinate=(\w{2})\b")
_NODE = re.compile(r"\s+NUMA node: (\d{1,4})")
_GROUP = re.compile(r"\s+IOMMU group: (\d{1,6})")
_LINK = re.compile(r"\s+(LnkCap|LnkSta):\s.*?Speed ([\d.]{1,5})GT/s[^,]*, Width x(\d{1,2})")
_CONTROL = re.compile(r"\s+ACSCtl:\s+(.*)")
_DENIED = "Capabilities: <access denied>"


@dataclass(slots=True, kw_only=True)
class Device:
    """One function; `acs` are the flags of ACSCtl that are on, None where it has no such line.

    address: "" where the text gives such lines alone (`lspci -vvv | grep ACSCtl`).
    buses: of a bridge, the buses behind it, first and last. speeds in GT/s; hidden: lspci was not
    allowed to read the capabilities.
    """

    address: str
    line: int
    kind: str
    name: str
    buses: tuple[int, int] | None = None
    node: int | None = None
    group: int | None = None
    speed_gt_s: float | None = None
    speed_most_gt_s: float | None = None
    width: int | None = None
    width_most: int | None = None
    acs: frozenset[str] | None = None
    acs_line: int | None = None
    hidden: bool = False

    @property
    def is_gpu(self) -> bool:
        """Say whether it is a GPU of NVIDIA."""
        return self.kind in _GPU_KINDS and "NVIDIA" in self.name

    @property
    def redirects(self) -> bool:
        """Say whether ACS sends requests or completions upwards here."""
        return any(word in (self.acs or ()) for word in REDIRECTS)


@dataclass(frozen=True, slots=True)
class Devices:
    """All functions of a text, in its order."""

    all: tuple[Device, ...] = field(default=())

    @property
    def gpus(self) -> list[Device]:
        """Return the GPUs of NVIDIA."""
        return [device for device in self.all if device.is_gpu]

    def above(self, device: Device) -> list[Device]:
        """Return the bridges on the way from a device to its root."""
        domain, number = bus(device.address)
        return [
            bridge
            for bridge in self.all
            if bridge.buses is not None
            and bus(bridge.address)[0] == domain
            and bridge.buses[0] <= number <= bridge.buses[1]
        ]

    @property
    def between_gpus(self) -> list[Device]:
        """Return the bridges above any GPU, each once; all bridges where no GPU is listed."""
        gpus = self.gpus
        if not gpus:
            return [device for device in self.all if device.acs is not None]
        found = {bridge.address: bridge for gpu in gpus for bridge in self.above(gpu)}
        return list(found.values())


def recognises(head: bytes) -> bool:
    """Say whether a file that begins with `head` is such text."""
    return _SIGN.search(head) is not None


def read_devices(lines: Iterable[tuple[int, str]]) -> Devices:
    """Return the devices of numbered lines."""
    found: list[Device] = []
    for number, text in lines:
        head = _HEAD.match(text)
        address = normal(head[1]) if head else None
        if head and address is not None and len(found) < MOST_DEVICES:
            found.append(Device(address=address, line=number, kind=head[2], name=head[3][:120]))
        elif text[:1].isspace() or text.lstrip().startswith("ACSCtl:"):
            _take(found, number, f" {text}")
    return Devices(tuple(found))


def read(log: Log) -> Iterator[Read]:
    """Yield what the text says of access control."""
    for one in conclusions(read_devices(log.lines), log.file):
        yield one.finding(environment=log.environment, command=log.command)


def conclusions(devices: Devices, file: str) -> Iterator[Conclusion]:
    """Yield what access control does between the GPUs, or that nobody may say."""
    bridges = devices.between_gpus
    redirecting = [bridge for bridge in bridges if bridge.redirects]
    if redirecting:
        behind = [gpu for gpu in devices.gpus if any(b.redirects for b in devices.above(gpu))]
        those = f" above {len(behind)} of {len(devices.gpus)} GPUs" if devices.gpus else ""
        yield Conclusion(
            name="acs-redirect",
            sentence=f"PCIe access control (ACS) redirects on {len(redirecting)} of {len(bridges)} "
            f"bridges{those}: what GPUs write to each other goes up to the processor and back; "
            "that is slower, and with an IOMMU it may hang",
            seen=tuple(Seen(file, b.acs_line, _control(b)) for b in redirecting),
            next_action=_off([bridge.address for bridge in redirecting if bridge.address]),
            verdict=False,
        )
    elif any(device.hidden for device in (*bridges, *devices.gpus)):
        hidden = [device for device in (*bridges, *devices.gpus) if device.hidden]
        yield Conclusion(
            name="acs-not-readable",
            sentence=f"whether ACS is on cannot be told: lspci may not read {len(hidden)} of the "
            "bridges and GPUs",
            seen=tuple(Seen(file, device.line, device.address) for device in hidden),
            next_action="run lspci -vvv as root",
            confidence="hint",
            verdict=False,
        )


def _off(addresses: Sequence[str]) -> str:
    """Return how redirection is turned off on these bridges, on all where none is named."""
    named = addresses or ["ADDRESS"]
    return (
        f"turn it off: as root at each boot for b in {' '.join(named)}; do setpci -s $b "
        f"ECAP_ACS+6.w=0000; done, or pci=disable_acs_redir={';'.join(named)} for the kernel, or "
        "in the firmware; not where virtual machines get devices of their own"
    )


def described(devices: Devices) -> str:
    """Return how access control stands, in words."""
    bridges = devices.between_gpus
    known = [bridge for bridge in bridges if bridge.acs is not None]
    on = [bridge for bridge in known if bridge.redirects]
    where = "above GPUs" if devices.gpus else "in the text"
    if on:
        named = listed([bridge.address for bridge in on if bridge.address])
        return f"redirects on {len(on)} of {len(known)} bridges {where}: {named}".rstrip(": ")
    if any(device.hidden for device in (*bridges, *devices.gpus)):
        return "not readable: lspci -vvv needs root"
    if known:
        return f"no redirect on {len(known)} bridges {where}"
    return f"no bridge {where} has it"


def _take(found: list[Device], number: int, text: str) -> None:
    """Add what an indented line says to the last device."""
    control = _CONTROL.match(text)
    if control and (not found or found[-1].acs is not None):
        found.append(Device(address="", line=number, kind="", name=""))
    if not found:
        return
    device = found[-1]
    if buses := _BUSES.match(text):
        device.buses = (int(buses[1], 16), int(buses[2], 16))
    elif node := _NODE.match(text):
        device.node = int(node[1])
    elif group := _GROUP.match(text):
        device.group = int(group[1])
    elif link := _LINK.match(text):
        speed, width = float(link[2]), int(link[3])
        if link[1] == "LnkCap":
            device.speed_most_gt_s, device.width_most = speed, width
        else:
            device.speed_gt_s, device.width = speed, width
    elif control:
        device.acs = frozenset(word[:-1] for word in control[1].split() if word.endswith("+"))
        device.acs_line = number
    elif _DENIED in text:
        device.hidden = True


def _control(bridge: Device) -> str:
    words = " ".join(f"{word}+" for word in REDIRECTS if word in (bridge.acs or ()))
    return f"{bridge.address} {words}".strip()
