"""Which GPU a kernel chooses its tiles for: the device at hand, or the one that is compiled for."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch

# What the interpreter and the host runner choose tiles for: the smallest shared memory of all.
WITHOUT_A_GPU = 120
_compiled_for: ContextVar[int | None] = ContextVar("compiled_for", default=None)


def capability() -> int:
    """Return the capability (80, 89, 90, 100, 120, ...) that launch configurations are for."""
    chosen = _compiled_for.get()
    if chosen is not None:
        return chosen
    if not torch.cuda.is_available():
        return WITHOUT_A_GPU
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


@contextlib.contextmanager
def compiling_for(target: int) -> Iterator[None]:
    """Within the block, `capability()` answers `target`."""
    token = _compiled_for.set(target)
    try:
        yield
    finally:
        _compiled_for.reset(token)
