"""`make wheels`: fills `.wheels/` for a machine that has a GPU and no network.

    python -m suites.wheels --python 3.12 [--architecture x86_64]

Takes what such a machine usually lacks beside torch, triton, NumPy and the cuda-bindings that torch
brings: under 60 MiB in all. FlashInfer comes without its dependencies, several GB that only its
other backends need. `make gpu` installs from here only what its python lacks: what is there stays.
The standard library is all that is imported.
"""

import argparse
import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from verifyscope.install import FLASHINFER, ROOT

FOLDER = ROOT / ".wheels"
LIMIT_BYTES = 60 * 2**20
# With their dependencies: what the suites, the tests, the report and FlashInfer import.
_LIGHT = (
    "msgspec",
    "typer",
    "rich",
    "jinja2",
    "markdown-it-py",
    "nvidia-ml-py",
    "pytest",
    "pytest-benchmark",
    "hypothesis",
    "apache-tvm-ffi>=0.1.11,<0.2",
    "click",
    "einops",
    "ninja",
    "packaging",
    "requests",
    "tabulate",
    "tqdm",
    "cycler",
    "fonttools",
    "kiwisolver",
    "pillow",
    "pyparsing",
    "python-dateutil",
)
# Alone: they ask for NumPy, which is 17 MB and comes with every torch that is in use.
_ALONE = ("contourpy", "matplotlib", FLASHINFER)
# pip reads the markers of the Python that it runs in, not of the one that it loads for.
_BEFORE_3_11 = ("exceptiongroup", "tomli")


def fill(python: str, machine: str) -> list[Path]:
    """Load the wheels for a Python such as "3.12" and a machine; return them, the largest first."""
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    FOLDER.mkdir()
    older = _BEFORE_3_11 if python == "3.10" else ()
    _load(python, machine, *_LIGHT, *older)
    _load(python, machine, "--no-deps", *_ALONE)
    return sorted(FOLDER.glob("*.whl"), key=lambda path: -path.stat().st_size)


def install_missing(site: Path, folder: Path = FOLDER) -> str:
    """Install into `site` the wheels whose distribution this python lacks; say what was done."""
    found = sorted(folder.glob("*.whl"))
    if not found:
        return "(No .wheels/ here; `make wheels` fills it where there is a network.)"
    here = {_plain(d.metadata["Name"]) for d in importlib.metadata.distributions()}
    wanted = [wheel for wheel in found if _plain(wheel.name.partition("-")[0]) not in here]
    if not wanted:
        return "(Nothing of .wheels/ was needed.)"
    flags = ("--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--quiet")
    command = [sys.executable, "-m", "pip", "install", *flags, "--target", str(site)]
    done = subprocess.run([*command, *map(str, wanted)], capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        return f"(.wheels/ could not be installed: {lines[-1]})"
    return f"({len(wanted)} of {len(found)} wheels installed from .wheels/.)"


def _load(python: str, machine: str, *what: str) -> None:
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(39, 11, -1)]
    tags += [f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1")]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-qq"),
        *("--dest", str(FOLDER), "--only-binary=:all:", "--python-version", python),
        *("--implementation", "cp", "--abi", f"cp{python.replace('.', '')}", "--abi", "abi3"),
        *(*platforms, *what),
    ]
    if subprocess.run(command).returncode != 0:
        raise RuntimeError("pip failed, see above")


def _running() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m suites.wheels", allow_abbrev=False)
    parser.add_argument("--python", default=_running(), metavar="3.12")
    parser.add_argument("--architecture", default=platform.machine(), choices=("x86_64", "aarch64"))
    given = parser.parse_args(arguments)
    if not re.fullmatch(r"3\.1\d", given.python):
        parser.error(f"--python {given.python} is no Python from 3.10 on; give one like 3.12")
    try:
        wheels = fill(given.python, given.architecture)
    except RuntimeError as error:
        print(f"make wheels: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    size = sum(wheel.stat().st_size for wheel in wheels)
    print(f".wheels: {len(wheels)} wheels for Python {given.python}, {size / 2**20:.1f} MiB")
    if size > LIMIT_BYTES:
        print(f"make wheels: over {LIMIT_BYTES / 2**20:.0f} MiB; the largest:", file=sys.stderr)
        for wheel in wheels[:5]:
            print(f"  {wheel.stat().st_size / 2**20:.1f} MiB {wheel.name}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
