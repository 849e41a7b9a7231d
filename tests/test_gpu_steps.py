"""The steps of `make gpu` without a GPU: each failure is contained, named and in the table."""

import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from suites import dram_bytes, gpu, wheels
from verifyscope import driver
from verifyscope.errors import Failure
from verifyscope.job import Step

_BARE = (sys.executable, "-I", "-S")  # starts in a blink, also on a busy machine


def _step(name: str, code: str, **fields: Any) -> Step:
    fields = {"limit_s": 30.0, "least_s": 0.01} | fields
    return Step(name=name, command=(*_BARE, "-c", code), **fields)


def _fake_machine(monkeypatch: pytest.MonkeyPatch, steps: list[Step]) -> None:
    found = driver.Found(cuda=13000, gpus=("NVIDIA H200",))
    monkeypatch.setattr(driver, "look", lambda: found)
    monkeypatch.setattr(wheels, "FOLDER", Path("absent"))
    monkeypatch.setattr(gpu, "steps", lambda folder, gpus, entry: steps)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)


def test_exactly_four_files_are_left_whatever_happens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _fake_machine(
        monkeypatch, [_step("good", "print('fine')"), _step("bad", "raise SystemExit(1)")]
    )
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    assert gpu.main([]) == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("records.jsonl", "report.md", "run.tar.gz", "steps.md")
    ]
    assert "No report was built" in (tmp_path / "out" / "report.md").read_text()
    with tarfile.open(tmp_path / "out" / "run.tar.gz") as archive:
        names = archive.getnames()
    assert {"run/logs/01-good.txt", "run/logs/02-bad.txt", "run/steps.md"} <= set(names)
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].startswith(("Missing: ", "Nothing is missing"))
    assert (tmp_path / "out" / "steps.md").read_text() in shown


def test_records_and_report_of_the_steps_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = driver.Found(cuda=13000, gpus=("NVIDIA H200",))
    monkeypatch.setattr(driver, "look", lambda: found)
    monkeypatch.setattr(wheels, "FOLDER", Path("absent"))
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)

    def steps(folder: Path, gpus: object, entry: object) -> list[Step]:
        write = (
            "import pathlib, sys; f = pathlib.Path(sys.argv[1]); "
            "(f / 'report').mkdir(); (f / 'report' / 'report.md').write_text('# A report'); "
            "(f / 'records.jsonl').write_text('a line'); (f / 'samples.jsonl').write_text('b')"
        )
        command = (sys.executable, "-c", write, str(folder))
        return [Step(name="writes", command=command, limit_s=30, least_s=0.01)]

    monkeypatch.setattr(gpu, "steps", steps)
    monkeypatch.setenv("OUT", str(tmp_path))
    assert gpu.main([]) == 0
    assert (tmp_path / "report.md").read_text() == "# A report"
    assert (tmp_path / "records.jsonl").read_text() == "a line"
    assert len(list(tmp_path.iterdir())) == 4


def test_without_out_a_new_folder_under_runs_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fake_machine(monkeypatch, [_step("good", "")])
    monkeypatch.delenv("OUT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert gpu.main([]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-gpu")
    assert len(list(folder.iterdir())) == 4


def test_an_unwritable_place_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _fake_machine(monkeypatch, [])
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUT", str(tmp_path / "file" / "out"))
    assert gpu.main([]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_without_a_gpu_it_says_so_in_one_line_and_exits_2() -> None:
    if driver.look() is not None:
        pytest.skip("this machine has a GPU")
    done = subprocess.run([sys.executable, "-m", "suites.gpu"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "no NVIDIA GPU" in done.stderr


def test_until_the_steps_run_only_the_standard_library_is_imported() -> None:
    code = (
        "import sys; before = set(sys.modules); import suites.gpu, verifyscope.install\n"
        "own = ('suites', 'verifyscope', '__mp_main__')\n"  # multiprocessing's name for __main__
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - set(own)\n"
        "foreign = new - set(sys.stdlib_module_names)\n"
        "sys.exit(repr(foreign) if foreign else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_first_line_names_what_is_missing_and_what_that_costs(tmp_path: Path) -> None:
    planned = gpu.steps(tmp_path, ("NVIDIA H200",), "h200")
    line = gpu.first_line(frozenset({"ncu", "cupy"}), planned, "(said)")
    assert line == (
        "Missing: cupy (no CuPy rows); ncu (skips DRAM bytes against touched bytes (ncu)). (said)"
    )
    assert gpu.first_line(frozenset(), planned) == "Nothing is missing: every step can run."


def test_the_limits_of_the_steps_fit_the_nine_minutes(tmp_path: Path) -> None:
    planned = gpu.steps(tmp_path, ("NVIDIA H200",), "h200")
    least_s = sum(step.least_s + 3 * 3.0 for step in planned)
    assert least_s < gpu.BUDGET_S < 540 - 3 * 3.0
    assert all(step.least_s <= step.limit_s for step in planned)
    assert len({step.name for step in planned}) == len(planned)


@pytest.mark.parametrize("gpus", [("NVIDIA H200",), ("NVIDIA H200", "NVIDIA H200")])
def test_the_commands_exist(tmp_path: Path, gpus: tuple[str, ...]) -> None:
    for step in gpu.steps(tmp_path, gpus, "h200"):
        modules = [b for a, b in zip(step.command, step.command[1:], strict=False) if a == "-m"]
        module = modules[-1] if "pytest" not in modules else "pytest"
        path = Path(*module.split("."))
        exists = path.with_suffix(".py").exists() or (path / "__main__.py").exists()
        assert exists or module == "pytest", module


_NCU_CSV = """==PROF== Connected to process 12
# once triton long 3000000
==PROF== Disconnected
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","12","_split","dram__bytes_read.sum","byte","2,900,000"
"0","12","_split","dram__bytes_write.sum","byte","40,000"
"1","12","_merge","dram__bytes_read.sum","byte","50,000"
"1","12","_merge","dram__bytes_write.sum","byte","1,000"
"""


def test_dram_bytes_are_summed_over_the_kernels_of_a_call() -> None:
    assert dram_bytes.parse(_NCU_CSV) == (2_950_000, 41_000)
    with pytest.raises(Failure, match="Mbyte"):
        dram_bytes.parse(_NCU_CSV.replace('"byte"', '"Mbyte"'))


@pytest.mark.parametrize(
    ("moved", "right"), [(100, True), (104.9, True), (105.1, False), (95.1, True), (94.9, False)]
)
def test_moved_bytes_within_5_percent_are_right(moved: float, right: bool) -> None:
    counted = dram_bytes.Counted(
        op="a", implementation="b", case="c", touched=100, read=moved - 10, written=10
    )
    assert counted.right is right


def test_the_driver_is_asked_without_any_package(tmp_path: Path) -> None:
    source = tmp_path / "nvml.c"
    source.write_text(
        "#include <string.h>\n"
        "int nvmlInit_v2(void) { return STATUS; }\n"
        "int nvmlShutdown(void) { return 0; }\n"
        "int nvmlDeviceGetCount_v2(unsigned *n) { *n = COUNT; return 0; }\n"
        "int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 12080; return 0; }\n"
        "int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void*)1; return 0; }\n"
        'int nvmlDeviceGetName(void *h, char *s, unsigned n) { strncpy(s, "NVIDIA L40S", n); '
        "return 0; }\n"
    )

    def look(name: str, status: int, count: int) -> driver.Found | None:
        library = tmp_path / name
        flags = [f"-DSTATUS={status}", f"-DCOUNT={count}"]
        subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", library, source], check=True)
        return driver.look(str(library))

    assert look("two.so", 0, 2) == driver.Found(cuda=12080, gpus=("NVIDIA L40S", "NVIDIA L40S"))
    assert look("none.so", 0, 0) is None
    assert look("broken.so", 18, 2) is None
    assert driver.look(str(tmp_path / "absent.so")) is None


def _wheel(folder: Path, name: str, module: str) -> Path:
    """Write a wheel of one module, as `make wheels` would load it."""
    import zipfile

    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: x\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_only_what_this_python_lacks_is_installed_from_the_wheels(tmp_path: Path) -> None:
    folder, site = tmp_path / "wheels", tmp_path / "site"
    folder.mkdir()
    assert "make wheels" in wheels.install_missing(site, folder)
    _wheel(folder, "PyTest", "planted_pytest")
    assert wheels.install_missing(site, folder) == "(Nothing of .wheels/ was needed.)"
    assert not site.exists()
    _wheel(folder, "absent_here", "absent_here")
    said = wheels.install_missing(site, folder)
    assert said == "(1 of 2 wheels installed from .wheels/.)"
    assert (site / "absent_here.py").exists()
    assert not (site / "planted_pytest.py").exists()
    (folder / "broken_here-1.0-py3-none-any.whl").write_text("no wheel")
    assert "could not be installed" in wheels.install_missing(tmp_path / "other", folder)


def test_the_wheels_are_asked_for_one_python_and_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def pip(command: list[str]) -> subprocess.CompletedProcess[bytes]:
        asked.append(command)
        (Path(command[command.index("--dest") + 1]) / f"x{len(asked)}.whl").write_bytes(b"1")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(wheels, "FOLDER", tmp_path / ".wheels")
    assert wheels.main(["--python", "3.12", "--architecture", "aarch64"]) == 0
    assert "2 wheels for Python 3.12" in capsys.readouterr().out
    assert all("cp312" in command and "manylinux_2_28_aarch64" in command for command in asked)
    assert "flashinfer-python==0.6.18.post1" in asked[1]
    assert "--no-deps" in asked[1]
    assert "--no-deps" not in asked[0]
    monkeypatch.setattr(wheels, "LIMIT_BYTES", 1)
    assert wheels.main(["--python", "3.12"]) == 1


@pytest.mark.parametrize("given", ["3.9", "312", "python3", ""])
def test_a_python_that_is_none_is_a_usage_error(given: str) -> None:
    with pytest.raises(SystemExit) as ended:
        wheels.main(["--python", given])
    assert ended.value.code == 2


def test_help_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--help"])
    assert ended.value.code == 0
    assert "usage: python -m suites.gpu" in capsys.readouterr().out
