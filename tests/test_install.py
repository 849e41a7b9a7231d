"""Set-up chooses what fits, trusts no half-made .venv, and changes nothing that is present."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verifyscope import driver, install
from verifyscope.errors import Failure, UsageError


@pytest.mark.parametrize(
    ("cuda", "extra", "expected"),
    [
        (None, None, "cpu"),
        (11080, None, "cpu"),
        (12000, None, "cuda12"),
        (12090, None, "cuda12"),
        (13000, None, "cuda13"),
        (13020, None, "cuda13"),
        (13000, "cuda12", "cuda12"),
        (None, "cuda13", "cuda13"),
    ],
)
def test_the_extra_fits_the_driver_unless_one_is_asked_for(
    cuda: int | None, extra: str | None, expected: str
) -> None:
    assert install.plan(cuda, extra).extra == expected


def test_an_unknown_extra_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="cpu, cuda12, cuda13"):
        install.plan(None, "cuda11")


class _Pip:
    """Stands for pip and venv: notes what was asked, and answers as `torch` says."""

    def __init__(self, venv: Path, torch: str = "") -> None:
        self.venv, self.torch, self.asked = venv, torch, list[str]()

    def __call__(self, command: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        words = " ".join(map(str, command))
        if "-m venv" in words:
            self.asked.append("venv")
            (self.venv / "bin").mkdir(parents=True)
            (self.venv / "bin" / "python").symlink_to(sys.executable)
            return subprocess.CompletedProcess(command, 0, "", "")
        assert "-m pip" in words
        self.asked.append(re.sub(r"^.* install( --progress-bar=off| --no-compile)* ", "", words))
        refused = self.torch if "+cpu" in words else ""
        kwargs["stdout"].write(refused)
        return subprocess.CompletedProcess(command, int(bool(refused)))


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., _Pip]:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    real = subprocess.run

    def make(torch: str = "", *, cuda: int | None = None, works: bool = True) -> _Pip:
        pip = _Pip(tmp_path / ".venv", torch)

        def run(command: list[str], **kwargs: Any) -> Any:
            if "-c" in command:  # a look at .venv's python
                return real(command, **kwargs) if Path(command[0]).exists() else missing(command)
            return pip(command, **kwargs)

        def missing(command: list[str]) -> Any:
            raise FileNotFoundError(command[0])

        found = None if cuda is None else driver.Found(cuda=cuda, gpus=("NVIDIA L40S",))
        monkeypatch.setattr(install, "ROOT", tmp_path)
        monkeypatch.setattr(install, "VENV", tmp_path / ".venv")
        monkeypatch.setattr(install, "_MUST_IMPORT", ("json",) if works else ("absent_package",))
        monkeypatch.setattr(driver, "look", lambda: found)
        monkeypatch.setattr(subprocess, "run", run)
        return pip

    return make


def test_without_a_gpu_the_cpu_build_of_torch_is_asked_for_first(
    checkout: Callable[..., _Pip], tmp_path: Path
) -> None:
    pip = checkout()
    install.set_up(None, None)
    assert pip.asked == [
        "venv",
        "--no-deps torch==2.13.0+cpu",
        f"--editable {tmp_path}[cpu,flashinfer,dev]",
        "--no-deps flashinfer-python==0.6.18.post1",
    ]


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: No matching distribution found for torch==2.13.0+cpu",
        "ERROR: Cannot install torch==2.13.0+cpu\nERROR: ResolutionImpossible: for help",
    ],
)
def test_the_large_build_is_taken_only_where_the_cpu_build_is_not_offered_and_named(
    checkout: Callable[..., _Pip], capsys: pytest.CaptureFixture[str], said: str
) -> None:
    pip = checkout(said)
    install.set_up(None, None)
    assert "[cuda13,flashinfer,dev]" in pip.asked[3], "what goes with that build of torch"
    assert pip.asked[1:3] == ["--no-deps torch==2.13.0+cpu", "torch==2.13.0"]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "GB" in line]
    assert "TORCH_INDEX" in line


def test_an_index_that_lacks_the_cpu_build_is_an_error_and_no_large_download(
    checkout: Callable[..., _Pip],
) -> None:
    pip = checkout("ERROR: No matching distribution found for torch==2.13.0+cpu")
    with pytest.raises(Failure, match="TORCH_INDEX offers no torch"):
        install.set_up(None, "https://index.example/cpu")
    assert pip.asked[1:] == [
        "--no-deps --extra-index-url https://index.example/cpu torch==2.13.0+cpu",
    ]


def test_a_network_error_is_no_reason_for_the_large_build(
    checkout: Callable[..., _Pip], capsys: pytest.CaptureFixture[str]
) -> None:
    pip = checkout("ERROR: Connection reset by peer")
    with pytest.raises(Failure, match="pip failed"):
        install.set_up(None, None)
    assert pip.asked[1:] == ["--no-deps torch==2.13.0+cpu"]
    assert "Connection reset" in capsys.readouterr().err


@pytest.mark.parametrize(("cuda", "extra"), [(12080, "cuda12"), (13000, "cuda13")])
def test_with_a_gpu_the_extras_of_the_driver_are_taken(
    checkout: Callable[..., _Pip], tmp_path: Path, cuda: int, extra: str
) -> None:
    pip = checkout(cuda=cuda)
    install.set_up(None, None)
    assert pip.asked[1] == f"--editable {tmp_path}[{extra},flashinfer,dev]"


def test_a_second_set_up_does_nothing_until_pyproject_changes(
    checkout: Callable[..., _Pip], tmp_path: Path
) -> None:
    pip = checkout()
    install.set_up(None, None)
    pip.asked.clear()
    install.set_up(None, None)
    assert pip.asked == []
    (tmp_path / "pyproject.toml").write_text("[project]\n# more\n")
    install.set_up(None, None)
    assert "venv" not in pip.asked, "a finished .venv is brought up to date in place"
    assert len(pip.asked) == 3


@pytest.mark.parametrize("harm", ["unfinished", "no python", "another extra", "lacks a package"])
def test_a_half_made_or_broken_venv_is_made_anew(
    checkout: Callable[..., _Pip], tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = checkout()
    install.set_up(None, None)
    stamp = tmp_path / ".venv" / install._STAMP
    extra = None
    if harm == "unfinished":
        stamp.write_text(install._UNFINISHED)
    elif harm == "no python":
        (tmp_path / ".venv" / "bin" / "python").unlink()
    elif harm == "another extra":
        extra = "cuda13"
    else:
        answers = iter([False, True])
        monkeypatch.setattr(install, "_works", lambda: next(answers))
    pip.asked.clear()
    install.set_up(extra, None)
    assert pip.asked[0] == "venv"
    assert stamp.read_text().startswith(extra or "cpu")


def test_a_venv_that_was_made_by_hand_is_kept(
    checkout: Callable[..., _Pip], tmp_path: Path
) -> None:
    pip = checkout()
    pip(["python", "-m", "venv", ".venv"])
    (tmp_path / ".venv" / "mine").write_text("")
    pip.asked.clear()
    install.set_up(None, None)
    assert "venv" not in pip.asked
    assert (tmp_path / ".venv" / "mine").exists()


def test_an_interrupted_set_up_is_not_taken_for_a_finished_one(
    checkout: Callable[..., _Pip], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout()

    def interrupted(*arguments: str, **rest: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(install, "_pip", interrupted)
        assert install.main(["venv"]) == 130
    assert (tmp_path / ".venv" / install._STAMP).read_text() == install._UNFINISHED


def test_a_venv_that_lacks_what_it_must_import_is_a_failure(
    checkout: Callable[..., _Pip], capsys: pytest.CaptureFixture[str]
) -> None:
    checkout(works=False)
    assert install.main(["venv"]) == 1
    assert "does not import" in capsys.readouterr().err


def test_a_link_in_place_of_the_venv_is_not_removed(
    checkout: Callable[..., _Pip], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".venv").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".venv" / install._STAMP).write_text(install._UNFINISHED)
    assert install.main(["venv"]) == 1
    assert (tmp_path / "elsewhere").exists()
    assert "link" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["venv", "--extra", "cuda11"], ["venv", "--wrong"], [], ["elsewhere"]]
)
def test_bad_arguments_exit_2(checkout: Callable[..., _Pip], arguments: list[str]) -> None:
    checkout()
    try:
        status = install.main(arguments)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    assert status == 2


def test_only_what_is_absent_is_asked_for() -> None:
    have = {"typer": "0.9.0", "nvidia-ml-py": "12.0", "torch": "2.11.0"}
    asked = ["Typer>=0.15", "nvidia_ml_py>=12.575", "msgspec>=0.18.6", "pytest>=8"]
    assert install.lacking(asked, have) == ["msgspec>=0.18.6", "pytest>=8"]


def test_the_suites_need_only_light_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Metadata:
        stdout = (
            '["jinja2>=3.1", "numpy>=1.24", "pytest>=8; extra == \\"suites\\"", '
            '"torch==2.13.0; extra == \\"cpu\\"", "verifyscope[suites]; extra == \\"dev\\""]'
        )

    monkeypatch.setattr(subprocess, "run", lambda *a, **k: Metadata)
    assert install._requirements() == ["jinja2>=3.1", "numpy>=1.24", "pytest>=8"]


def test_pins_hold_every_version_that_pip_can_hold() -> None:
    have = {
        "torch": "2.11.0+cu130",
        "vllm": "0.33.0rc1.dev7+gabc123.cu130",
        "flashinfer-python": "0.6.18.post1",
        "very-old": "1.0-custom",
    }
    assert install.pins(have).splitlines() == [
        "torch==2.11.0+cu130",
        "vllm==0.33.0rc1.dev7+gabc123.cu130",
        "flashinfer-python==0.6.18.post1",
    ]


def test_every_change_of_a_present_package_is_named() -> None:
    before = {"torch": "2.11.0+cu130", "triton": "3.6.0", "click": "8"}
    after = {"torch": "2.13.0", "click": "8", "typer": "1"}
    assert install.changes(before, after) == [
        "torch 2.11.0+cu130 -> 2.13.0",
        "triton 3.6.0 -> gone",
    ]


@pytest.fixture
def serving(tmp_path: Path) -> tuple[Path, Path]:
    """Return the python of an environment that serves a model, and where its packages are."""
    venv = tmp_path / "serving"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    pip = importlib.util.find_spec("pip")
    if pip is None or pip.origin is None:
        pytest.skip("this python has no pip to lend to the environment that is made here")
    (site / "pip").symlink_to(Path(pip.origin).parent)
    for name, version in {
        "torch": "2.11.0+cu130",
        "triton": "3.6.0",
        "nvidia-nccl-cu13": "2.28.9",
        "flashinfer-python": "0.6.18",
        "vllm": "0.33.0rc1.dev7+gabc123.cu130",
        "numpy": "1.26.4",
    }.items():
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("")
    return venv / "bin" / "python", site


def test_adding_to_a_serving_environment_changes_nothing_that_is_there(
    serving: tuple[Path, Path], tmp_path: Path
) -> None:
    """Run the real command against the real pip, with an index that offers newer of everything."""
    python, _ = serving
    index = tmp_path / "index"
    index.mkdir()
    for name, needs in {"msgspec": "", "typer": "triton>=3", "torch": "", "triton": ""}.items():
        _write_wheel(index, name, "99.0", needs)
    code = (
        "import sys, pathlib; from verifyscope import install\n"
        "install.ROOT = pathlib.Path(sys.argv[1])\n"
        "asked = ['msgspec>=0.18', 'typer>=0.15', 'numpy>=2', 'triton>=9']\n"
        "install._requirements = lambda: asked\n"
        "sys.exit(install.main(['here']))"
    )
    project = tmp_path / "project"
    project.mkdir()
    _write_project(project)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_CONFIG_FILE": os.devnull,
        "PYTHONPATH": str(Path.cwd()),
    }
    done = subprocess.run(
        [str(python), "-c", code, str(project)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "Added: msgspec, typer. Changed: nothing." in done.stderr
    listed = (
        "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in %r), sep=chr(10))"
    )
    names = ["torch", "triton", "nvidia-nccl-cu13", "flashinfer-python", "vllm", "numpy"]
    after = subprocess.run(
        [str(python), "-c", listed % names], capture_output=True, text=True, check=True
    )
    assert after.stdout.split("\n")[:-1] == [
        "torch 2.11.0+cu130",
        "triton 3.6.0",
        "nvidia-nccl-cu13 2.28.9",
        "flashinfer-python 0.6.18",
        "vllm 0.33.0rc1.dev7+gabc123.cu130",
        "numpy 1.26.4",
    ]


def _write_wheel(folder: Path, name: str, version: str, needs: str) -> None:
    import zipfile

    info = f"{name}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: x\n")
        archive.writestr(f"{info}/RECORD", "")


def _write_project(folder: Path) -> None:
    """Write a project that builds with the standard library alone, as no index is reached."""
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "verifyscope"\nversion = "0.1.0"\n'
    )
    (folder / "backend.py").write_text(
        "import zipfile, pathlib\n"
        "def build_editable(folder, settings=None, metadata=None):\n"
        "    name = 'verifyscope-0.1.0-py3-none-any.whl'\n"
        "    info = 'verifyscope-0.1.0.dist-info'\n"
        "    with zipfile.ZipFile(pathlib.Path(folder) / name, 'w') as archive:\n"
        "        archive.writestr(f'{info}/METADATA',\n"
        "            'Metadata-Version: 2.1\\nName: verifyscope\\nVersion: 0.1.0\\n')\n"
        "        archive.writestr(f'{info}/WHEEL',\n"
        "            'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "        archive.writestr(f'{info}/RECORD', '')\n"
        "    return name\n"
    )
