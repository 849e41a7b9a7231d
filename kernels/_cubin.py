"""CUDA C++ to machine code for a GPU that need not be here, and what machine code takes and holds.

Compiling needs NVRTC (`cuda.bindings`); reading needs `cuobjdump` and `nvdisasm`, which Triton's
wheel carries. None of them needs a driver. What was compiled is kept beside the libraries of the
host runner (`kernels/_host_cuda_build.py`), as Triton keeps its own.
"""

import importlib.util
import itertools
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernels._host_cuda_build import digest, kept
from kernels._raw import Launch, compiler_options, gpu_source, header_directories
from kernels._sass import Instruction
from verifyscope.errors import Failure
from verifyscope.hardware import RESERVED_SHARED_BYTES


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
    missing = [name for name in ("cuobjdump", "nvdisasm") if not _tool(name).exists()]
    return f"needs {' and '.join(missing)} of the package 'triton'" if missing else None


def compiled(launch: Launch, *, capability: int) -> bytes:
    """Compile the source of `launch` for `capability`; ValueError with the log if it does not."""
    return _compiled(launch.name, gpu_source(launch.source), launch.options, capability)


@cache
def resources(cubin: bytes, *, kernel: str, capability: int) -> Resources:
    """Return what the code of `kernel` takes, without dynamic shared memory."""
    text = _read(cubin, "cuobjdump", "-res-usage")
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


def disassembled(cubins: Sequence[bytes], *, capability: int) -> list[tuple[Instruction, ...]]:
    """Return the instructions of each of `cubins`, all built for `capability`.

    All code goes through one run of nvdisasm, which takes longer to start than to read.
    """
    codes = [b"".join(_code(cubin)) for cubin in cubins]
    ends = [*itertools.accumulate(map(len, codes))]
    accelerated = "a" if capability >= 90 else ""
    text = _read(b"".join(codes), "nvdisasm", "-c", "-ndf", "-b", f"SM{capability}{accelerated}")
    found: list[list[Instruction]] = [[] for _ in cubins]
    number = 0
    for address, instruction in re.findall(r"^\s+/\*([0-9a-f]+)\*/\s+(.*)$", text, re.MULTILINE):
        at = int(address, 16)
        while at >= ends[number]:
            number += 1
        found[number].append(Instruction(address=at, text=instruction))
    return [*map(tuple, found)]


def _code(cubin: bytes) -> Iterator[bytes]:
    """Yield the machine code in `cubin`: its sections named .text.*, of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + n * size) for n in range(count)]
    for name, _kind, _flags, _address, start, length in sections:
        if cubin.startswith(b".text.", sections[names][4] + name):
            yield cubin[start : start + length]


def _read(data: bytes, tool: str, *options: str) -> str:
    if reason := why_not():
        raise Failure(reason)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(data)
        file.flush()
        done = subprocess.run([_tool(tool), *options, file.name], capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"{tool} {' '.join(options)} failed: {' '.join(done.stderr.split())}")
    return done.stdout


@cache
def _tool(name: str) -> Path:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return Path(f"{name}-of-triton")
    return Path(spec.origin).parent / "backends/nvidia/bin" / name


@cache
def _compiled(name: str, source: str, options: tuple[str, ...], capability: int) -> bytes:
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        raise ValueError("compiling CUDA C++ needs the package 'cuda-python'") from None
    flags = [f"--gpu-architecture=sm_{capability}", *compiler_options(), *options]

    def build(folder: Path) -> Path:
        built = folder / "kernel.cubin"
        built.write_bytes(_by_nvrtc(nvrtc, name, source, flags, capability=capability))
        return built

    version = ".".join(map(str, nvrtc.nvrtcVersion()[1:]))
    return kept(
        f"{digest(version, *_header_versions(), *flags, name, source)}.cubin", build
    ).read_bytes()


def _header_versions() -> list[str]:
    """Return what tells one set of CUDA headers from another that lies in the same place."""
    files = (place / "cuda_bf16.h" for place in header_directories())
    return [f"{file.stat().st_size} {file.stat().st_mtime_ns}" for file in files if file.exists()]


def _by_nvrtc(
    nvrtc: Any, name: str, source: str, flags: Sequence[str], *, capability: int
) -> bytes:
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
