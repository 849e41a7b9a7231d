"""What else differs between two runs, and how well it could explain which rows moved."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.compared_runs import KERNELS, Capture, Compared
from tests.comparison_sample import YESTERDAY, rows, run
from tests.report_sample import GPU, US, collective, write
from verifyscope.records import Environment, Measurement


@pytest.fixture
def compared(tmp_path: Path, capsys: Capture) -> Compared:
    return Compared(tmp_path, capsys)


def hot(environment: str, seed: int, factor: float, mhz: float, **more: str) -> list[Any]:
    found = rows(seed=seed, kernels={"triton": factor}, environment=environment)
    conditions = {"sm_mhz_median": mhz, "pcie_generation": 5, **more}
    return [
        (msgspec.structs.replace(one, conditions=conditions), samples) for one, samples in found
    ]


@pytest.mark.parametrize(
    ("factor", "explained", "against"),
    [
        (1.22, 10, 0),  # 2430 / 2000 = 1.215
        (1.60, 0, 10),  # more than a clock can
        (0.80, 0, 10),  # the other way
    ],
)
def test_a_clock_explains_no_more_than_its_own_ratio(
    compared: Compared, tmp_path: Path, factor: float, explained: int, against: int
) -> None:
    old = run(tmp_path / "a", GPU, hot("gpu", 1, 1.0, 2430.0))
    new = run(tmp_path / "b", GPU, hot("gpu", 2, factor, 2000.0))
    compared.of(old, new)
    (clock,) = compared.data["differences"]
    assert clock["name"] == "SM clock while measuring, MHz"
    assert (clock["a"], clock["b"]) == ("2430", "2000")
    assert (clock["explained"], clock["against"]) == (explained, against)


def test_throttling_and_a_slower_link_are_differences(compared: Compared, tmp_path: Path) -> None:
    old = run(tmp_path / "a", GPU, hot("gpu", 1, 1.0, 2430.0))
    slowed = hot("gpu", 2, 1.3, 1870.0, throttle_reasons="sw_power_cap, hw_thermal")
    slowed = [
        (msgspec.structs.replace(one, conditions=one.conditions | {"pcie_generation": 1}), samples)
        for one, samples in slowed
    ]
    new = run(tmp_path / "b", GPU, slowed)
    compared.of(old, new)
    said = {one["name"]: (one["a"], one["b"]) for one in compared.data["differences"]}
    assert said == {
        "throttled: hw_thermal": ("no", "yes"),
        "throttled: sw_power_cap": ("no", "yes"),
        "SM clock while measuring, MHz": ("2430", "1870"),
        "PCIe generation under load while measuring": ("5", "1"),
    }


def changed(**fields: Any) -> Environment:
    return msgspec.structs.replace(YESTERDAY, id="today", **fields)


CHANGED: list[tuple[Environment, str]] = [
    (changed(driver="590.1"), "driver"),
    (changed(versions={"torch": "2.13.0", "triton": "3.8.0"}), "version of triton"),
    (changed(governor="powersave"), "CPU governor"),
    (changed(commit="fedcba987654"), "commit"),
    (changed(settings={"NCCL_PROTO": "Simple"}), "setting NCCL_PROTO"),
    (
        changed(gpus=tuple(msgspec.structs.replace(g, power_limit_w=300.0) for g in GPU.gpus)),
        "power limit, W of GPUs 0 to 7",
    ),
    (
        changed(
            gpus=(msgspec.structs.replace(GPU.gpus[0], pcie_width=4), *GPU.gpus[1:]),
        ),
        "PCIe width at most of GPU 0",
    ),
]


@pytest.mark.parametrize(("environment", "name"), CHANGED)
def test_each_difference_of_the_environment_stands_beside_the_rows(
    compared: Compared, tmp_path: Path, environment: Environment, name: str
) -> None:
    old = run(tmp_path / "a", YESTERDAY, rows(seed=1, kernels={"x": 1.0}, environment="yesterday"))
    new = run(tmp_path / "b", environment, rows(seed=2, kernels={"x": 1.0}, environment="today"))
    compared.of(old, new)
    assert [one["name"] for one in compared.data["differences"]] == [name]
    assert "nothing moved" in compared.text


def test_the_version_that_touches_what_moved_goes_before_those_that_touch_more(
    compared: Compared, tmp_path: Path
) -> None:
    """Triton's rows move: its new version fits, then the driver; NCCL's setting touches nothing."""
    today = changed(
        driver="590.1",
        versions={"torch": "2.13.0", "triton": "3.8.0"},
        settings={"NCCL_PROTO": "Simple"},
    )
    old = run(tmp_path / "a", YESTERDAY, rows(seed=1, kernels=KERNELS, environment="yesterday"))
    new = run(
        tmp_path / "b", today, rows(seed=2, kernels=KERNELS | {"triton": 1.2}, environment="today")
    )
    compared.of(old, new)
    fits = {one["name"]: round(one["fits"], 2) for one in compared.data["differences"]}
    assert list(fits) == ["version of triton", "driver", "setting NCCL_PROTO"]
    assert fits["version of triton"] == 1.0
    assert 0.3 < fits["driver"] < 0.5
    assert fits["setting NCCL_PROTO"] == 0
    assert "A hypothesis: version of triton, 3.7.1 in A and 3.8.0 in B" in compared.sentence


def test_another_gpu_explains_more_than_the_driver_that_came_with_it(
    compared: Compared, tmp_path: Path
) -> None:
    gpus = tuple(msgspec.structs.replace(one, name="NVIDIA H200") for one in GPU.gpus)
    today = changed(driver="590.1", gpus=gpus)
    old = run(tmp_path / "a", YESTERDAY, rows(seed=1, kernels=KERNELS, environment="yesterday"))
    halved = {name: 0.5 * scale for name, scale in KERNELS.items()}
    new = run(tmp_path / "b", today, rows(seed=2, kernels=halved, environment="today"))
    compared.of(old, new)
    assert [one["name"] for one in compared.data["differences"]] == ["GPU of GPUs 0 to 7", "driver"]
    assert "A hypothesis: GPU of GPUs 0 to 7, NVIDIA RTX PRO 6000 in A" in compared.sentence


def asked(size: int, median_us: float, requested: str | None, got: str) -> Measurement:
    return collective(
        size,
        median_us,
        implementation="nccl",
        low_s=0.99 * median_us * US,
        high_s=1.01 * median_us * US,
        count=50,
        requested={} if requested is None else {"NCCL_PROTO": requested},
        effective={"protocol": got},
    )


def test_rows_of_other_requests_are_matched_where_that_is_all_that_differs(
    compared: Compared, tmp_path: Path
) -> None:
    old = write(tmp_path / "a.jsonl", [GPU, *(asked(2**n, 30.0, "LL", "LL") for n in (13, 14, 15))])
    new = write(tmp_path / "b.jsonl", [GPU, *(asked(2**n, 90.0, None, "Simple") for n in (13, 14))])
    compared.of(old, new)
    assert [row["change"]["verdict"] for row in compared.data["rows"]] == ["slower", "slower"]
    assert [(one["name"], one["a"], one["b"]) for one in compared.data["differences"]] == [
        ("protocol, effective", "LL", "Simple"),
        ("NCCL_PROTO, requested", "LL", "not set"),
    ]
    assert len(compared.data["only_a"]) == 1
    # With both combinations in both runs each is held against its own.
    both = [one for proto in ("LL", "Simple") for one in [asked(2**13, 30.0, proto, proto)]]
    compared.of(
        write(tmp_path / "c.jsonl", [GPU, *both]), write(tmp_path / "d.jsonl", [GPU, *both])
    )
    assert [row["requested"] for row in compared.data["rows"]] == [
        {"NCCL_PROTO": "LL"},
        {"NCCL_PROTO": "Simple"},
    ]
