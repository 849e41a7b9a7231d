"""Asks the NVIDIA driver which GPUs there are, with nothing installed: NVML through ctypes.

    found = look()      None without a driver or a GPU

For set-up and for the first minutes on a GPU machine, where no package may be there. What is asked
later, field by field, goes through `verifyscope/nvml.py`.
"""

import ctypes
from dataclasses import dataclass

_LIBRARY = "libnvidia-ml.so.1"
_LONGEST_NAME = 96


@dataclass(frozen=True)
class Found:
    """The driver's CUDA version (13000 is CUDA 13.0) and its GPUs' names, in PCI order."""

    cuda: int
    gpus: tuple[str, ...]


def look(library: str = _LIBRARY) -> Found | None:
    """Return what the driver says; None if there is none, if it does not answer, or has no GPU."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    try:
        if nvml.nvmlInit_v2() != 0:
            return None
        found = _ask(nvml)
        nvml.nvmlShutdown()
    except AttributeError:  # a driver that lacks a function of 2018
        return None
    return found if found.gpus and found.cuda else None


def _ask(nvml: ctypes.CDLL) -> Found:
    count, cuda = ctypes.c_uint(), ctypes.c_int()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda))
    names = []
    for index in range(count.value):
        handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_LONGEST_NAME)
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0:
            nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(_LONGEST_NAME))
            names.append(name.value.decode(errors="replace"))
    return Found(cuda=cuda.value, gpus=tuple(names))
