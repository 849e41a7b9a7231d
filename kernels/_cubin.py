"""CUDA C++ to machine code for a GPU that need not be here, and what machine code takes and holds.

Compiling needs NVRTC (`cuda.bindings`); reading needs `cuobjdump`, which Triton's wheel carries.
Neither needs a driver.
"""

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernels._raw import Launch, compiler_options
from verifyscope.errors import Failure
from verifyscope.hardware import RESERVED_SHARED_BYTES

# What an implementation may declare, as it stands in a disassembly. Matrix products are HMMA, IMMA,
# QMMA, ... a warp, HGMMA, ... a warpgroup (sm_90) and UTCHMMA, ... in tensor memory (sm_100); wide
# loads bring 16 bytes or more a thread to a register, to shared memory (LDGSTS), or go in bulk.
INSTRUCTIONS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "tensor_core": re.compile(r"\b(?:[HIBDQO]MMA|[HIBQ]GMMA|UTC[A-Z]?MMA)\b"),
        "wide_load": re.compile(
            r"\b(?:(?:LDG|LDGSTS)\.[A-Z0-9_.]*\b(?:128|256)\b|UBLKCP\b|UTMALDG\b)"
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one kernel takes: registers and local memory a thread, shared memory a block.

    Local memory holds what registers do not: spilled values, and arrays indexed by a variable.
    """

    registers: int
    local_bytes: int
    shared_bytes: int


def why_not() -> str | None:
    """Say why machine code cannot be read here; None if it can."""
    return None if _tool().exists() else "needs cuobjdump, which comes with the package 'triton'"


def compiled(launch: Launch, *, capability: int) -> bytes:
    """Compile the source of `launch` for `capability`; ValueError with the log if it does not."""
    return _compiled(launch.name, launch.source, launch.options, capability)


@cache
def resources(cubin: bytes, *, kernel: str, capability: int) -> Resources:
    """Return what the code of `kernel` takes, without dynamic shared memory."""
    text = _read(cubin, "-res-usage")
    found = re.search(rf"Function {re.escape(kernel)}:\s+(.*)", text)
    if found is None:
        raise ValueError(f'no function {kernel!r} in its machine code; declare it extern "C"')
    use = {key: int(value) for key, value in re.findall(r"\b(\w+):(\d+)", found[1])}
    # From sm_90 on cuobjdump counts what CUDA keeps for itself; the limit does not.
    reserved = RESERVED_SHARED_BYTES if capability >= 90 and use["SHARED"] else 0
    return Resources(
        registers=use["REG"],
        local_bytes=use["LOCAL"] + use["STACK"],
        shared_bytes=use["SHARED"] - reserved,
    )


@cache
def instruction_classes(cubin: bytes) -> tuple[str, ...]:
    """Return the classes of `INSTRUCTIONS` that occur in the machine code."""
    text = _read(cubin, "-sass")
    return tuple(name for name, pattern in INSTRUCTIONS.items() if pattern.search(text))


def _read(cubin: bytes, what: str) -> str:
    if reason := why_not():
        raise Failure(reason)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([_tool(), what, file.name], capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"cuobjdump {what} failed: {' '.join(done.stderr.split())}")
    return done.stdout


@cache
def _tool() -> Path:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return Path("cuobjdump-of-triton")
    return Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump"


@cache
def _compiled(name: str, source: str, options: tuple[str, ...], capability: int) -> bytes:
    from cuda.bindings import nvrtc

    flags = [f"--gpu-architecture=sm_{capability}", *compiler_options(), *options]
    program = _value(nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
        if int(status):
            log = b" " * _value(nvrtc.nvrtcGetProgramLogSize(program))
            nvrtc.nvrtcGetProgramLog(program, log)
            text = log.rstrip(b"\0 \n").decode(errors="replace")
            raise ValueError(f"NVRTC for sm_{capability}: {text or status.name}")
        image: bytes = b" " * _value(nvrtc.nvrtcGetCUBINSize(program))
        _value(nvrtc.nvrtcGetCUBIN(program, image))
        return image
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _value(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status):
        raise ValueError(f"NVRTC: {status.name}")
    return values[0] if values else None
