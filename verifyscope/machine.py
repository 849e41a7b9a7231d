"""What the checks of `doctor.py` look at: programs, packages, pins, the health of each GPU.

    machine = look()

Asks the system, the driver and the metadata of packages once; imports nothing large and changes
nothing.
"""

import importlib.metadata
import importlib.util
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from verifyscope import environment, nvml
from verifyscope.lacking import FLOORS
from verifyscope.records import Environment

_IMPORTS = (
    "cuda.bindings",
    "cupti",
    "cupy",
    "flashinfer",
    "jinja2",
    "markdown_it",
    "matplotlib",
    "msgspec",
    "numpy",
    "pytest",
    "pytest_benchmark",
    "torch",
    "triton",
)
PROGRAMS = ("g++", "nvcc", "ncu", "compute-sanitizer", "nsys")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealth:
    """What may slow one GPU down or be shared, at this moment."""

    index: int
    name: str
    width: int | None = None
    widest: int | None = None
    persistence: bool | None = None
    mig: bool | None = None
    throttle_reasons: tuple[str, ...] = ()
    processes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """All that the checks below look at.

    pins: what torch's metadata asks for, by distribution: "==3.7.1", "~=3.8.0".
    apart: pairs of GPUs without peer access, and why.
    """

    environment: Environment
    why_no_gpu: str | None = None
    imports: frozenset[str] = frozenset()
    programs: frozenset[str] = frozenset()
    assembler: bool = False
    nvrtc: bool = False
    gpus: tuple[GpuHealth, ...] = ()
    apart: tuple[str, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    free_bytes: float = float("inf")
    floors: frozenset[str] = frozenset(FLOORS)


def look() -> Machine:
    """Ask the system, the driver and the installed packages."""
    with nvml.session() as driver:
        gpus = driver.gpus()
        return Machine(
            environment=environment.current(),
            why_no_gpu=driver.why_not or (None if gpus else "the driver lists no GPU"),
            imports=frozenset(name for name in _IMPORTS if _importable(name)),
            programs=frozenset(name for name in PROGRAMS if shutil.which(name)),
            assembler=_assembler().exists(),
            nvrtc=_nvrtc(),
            gpus=tuple(_health(gpu) for gpu in gpus),
            apart=tuple(_apart(gpus)),
            pins=_pins(),
            free_bytes=shutil.disk_usage(".").free,
            floors=frozenset(name for name in FLOORS if Path(name, "__init__.py").exists()),
        )


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # the parent of a dotted name is missing
        return False


def _assembler() -> Path:
    spec = importlib.util.find_spec("triton")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path("absent")
    return folder / "backends" / "nvidia" / "bin" / "cuobjdump"


def _nvrtc() -> bool:
    wheels = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13")
    return any(environment.installed(name) for name in wheels) or any(
        Path(folder).glob("libnvrtc.so*")
        for folder in ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu")
    )


def _pins() -> dict[str, str]:
    try:
        requirements = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    pattern = re.compile(r"(triton|nvidia-nccl-cu1[23])\s*((?:==|~=)[\d.]+)")
    return {found[1]: found[2] for text in requirements if (found := pattern.match(text))}


def _health(gpu: nvml.Gpu) -> GpuHealth:
    return GpuHealth(
        index=gpu.index,
        name=gpu.text("nvmlDeviceGetName") or "not known",
        width=gpu.number("nvmlDeviceGetCurrPcieLinkWidth"),
        widest=gpu.number("nvmlDeviceGetMaxPcieLinkWidth"),
        persistence=gpu.switch("nvmlDeviceGetPersistenceMode"),
        mig=gpu.switch("nvmlDeviceGetMigMode"),
        throttle_reasons=gpu.throttle_reasons(),
        processes=len(gpu.read("nvmlDeviceGetComputeRunningProcesses") or ()),
    )


def _apart(gpus: list[nvml.Gpu]) -> Iterator[str]:
    for one, other in combinations(gpus, 2):
        if (reason := one.why_apart(other)) is not None:
            yield f"{one.index} and {other.index} ({reason})"
