"""A CUDA C++ kernel as a shared library for this CPU, kept in a cache.

The cache is `HOST_CUDA_CACHE`, or `verifyscope/host_cuda` in the user's cache folder. A library is
named by all that it is made of and put in place at once: several processes may share the cache, and
removing it loses nothing. `CXX` names another compiler than g++. Headers that most kernels include
are parsed once and kept there, too (33 MB): that is 0.3 of the 1.0 s of CPU time of a kernel, and
the object file is the same byte for byte.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from kernels._raw import header_directories
from verifyscope.errors import Failure

_HERE = Path(__file__).resolve().parent
_MACHINE = "_host_cuda_block.cpp"
_SOURCES = (
    _MACHINE,
    "_host_cuda.h",
    "_host_cuda_block.h",
    "_host_cuda_mma.h",
    "_host_cuda_pipeline.h",
    "_host_cuda_races.h",
    "_host_cuda_wmma.h",
)
# Headers of CUDA that mean something else here, by what a kernel includes instead of them.
_INSTEAD = {
    "mma.h": "_host_cuda_wmma.h",
    "cuda_pipeline_primitives.h": "_host_cuda_pipeline.h",
}
_HEADERS = "#include <_host_cuda.h>\n#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"
_FLAGS = ("-O1", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing")
# What a check finds goes to handlers of ours in the machine: no runtime library is needed.
_CHECKS = ("-fsanitize=alignment,bounds",)


def why_not() -> str | None:
    """Say why kernels cannot be built for this CPU, fit for a skip; None if they can."""
    if shutil.which(_compiler()[0]) is None:
        return f"needs the C++ compiler {_compiler()[0]!r}; install g++ or set CXX"
    if not any((place / "vector_types.h").exists() for place in header_directories()):
        return "needs CUDA's headers; install triton, or set CUDA_HOME to a toolkit"
    return None


def built(source: str, name: str, *, options: Sequence[str] = ()) -> Path:
    """Return the shared library of the kernel `name`, compiled unless it is in the cache.

    options: those of the kernel for a GPU; definitions and header folders mean something here too.
    """
    if reason := why_not():
        raise Failure(reason)
    text = f'#line 1 "{name}.cu"\n{source}\nHOST_CUDA_ENTRY({name})\n'
    own = [option for option in options if option.startswith(("-D", "-U", "-I"))]
    command = (*_command(), *_CHECKS, *own)

    def build(folder: Path) -> Path:
        unit, built = folder / "kernel.cpp", folder / "kernel.so"
        unit.write_text(text)
        for header, ours in _INSTEAD.items():
            (folder / header).write_text(f'#include "{ours}"\n')
        seen = ["-include", headers, f"-I{folder}"]
        compiled = [*command, *seen, "-c", "-o", str(folder / "kernel.o"), str(unit)]
        _compile(name, compiled, folder)
        _compile(name, [*_link(), "-o", str(built), str(folder / "kernel.o"), machine], folder)
        return built

    headers, machine = str(_headers()), str(_machine())
    return kept(f"{digest(*command, *_link(), _HEADERS, _machine_text(), text)}.so", build)


def _headers() -> Path:
    """Return the header of all kernels; the compiler takes what is precompiled beside it."""
    command = [*_command(), *_CHECKS, "-x", "c++-header", "-o"]
    name = f"{digest(*command, _HEADERS, _machine_text())}.h"

    def write(folder: Path) -> Path:
        (folder / name).write_text(_HEADERS)
        return folder / name

    def build(folder: Path) -> Path:
        _compile(name, [*command, str(folder / f"{name}.gch"), str(header)], folder)
        return folder / f"{name}.gch"

    header = kept(name, write)
    kept(f"{name}.gch", build)
    return header


def _machine() -> Path:
    """Return the object file of what all kernels run on."""
    command = [*_command(), "-c", str(_HERE / _MACHINE), "-o"]

    def build(folder: Path) -> Path:
        _compile(_MACHINE, [*command, str(folder / "machine.o")], folder)
        return folder / "machine.o"

    return kept(f"{digest(*command, _machine_text())}.o", build)


@cache
def _machine_text() -> str:
    return "".join((_HERE / source).read_text() for source in _SOURCES)


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def _command() -> list[str]:
    command = [*_compiler(), *_FLAGS, f"-I{_HERE}"]
    for place in header_directories():
        command += ["-isystem", str(place)]
    return command


def _link() -> list[str]:
    return [*_compiler(), "-shared"]


def digest(*parts: str) -> str:
    """Return the name of what is made of `parts`, and of nothing else."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def cache_directory() -> Path:
    """Return the folder where libraries are kept; it need not exist."""
    if given := os.environ.get("HOST_CUDA_CACHE"):
        return Path(given)
    place = os.environ.get("XDG_CACHE_HOME")
    return Path(place or Path.home() / ".cache") / "verifyscope/host_cuda"


def kept(name: str, build: Callable[[Path], Path]) -> Path:
    """Return the file `name` of the cache, made by `build` in a folder of its own if missing."""
    folder = cache_directory()
    file = folder / name
    try:
        if file.exists():
            return file
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            build(Path(work)).replace(file)
    except OSError as error:
        raise _no_room(folder, error.strerror or str(error)) from error
    return file


def _compile(name: str, command: list[str], folder: Path) -> None:
    environment = os.environ | {"TMPDIR": str(folder), "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return
    if "No space left on device" in done.stderr:
        raise _no_room(folder.parent, "no space left on the device")
    first = re.search(r"^(\S+?):(\d+):.*(error: .*)$", done.stderr, re.MULTILINE)
    where = f"{first[1]} line {first[2]}: {first[3]}" if first else "the compiler failed"
    raise ValueError(f"{name} does not compile for a CPU: {where}\n{done.stderr}")


def _no_room(folder: Path, reason: str) -> Failure:
    return Failure(
        f"cannot keep compiled kernels in {folder}: {reason.lower()}; "
        f"set HOST_CUDA_CACHE to a folder that can be written to"
    )
