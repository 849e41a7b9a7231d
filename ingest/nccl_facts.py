"""What an NCCL log says, typed: settings, communicators, graphs, tables, choices, transports.

Nothing private is here: hosts and process numbers become small numbers in the order in which the
log names them, and a setting stands here only if `verifyscope/settings.py` lists it. Times and
bandwidths are as NCCL prints them (us, GB/s = 1e9 bytes/s); names are those of `nccl_names`.

`line` is the first line that says a fact and `count` how often it is said; both are no part of it:
equal facts are one. `process` is an index into `NcclLog.processes`, None where no line told it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ingest.nccl_names import allowed

SettingOrigin = Literal["environment", "configuration file", "plugin"]
TransportKind = Literal["p2p", "shm", "net"]
PluginKind = Literal["tuner", "net", "env", "profiler"]
RemarkKind = Literal["acs-redirect", "acs-hint", "peer-test-failed"]
# How far two GPUs are from each other: NVLink and its like up to NVB; PIX to SYS cross PCIe.
NVLINK_PATHS = ("LOC", "NVL", "NVB", "C2C")
FAR_PATHS = ("PHB", "SYS")
SIMPLE_ORDER_GB_S = 0.1
RING, TREES, NVLS = 4, (1, 2, 3), 5
PLAIN_TREE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process: a number for it and for its node, and the device it last had."""

    index: int
    node: int
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A version that is loaded, such as "2.29.7+cuda12.9"."""

    version: str
    process: int | None
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)

    @property
    def number(self) -> tuple[int, ...]:
        """Return (2, 29, 7)."""
        return tuple(int(part) for part in self.version.partition("+")[0].split(".")[:3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A listed setting that NCCL read, or that a plugin put into the environment."""

    name: str
    value: str
    origin: SettingOrigin
    process: int | None
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank of a communicator: its process and GPU; `ready` once its start was complete."""

    rank: int
    process: int | None
    device: int
    bus: str
    ready: bool
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """Ranks that talk to each other; `nodes` is None where no line told it."""

    index: int
    ranks: int
    nodes: int | None
    members: tuple[Member, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A `Pattern` line: what the search found for ring (4), trees (1 to 3), NVLS (5).

    Bandwidths are of one channel; paths are the farthest step inside a node and to the network.
    """

    pattern: int
    cross_nic: int
    channels: int
    intra_gb_s: float
    inter_gb_s: float
    intra_path: str
    inter_path: str
    same_channels: bool
    communicator: int | None
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)

    @property
    def simple_order(self) -> bool:
        """Say whether the search failed: one channel that NCCL believes to be worth nothing."""
        known = self.pattern == RING or self.pattern in TREES
        return known and self.channels > 0 and self.intra_gb_s <= SIMPLE_ORDER_GB_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """NCCL says itself that a search failed."""

    pattern: int
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the cost table; a bandwidth of 0 is how NCCL prints "off"."""

    function: str
    algorithm: str
    protocol: str
    latency_us: float
    bandwidth_gb_s: float
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)

    @property
    def enabled(self) -> bool:
        """Say whether NCCL may choose it."""
        return self.bandwidth_gb_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What NCCL took for a call of this size; rank 0 says it when a call is enqueued or captured.

    function: None up to 2.22, which does not say it. channels: the first and the last.
    time_us: what NCCL expects, where it says so. kernel: of a symmetric call, without protocol.
    """

    function: str | None
    size_bytes: int
    algorithm: str
    protocol: str | None
    process: int | None
    channels: tuple[int, int] | None = None
    time_us: float | None = None
    kernel: str | None = None
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)

    @property
    def name(self) -> str:
        """Return "ring/ll" and the like."""
        return self.kernel or f"{self.algorithm}/{self.protocol}"

    @property
    def channel_count(self) -> int | None:
        """Return how many channels work on it."""
        return None if self.channels is None else self.channels[1] - self.channels[0] + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Calls as the COLL subsystem tells them, on every rank: elements and NCCL's type number."""

    function: str
    elements: int
    datatype: int
    process: int | None
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """How one rank reaches another: p2p, shm or net; `count` is over channels and directions."""

    kind: TransportKind
    way: str
    source: int
    target: int
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The channels of a communicator, for collectives, NVLS and between pairs."""

    collective: int
    nvls: int
    p2p: int
    p2p_per_peer: int
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What NCCL believes of the way between two GPUs of a node; `count` pairs have it."""

    kind: str
    gb_s: float
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A rank's neighbours in the ring of one channel."""

    channel: int
    before: int
    rank: int
    after: int
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAccess:
    """Whether all GPUs of a node reach each other: within the allowed distance, and at all.

    capable: None before 2.29, which does not say it.
    """

    allowed: bool
    capable: bool | None
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Two devices that may not talk directly, and who says so."""

    first: int
    second: int
    by: Literal["driver", "NCCL"]
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A plugin that NCCL uses, such as tuner `nccl_ofi_tuner` (v3), without its folder."""

    kind: PluginKind
    name: str
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A row of the "Enabled" matrix: what the settings leave over, not what is possible."""

    function: str
    protocols: frozenset[str]
    algorithms: frozenset[str]
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A warning of NCCL, without folders, addresses and hosts."""

    text: str
    place: str
    process: int | None
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A line beside NCCL's own that bears on it: lspci's ACS, an engine's test of peer access."""

    kind: RemarkKind
    line: int = field(compare=False)
    count: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclLog:
    """All that a log says. `dropped` counts facts beyond what is kept, `torn` rows without an end.

    lines: messages of NCCL. unlisted: settings that are read and may not be told.
    path_rows: GPUs whose distances are printed.
    """

    lines: int = 0
    processes: tuple[Process, ...] = ()
    libraries: tuple[Library, ...] = ()
    settings: tuple[Setting, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    searches: tuple[Search, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    entries: tuple[Entry, ...] = ()
    choices: tuple[Choice, ...] = ()
    calls: tuple[Call, ...] = ()
    transports: tuple[Transport, ...] = ()
    channels: tuple[Channels, ...] = ()
    paths: tuple[Path, ...] = ()
    rings: tuple[Ring, ...] = ()
    peer_access: tuple[PeerAccess, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    plugins: tuple[Plugin, ...] = ()
    requests: tuple[Request, ...] = ()
    warned: tuple[Warned, ...] = ()
    remarks: tuple[Remark, ...] = ()
    path_rows: int = 0
    unlisted: int = 0
    torn: tuple[int, ...] = ()
    dropped: int = 0

    @property
    def loaded(self) -> Library | None:
        """Return the version, the first where several are loaded."""
        return self.libraries[0] if self.libraries else None

    @property
    def largest(self) -> Communicator | None:
        """Return the communicator with the most ranks, the first of equals."""
        return max(self.communicators, key=lambda known: known.ranks, default=None)

    @property
    def plugins_that_choose(self) -> tuple[Plugin, ...]:
        """Return the tuner plugins in use."""
        return tuple(known for known in self.plugins if known.kind == "tuner")

    def effective(self, process: int | None = None) -> Mapping[str, Setting]:
        """Return the settings in effect by name, of one process or of whoever said them first.

        What NCCL reads counts; where a plugin put just that there, it is the plugin's.
        """
        found: dict[str, Setting] = {}
        for known in self.settings:
            if process is not None and known.process not in (None, process):
                continue
            before = found.get(known.name)
            if before is None or (before.origin == "plugin" and before.value != known.value):
                found[known.name] = known
        return found

    def allowed(self, variable: str, function: str) -> frozenset[str] | None:
        """Return what NCCL_ALGO or NCCL_PROTO leave for a function; None where it is not set."""
        setting = self.effective().get(variable)
        return None if setting is None else allowed(variable, setting.value, function)


Fact = (
    Library
    | Setting
    | Search
    | Fallback
    | Entry
    | Choice
    | Call
    | Transport
    | Channels
    | Path
    | Ring
    | PeerAccess
    | Refusal
    | Plugin
    | Request
    | Warned
    | Remark
)
