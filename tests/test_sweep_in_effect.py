"""What a worker reads back: C's environment, configuration files, the binding."""

import ctypes
import os
from pathlib import Path

import pytest
import torch

from collectives._sweep import in_effect
from collectives._sweep.combination import Combination
from tests.sweep_jobs import a_job

CPU = torch.device("cpu")


def test_what_c_has_in_its_environment_is_read_back_whoever_put_it_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "own.conf").write_text("NCCL_BUFFSIZE=65536\nNCCL_PROTO=LL\nMY_TOKEN=canary\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "own.conf"))
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    monkeypatch.setenv("NCCL_GRAPH_FILE", "/home/alice/rings.xml")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/home/alice/log")
    library = ctypes.CDLL(None)
    library.setenv(b"NCCL_NTHREADS", b"256", 1)  # as a plugin does it: Python does not see it
    try:
        assert "NCCL_NTHREADS" not in os.environ
        found = in_effect.read_back(None)
    finally:
        library.unsetenv(b"NCCL_NTHREADS")
    assert found.settings["NCCL_NTHREADS"] == "256"
    assert found.settings["NCCL_PROTO"] == "Simple"
    assert found.settings["NCCL_GRAPH_FILE"] == "rings.xml"
    assert "NCCL_DEBUG_FILE" not in found.settings
    # The environment wins over the file, which sets only what is missing.
    ((name, said),) = (
        (file.name, file.settings) for file in found.files if file.name != "nccl.conf"
    )
    assert (name, said) == ("own.conf", {"NCCL_BUFFSIZE": "65536"})
    assert "canary" not in str(found)


def test_a_rank_is_bound_to_the_cpus_of_its_node_or_says_why_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[set[int]] = []
    mine = set(range(8))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: asked[-1] if asked else mine)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: asked.append(cpus))
    monkeypatch.setattr(in_effect, "_NODES", tmp_path)
    for node, cpus in ((0, "0-3"), (1, "4,5-9"), (10, "")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus + "\n")
    job = a_job(ranks=6, combination=Combination(backend="gloo", bind="numa"))
    assert in_effect.bind(job, 1, CPU) == "numa"
    assert asked == [{0, 1, 2, 3}]
    asked.clear()
    assert in_effect.bind(job, 3, CPU) == "numa"
    assert asked == [{4, 5, 6, 7}]  # of its node those that this process may use
    asked.clear()
    assert in_effect.bind(job, 5, CPU) == "none: this machine tells no NUMA nodes"
    assert asked == []
    unbound = a_job(combination=Combination(backend="gloo", bind="none"))
    assert in_effect.bind(unbound, 0, CPU) == "none"
    assert in_effect.bind(a_job(), 0, CPU) is None


def test_a_gpu_s_cpus_are_those_that_its_bus_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Properties:
        pci_domain_id, pci_bus_id, pci_device_id = 0, 0xC1, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    monkeypatch.setattr(in_effect, "_PCI", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 40})
    (tmp_path / "0000:c1:00.0").mkdir()
    (tmp_path / "0000:c1:00.0" / "local_cpulist").write_text("2,32-63\n")
    assert in_effect._nearby(torch.device("cuda", 0)) == {2, 40}
