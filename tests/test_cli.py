"""However a command ends, it ends with one line on stderr and the status that says how."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from verifyscope import cli
from verifyscope.errors import UsageError, choose

PROGRAM = """
import errno, os, sys
from verifyscope import cli
from verifyscope.errors import Failure, UsageError

app = cli.app(None)

@app.command()
def main(how: str, size: int = 1) -> None:
    '''Do one thing.'''
    print("a row")
    if how == "usage": raise UsageError("unknown op 'x';\\nknown: y")
    if how == "failure": raise Failure("3 values are wrong")
    if how == "interrupt": raise KeyboardInterrupt
    if how == "folder": open("/").read()
    if how == "full": raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "r.jsonl")
    if how == "fault": {}["secret"]
    if how == "library": raise OSError("libx.so: cannot open")
    if how == "many":
        for number in range(100_000): print("row", number)
    if how == "lacks": import nobody.has_this
    if how == "ours": import reports.nothing
    if how == "letters": print("23.8\u201324.2 us", os.fsdecode(b"a\\xff.md"))
    if how == "hang":
        import time
        print("started", flush=True)
        time.sleep(60)

cli.run(app, "python -m program")
"""


def run(*words: str, stdout: int | None = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("how", "status", "line"),
    [
        ("usage", 2, "unknown op 'x'; known: y"),
        ("failure", 1, "3 values are wrong"),
        ("interrupt", 130, "interrupted; what was measured is kept"),
        ("folder", 1, "/: is a directory; name a file"),
        (
            "lacks",
            1,
            "this Python lacks nobody; after `make setup` activate .venv, or in the checkout "
            "`python -m verifyscope.install here` adds what the project needs, and changes "
            "nothing that is here",
        ),
        ("full", 1, "r.jsonl: no space left on device; free some or name another folder"),
    ],
)
def test_an_error_is_one_line_and_a_status_and_keeps_the_output(
    how: str, status: int, line: str
) -> None:
    done = run(how)
    assert done.returncode == status
    assert done.stderr == f"python -m program: {line}\n"
    assert done.stdout == "a row\n"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["fine", "--sise", "2"], "--sise"),
        (["fine", "--size", "two"], "--size"),
        (["fine", "more"], "more"),
        ([], "how"),
    ],
)
def test_a_wrong_option_is_one_line_that_points_to_the_help(words: list[str], named: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert named in done.stderr.lower()
    assert done.stderr.endswith("; 'python -m program --help' lists what is allowed\n")
    assert done.stdout == ""


def test_what_went_well_is_silent_and_exits_0() -> None:
    done = run("fine")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a row\n", "")
    shown = run("--help")
    assert shown.returncode == 0
    assert "Do one thing." in shown.stdout


@pytest.mark.parametrize(
    ("how", "cause"), [("fault", "KeyError"), ("library", "libx.so"), ("ours", "reports")]
)
def test_a_fault_of_ours_is_a_plain_traceback(how: str, cause: str) -> None:
    done = run(how)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert cause in done.stderr.splitlines()[-1]


def test_a_reader_that_leaves_early_ends_the_command_in_silence() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "many"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"a row\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 1
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device of Linux")
@pytest.mark.parametrize("how", ["fine", "many"])
def test_a_full_stdout_is_one_line(how: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = run(how, stdout=full)
    finally:
        os.close(full)
    assert done.returncode == 1
    assert done.stderr == (
        "python -m program: no space left on device; free some or name another folder\n"
    )


@pytest.mark.parametrize(
    ("encoding", "line"),
    [
        ("ascii", b"23.8?24.2 us a?.md"),
        ("latin-1", b"23.8?24.2 us a?.md"),
        ("utf-8", "23.8–24.2 us a".encode() + b"\xff.md"),
    ],
)
def test_a_terminal_of_any_encoding_gets_the_output(encoding: str, line: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "letters"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[1] == line


def test_a_closed_stderr_leaves_stdout_to_the_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    cli.note("a warning")
    assert capsys.readouterr().out == ""


def test_ctrl_c_is_one_line_and_130() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "hang"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "a row\n"
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "python -m program: interrupted; what was measured is kept\n"


def test_rows_for_a_program_are_tab_separated_and_one_line_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli.print_rows([("op", "a\tb\nc", "x" * 300)], header=("op", "reason", "case"))
    assert capsys.readouterr().out == f"op\ta b c\t{'x' * 300}\n"


def test_rows_for_a_person_are_aligned_under_a_header(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cli.print_rows([("a", "1"), ("long", "2")], header=("op", "n"))
    assert capsys.readouterr().out == "op    n\na     1\nlong  2\n"


def test_the_last_column_goes_on_below_itself_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "32")
    rows = [("a", "no device of that kind is here"), ("b", "")]
    cli.print_rows(rows, header=("op", "reason"))
    assert capsys.readouterr().out == ("op  reason\na   no device of that kind is\n    here\nb\n")
    cli.print_rows([("an op of a name", *rows[0][1:])], header=("op", "reason"))
    assert capsys.readouterr().out == (
        "op               reason\nan op of a name  no device of that kind is here\n"
    ), "a column of a few letters would not be read"


def test_a_remark_is_one_line_for_a_program_and_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    said = "uneven ranks: one of 8 ranks takes 1.1 times as long"
    cli.print_remark(said)
    assert capsys.readouterr().out == f"# {said}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cli.print_remark(said)
    assert capsys.readouterr().out == (
        "# uneven ranks: one of 8 ranks takes\n#   1.1 times as long\n"
    )


def test_a_finding_for_a_person_is_text_of_the_terminals_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    cli.print_finding("found graph-off (sure)", "no CUDA graph at 48 running, 8.85 ms a step", "")
    assert capsys.readouterr().out == (
        "found graph-off (sure)\n  no CUDA graph at 48 running, 8.85 ms a\n  step\n"
    )


def test_tables_that_have_rows_stand_apart_by_an_empty_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tables: list[tuple[tuple[str, ...], list[tuple[str, ...]]]] = [
        (("a",), [("1",)]),
        (("b",), []),
        (("c",), [("2",), ("3",)]),
    ]
    cli.print_tables(tables)
    assert capsys.readouterr().out == "1\n\n2\n3\n"
    cli.print_tables(tables, below_text=True)
    assert capsys.readouterr().out == "\n1\n\n2\n3\n"


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown backend 'glue'; known: gloo, nccl"):
        choose("backend", "glue", ["gloo", "nccl"])
    assert choose("backend", "gloo", ["gloo", "nccl"]) == "gloo"
