"""What the driver says about each GPU, field by field: a field that it refuses is None.

    with nvml.session() as driver:          # `driver.why_not` says why there is none
        for gpu in driver.gpus():
            gpu.number("nvmlDeviceGetPowerUsage")

NVML needs no CUDA context and no torch; importing this module opens nothing. NVML counts GPUs in
PCI order and ignores CUDA_VISIBLE_DEVICES, so a CUDA device is looked up by its UUID or PCI bus id
(`Driver.find`), never by its number. Units as NVML's: MHz, milliwatts, degrees C, bytes.
"""

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

# Bits of nvmlDeviceGetCurrentClocksEventReasons that mean "slower than it could be". Idle (1),
# clocks that a person set (2), sync boost (16) and display (256) are no throttling.
THROTTLE_REASONS = MappingProxyType(
    {
        0x04: "sw_power_cap",
        0x08: "hw_slowdown",
        0x20: "sw_thermal",
        0x40: "hw_thermal",
        0x80: "hw_power_brake",
    }
)
CLOCK_SM = 1
CLOCK_MEMORY = 2
_TEMPERATURE_GPU = 0
_P2P_READ = 0  # pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake, which ctypes refuses
_P2P_WRITE = 1
_P2P_STATUS = MappingProxyType(
    {
        1: "not supported by the chipset",
        2: "not supported by the GPU",
        3: "not supported across this topology",
        4: "disabled by the driver's settings",
        5: "not supported",
    }
)
# How far the nearest thing is that two GPUs have above them, as nvidia-smi topo -m names it.
_PATHS = MappingProxyType({0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"})
_MOST_NVLINKS = 36
_NVLINK_TO_SWITCH = 2
_FIELD_POWER_INSTANT = 186  # GetPowerUsage is an average over 1 s on most GPUs
_FIELD_MEMBERS = MappingProxyType({0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"})


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of NVML: `index` is NVML's own number."""

    index: int
    _nvml: Any  # the module pynvml, or what stands for it in a test; it has no types
    _handle: Any

    def read(self, function: str, *arguments: Any) -> Any:
        """Return what a function of pynvml says about this GPU; None if the driver does not."""
        return _guarded(self._nvml, function, self._handle, *arguments)

    def number(self, function: str, *arguments: Any) -> int | None:
        """Return a field that is a whole number."""
        value = self.read(function, *arguments)
        return int(value) if isinstance(value, int) else None

    def text(self, function: str) -> str | None:
        """Return a field that is text; old versions of pynvml give bytes."""
        return _text(self.read(function))

    def switch(self, function: str) -> bool | None:
        """Return a mode that is on or off; [current, pending] counts by its current half."""
        value = self.read(function)
        if isinstance(value, (list, tuple)):
            value = value[0] if value else None
        return bool(value) if isinstance(value, int) else None

    def power_w(self) -> float | None:
        """Return the power now, in watts; an average over 1 s where that is all there is."""
        for field in self.read("nvmlDeviceGetFieldValues", [_FIELD_POWER_INSTANT]) or ():
            if field.nvmlReturn == 0 and field.valueType in _FIELD_MEMBERS:
                return float(getattr(field.value, _FIELD_MEMBERS[field.valueType])) / 1000
        milliwatts = self.number("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1000

    def temperature_c(self) -> int | None:
        """Return the temperature of the GPU in degrees C."""
        return self.number("nvmlDeviceGetTemperature", _TEMPERATURE_GPU)

    def throttle_reasons(self) -> tuple[str, ...]:
        """Return why the clock is held down at this moment; empty if it is not, or not known."""
        bits = self.number("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self.number("nvmlDeviceGetCurrentClocksThrottleReasons")
        return tuple(name for bit, name in THROTTLE_REASONS.items() if (bits or 0) & bit)

    def bus(self) -> str | None:
        """Return the PCI address as NVML writes it, such as "00000000:C1:00.0"."""
        return _text(getattr(self.read("nvmlDeviceGetPciInfo"), "busId", None))

    def path_to(self, other: "Gpu") -> str | None:
        """Return how this GPU reaches another: NV4 (4 NVLinks), PIX, PXB, PHB, NODE, SYS."""
        links = self._nvlinks_to(other)
        if links:
            return f"NV{links}"
        level = self.number("nvmlDeviceGetTopologyCommonAncestor", other._handle)
        return None if level is None else _PATHS.get(level)

    def _nvlinks_to(self, other: "Gpu") -> int:
        """Return how many NVLinks lead to another GPU, or to a switch that both are on."""
        theirs = other.bus()
        mine = list(self._nvlinks())
        if any(end is None for end in mine):
            return len(mine) if any(end is None for end in other._nvlinks()) else 0
        return sum(end is not None and end == theirs for end in mine)

    def _nvlinks(self) -> Iterator[str | None]:
        """Yield where each active NVLink leads: a PCI address, None for a switch."""
        for link in range(_MOST_NVLINKS):
            if self.number("nvmlDeviceGetNvLinkState", link) != 1:
                continue
            if self.number("nvmlDeviceGetNvLinkRemoteDeviceType", link) == _NVLINK_TO_SWITCH:
                yield None
            else:
                end = self.read("nvmlDeviceGetNvLinkRemotePciInfo", link)
                yield _text(getattr(end, "busId", None)) or ""

    def why_apart(self, other: "Gpu", *, writing: bool = False) -> str | None:
        """Return why this GPU cannot read (or write) the other's memory.

        None if it can, and where the driver does not say.
        """
        kind = _P2P_WRITE if writing else _P2P_READ
        status = self.number("nvmlDeviceGetP2PStatus", other._handle, kind)
        return None if not status else _P2P_STATUS.get(status, "reason not known")


@dataclass(frozen=True, slots=True)
class Driver:
    """An open session; without NVML it has no GPUs and `why_not` says why."""

    why_not: str | None
    _nvml: Any = None

    def version(self) -> str | None:
        """Return the driver's version, such as "580.95.05"."""
        return _text(_guarded(self._nvml, "nvmlSystemGetDriverVersion"))

    def cuda_version(self) -> str | None:
        """Return the newest CUDA that the driver runs, such as "13.0"."""
        number = _guarded(self._nvml, "nvmlSystemGetCudaDriverVersion_v2")
        if not isinstance(number, int) or number <= 0:
            return None
        return f"{number // 1000}.{number % 1000 // 10}"

    def gpus(self) -> list[Gpu]:
        """Return every GPU, in NVML's order; one that is lost is left out."""
        count = _guarded(self._nvml, "nvmlDeviceGetCount")
        found = [self._gpu("nvmlDeviceGetHandleByIndex", index) for index in range(count or 0)]
        return [gpu for gpu in found if gpu is not None]

    def find(self, device: str | int) -> Gpu | None:
        """Return the GPU with this UUID, PCI bus id or NVML number; None if there is none.

        device: a UUID with or without "GPU-" (torch leaves it out), a bus id such as
            "0000:06:00.0", or a number in NVML's order.
        """
        if isinstance(device, int):
            return self._gpu("nvmlDeviceGetHandleByIndex", device)
        if ":" in device:
            return self._gpu("nvmlDeviceGetHandleByPciBusId", device)
        uuid = device if device.startswith(("GPU-", "MIG-")) else f"GPU-{device}"
        return self._gpu("nvmlDeviceGetHandleByUUID", uuid)

    def _gpu(self, function: str, key: str | int) -> Gpu | None:
        handle = _guarded(self._nvml, function, key)
        if handle is None:
            return None
        index = key if isinstance(key, int) else _guarded(self._nvml, "nvmlDeviceGetIndex", handle)
        return Gpu(index=index if isinstance(index, int) else -1, _nvml=self._nvml, _handle=handle)


@contextlib.contextmanager
def session() -> Iterator[Driver]:
    """Open NVML for the block. A machine without it gets a `Driver` without GPUs, not an error."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        yield Driver(why_not="the package nvidia-ml-py is not installed")
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        yield Driver(why_not=_said(error))
        return
    try:
        yield Driver(why_not=None, _nvml=nvml)
    finally:
        _guarded(nvml, "nvmlShutdown")


def _guarded(nvml: Any, function: str, *arguments: Any) -> Any:
    """Call a function of pynvml; None where this driver, GPU or version does not have it."""
    if nvml is None or not hasattr(nvml, function):
        return None
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError:
        return None


def _said(error: Exception) -> str:
    name = type(error).__name__.removeprefix("NVMLError_")
    if name == "LibraryNotFound":
        return "no NVIDIA driver: libnvidia-ml.so.1 is not found"
    return f"NVML does not start: {name}"


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None
