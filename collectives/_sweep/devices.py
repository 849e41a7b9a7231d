"""Whether this machine can run a job: torch, enough GPUs for NCCL, enough memory for processes."""

import importlib.util
import os
from collections.abc import Sequence

from collectives._sweep.messages import Gpus
from collectives._sweep.points import DTYPE_BYTES
from collectives._sweep.spec import Spec
from verifyscope import units
from verifyscope.errors import UsageError

# Input, output, what is expected there, and the comparison of the two, for each rank.
_COPIES = 4.5


def require_torch() -> None:
    """Raise `UsageError` where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError("torch is not installed here; run `make setup`, or use its environment")


def require_driver(spec: Spec) -> None:
    """Raise `UsageError` at once where NVML shows fewer GPUs than ranks, before torch is loaded."""
    try:
        import pynvml
    except ImportError:
        return
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError_LibraryNotFound:
        count = 0
    except pynvml.NVMLError:
        return
    require_gpus(spec, Gpus(count))


def require_gpus(spec: Spec, found: Gpus) -> None:
    """Raise `UsageError` that says how many GPUs there are, and what to type instead."""
    named = [device for known in spec.combinations for device in known.gpu_order]
    if found.count > max([spec.local_ranks - 1, *named]):
        return
    counted = {0: "no NVIDIA GPU was", 1: "1 NVIDIA GPU was"}
    present = counted.get(found.count, f"{found.count} NVIDIA GPUs were")
    why = f" ({found.reason})" if found.reason else ""
    fewer = f"--gpus {found.count}, or " if found.count > 1 else ""
    if named and found.count >= spec.local_ranks:
        raise UsageError(f"--gpu-order names device {max(named)}, but {present} found{why}")
    raise UsageError(
        f"--gpus {spec.ranks}, but {present} found{why}; give {fewer}"
        f"--gpus {spec.ranks} --backend gloo for {spec.ranks} CPU processes"
    )


def require_memory(specs: Sequence[Spec]) -> None:
    """Raise `UsageError` where the largest size does not fit in this machine, ranks times."""
    try:
        present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return
    spec = specs[0]
    elements = max(point.elements for each in specs for point in each.points)
    needed = spec.local_ranks * elements * DTYPE_BYTES[spec.dtype] * _COPIES
    if needed > present:
        raise UsageError(
            f"{spec.local_ranks} processes need {units.bytes_(needed)} for the largest size, "
            f"this machine has {units.bytes_(present)}; give a smaller --max-bytes, fewer --tokens "
            f"or --ranks"
        )
