"""Which GPU a kernel chooses its tiles and splits for: the one at hand, or the one compiled for."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from verifyscope.hardware import SHARED_BYTES_PER_MULTIPROCESSOR, stand_in

# What the interpreter and the host runner choose tiles for: the smallest shared memory of all.
WITHOUT_A_GPU = 120


@dataclass(frozen=True, slots=True)
class _Target:
    capability: int
    multiprocessors: int


_compiled_for: ContextVar[_Target | None] = ContextVar("compiled_for", default=None)


def capability() -> int:
    """Return the capability (80, 89, 90, 100, 120, ...) that launch configurations are for."""
    chosen = _compiled_for.get()
    if chosen is not None:
        return chosen.capability
    return _at_hand() or WITHOUT_A_GPU


def listed(capability: int) -> int:
    """Return the capability whose shared memory and tiles stand for this one."""
    if capability == 86:  # it runs sm_80's code with sm_89's shared memory
        return 89
    return max(one for one in SHARED_BYTES_PER_MULTIPROCESSOR if one <= capability)


def multiprocessors() -> int:
    """Return how many multiprocessors launch configurations are for."""
    chosen = _compiled_for.get()
    if chosen is not None:
        return chosen.multiprocessors
    return multiprocessors_of(capability())


def multiprocessors_of(capability: int) -> int:
    """Return those of the GPU at hand if it has this capability, else of the one it stands for."""
    if _at_hand() == capability:
        return int(torch.cuda.get_device_properties().multi_processor_count)
    gpu = stand_in(capability)
    if gpu.multiprocessors is None:
        raise ValueError(f"verifyscope/hardware.py does not know the multiprocessors of {gpu.name}")
    return gpu.multiprocessors


@contextlib.contextmanager
def compiling_for(target: int, *, multiprocessors: int | None = None) -> Iterator[None]:
    """Within the block, launches are configured for the capability `target`.

    multiprocessors: those of a GPU that is named; else of the one at hand, or what stands for it.
    """
    chosen = _Target(target, multiprocessors or multiprocessors_of(target))
    token = _compiled_for.set(chosen)
    try:
        yield
    finally:
        _compiled_for.reset(token)


def _at_hand() -> int | None:
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor
