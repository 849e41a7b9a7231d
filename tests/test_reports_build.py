"""`python -m reports.build`: one folder, whole or as it was before, from any mix of records."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reports import _page, build
from tests.report_sample import GPU, collective, kernel, whole_run, write
from verifyscope import cli
from verifyscope.records import encoded

ROOT = Path(__file__).resolve().parent.parent


Capture = pytest.CaptureFixture[str]


def make(*words: str | Path) -> int:
    """Run in this process and return the exit status."""
    with pytest.raises(SystemExit) as end:
        cli.run(build.app, "python -m reports.build", list(map(str, words)))
    assert isinstance(end.value.code, int)
    return end.value.code


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_a_run_folder_gets_its_report_inside_and_its_path_is_printed(tmp_path: Path) -> None:
    write(tmp_path / "run" / "records.jsonl", whole_run())
    done = subprocess.run(
        [sys.executable, "-m", "reports.build", tmp_path / "run"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    folder = tmp_path / "run" / "report"
    assert done.stdout == f"{folder / 'report.md'}\n{folder / 'report.html'}\n"
    assert names(folder) == {
        "report.md",
        "report.html",
        "budget.png",
        "sweep-all-reduce.png",
        "time-tree-attention.png",
        "waterfall.png",
    }
    shown = re.findall(r"\]\((.*\.png)\)", (folder / "report.md").read_text())
    assert {*shown, "report.md", "report.html"} == names(folder)
    for name in shown:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "records.jsonl", whole_run())
    assert make(path, "--out", tmp_path / "one") == 0
    assert make(path, "--out", tmp_path / "two") == 0
    assert names(tmp_path / "one") == names(tmp_path / "two")
    for name in names(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_report_of_a_file_lies_beside_it(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [GPU, kernel("own", 1.0)])
    make(path)
    assert names(tmp_path / "report") == {"report.md", "report.html"}


def test_files_and_folders_mix_and_a_warning_goes_to_stderr(
    tmp_path: Path, capsys: Capture
) -> None:
    one = write(tmp_path / "one" / "records.jsonl", [GPU, kernel("own", 1.0)])
    one.write_bytes(one.read_bytes() + b'{"type":"measu')
    two = write(tmp_path / "two.jsonl", [GPU, *(collective(2**n, 9.0) for n in (3, 4))])
    assert make(tmp_path / "one", two, one, "--out", tmp_path / "out", "--no-plots") == 0
    assert capsys.readouterr().err == (
        f"warning: {one}:3: the last line is incomplete (a run was ended); all before it is read\n"
    )
    text = (tmp_path / "out" / "report.md").read_text()
    assert "**3 points measured**" in text
    assert "the last line is incomplete" in text
    assert names(tmp_path / "out") == {"report.md", "report.html"}


def test_an_earlier_report_is_replaced_and_other_files_are_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(tmp_path / "all.jsonl", whole_run())
    make(tmp_path / "all.jsonl", "--out", out)
    (out / "notes.txt").write_text("mine")
    (out / "mine.png").write_bytes(b"mine")
    write(tmp_path / "few.jsonl", [GPU, kernel("own", 1.0)])
    make(tmp_path / "few.jsonl", "--out", out)
    assert names(out) == {"report.md", "report.html", "notes.txt", "mine.png"}
    assert "all_reduce" not in (out / "report.md").read_text()


@pytest.mark.parametrize(
    ("error", "status"),
    [(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1), (KeyboardInterrupt(), 130)],
)
def test_a_build_that_fails_leaves_the_report_before_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    path, out = write(tmp_path / "records.jsonl", whole_run()), tmp_path / "out"
    make(path, "--out", out, "--no-plots")
    before = {name: (out / name).read_bytes() for name in names(out)}

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(_page, "_method_view", fail)
    assert make(path, "--out", out, "--no-plots") == status
    assert {name: (out / name).read_bytes() for name in names(out)} == before
    assert make(path, "--out", tmp_path / "new" / "place", "--no-plots") == status
    assert not (tmp_path / "new" / "place").exists()


def test_a_build_that_is_terminated_leaves_nothing_aside(tmp_path: Path) -> None:
    path, out = write(tmp_path / "records.jsonl", whole_run()), tmp_path / "out"
    out.mkdir()
    build_it = [sys.executable, "-m", "reports.build", str(path), "--out", str(out)]
    with subprocess.Popen(build_it, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while not names(out):  # until it has begun; then it draws, which takes a while
            assert process.poll() is None
            time.sleep(0.001)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert names(out) == set()


def test_what_a_killed_build_left_aside_goes_with_the_next_and_a_running_one_stays(
    tmp_path: Path,
) -> None:
    path, out = write(tmp_path / "records.jsonl", [GPU, kernel("own", 1.0)]), tmp_path / "out"
    for name, age_s in ((".building-old", 7200), (".building-new", 60)):
        (out / name).mkdir(parents=True)
        os.utime(out / name, (time.time() - age_s,) * 2)
    make(path, "--out", out, "--no-plots")
    assert names(out) == {"report.md", "report.html", ".building-new"}


@pytest.mark.parametrize(
    "name",
    [b"a\xff.jsonl", b"a b.jsonl", b"a\nb.jsonl", b"<img src=x>.jsonl"],
    ids=["in no encoding", "blank", "new line", "markup"],
)
def test_a_file_of_any_name_gets_a_report(tmp_path: Path, name: bytes) -> None:
    path, out = tmp_path / os.fsdecode(name), tmp_path / os.fsdecode(b"out\xff")
    write(path, [GPU, kernel("own", 1.0)])
    done = subprocess.run(
        [sys.executable, "-m", "reports.build", path, "--out", out, "--no-plots"],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[0] == os.fsencode(out / "report.md")
    assert names(out) == {"report.md", "report.html"}
    assert "<img src=x>" not in (out / "report.html").read_text()


NEWER = encoded(GPU).replace(b'"schema":1', b'"schema":7')


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "bad.jsonl does not exist; give a records file or the folder of a run"),
        (b"", "bad.jsonl holds no records; give a records file or the folder of a run"),
        (b"\x00\x01\x02", "bad.jsonl:1: not a record"),
        (b"\x89PNG\r\n\x1a\n", "bad.jsonl:1: not a record"),
        (encoded(GPU) + b"x\n" + encoded(kernel("own", 1.0)), "bad.jsonl:2: not a record"),
        (NEWER, "bad.jsonl:1: record schema 7, this version has 1"),
        (b'{"type":', "bad.jsonl holds no records"),
    ],
)
def test_what_is_no_record_is_one_line_and_exit_2(
    tmp_path: Path, capsys: Capture, content: bytes | None, said: str
) -> None:
    path = tmp_path / "bad.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert make(path, "--out", tmp_path / "out") == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"python -m reports.build: {tmp_path}/{said}")
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert not (tmp_path / "out").exists()


def test_wrong_words_are_one_line_and_exit_2(tmp_path: Path, capsys: Capture) -> None:
    path = write(tmp_path / "records.jsonl", [GPU, kernel("own", 1.0)])
    for words, said in [
        ((), "Missing argument"),
        ((path, "--into", "x"), "--into"),
        ((path, "--out", path), f"--out {path} is a file; name a folder"),
    ]:
        assert make(*words) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert printed.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_one_line_and_exit_1(
    tmp_path: Path, capsys: Capture
) -> None:
    path = write(tmp_path / "records.jsonl", [GPU, kernel("own", 1.0)])
    assert make(path, "--out", path / "below" / "a-file") == 1
    assert capsys.readouterr().err == (
        f"python -m reports.build: {path / 'below' / 'a-file'}: not a directory; "
        "a part of this path is a file\n"
    )


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit of util-linux")
def test_a_disk_that_fills_up_is_one_line_and_exit_1(tmp_path: Path) -> None:
    path = write(tmp_path / "records.jsonl", whole_run())
    command = [sys.executable, "-B", "-m", "reports.build", str(path), "--no-plots"]
    done = subprocess.run(
        ["prlimit", "--fsize=2000", *command, "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "python -m reports.build: file too large; "
        "a limit of this shell stands against it (ulimit -f)\n"
    )
    assert not (tmp_path / "out").exists()


def test_a_report_needs_only_the_ground_floor_and_its_help_not_even_numpy() -> None:
    program = """
import sys
from reports import build
late = {"matplotlib", "numpy", "jinja2", "markdown_it"}
print(sorted(late & set(sys.modules)))
from reports import _page, _plots
never = {"torch", "triton", "cupy", "kernels", "graphs", "collectives", "suites", "ingest"}
print(sorted(never & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == "[]\n[]\n"
