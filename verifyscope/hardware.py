"""What is known of a GPU, each number with its source; a device at hand overrides the table.

`TABLE` holds one entry a GPU; adding one is adding an entry. Bytes, bytes a second and flop/s
(dense, a fused multiply-add is 2); a link's rate is one way. A number that is not known is None
and never 0. `source_of("l2_bytes")` says where a number comes from; `FROM_MEMORY` marks those that
nobody has looked up: ask the device instead, which is what `at_hand` does.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from verifyscope.errors import choose
from verifyscope.records import GpuState

# The most shared memory that one block and one multiprocessor may have, static and dynamic
# together, by compute capability. CUDA keeps RESERVED_SHARED_BYTES of each block for itself.
SHARED_BYTES_PER_BLOCK: Mapping[int, int] = MappingProxyType(
    {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
)
SHARED_BYTES_PER_MULTIPROCESSOR: Mapping[int, int] = MappingProxyType(
    {80: 167_936, 89: 102_400, 90: 233_472, 100: 233_472, 120: 102_400}
)
RESERVED_SHARED_BYTES = 1024
# Warps and blocks that a multiprocessor holds at most. Each has 65,536 registers.
WARPS_PER_MULTIPROCESSOR: Mapping[int, int] = MappingProxyType(
    {80: 64, 89: 48, 90: 64, 100: 64, 120: 48}
)
BLOCKS_PER_MULTIPROCESSOR: Mapping[int, int] = MappingProxyType(
    {80: 32, 89: 24, 90: 32, 100: 32, 120: 24}
)
REGISTERS_PER_MULTIPROCESSOR = 65_536
# The GPU that a capability is taken for where none of it is at hand.
_STANDS_FOR: Mapping[int, str] = MappingProxyType(
    {80: "a100-pcie", 89: "l40s", 90: "h200", 100: "b200", 120: "rtx-pro-6000-server"}
)

FROM_MEMORY = "from memory, not verified"
THIS_DEVICE = "this device"
CUDA_GUIDE = "CUDA programming guide, technical specifications by compute capability"
AICONFIGURATOR = "system files of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0)"
REPORTED = "what such devices report (deviceQuery, torch, nvidia-smi), in public repositories"
PCI_EXPRESS = "PCI Express: lanes x transfer rate x 128/130, one way"
FIELD_CLOCKS = "clocks under load in local-inference-lab/rtx6kpro, 2026-05"
FIELD_PAGES = "published product pages"
SAME_DIE = "as the Server Edition, which is the same die"

Dtype = Literal["bf16", "fp8", "fp4", "int8"]

_TOLD = (
    "capability",
    "dram_bytes_per_s",
    "l2_bytes",
    "multiprocessors",
    "memory_bytes",
    "link",
    "power_w",
)
_MIB = 2**20
_PCIE_TRANSFERS_PER_S = {3: 8e9, 4: 16e9, 5: 32e9}


@dataclass(frozen=True, slots=True)
class Link:
    """How a GPU reaches its peers: PCIe lanes or NVLink links, and its rate one way."""

    kind: Literal["pcie", "nvlink"]
    generation: int
    width: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. `product_names` are the driver's, without the vendor; `sources` is by field."""

    name: str
    title: str
    product_names: tuple[str, ...] = ()
    capability: int | None = None
    dram_bytes_per_s: float | None = None
    dram_bus_bits: int | None = None
    peak_flops_per_s: Mapping[Dtype, float] = field(default_factory=dict)
    l2_bytes: int | None = None
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    link: Link | None = None
    power_w: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def shared_bytes_per_block(self) -> int | None:
        """Return the most shared memory of a block, or None for an unlisted capability."""
        return SHARED_BYTES_PER_BLOCK.get(self.capability or 0)

    def source_of(self, number: str) -> str | None:
        """Return where the field `number` comes from; None if the number is not known."""
        if number.startswith("shared_bytes"):
            return CUDA_GUIDE if self.shared_bytes_per_block else None
        return self.sources.get(number)


def find_gpu(name: str) -> Gpu:
    """Return the table's entry `name`, such as "rtx-pro-6000-server"; else list what is known."""
    return TABLE[choose("GPU", name.strip().lower(), list(TABLE))]


def stand_in(capability: int) -> Gpu:
    """Return the table's entry that stands for a capability such as 120."""
    return TABLE[_STANDS_FOR[capability]]


def match(device_name: str) -> Gpu | None:
    """Return the table's entry for a name as the driver prints it, or None.

    The whole name counts: an "RTX 5090 Laptop GPU", an "H100 NVL" or a MIG slice is another thing.
    """
    product = _product(device_name)
    found = (gpu for gpu in TABLE.values() if product in map(_product, gpu.product_names))
    return next(found, None)


def at_hand(state: GpuState) -> Gpu:
    """Return the table's entry for a device with every number that the device itself reports.

    The device's memory clock gives its bandwidth (two transfers a clock) where the bus is known.
    A device that the table does not know has only its own numbers.
    """
    known = match(state.name) or Gpu(name=_key(state.name), title=state.name)
    own = Gpu(
        name=known.name,
        title=known.title,
        capability=_capability(state.capability),
        dram_bytes_per_s=_bandwidth(state.memory_max_mhz, known.dram_bus_bits),
        l2_bytes=state.l2_bytes,
        multiprocessors=state.multiprocessors,
        memory_bytes=state.memory_bytes,
        link=_own_link(state, known.link),
        power_w=state.power_limit_w,
    )
    told = {name: getattr(own, name) for name in _TOLD if getattr(own, name)}
    sources = {**known.sources, **dict.fromkeys(told, THIS_DEVICE)}
    if "dram_bytes_per_s" in told:
        clock, bits = f"{state.memory_max_mhz} MHz", f"{known.dram_bus_bits} bit"
        bus = known.sources["dram_bus_bits"]
        sources["dram_bytes_per_s"] = f"{THIS_DEVICE}: {clock} x 2 x {bits} (bus: {bus})"
    return replace(known, sources=MappingProxyType(sources), **told)


def pcie(generation: int, width: int = 16) -> Link:
    """Return a PCIe link: 128 of 130 transferred bits are data from generation 3 on."""
    lane_bytes_per_s = _PCIE_TRANSFERS_PER_S[generation] * 128 / 130 / 8
    return Link("pcie", generation, width, lane_bytes_per_s * width)


def _own_link(state: GpuState, known: Link | None) -> Link | None:
    if known is not None and known.kind == "nvlink":
        return None
    if state.pcie_generation not in _PCIE_TRANSFERS_PER_S or not state.pcie_width:
        return None
    return pcie(state.pcie_generation, state.pcie_width)


def _bandwidth(memory_mhz: int | None, bus_bits: int | None) -> float | None:
    return memory_mhz * 1e6 * 2 * bus_bits / 8 if memory_mhz and bus_bits else None


def _capability(text: str | None) -> int | None:
    parts = re.fullmatch(r"(\d+)\.(\d)", text or "")
    return int(parts[1]) * 10 + int(parts[2]) if parts else None


def _product(device_name: str) -> str:
    return re.sub(r"^nvidia ", "", " ".join(device_name.lower().split()))


def _key(device_name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", _product(device_name)).strip("-") or "unknown"


def _sources(fields_by_source: Mapping[str, str]) -> Mapping[str, str]:
    """Turn {source: "field field"} into {field: source}."""
    return MappingProxyType(
        {name: source for source, names in fields_by_source.items() for name in names.split()}
    )


_ENTRIES = (
    Gpu(
        name="rtx-pro-6000-server",
        title="RTX PRO 6000 Blackwell Server Edition",
        product_names=("RTX PRO 6000 Blackwell Server Edition",),
        capability=120,
        dram_bytes_per_s=1597e9,  # 12,481 MHz x 2 x 512 bit, not the other edition's 1,792
        dram_bus_bits=512,
        peak_flops_per_s={
            "bf16": 468e12,
            "fp8": 936e12,
            "fp4": 1871e12,
            "int8": 936e12,
        },  # at 2,430 MHz
        l2_bytes=128 * _MIB,
        multiprocessors=188,
        memory_bytes=97_887 * _MIB,
        link=pcie(5),
        power_w=600,
        sources=_sources(
            {
                FIELD_CLOCKS: "dram_bytes_per_s dram_bus_bits",
                AICONFIGURATOR: "peak_flops_per_s memory_bytes power_w",
                REPORTED: "capability l2_bytes multiprocessors",
                PCI_EXPRESS: "link",
            }
        ),
    ),
    Gpu(
        name="rtx-pro-6000-workstation",
        title="RTX PRO 6000 Blackwell Workstation Edition",
        product_names=(
            "RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ),
        capability=120,
        dram_bytes_per_s=1792e9,  # nominal; 13,365 MHz under load would be 1,711
        dram_bus_bits=512,
        peak_flops_per_s={"bf16": 468e12, "fp8": 936e12, "fp4": 1871e12, "int8": 936e12},
        l2_bytes=128 * _MIB,
        multiprocessors=188,
        memory_bytes=97_887 * _MIB,
        link=pcie(5),
        power_w=600,
        sources=_sources(
            {
                FIELD_PAGES: "dram_bytes_per_s power_w",
                FIELD_CLOCKS: "dram_bus_bits memory_bytes",
                SAME_DIE: "capability peak_flops_per_s l2_bytes multiprocessors",
                PCI_EXPRESS: "link",
            }
        ),
    ),
    Gpu(
        name="rtx-5090",
        title="GeForce RTX 5090",
        product_names=("GeForce RTX 5090",),
        capability=120,
        dram_bytes_per_s=1792e9,
        dram_bus_bits=512,
        peak_flops_per_s={"bf16": 209e12, "fp8": 419e12, "fp4": 1676e12},  # with sums in float32
        l2_bytes=96 * _MIB,
        multiprocessors=170,
        memory_bytes=32_607 * _MIB,
        link=pcie(5),
        power_w=575,
        sources=_sources(
            {
                FIELD_PAGES: "l2_bytes multiprocessors",
                AICONFIGURATOR: "capability dram_bytes_per_s dram_bus_bits memory_bytes power_w",
                FROM_MEMORY: "peak_flops_per_s",
                PCI_EXPRESS: "link",
            }
        ),
    ),
    Gpu(
        name="rtx-4090",
        title="GeForce RTX 4090",
        product_names=("GeForce RTX 4090",),
        capability=89,
        dram_bytes_per_s=1008e9,
        dram_bus_bits=384,
        peak_flops_per_s={"bf16": 165e12, "fp8": 330e12},  # with sums in float32
        l2_bytes=72 * _MIB,
        multiprocessors=128,
        memory_bytes=24_564 * _MIB,
        link=pcie(4),  # without peer-to-peer access
        power_w=450,
        sources=_sources(
            {
                FIELD_PAGES: "dram_bytes_per_s peak_flops_per_s",
                REPORTED: "capability l2_bytes multiprocessors memory_bytes dram_bus_bits",
                FROM_MEMORY: "power_w",
                PCI_EXPRESS: "link",
            }
        ),
    ),
    Gpu(
        name="l40s",
        title="L40S",
        product_names=("L40S",),
        capability=89,
        dram_bytes_per_s=864e9,
        dram_bus_bits=384,
        peak_flops_per_s={"bf16": 362e12, "fp8": 733e12, "int8": 733e12},
        l2_bytes=96 * _MIB,
        multiprocessors=142,
        memory_bytes=46_068 * _MIB,
        link=pcie(4),
        power_w=350,
        sources=_sources(
            {
                AICONFIGURATOR: "dram_bytes_per_s peak_flops_per_s memory_bytes power_w",
                REPORTED: "capability l2_bytes multiprocessors dram_bus_bits",
                PCI_EXPRESS: "link",
            }
        ),
    ),
    Gpu(
        name="a100-pcie",
        title="A100 PCIe 80GB",
        product_names=("A100 80GB PCIe",),
        capability=80,
        dram_bytes_per_s=1935e9,
        dram_bus_bits=5120,
        peak_flops_per_s={"bf16": 312e12, "int8": 624e12},
        l2_bytes=40 * _MIB,
        multiprocessors=108,
        memory_bytes=81_920 * _MIB,
        link=pcie(4),
        power_w=300,
        sources=_sources(
            {
                AICONFIGURATOR: "dram_bytes_per_s peak_flops_per_s memory_bytes",
                REPORTED: "capability l2_bytes multiprocessors dram_bus_bits",
                FROM_MEMORY: "power_w",
                PCI_EXPRESS: "link",
            }
        ),
    ),
    Gpu(
        name="h100-pcie",
        title="H100 PCIe",
        product_names=("H100 PCIe",),
        capability=90,
        dram_bytes_per_s=2000e9,
        dram_bus_bits=5120,
        peak_flops_per_s={"bf16": 756e12, "fp8": 1513e12},
        l2_bytes=50 * _MIB,
        multiprocessors=114,
        memory_bytes=81_559 * _MIB,
        link=pcie(5),
        power_w=350,
        sources=_sources(
            {
                AICONFIGURATOR: "dram_bytes_per_s peak_flops_per_s",
                REPORTED: "capability l2_bytes multiprocessors memory_bytes dram_bus_bits",
                FROM_MEMORY: "power_w",
                PCI_EXPRESS: "link",
            }
        ),
    ),
    Gpu(
        name="h100-sxm",
        title="H100 SXM",
        product_names=("H100 80GB HBM3",),
        capability=90,
        dram_bytes_per_s=3350e9,
        dram_bus_bits=5120,
        peak_flops_per_s={"bf16": 989e12, "fp8": 1978e12},
        l2_bytes=50 * _MIB,
        multiprocessors=132,
        memory_bytes=81_559 * _MIB,
        link=Link("nvlink", 4, 18, 450e9),
        power_w=700,
        sources=_sources(
            {
                AICONFIGURATOR: "dram_bytes_per_s peak_flops_per_s link",
                REPORTED: "capability l2_bytes multiprocessors memory_bytes dram_bus_bits",
                FROM_MEMORY: "power_w",
            }
        ),
    ),
    Gpu(
        name="h200",
        title="H200 SXM",
        product_names=("H200",),
        capability=90,
        dram_bytes_per_s=4800e9,
        dram_bus_bits=6144,
        peak_flops_per_s={"bf16": 989e12, "fp8": 1978e12},
        l2_bytes=60 * _MIB,
        multiprocessors=132,
        memory_bytes=143_156 * _MIB,
        link=Link("nvlink", 4, 18, 450e9),
        power_w=700,
        sources=_sources(
            {
                AICONFIGURATOR: "dram_bytes_per_s peak_flops_per_s",
                REPORTED: "capability l2_bytes multiprocessors memory_bytes",
                FROM_MEMORY: "dram_bus_bits link power_w",
            }
        ),
    ),
    Gpu(
        name="b200",
        title="B200",
        product_names=("B200",),
        capability=100,
        dram_bytes_per_s=7700e9,  # 3,996 MHz x 2 x 7680 bit would be 7,672
        dram_bus_bits=7680,
        peak_flops_per_s={"bf16": 2250e12, "fp8": 4500e12, "fp4": 9000e12},
        l2_bytes=126 * _MIB,
        multiprocessors=148,
        memory_bytes=182_642 * _MIB,
        link=Link("nvlink", 5, 18, 900e9),
        power_w=1000,
        sources=_sources(
            {
                AICONFIGURATOR: "dram_bytes_per_s peak_flops_per_s",
                REPORTED: "capability l2_bytes multiprocessors memory_bytes dram_bus_bits",
                FROM_MEMORY: "link power_w",
            }
        ),
    ),
)
TABLE: Mapping[str, Gpu] = MappingProxyType({gpu.name: gpu for gpu in _ENTRIES})
