"""A sampler says how the GPU fared, calls only real throttling so, and is silent without NVML."""

import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fake_nvml import H200, FakeNvml
from verifyscope.conditions import LINK_EVERY, Sampler


def _watch(
    monkeypatch: pytest.MonkeyPatch, gpu: dict[str, Any], device: str | int = 0, samples: int = 4
) -> Sampler:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([gpu]))
    with Sampler(device, interval_s=0.001) as sampler:
        until = time.monotonic() + 10
        while len(sampler._samples) < samples and time.monotonic() < until:
            time.sleep(0.001)
    return sampler


def test_the_summary_has_clock_power_and_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter([1000, 1200, 1900] + 10_000 * [1500])
    gpu = {**H200, "nvmlDeviceGetClockInfo": lambda kind: next(clocks)}
    summary = _watch(monkeypatch, gpu, samples=3).summary()
    assert summary["sm_mhz_min"] == 1000
    assert summary["sm_mhz_max"] == 1900
    assert summary["power_w_mean"] == 412.0
    assert summary["power_w_max"] == 412.0
    assert summary["temperature_c_max"] == 61
    assert isinstance(summary["samples"], int)
    assert summary["samples"] >= 3
    assert "throttle_reasons" not in summary


def test_the_power_of_the_moment_is_preferred_to_the_average(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=655_000))
    gpu = {**H200, "nvmlDeviceGetFieldValues": lambda fields: [now] if fields == [186] else []}
    assert _watch(monkeypatch, gpu).summary()["power_w_max"] == 655.0
    refused = SimpleNamespace(nvmlReturn=3, valueType=1, value=SimpleNamespace(uiVal=0))
    gpu["nvmlDeviceGetFieldValues"] = lambda fields: [refused]
    assert _watch(monkeypatch, gpu).summary()["power_w_max"] == 412.0


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0, ()),
        (1, ()),  # idle
        (2 + 16 + 256, ()),  # clocks a person set, sync boost, display
        (4, ("sw_power_cap",)),
        (1 + 8 + 64, ("hw_slowdown", "hw_thermal")),
        (32 + 128, ("sw_thermal", "hw_power_brake")),
    ],
)
def test_only_what_slows_the_gpu_is_throttling(
    monkeypatch: pytest.MonkeyPatch, bits: int, expected: tuple[str, ...]
) -> None:
    gpu = {**H200, "nvmlDeviceGetCurrentClocksEventReasons": bits}
    sampler = _watch(monkeypatch, gpu)
    assert sampler.throttled() == expected
    assert sampler.summary().get("throttle_reasons", "") == ", ".join(expected)
    assert sampler.summary().get("throttled_share", 0) == (1.0 if expected else 0)


def test_one_throttled_sample_is_enough_and_its_share_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bits = iter([64] + 10_000 * [0])
    gpu = {**H200, "nvmlDeviceGetCurrentClocksEventReasons": lambda: next(bits)}
    sampler = _watch(monkeypatch, gpu)
    assert sampler.throttled() == ("hw_thermal",)
    share = sampler.summary()["throttled_share"]
    assert isinstance(share, float)
    assert 0 < share <= 0.25


def test_the_old_name_of_the_reasons_is_used_where_it_is_all_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = {k: v for k, v in H200.items() if k != "nvmlDeviceGetCurrentClocksEventReasons"}
    gpu["nvmlDeviceGetCurrentClocksThrottleReasons"] = 32
    assert _watch(monkeypatch, gpu).throttled() == ("sw_thermal",)


def test_a_field_that_is_refused_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"nvmlDeviceGetTemperature": {0: 50}}
    summary = _watch(monkeypatch, gpu).summary()
    assert set(summary) == {"samples", "temperature_c_max"}


def test_the_shortest_block_has_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([H200]))
    with Sampler(0, interval_s=60) as sampler:
        pass
    assert sampler.summary()["samples"] == 1


def test_the_thread_ends_with_the_block_and_nvml_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeNvml([H200])
    monkeypatch.setitem(sys.modules, "pynvml", fake)

    def measure() -> None:
        with Sampler(0, interval_s=60):
            assert any(thread.name == "nvml-sampler" for thread in threading.enumerate())
            raise ValueError("what is measured failed")

    with pytest.raises(ValueError, match="measured"):
        measure()
    assert not any(thread.name == "nvml-sampler" for thread in threading.enumerate())
    assert fake.open == 0


def test_without_nvml_nothing_is_sampled_and_the_summary_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(driver=False))
    with Sampler("GPU-x") as sampler:
        pass
    assert sampler.summary() == {"not_sampled": "no NVIDIA driver: libnvidia-ml.so.1 is not found"}
    assert sampler.throttled() == ()


def test_an_unknown_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([H200]))
    with Sampler("GPU-other") as sampler:
        pass
    assert sampler.summary() == {"not_sampled": "NVML knows no GPU GPU-other"}


def test_the_fastest_link_that_was_seen_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    generations = iter([1, 4] + 10_000 * [1])
    gpu = {**H200, "nvmlDeviceGetCurrPcieLinkGeneration": lambda: next(generations)}
    summary = _watch(monkeypatch, gpu, samples=2 * LINK_EVERY).summary()
    assert (summary["pcie_generation"], summary["pcie_width"]) == (4, 16)
    gpu = {name: answer for name, answer in H200.items() if "Pcie" not in name}
    assert "pcie_width" not in _watch(monkeypatch, gpu).summary()
