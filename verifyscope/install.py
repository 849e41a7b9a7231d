"""Makes `.venv` fit this machine, or adds what is missing to the python that serves your model.

    python3 -m verifyscope.install venv      `make setup`: everything into .venv, nothing global
    python3 -m verifyscope.install here      `make setup-here`: light packages into this python

`venv` takes the extras that fit the driver: `cpu` without a GPU, `cuda12` below CUDA 13, else
`cuda13`. `here` never changes a package that is present, torch, triton, NCCL and FlashInfer least
of all: each is pinned while pip runs, and compared afterwards.

This is a module of the package because it is more than a few lines of make, wants tests, and must
run on a bare Python before anything is installed: the standard library is all it imports.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verifyscope import driver
from verifyscope.errors import Failure, UsageError

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
EXTRAS = ("cpu", "cuda12", "cuda13")
FLASHINFER = "flashinfer-python==0.6.18.post1"
_STAMP = "verifyscope-setup"
_UNFINISHED = "unfinished"
_TORCH = "2.13.0"
# What a finished .venv must be able to import, whatever the extra.
_MUST_IMPORT = ("typer", "msgspec", "torch", "triton", "cupy", "flashinfer", "pytest_benchmark")
# pip says the second where a constraint, too, names torch.
_NOT_OFFERED = ("No matching distribution found", "ResolutionImpossible")
_IS_PYTHON = (
    "import pip, sys; v = '%d.%d' % sys.version_info[:2]; "
    "sys.exit(sys.version_info < (3, 10) or sys.argv[1] not in ('', v))"
)
_LINES_SHOWN = 15
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


@dataclass(frozen=True)
class Plan:
    """What goes into .venv, and the line that says why."""

    extra: str
    why: str


def plan(cuda: int | None, extra: str | None = None) -> Plan:
    """Choose the extra for a driver's CUDA: 13000 is CUDA 13.0, None is no GPU.

    extra: the one that EXTRA names; `UsageError` if there is none of that name.
    """
    if extra:
        if extra not in EXTRAS:
            raise UsageError(f"unknown EXTRA {extra!r}; known: {', '.join(EXTRAS)}")
        return Plan(extra, f"EXTRA={extra}")
    if cuda is None:
        return Plan("cpu", "no NVIDIA GPU here")
    said = f"{cuda // 1000}.{cuda % 1000 // 10}"
    if cuda < 12000:
        return Plan("cpu", f"the driver runs CUDA {said}, too old for any CUDA extra")
    return Plan("cuda12" if cuda < 13000 else "cuda13", f"the driver runs CUDA {said}")


def set_up(extra: str | None, torch_index: str | None, *, this_python: bool = False) -> None:
    """Bring .venv to what pyproject.toml asks for; nothing happens if it is there already.

    this_python: make .venv anew where it is of another Python than the running one. `Failure`
    on another system than Linux, and where an installation breaks.
    """
    if platform.system() != "Linux":
        raise Failure(
            f"make setup needs Linux (triton has no wheel for {platform.system()}); "
            "to read logs and build reports here: python3 -m pip install -e ."
        )
    with _alone():
        found = driver.look()
        chosen = plan(found.cuda if found else None, extra)
        stamp, wanted = _stamp(), _digest(chosen.extra)
        right = _runs("-c", _IS_PYTHON, _version() if this_python else "")
        if stamp == wanted and right and _works():
            return
        began = time.monotonic()
        # One that nobody finished is not trusted, nor one that was finished and lacks something;
        # another extra would leave the torch of the old one. A .venv made by hand is kept.
        _make_venv(keep=right and (stamp is None or _older(stamp, wanted)))
        _say(f"Setting up .venv with {chosen.extra}: {chosen.why}.")
        (VENV / _STAMP).write_text(_UNFINISHED)
        fits = chosen.extra
        if fits == "cpu":
            fits = _install_cpu_torch(torch_index)
        else:
            _say("Installing torch, triton, CuPy and CUDA libraries: several GB.")
        _pip("--editable", f"{ROOT}[{fits},flashinfer,dev]")
        # Its own metadata asks for several GB that only other backends of it need.
        _pip("--no-deps", FLASHINFER)
        if not _works():
            raise Failure(f"{VENV} does not import {', '.join(_MUST_IMPORT)}; see pip's messages")
        (VENV / _STAMP).write_text(wanted)
        _say(f"Done in {time.monotonic() - began:.0f} s.")


def add_here() -> None:
    """Add what the suites lack to the running python; `Failure` if anything present changed."""
    before = present()
    with tempfile.TemporaryDirectory() as folder:
        held = Path(folder) / "present.txt"
        held.write_text(pins(before))
        isolation = ["--no-build-isolation"] if _major(before.get("setuptools")) >= 77 else []
        _pip_here(held, "--no-deps", *isolation, "--editable", str(ROOT))
        missing = lacking(_requirements(), before)
        if missing:
            _pip_here(held, *missing)
    changed = changes(before, present())
    if changed:
        raise Failure(f"packages that were here changed: {'; '.join(changed)}")
    added = sorted(set(present()) - set(before))
    for line in _too_old():
        _say(f"Left as it is: {line}")
    _say(f"Added: {', '.join(added) or 'nothing'}. Changed: nothing.")


def present() -> dict[str, str]:
    """Return every installed distribution but this one, and its version, asked of a new process.

    The running one caches what folders hold, and would not see what pip has just done.
    """
    code = (
        "import importlib.metadata as m, json; print(json.dumps("
        "{d.metadata['Name']: d.version for d in reversed(list(m.distributions()))"
        " if d.metadata['Name']}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    found.pop("verifyscope", None)  # made anew each time, and seen in this checkout anyhow
    return {_plain(name): version for name, version in found.items()}


def pins(have: Mapping[str, str]) -> str:
    """Return constraints that hold every distribution where it is.

    pip refuses a pin that is no version of PEP 440, as very old packages have; that they did not
    change is seen afterwards, as for all.
    """
    legal = re.compile(
        r"(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([._-][a-z0-9]+)*)?"
    )
    return "".join(
        f"{name}=={version}\n" for name, version in have.items() if legal.fullmatch(version)
    )


def lacking(requirements: Sequence[str], have: Mapping[str, str]) -> list[str]:
    """Return the requirements whose distribution is not there at all.

    One that is there but older than asked is left as it is: changing it is not ours to decide.
    """
    return [text for text in requirements if _plain(_name(text)) not in have]


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return what became of each distribution that is not what it was; added ones are no change."""
    return [
        f"{name} {version} -> {after.get(name, 'gone')}"
        for name, version in before.items()
        if after.get(name) != version
    ]


def _requirements() -> list[str]:
    """Return what the base and the suites ask for, from the metadata of this checkout."""
    code = "import importlib.metadata as m, json; print(json.dumps(m.requires('verifyscope')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    requirements: list[str] = json.loads(done.stdout)
    return [
        text.partition(";")[0].strip()
        for text in requirements
        if "extra ==" not in text or "suites" in text.partition(";")[2]
    ]


def _too_old() -> list[str]:
    """Return what pip says about packages that are older than verifyscope asks."""
    done = subprocess.run([sys.executable, *_PIP, "check"], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line.startswith("verifyscope ")]


def _install_cpu_torch(torch_index: str | None) -> str:
    """Install torch for a machine without a GPU; return the extra whose packages go with it."""
    where = ["--extra-index-url", torch_index] if torch_index else []
    _say(f"Installing torch {_TORCH}+cpu.")
    # Alone, so that an error can only mean torch; what it needs comes with the rest.
    flags = ("--no-deps", *where)
    said = _pip(*flags, f"torch=={_TORCH}+cpu", may_fail=_NOT_OFFERED)
    if not said:
        return "cpu"
    if torch_index:
        raise Failure(
            f"TORCH_INDEX offers no torch {_TORCH}+cpu for Python {_version()}; "
            "correct it, or leave it out to take the large build with CUDA libraries"
        )
    # The wheels of torch 2.13.0 for x86_64 and of all CUDA libraries that it asks for, added up.
    _say(
        f"pip is offered no torch {_TORCH}+cpu for Python {_version()}: taking the build with CUDA "
        "libraries, 2.5 GB to load and 3.8 GB on disk (TORCH_INDEX=URL names an index that "
        "has the CPU build, 0.2 GB)."
    )
    _pip(f"torch=={_TORCH}")
    return "cuda13"  # what that build is made for, whether there is a GPU or not


def _older(stamp: str, wanted: str) -> bool:
    return stamp != wanted and stamp.partition(" ")[0] == wanted.partition(" ")[0]


def _make_venv(*, keep: bool) -> None:
    """Make .venv anew, unless it is to be kept."""
    if VENV.is_symlink() or VENV.is_file():
        raise Failure(f"{VENV} is a link or a file; remove it, then make setup again")
    if keep:
        return
    if VENV.exists():
        _say("Removing the .venv that is there: it is broken, half made or of another kind.")
        (VENV / _STAMP).write_text(_UNFINISHED)  # removing takes a while, and may be cut short
        shutil.rmtree(VENV)
    done = subprocess.run(
        [sys.executable, "-m", "venv", str(VENV)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        _say(done.stdout)
        raise Failure(
            f"python -m venv failed, see above; on Debian or Ubuntu: apt-get install "
            f"python{_version()}-venv"
        )


def _works() -> bool:
    """Say whether .venv's python starts and finds what it must; imports nothing."""
    code = (
        "import sys, importlib.util as u; sys.exit(any(not u.find_spec(n) for n in sys.argv[1:]))"
    )
    return _runs("-c", code, *_MUST_IMPORT)


def _runs(*arguments: str) -> bool:
    try:
        done = subprocess.run([*_python(), *arguments], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _stamp() -> str | None:
    try:
        return (VENV / _STAMP).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _digest(extra: str) -> str:
    """Return the extra, and a digest of what .venv depends on: this file, pyproject, the place."""
    inputs = [(ROOT / "pyproject.toml").read_bytes(), Path(__file__).read_bytes()]
    return f"{extra} {hashlib.sha256(b'|'.join([*inputs, str(ROOT).encode()])).hexdigest()}"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let one set-up of this checkout run at a time; the next one waits."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("Waiting for another set-up of this checkout.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _pip(*arguments: str, may_fail: Sequence[str] = ()) -> str:
    """Install into .venv; return "" or, of the errors in `may_fail`, the one that pip met."""
    command = [*_python(), *_PIP, "install", "--progress-bar=off", "--no-compile", *arguments]
    return _checked(command, VENV / "pip.log", may_fail)


def _pip_here(held: Path, *arguments: str) -> None:
    pip = [sys.executable, *_PIP, "install"]
    if subprocess.run([sys.executable, "-c", "import pip"], capture_output=True).returncode != 0:
        uv = shutil.which("uv")
        if uv is None:
            raise Failure(f"{sys.executable} has no pip; install it: python3 -m ensurepip")
        pip = [uv, "pip", "install", "--python", sys.executable]
    _checked([*pip, "--constraint", str(held), *arguments], held.with_name("pip.log"))


def _checked(command: Sequence[str], log: Path, may_fail: Sequence[str] = ()) -> str:
    """Run pip with its many words in `log`; show the last of them only if it fails."""
    with log.open("a") as file:
        before = file.tell()
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    if status == 0:
        return ""
    text = log.read_bytes()[before:].decode(errors="replace")
    for error in may_fail:
        if error in text:
            return error
    _say("\n".join(f"    {line}" for line in text.splitlines()[-_LINES_SHOWN:]))
    raise Failure("pip failed, see above; once that is mended, the same command starts over")


def _python() -> list[str]:
    return [str(VENV / "bin" / "python")]


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return found[0] if found else requirement


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _major(version: str | None) -> int:
    return int((version or "0").partition(".")[0])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m verifyscope.install", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    venv = commands.add_parser("venv", help="make .venv fit this machine")
    venv.add_argument("--extra", help=f"instead of asking the driver: {', '.join(EXTRAS)}")
    venv.add_argument("--torch-index", metavar="URL", help="an index that has the CPU torch")
    venv.add_argument("--this-python", action="store_true", help="not an older .venv's Python")
    commands.add_parser("here", help="add the light packages that this python lacks")
    given = parser.parse_args(arguments)
    try:
        if given.command == "venv":
            index = given.torch_index or None
            set_up(given.extra or None, index, this_python=given.this_python)
        else:
            add_here()
    except (UsageError, Failure) as error:
        _say(f"setup: {error}")
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        _say("setup: interrupted; the same command starts over")
        return 130
    except OSError as error:
        _say(f"setup: {error.filename or ''}: {error.strerror}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
