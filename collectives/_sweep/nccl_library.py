"""Another NCCL than torch's, for `--nccl`: where it is, and whether it can be used here at all.

    found = find("other")        a libnccl.so.2, or a folder that has one, such as pip fills:
    found.path, found.version    pip install --no-deps --target other nvidia-nccl-cu12==2.30.7

It is tried in a process of its own (this module as a program), which needs no GPU: what can't be
loaded, or is no NCCL, is a `UsageError` before anything else runs.
"""

import ctypes
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from verifyscope.child import ending
from verifyscope.environment import nccl_release
from verifyscope.errors import UsageError

_NAME = "libnccl.so.2"
_PLACES = (".", "lib", "nvidia/nccl/lib")
_TRY_S = 60.0
_GIVE = f"give a {_NAME}, or a folder filled by pip install --no-deps --target DIR nvidia-nccl-cu12"
# What an ELF file says of the machine that it is for.
_MACHINES = {3: "i386", 21: "ppc64", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv"}


@dataclass(frozen=True, slots=True)
class NcclLibrary:
    """A library that can be loaded here, and the version that it gives itself."""

    path: Path
    version: str


def find(text: str) -> NcclLibrary:
    """Return the library that `text` names; `UsageError` says why it can't be used."""
    path = _file(text)
    machine, ours = _machine(path), _machine(Path(sys.executable).resolve())
    if machine is None:
        raise UsageError(f"--nccl {text}: {path.name} is no shared library; {_GIVE}")
    if ours is not None and machine != ours:
        raise UsageError(
            f"--nccl {text} is built for {machine}, this machine is {ours}; give one for it"
        )
    return NcclLibrary(path, _version(text, path))


def _file(text: str) -> Path:
    place = Path(text)
    if place.is_dir():
        found = [at for sub in _PLACES if (at := place / sub / _NAME).is_file()]
        if not found:
            raise UsageError(f"--nccl {text}: no {_NAME} in {', '.join(_PLACES)} there; {_GIVE}")
        return found[0].resolve()
    if not place.is_file():
        raise UsageError(f"--nccl {text}: there is no such file; {_GIVE}")
    return place.resolve()


def _machine(path: Path) -> str | None:
    """Return what kind of processor an ELF file is for; None where it is none."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError as error:
        raise UsageError(f"--nccl: cannot read {path}: {error.strerror}") from error
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    (number,) = struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)
    return _MACHINES.get(number, f"machine {number} of ELF")


def _version(text: str, path: Path) -> str:
    """Load it in a process that may die of it, and return the version it says."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "collectives._sweep.nccl_library", str(path)],
            capture_output=True,
            text=True,
            timeout=_TRY_S,
            cwd=Path(__file__).resolve().parents[2],
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"--nccl {text}: loading it takes over {_TRY_S:g} s; {_GIVE}") from None
    word, _, rest = done.stdout.strip().partition(" ")
    if word == "version":
        return nccl_release(int(rest))
    if word == "unknown":
        raise UsageError(f"--nccl {text}: {path.name} has no {rest}: it is no NCCL; {_GIVE}")
    reason = rest or f"the process that tried it {ending(done.returncode)}"
    raise UsageError(f"--nccl {text} cannot be loaded: {reason}")


def _try(path: str) -> str:
    """Return "version 23007" of a library that can be loaded, else why not."""
    number = ctypes.c_int()
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        return f"failed {error}"
    try:
        failed = library.ncclGetVersion(ctypes.byref(number))
    except AttributeError:
        return "unknown ncclGetVersion"
    return f"failed ncclGetVersion gives error {failed}" if failed else f"version {number.value}"


if __name__ == "__main__":
    print(_try(sys.argv[1]))
