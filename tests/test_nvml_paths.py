"""How NVML says that GPUs reach each other, on GPUs that are only described."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fake_nvml import H200, FakeNvml
from verifyscope import nvml

BUSES = ("00000000:01:00.0", "00000000:41:00.0")


def described(
    at: int, *, links: dict[int, int | str] | None = None, **fields: Any
) -> dict[str, Any]:
    """A GPU; `links` says where each active NVLink leads: a bus id, or 2 for a switch."""
    ends = links or {}
    return {
        **H200,
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId=BUSES[at]),
        "nvmlDeviceGetNvLinkState": lambda link: int(link in ends),
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda link: 2 if ends[link] == 2 else 0,
        "nvmlDeviceGetNvLinkRemotePciInfo": lambda link: SimpleNamespace(busId=ends[link]),
        **fields,
    }


def path(
    monkeypatch: pytest.MonkeyPatch, first: dict[str, Any], second: dict[str, Any]
) -> str | None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([first, second]))
    with nvml.session() as driver:
        one, other = driver.gpus()
        return one.path_to(other)


@pytest.mark.parametrize(
    ("level", "name"), [(10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (7, None)]
)
def test_without_nvlink_the_common_ancestor_counts(
    monkeypatch: pytest.MonkeyPatch, level: int, name: str | None
) -> None:
    one = described(0, nvmlDeviceGetTopologyCommonAncestor=lambda other: level)
    assert path(monkeypatch, one, described(1)) == name


@pytest.mark.parametrize(
    ("mine", "theirs", "name"),
    [
        ({0: BUSES[1], 1: BUSES[1], 2: "00000000:81:00.0"}, {}, "NV2"),  # two of three lead there
        ({0: "00000000:81:00.0"}, {}, "SYS"),  # NVLink to another GPU alone
        ({0: 2, 1: 2, 2: 2}, {0: 2, 1: 2, 2: 2}, "NV3"),  # both on a switch
        ({0: 2, 1: 2}, {}, "SYS"),  # the other one is on no switch
    ],
)
def test_nvlinks_count_where_they_lead_to_the_other(
    monkeypatch: pytest.MonkeyPatch, mine: dict[int, Any], theirs: dict[int, Any], name: str
) -> None:
    one = described(0, links=mine, nvmlDeviceGetTopologyCommonAncestor=lambda other: 50)
    assert path(monkeypatch, one, described(1, links=theirs)) == name


def test_reading_and_writing_are_asked_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    one = described(0, nvmlDeviceGetP2PStatus=lambda other, kind: {0: 0, 1: 3}[kind])
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([one, described(1)]))
    with nvml.session() as driver:
        first, second = driver.gpus()
        assert first.why_apart(second) is None
        assert first.why_apart(second, writing=True) == "not supported across this topology"
        assert first.bus() == BUSES[0]
