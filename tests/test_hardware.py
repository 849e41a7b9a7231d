"""The table of GPUs: each number has a source, and a device at hand has the last word."""

import dataclasses

import pytest

from verifyscope import hardware
from verifyscope.errors import UsageError
from verifyscope.hardware import TABLE, Gpu, at_hand, find_gpu, match
from verifyscope.records import GpuState

_NAMING = {"name", "title", "product_names", "sources"}
_NUMBERS = [f.name for f in dataclasses.fields(Gpu) if f.name not in _NAMING]


@pytest.mark.parametrize("gpu", TABLE.values(), ids=lambda gpu: gpu.name)
def test_each_number_of_the_table_is_known_and_has_its_source(gpu: Gpu) -> None:
    assert set(gpu.sources) == set(_NUMBERS)
    assert all(getattr(gpu, number) for number in _NUMBERS)
    assert gpu.capability in hardware.SHARED_BYTES_PER_BLOCK
    assert gpu.source_of("shared_bytes_per_block") == hardware.CUDA_GUIDE


def test_the_bandwidth_of_the_table_is_that_of_its_bus_and_reported_memory_clock() -> None:
    reported_mhz = {
        "rtx-pro-6000-server": 12_481,
        "rtx-pro-6000-workstation": 14_001,
        "rtx-5090": 14_001,
        "rtx-4090": 10_501,
        "l40s": 9_001,
        "a100-pcie": 1_512,
        "h100-pcie": 1_593,
        "h100-sxm": 2_619,
        "h200": 3_201,
        "b200": 3_996,
    }
    for gpu in TABLE.values():
        assert gpu.dram_bytes_per_s is not None
        state = GpuState(
            index=0, name=gpu.product_names[0], memory_max_mhz=reported_mhz.pop(gpu.name)
        )
        assert at_hand(state).dram_bytes_per_s == pytest.approx(gpu.dram_bytes_per_s, rel=0.03)
    assert not reported_mhz


def test_shared_memory_limits_are_those_of_the_capability() -> None:
    limits = {name: gpu.shared_bytes_per_block for name, gpu in TABLE.items()}
    assert limits["rtx-pro-6000-server"] == 101_376
    assert limits["b200"] == limits["h200"] == 232_448
    assert limits["a100-pcie"] == 166_912
    assert limits["l40s"] == 101_376
    for capability, limit in hardware.SHARED_BYTES_PER_BLOCK.items():
        whole = hardware.SHARED_BYTES_PER_MULTIPROCESSOR[capability]
        assert whole - limit == hardware.RESERVED_SHARED_BYTES


def test_find_gpu_takes_any_case_and_lists_what_it_knows() -> None:
    assert find_gpu(" H200 ").dram_bytes_per_s == 4.8e12
    with pytest.raises(UsageError, match="unknown GPU 'h300'; known: rtx-pro-6000-server,"):
        find_gpu("h300")


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-workstation"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("nvidia geforce rtx  5090", "rtx-5090"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
    ],
)
def test_a_device_is_matched_by_its_whole_name(device: str, name: str) -> None:
    found = match(device)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "device",
    ["NVIDIA GeForce RTX 5090 Laptop GPU", "NVIDIA H100 NVL", "NVIDIA H200 MIG 1g.18gb", ""],
)
def test_a_device_that_only_resembles_an_entry_is_not_taken_for_it(device: str) -> None:
    assert match(device) is None


def test_a_device_at_hand_overrides_the_table_and_says_so() -> None:
    state = GpuState(
        index=0,
        name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        memory_bytes=96 * 2**30,
        capability="12.0",
        multiprocessors=170,
        l2_bytes=96 * 2**20,
        memory_max_mhz=12_481,
        power_limit_w=450.0,
        pcie_generation=4,
        pcie_width=8,
    )
    gpu = at_hand(state)
    assert gpu.multiprocessors == 170
    assert gpu.l2_bytes == 96 * 2**20
    assert gpu.power_w == 450.0
    assert gpu.dram_bytes_per_s == pytest.approx(1.597568e12)
    assert gpu.link is not None
    assert gpu.link.bytes_per_s == pytest.approx(15.75e9, rel=1e-3)
    assert gpu.source_of("l2_bytes") == hardware.THIS_DEVICE
    assert gpu.source_of("dram_bytes_per_s") == (
        f"this device: 12481 MHz x 2 x 512 bit (bus: {hardware.FIELD_CLOCKS})"
    )
    assert gpu.peak_flops_per_s["bf16"] == 468e12
    assert gpu.source_of("peak_flops_per_s") == hardware.AICONFIGURATOR


def test_what_a_device_does_not_say_stays_as_the_table_has_it() -> None:
    assert at_hand(GpuState(index=0, name="NVIDIA H200")) == find_gpu("h200")


def test_a_pcie_slot_does_not_replace_nvlink() -> None:
    gpu = at_hand(GpuState(index=0, name="NVIDIA H200", pcie_generation=5, pcie_width=16))
    assert gpu.link == find_gpu("h200").link


def test_an_unknown_device_has_only_its_own_numbers() -> None:
    state = GpuState(
        index=1,
        name="NVIDIA B300 SXM6",
        multiprocessors=148,
        capability="10.3",
        memory_max_mhz=4000,
    )
    gpu = at_hand(state)
    assert gpu.name == "b300-sxm6"
    assert gpu.title == "NVIDIA B300 SXM6"
    assert gpu.multiprocessors == 148
    assert gpu.capability == 103
    assert gpu.dram_bytes_per_s is None  # the width of its bus is not known
    assert gpu.l2_bytes is None
    assert gpu.shared_bytes_per_block is None
    assert gpu.source_of("shared_bytes_per_block") is None
    assert gpu.source_of("multiprocessors") == hardware.THIS_DEVICE
    assert gpu.source_of("l2_bytes") is None
    assert not gpu.peak_flops_per_s
