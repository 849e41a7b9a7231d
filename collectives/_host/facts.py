"""What is known of a machine as a collective host, typed, each fact with where it was read.

GPUs have the numbers of NVML (PCI order), as `nvidia-smi` prints them. Rates are bytes a second of
one direction. What is None was not said, or could not be read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from collectives._attest.logs import Logs
from ingest import gpu_findings
from ingest.conclusions import Seen
from ingest.kernel_log import KernelLog
from ingest.lspci import Devices
from ingest.nccl_conf import Configured
from ingest.topology import kind

HERE = "this machine"
IommuMode = Literal["off", "passthrough", "translated", "on"]
Way = Literal["copy engine", "kernel"]
Together = Literal["alone", "both ways", "ring", "all to all"]
# Paths whose pairs NCCL lets talk directly without being asked; the default level is PXB.
NEAR_PATHS = ("NV", "PIX", "PXB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. `idle` is its state as found, `loaded` while a transfer ran over its link.

    node: its NUMA node, said at `node_seen`; group: its IOMMU group.
    """

    index: int
    idle: gpu_findings.Gpu
    loaded: gpu_findings.Gpu | None = None
    node: int | None = None
    node_seen: Seen | None = None
    group: str | None = None
    seen: Seen

    @property
    def state(self) -> gpu_findings.Gpu:
        """Return the state under load where it was read, else as found."""
        return self.loaded or self.idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two GPUs and their path, such as "NV18" or "SYS".

    refused: why the driver gives no peer access, in one direction or both; None where it does, or
    where nobody asked it (`asked`).
    """

    first: int
    second: int
    path: str | None
    refused: str | None = None
    asked: bool = False
    seen: Seen

    @property
    def kind(self) -> str | None:
        """Return the class of the path: "NV18" is "NV"."""
        return None if self.path is None else kind(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iommu:
    """How what devices send is translated; "on" where it is there and its mode is not known."""

    mode: IommuMode
    seen: tuple[Seen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A NUMA node and its processors, as the kernel lists them."""

    index: int
    processors: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What became of writes from one GPU into the memory of another, compared bit by bit there.

    words of 8 bytes: lost ones still hold what was there before, wrong ones hold something else.
    """

    writer: int
    target: int
    way: Way
    size_bytes: tuple[int, ...]
    words: int
    lost: int
    wrong: int

    @property
    def right(self) -> bool:
        """Say whether all arrived as it was sent."""
        return not self.lost and not self.wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Writes of `size_bytes` each that ran at once, and how long until all were there: samples.

    wrong: words of 8 bytes that differed afterwards.
    """

    kind: Together
    writes: tuple[tuple[int, int], ...]
    size_bytes: int
    seconds: tuple[float, ...]
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """Copies between pinned memory of the host and one GPU, `size_bytes` a sample."""

    gpu: int
    to_gpu: bool
    size_bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A GPU's link while nothing, or a transfer, ran over it."""

    gpu: int
    loaded: bool
    generation: int | None
    width: int | None


@dataclass(frozen=True, slots=True)
class Visible:
    """The GPUs that CUDA sees, in its order."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Whether CUDA says that one GPU reaches the memory of another: a capability, no proof."""

    writer: int
    target: int
    able: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A step that hung or raised: nothing after it was tested.

    writes: the pairs that it was about; empty where it was about no pair.
    """

    kind: Literal["hang", "error"]
    step: str
    reason: str
    writes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What was tried on the GPUs themselves; `why_not` says why nothing was.

    visible: the GPUs that CUDA sees, which CUDA_VISIBLE_DEVICES may make fewer.
    """

    why_not: str | None = None
    visible: tuple[int, ...] = ()
    links: tuple[Link, ...] = ()
    copies: tuple[HostCopy, ...] = ()
    access: tuple[Access, ...] = ()
    checks: tuple[Check, ...] = ()
    rates: tuple[Rate, ...] = ()
    broken: Broken | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """A rank of the first all-reduce is done: how many of its values were wrong."""

    rank: int
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a first all-reduce over all GPUs did; `why_not` says why there was none."""

    why_not: str | None = None
    ranks: int = 0
    wrong: int = 0
    broken: Broken | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What lspci says and the name of its file."""

    file: str
    devices: Devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What the kernel's log says and the name of its file."""

    file: str
    log: KernelLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Settings that NCCL takes from files; `dead` are lines that look like one and are none."""

    settings: tuple[Configured, ...] = ()
    dead: tuple[Configured, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine, at hand or saved in texts.

    saved: the names of the texts; empty for the machine at hand. virtual: it is a virtual machine.
    nccl: what its logs say, all together.
    parameters: those of the kernel that count (`ingest.kernel_log.PARAMETERS`).
    environment: the listed settings that are in force here. driver: settings of NVIDIA's driver.
    """

    saved: tuple[str, ...] = ()
    processor: str | None = None
    virtual: bool | None = None
    why_no_gpu: str | None = None
    why_no_lspci: str | None = None
    gpus: tuple[Gpu, ...] = ()
    pairs: tuple[Pair, ...] = ()
    nodes: tuple[Node, ...] = ()
    iommu: Iommu | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    kernel: Kernel | None = None
    lspci: Listed | None = None
    nccl: Logs | None = None
    configuration: Configuration = Configuration()
    environment: Mapping[str, str] = field(default_factory=dict)
    driver: Mapping[str, str] = field(default_factory=dict)
    tried: Tried | None = None
    probed: Probed | None = None

    @property
    def count(self) -> int:
        """Return how many GPUs there are, as far as anything says it."""
        named = [index for pair in self.pairs for index in (pair.first, pair.second)]
        listed = 0 if self.lspci is None else len(self.lspci.devices.gpus)
        return max(len(self.gpus), len(set(named)), listed)

    def pair(self, first: int, second: int) -> Pair | None:
        """Return a pair, in whichever order it is asked for."""
        wanted = {first, second}
        return next((known for known in self.pairs if {known.first, known.second} == wanted), None)

    def with_trials(self, tried: Tried) -> "Host":
        """Return the host with what was tested on it: links under load replace idle ones."""
        loaded = {link.gpu: link for link in tried.links if link.loaded}
        gpus = tuple(
            replace(gpu, loaded=_loaded(gpu.idle, loaded[gpu.index]))
            if gpu.index in loaded
            else gpu
            for gpu in self.gpus
        )
        return replace(self, gpus=gpus, tried=tried)


def _loaded(idle: gpu_findings.Gpu, link: Link) -> gpu_findings.Gpu:
    return replace(idle, generation=link.generation, width=link.width, loaded=True)
