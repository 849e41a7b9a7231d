"""Catch what an implementation would launch: nothing reaches a GPU, none need be here.

    with caught(capability=120, tell=launches.append):
        implementation.run(inputs)

Triton kernels and CUDA C++ alike are told as a `Launch`: a name, the blocks of the grid, the
threads of a block, and how to compile it. Tiles and splits are chosen as for the GPU named.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels import _cubin, _raw, _target

_WARP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One kernel as machine code for a GPU, and what a launch of it takes."""

    kernel: str
    registers: int
    local_bytes: int
    shared_bytes: int
    threads: int
    cubin: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch that was caught.

    likeness: launches of equal likeness are of one kernel but for what a compiler makes of the
        values of whole numbers (a stride that 16 divides). compile: makes the machine code.
    """

    kernel: str
    blocks: int
    likeness: tuple[object, ...]
    compile: Callable[[], Code]


@contextlib.contextmanager
def caught(
    *, capability: int, tell: Callable[[Launch], None], multiprocessors: int | None = None
) -> Iterator[None]:
    """Within the block, launching a kernel calls `tell` and runs nothing."""

    def tell_raw(launch: _raw.Launch) -> None:
        tell(_raw_launch(launch, capability))

    with (
        _target.compiling_for(capability, multiprocessors=multiprocessors),
        _raw.launching_by(tell_raw),
        _telling_triton(capability, tell),
    ):
        yield


def _raw_launch(launch: _raw.Launch, capability: int) -> Launch:
    def compiled() -> Code:
        cubin = _cubin.compiled(launch, capability=capability)
        return _code(
            launch.name,
            cubin,
            capability=capability,
            threads=math.prod(launch.block),
            dynamic_shared_bytes=launch.shared_bytes,
        )

    return Launch(
        kernel=launch.name,
        blocks=math.prod(launch.grid),
        likeness=(launch.source, launch.options, launch.block, launch.shared_bytes),
        compile=compiled,
    )


def _code(
    kernel: str, cubin: bytes, *, capability: int, threads: int, dynamic_shared_bytes: int
) -> Code:
    use = _cubin.resources(cubin, kernel=kernel, capability=capability)
    return Code(
        kernel=kernel,
        registers=use.registers,
        local_bytes=use.local_bytes,
        shared_bytes=use.shared_bytes + dynamic_shared_bytes,
        threads=threads,
        cubin=cubin,
    )


class _NoDevice:
    """Stands where Triton looks for its driver: it names a target and owns no device."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        # Triton caches compiled kernels per device number, so each target needs its own.
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(
            f"a kernel asks its GPU for {name!r} while it is only compiled; choose by "
            f"kernels._target.capability() from a table, without tuning at run time"
        )


@contextlib.contextmanager
def _telling_triton(capability: int, tell: Callable[[Launch], None]) -> Iterator[None]:
    try:
        from triton.runtime import JITFunction, driver
        from triton.runtime.interpreter import InterpretedFunction
    except ModuleNotFoundError:  # then no Triton kernel is here to be launched
        yield
        return
    run, previous = JITFunction.run, driver._active
    interpret = InterpretedFunction.run

    def told(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        tell(
            Launch(
                kernel=self.fn.__name__,
                blocks=math.prod(grid(named) if callable(grid) else grid),
                likeness=(self.fn, *(_alike(name, value) for name, value in named.items())),
                compile=lambda: _triton_code(run, self, args, kwargs, capability),
            )
        )

    driver.set_active(_NoDevice(capability))
    JITFunction.run = InterpretedFunction.run = told
    try:
        yield
    finally:
        JITFunction.run, InterpretedFunction.run = run, interpret
        driver._active = previous


def _triton_code(
    run: Callable[..., Any],
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    capability: int,
) -> Code:
    binary = run(function, *args, grid=(1,), warmup=True, **kwargs)
    return _code(
        binary.metadata.name,
        binary.asm["cubin"],
        capability=capability,
        threads=_WARP * binary.metadata.num_warps,
        dynamic_shared_bytes=binary.metadata.shared,
    )


def _alike(name: str, value: Any) -> object:
    """Return what of an argument decides which kernel is compiled: no run-time number does."""
    if hasattr(value, "dtype"):
        return name, str(value.dtype)
    # Whatever is in capitals, or an option of the launch, is compiled in.
    compiled_in = name.isupper() or name.startswith(("num_", "max"))
    return name, value if compiled_in else type(value).__name__
