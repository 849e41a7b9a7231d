"""What a machine can run of the suite, why it cannot run the rest, and what looks wrong on it.

    machine = machine.look()
    can_run(machine) -> tuple[Capability, ...]      wrong(machine) -> list[Finding]

Both are functions of what was found. Each finding ends with the next action.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType

from verifyscope.lacking import FLOORS
from verifyscope.machine import PROGRAMS, Machine
from verifyscope.records import Evidence, Finding
from verifyscope.units import bytes_

_LOW_DISK_BYTES = 5e9
# Where torch's own metadata names no triton (CPU builds): the release that was tested with it.
_TRITON_OF_TORCH = MappingProxyType(
    {"2.10": "3.6", "2.11": "3.6", "2.12": "3.7.1", "2.13": "3.7.1", "2.14": "3.8"}
)


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing the suite does: `why_not` is None where this machine can do it."""

    name: str
    why_not: str | None
    detail: str = ""


def can_run(machine: Machine) -> tuple[Capability, ...]:
    """Return every capability of the suite, with the first thing that it lacks here."""
    gpu = _no_gpu(machine)
    cuda = gpu or _torch_without_cuda(machine)
    flashinfer = machine.environment.versions.get("flashinfer-python", "")
    checks: tuple[tuple[str, str | None, str], ...] = (
        (
            "read logs, build reports",
            _lacks(machine, "msgspec", "numpy", "jinja2", "markdown_it", "matplotlib"),
            "",
        ),
        ("kernels in Triton's interpreter", _lacks(machine, "torch", "triton"), ""),
        ("CUDA C++ on the CPU", _lacks(machine, "torch", "g++"), ""),
        ("compile gate, Triton", _lacks(machine, "torch", "triton") or _no_assembler(machine), ""),
        ("compile gate, CUDA C++", _lacks(machine, "torch") or _no_nvrtc(machine), ""),
        ("all-reduce over processes (gloo)", _lacks(machine, "torch"), ""),
        ("all-reduce over GPUs (NCCL)", _lacks(machine, "torch") or cuda, _several(machine)),
        ("suites on the CPU", _lacks(machine, "torch", "pytest", "pytest_benchmark"), ""),
        ("suites on the GPU", _lacks(machine, "torch", "pytest", "pytest_benchmark") or cuda, ""),
        ("CuPy kernels on the GPU", _lacks(machine, "cupy") or gpu, ""),
        (
            "FlashInfer as baseline",
            _lacks(machine, "flashinfer") or cuda or _no_jit(machine),
            flashinfer,
        ),
        ("timeline by CUPTI", _lacks(machine, "cupti") or gpu, ""),
        ("DRAM bytes by ncu", _lacks(machine, "ncu") or gpu, ""),
        ("memory and race checks", _lacks(machine, "compute-sanitizer") or gpu, ""),
    )
    return tuple(Capability(*check) for check in checks)


def wrong(machine: Machine) -> list[Finding]:
    """Return what looks wrong, each with the next action."""
    return [finding for check in _CHECKS for finding in check(machine)]


def _no_gpu(machine: Machine) -> str | None:
    if machine.gpus:
        return None
    return f"needs an NVIDIA GPU; {machine.why_no_gpu or 'this machine has none'}"


def _torch_without_cuda(machine: Machine) -> str | None:
    if "torch-cuda" not in machine.environment.versions:
        return "torch is a CPU build; `make setup` takes the build for this driver"
    return _driver_too_old(machine)


def _driver_too_old(machine: Machine) -> str | None:
    built = machine.environment.versions.get("torch-cuda")
    driver = machine.environment.cuda_driver
    if built is None or driver is None or _major(built) <= _major(driver):
        return None
    return f"torch is built for CUDA {built} and the driver runs CUDA {driver}"


def _lacks(machine: Machine, *names: str) -> str | None:
    for name in names:
        if name in PROGRAMS:
            if name not in machine.programs:
                return f"needs the program {name}, which is not on PATH"
        elif name not in machine.imports:
            return f"needs the package {name}, which is not installed"
    return None


def _no_assembler(machine: Machine) -> str | None:
    return None if machine.assembler else "triton's wheel holds no ptxas and cuobjdump here"


def _no_nvrtc(machine: Machine) -> str | None:
    if machine.nvrtc and "cuda.bindings" in machine.imports:
        return None
    return "needs NVRTC and cuda-bindings: packages nvidia-cuda-nvrtc-cu12 (or 13), cuda-python"


def _no_jit(machine: Machine) -> str | None:
    prebuilt = machine.environment.versions.get("flashinfer-jit-cache")
    if prebuilt or "nvcc" in machine.programs:
        return None
    return "it compiles at first use and finds no nvcc on PATH; install the CUDA toolkit"


def _several(machine: Machine) -> str:
    if len(machine.gpus) == 1:
        return "one GPU: a smoke test, no measurement (there is no peer)"
    return f"{len(machine.gpus)} GPUs" if machine.gpus else ""


def _software(machine: Machine) -> Iterator[Finding]:
    versions = machine.environment.versions
    if (sentence := _driver_too_old(machine)) is not None:
        yield _finding(
            "driver-too-old",
            f"{sentence}: no CUDA call can work",
            "update the driver, or install the torch of this driver's CUDA (`make setup`)",
            ("torch", versions.get("torch", "")),
        )
    if machine.gpus and "torch" in versions and "torch-cuda" not in versions:
        yield _finding(
            "torch-without-cuda",
            f"torch {versions['torch']} is a CPU build on a machine with a GPU",
            "run `make setup`, which takes the build for this driver",
            ("torch", versions["torch"]),
        )
    for name, pin in _wanted(machine).items():
        if name in versions and not _satisfies(versions[name], pin):
            yield _finding(
                f"{name}-is-not-of-torch",
                f"{name} {versions[name]} is installed, torch {versions['torch']} goes with {pin}",
                f"pip install '{name}{pin}'",
                (name, versions[name]),
            )
    yield from _cupy(machine)


def _cupy(machine: Machine) -> Iterator[Finding]:
    versions = machine.environment.versions
    found = [name for name in versions if name.startswith("cupy-cuda")]
    if len(found) > 1:
        yield _finding(
            "two-cupy",
            f"{' and '.join(found)} are both installed and overwrite each other's files",
            f"pip uninstall -y {' '.join(found)}, then install the one of torch's CUDA",
            ("packages", ", ".join(found)),
        )
    built = versions.get("torch-cuda")
    for name in found if built and machine.gpus else ():
        if f"cuda{_major(str(built))}x" not in name:
            yield _finding(
                "cupy-of-another-cuda",
                f"{name} beside a torch for CUDA {built}: it may compile with the other NVRTC",
                f"pip install cupy-cuda{_major(str(built))}x instead",
                (name, versions[name]),
            )


def _settings(machine: Machine) -> Iterator[Finding]:
    given = machine.environment.settings
    for name in ("NCCL_PROTO", "NCCL_ALGO"):
        value = given.get(name, "")
        if "^" in value and value.strip().upper() != "^LL128":
            effect = "switches LL128 on past its safety gate" if name == "NCCL_PROTO" else "inverts"
            yield _finding(
                "nccl-caret",
                f"{name}={value}: a list with ^ {effect}",
                f"name what is allowed instead, such as {_LIST_INSTEAD[name]}",
                (name, value),
            )
    if _on(given.get("NCCL_P2P_DISABLE")) and _on(given.get("NCCL_SHM_DISABLE")):
        yield _finding(
            "no-local-transport",
            "NCCL_P2P_DISABLE and NCCL_SHM_DISABLE are both set: GPUs talk through the network",
            "unset one of them",
            ("NCCL_SHM_DISABLE", given["NCCL_SHM_DISABLE"]),
        )
    for name, (harm, action) in _HARMFUL.items():
        value = given.get(name, "")
        logs = name == "NCCL_DEBUG"  # its other levels are silent
        if value.upper() in ("INFO", "TRACE") if logs else _on(value):
            yield _finding(
                f"{name.lower().replace('_', '-')}-set",
                f"{name}={value}: {harm}",
                action,
                (name, value),
            )
    if machine.gpus and given.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        yield _finding(
            "gpus-hidden",
            f"CUDA_VISIBLE_DEVICES hides the {len(machine.gpus)} GPUs that the driver lists",
            "unset CUDA_VISIBLE_DEVICES",
            ("CUDA_VISIBLE_DEVICES", given["CUDA_VISIBLE_DEVICES"]),
        )


_LIST_INSTEAD = {"NCCL_PROTO": "NCCL_PROTO=LL,Simple", "NCCL_ALGO": "NCCL_ALGO=Ring"}
_HARMFUL = {
    "TRITON_INTERPRET": ("kernels run in Python: no time is right", "unset it to measure"),
    "CUDA_LAUNCH_BLOCKING": ("each launch waits: no time is right", "unset it to measure"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("allocations go to the driver", "unset it to measure"),
    "TORCH_NCCL_BLOCKING_WAIT": ("the host waits for each collective", "unset it to measure"),
    "NCCL_DEBUG": ("logging takes time in each call", "set NCCL_DEBUG=WARN to measure"),
}


def _hardware(machine: Machine) -> Iterator[Finding]:
    for gpu in machine.gpus:
        who = f"GPU {gpu.index} ({gpu.name})"
        if gpu.width and gpu.widest and gpu.width < gpu.widest:
            yield _finding(
                "pcie-narrow",
                f"{who} has a PCIe link of {gpu.width} lanes, it could have {gpu.widest}",
                "reseat the card or its riser, and look at the slot's lanes in the BIOS",
                (who, f"x{gpu.width}"),
            )
        if gpu.persistence is False:
            yield _finding(
                "persistence-off",
                f"{who}: persistence mode is off, so the driver starts anew for each process",
                "as root: nvidia-smi -pm 1",
                (who, "off"),
            )
        if gpu.mig:
            yield _finding(
                "mig-on",
                f"{who} is split by MIG: bandwidth and peaks are of a slice",
                "measure on a whole GPU, or say so beside the numbers",
                (who, "on"),
            )
        if gpu.throttle_reasons:
            yield _finding(
                "throttled-now",
                f"{who} holds its clock down: {', '.join(gpu.throttle_reasons)}",
                "look at cooling, power limit and power supply before measuring",
                (who, ", ".join(gpu.throttle_reasons)),
            )
        if gpu.processes:
            yield _finding(
                "gpu-busy",
                f"{who} is in use by {gpu.processes} other process(es)",
                "end them, or measure later",
                (who, str(gpu.processes)),
            )
    if machine.apart:
        yield _finding(
            "no-peer-access",
            f"no peer access between GPUs {'; '.join(machine.apart)}",
            "NCCL goes through host memory there; look at ACS and IOMMU, or use another slot",
            ("pairs", "; ".join(machine.apart)),
        )


def _place(machine: Machine) -> Iterator[Finding]:
    missing = [name for name in FLOORS if name not in machine.floors]
    if missing:
        yield _finding(
            "not-the-checkout",
            f"this folder has no {', '.join(missing)}: those commands cannot be run from here",
            "go to the folder of verifyscope's checkout",
            ("folder", ", ".join(missing)),
        )
    if machine.free_bytes < _LOW_DISK_BYTES:
        yield _finding(
            "disk-low",
            f"only {bytes_(machine.free_bytes)} are free here",
            "free some: a set-up takes several GB, a run some MB",
            ("free", bytes_(machine.free_bytes)),
        )
    if machine.why_no_gpu is not None and machine.why_no_gpu.startswith("NVML does not start"):
        yield _finding(
            "driver-broken",
            f"a driver is installed and does not answer: {machine.why_no_gpu}",
            "reboot after a driver update; in a container start it with GPU access",
            ("NVML", machine.why_no_gpu),
        )


_CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    _place,
    _software,
    _settings,
    _hardware,
)


def _finding(name: str, sentence: str, action: str, evidence: tuple[str, str]) -> Finding:
    place, value = evidence
    return Finding(
        name=name,
        sentence=sentence,
        evidence=(Evidence(file="this machine", at=place, value=value),),
        next_action=action,
        confidence="sure",
    )


def _wanted(machine: Machine) -> dict[str, str]:
    """Return what torch goes with: by its own metadata, else by what was tested."""
    version = machine.environment.versions.get("torch", "")
    tested = _TRITON_OF_TORCH.get(".".join(version.split(".")[:2]))
    return ({"triton": f"=={tested}.*"} if tested else {}) | dict(machine.pins)


def _satisfies(version: str, pin: str) -> bool:
    wanted = pin[2:].removesuffix(".*").split(".")
    if pin.startswith("~="):
        wanted = wanted[:-1]
    return version.partition("+")[0].split(".")[: len(wanted)] == wanted


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _on(value: str | None) -> bool:
    return (value or "0").strip().lower() not in ("", "0", "false", "no", "off", "n")
