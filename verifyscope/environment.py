"""What a run ran on: machine, GPUs, driver, versions, settings in force, commit.

    current() -> Environment          read once a process; torch is looked at only if it is loaded
    difference(old, new)              what a person compares when two runs disagree

Never a host name, a user name, a home folder or a variable that is not listed in `settings.py`.
"""

import contextlib
import ctypes
import datetime
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from verifyscope import cli, nvml, settings
from verifyscope.privacy import redacted
from verifyscope.records import Environment, GpuState

PACKAGES = (
    "torch",
    "triton",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-cublas-cu12",
    "nvidia-cublas",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-nvrtc",
    "cuda-bindings",
    "cuda-core",
    "cuda-python",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "flash-attn",
    "flashmla",
    "deep-gemm",
    "sgl-kernel",
    "sglang",
    "vllm",
    "nvidia-cutlass-dsl",
    "nvidia-ml-py",
    "numpy",
    "msgspec",
    "pytest",
    "pytest-benchmark",
    "verifyscope",
)
_ROOT = Path(__file__).resolve().parent.parent


class Difference(NamedTuple):
    """One field that two environments do not share, as a person reads it."""

    field: str
    old: str
    new: str


@cache
def current() -> Environment:
    """Return the environment of this process, read once."""
    commit, dirty = _commit()
    with nvml.session() as driver:
        found = Environment(
            id="",
            created="",
            command="",
            commit=commit,
            dirty=dirty,
            system=redacted(f"{platform.system()} {platform.release()}"),
            processor=processor(),
            cores=cores(),
            memory_bytes=memory_bytes(),
            python=platform.python_version(),
            governor=governor(),
            driver=driver.version(),
            cuda_driver=driver.cuda_version(),
            gpus=tuple(_gpu_state(gpu) for gpu in driver.gpus()),
            versions=versions(),
            settings=settings.in_force(),
        )
    digest = hashlib.sha256(msgspec.json.encode(found)).hexdigest()[:12]
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return msgspec.structs.replace(found, id=digest, created=now, command=cli.command_line())


def difference(old: Environment, new: Environment) -> list[Difference]:
    """Return every field that differs, in the record's order; when and by what is left out."""
    before, after = dict(_flat(old)), dict(_flat(new))
    return [
        Difference(field, before.get(field, _absent(field)), after.get(field, _absent(field)))
        for field in dict.fromkeys([*before, *after])
        if before.get(field) != after.get(field)
    ]


def processor() -> str:
    """Return the CPU's model, or its architecture where the system does not name the model."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(found[1].split()) if found else platform.processor() or platform.machine()


def cores() -> int:
    """Return the logical cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def governor(root: Path = Path("/")) -> str | None:
    """Return how the kernel chooses the CPUs' clocks; several are joined, None: it does not say."""
    cpus = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    found: set[str] = set()
    for path in cpus:
        with contextlib.suppress(OSError):
            found.add(path.read_text(errors="replace").strip())
    return redacted(" and ".join(sorted(found - {""}))) or None


def memory_bytes() -> int | None:
    """Return the machine's main memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def versions() -> dict[str, str]:
    """Return what is installed, by distribution.

    `torch-cuda` is the CUDA that torch was built for, `nccl-runtime` the NCCL that this process has
    loaded: the metadata of a wheel does not say which library is used.
    """
    found = {name: version for name in PACKAGES if (version := installed(name)) is not None}
    extra = {"torch-cuda": torch_cuda(), "nccl-runtime": loaded_nccl()}
    return found | {name: version for name, version in extra.items() if version is not None}


def installed(distribution: str) -> str | None:
    """Return the version of an installed distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cuda() -> str | None:
    """Return the CUDA version that torch is built for, read without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def loaded_nccl() -> str | None:
    """Return the version of each NCCL that this process has loaded; two are a finding."""
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return None
    paths = dict.fromkeys(re.findall(r"(/\S*libnccl\.so[^\s/]*)$", maps, re.MULTILINE))
    found = [version for path in paths if (version := _nccl_version(path)) is not None]
    return " and ".join(dict.fromkeys(found)) or None


def _nccl_version(path: str) -> str | None:
    number = ctypes.c_int()
    try:
        library = ctypes.CDLL(path)  # it is loaded already: this only takes another reference
        failed = library.ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed else nccl_release(number.value)


def nccl_release(number: int) -> str:
    """Return the version of a number of ncclGetVersion: 22705 is 2.27.5, and 2804 is 2.8.4."""
    base = 10_000 if number >= 10_000 else 1000  # 2.8.x and older have one digit less
    major, rest = divmod(number, base)
    return f"{major}.{rest // 100}.{rest % 100}"


def _gpu_state(gpu: nvml.Gpu) -> GpuState:
    properties = _torch_properties(gpu)
    memory, limit = (
        gpu.read("nvmlDeviceGetMemoryInfo"),
        gpu.number("nvmlDeviceGetEnforcedPowerLimit"),
    )
    capability = gpu.read("nvmlDeviceGetCudaComputeCapability")
    return GpuState(
        index=gpu.index,
        name=gpu.text("nvmlDeviceGetName") or "not known",
        memory_bytes=None if memory is None else int(memory.total),
        capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        multiprocessors=getattr(properties, "multi_processor_count", None),
        l2_bytes=getattr(properties, "L2_cache_size", None),
        sm_max_mhz=gpu.number("nvmlDeviceGetMaxClockInfo", nvml.CLOCK_SM),
        memory_max_mhz=gpu.number("nvmlDeviceGetMaxClockInfo", nvml.CLOCK_MEMORY),
        power_limit_w=None if limit is None else limit / 1000,
        pcie_generation=gpu.number("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width=gpu.number("nvmlDeviceGetMaxPcieLinkWidth"),
        ecc=gpu.switch("nvmlDeviceGetEccMode"),
        mig=gpu.switch("nvmlDeviceGetMigMode"),
    )


def _torch_properties(gpu: nvml.Gpu) -> Any:
    """Return torch's properties of this GPU if torch holds a CUDA context already, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    uuid = gpu.text("nvmlDeviceGetUUID")
    for number in range(cuda.device_count()):
        properties = cuda.get_device_properties(number)
        if uuid is not None and f"GPU-{getattr(properties, 'uuid', None)}" == uuid:
            return properties
    return None


def _commit() -> tuple[str | None, bool | None]:
    """Return the commit of this checkout and whether files differ from it; None outside one."""
    # A hook of git sets GIT_DIR, which would answer for another repository.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "--no-optional-locks", "-C", str(_ROOT), *words],
                capture_output=True,
                text=True,
                timeout=10,
                env=clean,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    top = git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != _ROOT:  # installed inside somebody's repository
        return None, None
    commit, changes = git("rev-parse", "--short=12", "HEAD"), git("status", "--porcelain")
    return commit or None, None if changes is None else bool(changes)


def _flat(environment: Environment) -> Iterator[tuple[str, str]]:
    fields: dict[str, Any] = msgspec.to_builtins(environment)
    for name, value in fields.items():
        if name in ("id", "created", "command", "schema", "type"):
            continue
        if name == "gpus":
            for at, gpu in enumerate(value):
                yield from ((f"gpus[{at}].{field}", _said(x)) for field, x in gpu.items())
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", str(text)) for key, text in value.items())
        elif value is not None:
            yield name, _said(value)


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _absent(field: str) -> str:
    for prefix, words in (("settings.", "not set"), ("versions.", "not installed")):
        if field.startswith(prefix):
            return words
    return "not known"
