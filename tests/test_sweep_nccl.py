"""`--nccl`: another library is tried, loaded before torch in every rank, read back and recorded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectives import sweep
from collectives._sweep import launch, nccl_library, probe
from collectives._sweep.launch import Group
from collectives._sweep.nccl_library import NcclLibrary
from tests.sweep_jobs import a_job
from verifyscope import cli
from verifyscope.errors import UsageError
from verifyscope.records import Measurement, Reader

ROOT = Path(__file__).resolve().parent.parent


def built(folder: Path, code: str, name: str = "libnccl.so.2") -> Path:
    """Compile a library that says it is an NCCL."""
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "source.c", folder / name
    source.write_text(code)
    soname = f"-Wl,-soname,{name}"
    command = ["gcc", "-shared", "-fPIC", soname, "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


def version(number: int) -> str:
    return f"int ncclGetVersion(int *v) {{ *v = {number}; return 0; }}"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder as pip fills it."""
    folder = tmp_path_factory.mktemp("secret-folder") / "other"
    built(folder / "nvidia" / "nccl" / "lib", version(23199))
    return folder


def test_a_folder_that_pip_filled_and_the_file_in_it_are_one_library(other: Path) -> None:
    file = other / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    assert nccl_library.find(str(other)) == NcclLibrary(file, "2.31.99")
    assert nccl_library.find(str(file)) == NcclLibrary(file, "2.31.99")
    assert nccl_library.find(str(file.parent)) == NcclLibrary(file, "2.31.99")


def test_what_is_no_nccl_for_this_machine_is_refused_with_a_line(tmp_path: Path) -> None:
    def why_not(path: Path) -> str:
        with pytest.raises(UsageError) as refused:
            nccl_library.find(str(path))
        assert "\n" not in str(refused.value)
        assert str(refused.value).startswith(f"--nccl {path}")
        return str(refused.value)

    assert "there is no such file; give a libnccl.so.2, or a folder" in why_not(tmp_path / "x")
    assert "no libnccl.so.2 in ., lib, nvidia/nccl/lib there" in why_not(tmp_path)
    text = tmp_path / "text.so"
    text.write_text("no library")
    assert "text.so is no shared library; give" in why_not(text)
    arm = tmp_path / "arm.so"
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00"
    arm.write_bytes(head + bytes(100))
    assert "is built for aarch64, this machine is x86-64; give one for it" in why_not(arm)
    other = built(tmp_path / "other", "int something(void) { return 1; }")
    assert "has no ncclGetVersion: it is no NCCL" in why_not(other)
    failing = built(tmp_path / "failing", "int ncclGetVersion(int *v) { return 5; }")
    assert why_not(failing).endswith("cannot be loaded: ncclGetVersion gives error 5")
    code = "#include <stdlib.h>\n__attribute__((constructor)) void die(void) { abort(); }"
    assert why_not(built(tmp_path / "dying", code)).endswith("was ended by SIGABRT")
    cut = tmp_path / "cut.so"
    cut.write_bytes(other.read_bytes()[:200])
    assert "cannot be loaded: " in why_not(cut)


def test_every_rank_has_the_library_and_reads_its_version_back(other: Path) -> None:
    with launch.fork_server(nccl=nccl_library.find(str(other))) as server:
        for job in (a_job(sizes=(1024, 1024)), a_job(sizes=(1024, 1024))):
            (group,) = (k for k in launch.results(server, job) if isinstance(k, Group))
            assert [rank.read_back.nccl for rank in group.ranks] == ["2.31.99"] * 2
    right = probe.not_in_effect(job.combination, group.ranks, nccl="2.31.99")
    assert list(right) == []
    wrong = probe.not_in_effect(job.combination, group.ranks, nccl="2.29.7")
    assert next(wrong) == "asked for NCCL 2.29.7, rank 0 has 2.31.99"


def test_nothing_of_torch_is_loaded_before_the_library() -> None:
    code = (
        "import sys\nfor name in ('torch', 'cupy'): sys.modules[name] = None\n"
        "import collectives._sweep.with_nccl\n"
        "print(any('libnccl' in line for line in open('/proc/self/maps')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_torch_that_needs_another_nccl_is_named_with_what_it_misses(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    missing = "/opt/lib/libtorch_cuda.so: undefined symbol: ncclMemFree"
    (tmp_path / "torch" / "__init__.py").write_text(f"raise ImportError({missing!r})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        launch.fork_server(nccl=nccl_library.find(str(other))) as server,
        pytest.raises(UsageError) as refused,
    ):
        server.ready()
    assert str(refused.value) == (
        "--nccl: torch could not be loaded with NCCL 2.31.99: ImportError: libtorch_cuda.so: "
        "undefined symbol: ncclMemFree; give another version"
    )


def swept(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.injected_sweep", *options]
    return subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True)


def test_a_sweep_records_what_was_asked_for_and_is_loaded_and_resumes_on_it_alone(
    other: Path, tmp_path: Path
) -> None:
    records = str(tmp_path / "r.jsonl")
    done = swept(
        *("--gpus", "2", "--backend", "injected", "--min-bytes", "1K", "--max-bytes", "1K"),
        *("--algos", "default", "--protos", "default"),
        *("--nccl", str(other), "--records", records),
    )
    assert (done.returncode, done.stderr) == (0, f"records: {records}\n")
    rows = [r for r in Reader(Path(records)) if isinstance(r, Measurement)]
    rows = [row for row in rows if row.op == "all_reduce" and row.median_s is not None]
    assert len(rows) == 4
    for row in rows:
        assert row.requested["nccl"] == row.effective["nccl"] == "2.31.99"
        assert "NCCL 2.31.99 loaded on 2 of 2 ranks" in (row.proof or "")
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or "secret-folder" not in file.read_text()

    assert swept("--resume", records).stderr == (
        "python -m tests.injected_sweep: the run has NCCL 2.31.99, here is that of torch; resume "
        "it with --nccl and that version\n"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--nccl", "absent"), "--nccl absent: there is no such file; give a libnccl.so.2, or"),
        (("--nccl", "README.md", "--plan"), "--nccl README.md: README.md is no shared library"),
        (("--nccl", "absent", "--resume", "runs"), "--nccl absent: there is no such file"),
    ],
)
def test_a_wrong_library_is_one_line_and_status_2(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run(sweep.application, sweep.PROGRAM, options)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_gloo_uses_no_nccl(other: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run(sweep.application, sweep.PROGRAM, ["--backend", "gloo", "--nccl", str(other)])
    assert ended.value.code == 2
    assert "gloo uses no NCCL; leave --nccl out" in capsys.readouterr().err
