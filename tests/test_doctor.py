"""What can run, what cannot and why, and what looks wrong, on machines that are only described."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fake_nvml import H200, FakeNvml
from verifyscope import doctor, environment, machine
from verifyscope.lacking import FLOORS
from verifyscope.machine import GpuHealth, Machine
from verifyscope.records import Environment

_ALL = frozenset(machine._IMPORTS)
_GPU = GpuHealth(index=0, name="NVIDIA H200", width=16, widest=16, persistence=True)


def _machine(**fields: Any) -> Machine:
    here: dict[str, Any] = {"versions": {}, "settings": {}, "cuda_driver": None}
    here |= {name: fields.pop(name) for name in list(here) if name in fields}
    base = Environment(
        id="a", created="c", command="x", system="s", processor="p", cores=2, python="3.11.7"
    )
    return Machine(environment=msgspec.structs.replace(base, **here), **fields)


def _why_not(described: Machine, name: str) -> str | None:
    found = [c.why_not for c in doctor.can_run(described) if c.name == name]
    assert len(found) == 1, name
    return found[0]


def _names(described: Machine) -> list[str]:
    return [finding.name for finding in doctor.wrong(described)]


def _serving(**fields: Any) -> Machine:
    versions = {"torch": "2.11.0", "torch-cuda": "13.0", "triton": "3.6.0", "cupy-cuda13x": "14.2"}
    defaults: dict[str, Any] = {
        "imports": _ALL,
        "programs": frozenset(machine.PROGRAMS),
        "assembler": True,
        "nvrtc": True,
        "gpus": (_GPU,),
        "cuda_driver": "13.0",
        "versions": versions,
    }
    return _machine(**(defaults | fields))


def test_a_whole_gpu_machine_can_run_all_and_nothing_is_wrong() -> None:
    assert [c for c in doctor.can_run(_serving()) if c.why_not] == []
    assert doctor.wrong(_serving()) == []


def test_a_laptop_with_the_base_install_reads_logs_and_says_why_the_rest_cannot_run() -> None:
    laptop = _machine(
        imports=frozenset({"msgspec", "numpy", "jinja2", "markdown_it", "matplotlib"})
    )
    able = [c.name for c in doctor.can_run(laptop) if c.why_not is None]
    assert able == ["read logs, build reports"]
    reason = "needs the package torch, which is not installed"
    assert _why_not(laptop, "all-reduce over processes (gloo)") == reason


def test_without_a_gpu_the_reason_is_the_drivers() -> None:
    described = _serving(gpus=(), why_no_gpu="no NVIDIA driver: libnvidia-ml.so.1 is not found")
    for name in ("suites on the GPU", "all-reduce over GPUs (NCCL)", "DRAM bytes by ncu"):
        assert _why_not(described, name) == (
            "needs an NVIDIA GPU; no NVIDIA driver: libnvidia-ml.so.1 is not found"
        )
    assert _why_not(described, "suites on the CPU") is None
    assert _why_not(described, "compile gate, CUDA C++") is None


@pytest.mark.parametrize(
    ("missing", "name", "word"),
    [
        ({"programs": frozenset()}, "CUDA C++ on the CPU", "g++"),
        ({"programs": frozenset()}, "DRAM bytes by ncu", "ncu"),
        ({"programs": frozenset()}, "FlashInfer as baseline", "nvcc"),
        ({"assembler": False}, "compile gate, Triton", "ptxas"),
        ({"nvrtc": False}, "compile gate, CUDA C++", "NVRTC"),
        ({"imports": _ALL - {"flashinfer"}}, "FlashInfer as baseline", "flashinfer"),
        ({"imports": _ALL - {"pytest_benchmark"}}, "suites on the GPU", "pytest_benchmark"),
        ({"cuda_driver": "12.8"}, "suites on the GPU", "CUDA 13.0 and the driver runs CUDA 12.8"),
        ({"versions": {"torch": "2.13.0+cpu"}}, "suites on the GPU", "CPU build"),
    ],
)
def test_what_lacks_is_named(missing: dict[str, Any], name: str, word: str) -> None:
    assert word in (_why_not(_serving(**missing), name) or "")


def test_one_gpu_is_no_measurement_of_an_all_reduce() -> None:
    details = {c.name: c.detail for c in doctor.can_run(_serving())}
    assert "smoke test" in details["all-reduce over GPUs (NCCL)"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"cuda_driver": "12.8"}, ["driver-too-old"]),
        ({"cuda_driver": "13.1"}, []),
        ({"cuda_driver": None}, []),
        ({"versions": {"torch": "2.13.0+cpu", "triton": "3.7.1"}}, ["torch-without-cuda"]),
        ({"versions": {"torch": "2.13.0", "torch-cuda": "13.0", "triton": "3.6.0"}},
         ["triton-is-not-of-torch"]),
        ({"versions": {"torch": "2.14.1", "torch-cuda": "13.0", "triton": "3.8.2"},
          "pins": {"triton": "~=3.8.0"}}, []),
        ({"versions": {"torch": "2.14.1", "torch-cuda": "13.0", "triton": "3.9.0"},
          "pins": {"triton": "~=3.8.0"}}, ["triton-is-not-of-torch"]),
        ({"versions": {"torch": "2.11.0", "torch-cuda": "13.0", "nvidia-nccl-cu13": "2.32.3"},
          "pins": {"nvidia-nccl-cu13": "==2.28.9"}}, ["nvidia-nccl-cu13-is-not-of-torch"]),
        ({"versions": {"torch": "2.11.0", "torch-cuda": "13.0", "cupy-cuda12x": "14.2"}},
         ["cupy-of-another-cuda"]),
        ({"versions": {"torch": "2.11.0", "torch-cuda": "13.0", "cupy-cuda12x": "14.2",
                       "cupy-cuda13x": "14.2"}}, ["two-cupy", "cupy-of-another-cuda"]),
        ({"settings": {"NCCL_PROTO": "^Simple"}}, ["nccl-caret"]),
        ({"settings": {"NCCL_PROTO": "^LL128"}}, []),
        ({"settings": {"NCCL_PROTO": "LL,Simple", "NCCL_ALGO": "Ring"}}, []),
        ({"settings": {"NCCL_ALGO": "^Ring"}}, ["nccl-caret"]),
        ({"settings": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}}, ["no-local-transport"]),
        ({"settings": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "0"}}, []),
        ({"settings": {"TRITON_INTERPRET": "1"}}, ["triton-interpret-set"]),
        ({"settings": {"TRITON_INTERPRET": "0"}}, []),
        ({"settings": {"CUDA_LAUNCH_BLOCKING": "1"}}, ["cuda-launch-blocking-set"]),
        ({"settings": {"NCCL_DEBUG": "INFO"}}, ["nccl-debug-set"]),
        ({"settings": {"NCCL_DEBUG": "WARN"}}, []),
        ({"settings": {"CUDA_VISIBLE_DEVICES": ""}}, ["gpus-hidden"]),
        ({"settings": {"CUDA_VISIBLE_DEVICES": "0"}}, []),
        ({"gpus": (GpuHealth(index=0, name="x", width=8, widest=16),)}, ["pcie-narrow"]),
        ({"gpus": (GpuHealth(index=0, name="x", persistence=False),)}, ["persistence-off"]),
        ({"gpus": (GpuHealth(index=0, name="x", mig=True),)}, ["mig-on"]),
        ({"gpus": (GpuHealth(index=0, name="x", throttle_reasons=("hw_thermal",)),)},
         ["throttled-now"]),
        ({"gpus": (GpuHealth(index=0, name="x", processes=2),)}, ["gpu-busy"]),
        ({"gpus": (GpuHealth(index=0, name="x"),)}, []),
        ({"apart": ("0 and 1 (not supported by the chipset)",)}, ["no-peer-access"]),
        ({"free_bytes": 1e9}, ["disk-low"]),
        ({"floors": frozenset()}, ["not-the-checkout"]),
        ({"gpus": (), "why_no_gpu": "NVML does not start: DriverNotLoaded"}, ["driver-broken"]),
    ],
)  # fmt: skip
def test_what_looks_wrong_is_found_and_nothing_else(
    fields: dict[str, Any], expected: list[str]
) -> None:
    described = _serving(**fields)
    assert _names(described) == expected
    for finding in doctor.wrong(described):
        assert finding.next_action
        assert finding.evidence


def test_the_health_of_each_gpu_is_asked_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    sick = {
        **H200,
        "nvmlDeviceGetCurrPcieLinkWidth": 8,
        "nvmlDeviceGetPersistenceMode": 0,
        "nvmlDeviceGetMigMode": [1, 1],
        "nvmlDeviceGetCurrentClocksEventReasons": 64 + 1,
        "nvmlDeviceGetComputeRunningProcesses": ["one"],
        "nvmlDeviceGetP2PStatus": lambda other, kind: {0: 1}[kind],
    }
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([sick, {**H200, "bus": "x"}]))
    environment.current.cache_clear()
    found = machine.look()
    environment.current.cache_clear()
    assert found.gpus[0] == GpuHealth(
        index=0,
        name="NVIDIA H200",
        width=8,
        widest=16,
        persistence=False,
        mig=True,
        throttle_reasons=("hw_thermal",),
        processes=1,
    )
    assert found.apart == ("0 and 1 (not supported by the chipset)",)
    assert found.floors == frozenset(FLOORS)


def test_the_command_says_it_in_rows_and_in_json_and_exits_0(tmp_path: Path) -> None:
    out = tmp_path / "new" / "machine.json"
    done = subprocess.run(
        [sys.executable, "-m", "verifyscope", "--json", str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert {len(row) for row in rows} == {3}
    assert {row[0] for row in rows} <= {"machine", "yes", "no", "wrong"}
    found = json.loads(out.read_text())
    assert [c["name"] for c in found["capabilities"] if c["why_not"] is None] == [
        row[1] for row in rows if row[0] == "yes"
    ]
    assert [f["name"] for f in found["findings"]] == [row[1] for row in rows if row[0] == "wrong"]
    assert found["environment"]["type"] == "environment"


def test_help_starts_without_what_it_does_not_need() -> None:
    code = (
        "import sys; sys.argv = ['x', '--help']\n"
        "import runpy\n"
        "try: runpy.run_module('verifyscope', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'triton', 'numpy', 'msgspec', 'importlib.metadata'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
