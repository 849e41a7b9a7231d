"""How a GPU fared while something was measured: clock, power, temperature, link, throttle reasons.

    with Sampler(uuid) as sampler:
        measure()
    conditions, flags = sampler.summary(), sampler.throttled()

A thread asks NVML about every 10 ms and makes no CUDA call, so it is harmless in a graph capture.
Without NVML nothing is sampled and `summary` says so. Clocks are MHz, power watts, temperature
degrees C. Idle is no throttle reason: between launches every GPU is idle. The PCIe link is asked
for at each LINK_EVERY-th sample, and the highest that was seen counts: idle links are slow.
"""

import contextlib
import statistics
import threading
from dataclasses import dataclass
from types import TracebackType

from verifyscope import nvml
from verifyscope.records import Value

INTERVAL_S = 0.01
LINK_EVERY = 16


@dataclass(frozen=True, slots=True)
class _Sample:
    sm_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    reasons: tuple[str, ...]


class Sampler:
    """Samples one GPU from entry to exit of the block; use it once.

    device: UUID (as torch or NVML writes it), PCI bus id, or number in NVML's order.
    """

    def __init__(self, device: str | int, *, interval_s: float = INTERVAL_S) -> None:
        self._device, self._interval_s = device, interval_s
        self._samples: list[_Sample] = []
        self._links: list[tuple[int | None, int | None]] = []
        self._why_not: str | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Sampler":
        driver = self._open.enter_context(nvml.session())
        gpu = driver.find(self._device)
        if gpu is None:
            self._why_not = driver.why_not or f"NVML knows no GPU {self._device}"
            return self
        self._take(gpu)  # the shortest block has one, too
        self._thread = threading.Thread(
            target=self._run, args=(gpu,), name="nvml-sampler", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._open.close()

    def summary(self) -> dict[str, Value]:
        """Return what was sampled, for a record's `conditions`; what is not known is left out."""
        if not self._samples:
            return {"not_sampled": self._why_not or "the sampler never ran"}
        clocks = [s.sm_mhz for s in self._samples if s.sm_mhz is not None]
        powers = [s.power_w for s in self._samples if s.power_w is not None]
        temperatures = [s.temperature_c for s in self._samples if s.temperature_c is not None]
        found: dict[str, Value] = {"samples": len(self._samples)}
        if clocks:
            found["sm_mhz_median"] = statistics.median(clocks)
            found["sm_mhz_min"], found["sm_mhz_max"] = min(clocks), max(clocks)
        if powers:
            found["power_w_mean"] = round(statistics.fmean(powers), 1)
            found["power_w_max"] = max(powers)
        if temperatures:
            found["temperature_c_max"] = max(temperatures)
        for name, seen in zip(
            ("pcie_generation", "pcie_width"), zip(*self._links, strict=True), strict=False
        ):
            if known := [number for number in seen if number is not None]:
                found[name] = max(known)
        if reasons := self.throttled():
            held = sum(bool(s.reasons) for s in self._samples)
            found["throttle_reasons"] = ", ".join(reasons)
            found["throttled_share"] = round(held / len(self._samples), 3)
        return found

    def throttled(self) -> tuple[str, ...]:
        """Return the reasons for which the clock was held down at any sample; empty if never."""
        seen = {reason for sample in self._samples for reason in sample.reasons}
        return tuple(reason for reason in nvml.THROTTLE_REASONS.values() if reason in seen)

    def _run(self, gpu: nvml.Gpu) -> None:
        while not self._stop.wait(self._interval_s):
            self._take(gpu)

    def _take(self, gpu: nvml.Gpu) -> None:
        if len(self._samples) % LINK_EVERY == 0:
            self._links.append(_link(gpu))
        self._samples.append(_sample(gpu))


def _sample(gpu: nvml.Gpu) -> _Sample:
    return _Sample(
        sm_mhz=gpu.number("nvmlDeviceGetClockInfo", nvml.CLOCK_SM),
        power_w=gpu.power_w(),
        temperature_c=gpu.temperature_c(),
        reasons=gpu.throttle_reasons(),
    )


def _link(gpu: nvml.Gpu) -> tuple[int | None, int | None]:
    """Return the generation and width that the link has now."""
    return (
        gpu.number("nvmlDeviceGetCurrPcieLinkGeneration"),
        gpu.number("nvmlDeviceGetCurrPcieLinkWidth"),
    )
