"""`python -m kernels` as a person meets it: rows, exit status, files, one line for a mistake."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import kernels
from kernels import (
    _commands,
    _cubin,
    _execute,
    _host_cuda,
    _predict_command,
    _select,
    _workers,
)
from kernels.__main__ import PROGRAM, app
from kernels._points import Selection
from verifyscope import cli, records
from verifyscope.errors import Failure
from verifyscope.records import Compiled, Environment, Finding, Measurement

TESTS = Path(__file__).parent
ROOT = TESTS.parent
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="what a GPU would do differs")
Command = Callable[..., tuple[int, list[list[str]], str]]

# The command line with the ops of `tests/` beside our own, in a process of its own.
WITH_OPS = f"""
import sys, kernels
kernels.__path__ += [{str(TESTS / "ops")!r}, {str(TESTS / "wrong_ops")!r}]
from kernels.__main__ import PROGRAM, app
from verifyscope import cli
if __name__ == "__main__":
    cli.run(app, PROGRAM)
"""


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], more_ops: Callable[..., None]) -> Command:
    """Return a function that runs the command line: its status, rows on stdout, and stderr."""
    more_ops(TESTS / "ops", TESTS / "wrong_ops")

    def run(*arguments: str) -> tuple[int, list[list[str]], str]:
        with pytest.raises(SystemExit) as ended:
            cli.run(app, PROGRAM, arguments)
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), [line.split("\t") for line in out.splitlines()], err

    return run


# ---- --list ----


@NO_GPU
def test_list_is_one_line_for_each_op_implementation_and_case(command: Command) -> None:
    status, rows, _ = command("--list", "--op", "rms_scale")
    needs = "needs a CUDA device of capability 8.0, 8.9, 9.0, 10.0, 12.0; this machine has none"
    assert status == 0
    assert rows == [
        ["rms_scale", implementation, kind, case, reason]
        for implementation, kind, reason in (
            ("triton", "own", needs),
            ("cupy", "own", needs),
            ("torch", "baseline-direct", ""),
        )
        for case in ("ragged", "hidden-7168")
    ]
    assert command("--op", "rms_scale")[1] == rows


def test_kinds_and_implementations_narrow_what_is_listed(command: Command) -> None:
    _, rows, _ = command("--op", "rms_scale", "--op", "doubled", "--kind", "baseline-direct")
    assert {(row[0], row[1]) for row in rows} == {("rms_scale", "torch")}
    _, rows, _ = command("--implementation", "right", "--implementation", "cupy", "--kind", "own")
    assert ("doubled", "right") in {(row[0], row[1]) for row in rows}
    assert {row[1] for row in rows} == {"right", "cupy"}


def test_a_file_whose_package_is_missing_is_a_line_with_the_reason(
    command: Command, more_ops: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "rms_scale_nopackage.py").write_text("import nopackage\n")
    more_ops(tmp_path)
    status, rows, _ = command("--list", "--op", "rms_scale", "--implementation", "nopackage")
    reason = "needs the package 'nopackage', which is not installed"
    assert status == 0
    assert rows == [
        ["rms_scale", "nopackage", "", case, reason] for case in ("ragged", "hidden-7168")
    ]


@NO_GPU
def test_list_writes_json_and_records_of_what_cannot_run(command: Command, tmp_path: Path) -> None:
    as_json, as_records = tmp_path / "new" / "list.json", tmp_path / "list.jsonl"
    command("--op", "rms_scale", "--json", str(as_json), "--records", str(as_records))
    items = json.loads(as_json.read_text())
    assert [(item["implementation"], item["case"]) for item in items] == [
        (implementation, case)
        for implementation in ("triton", "cupy", "torch")
        for case in ("ragged", "hidden-7168")
    ]
    environment, *rest = records.read([as_records])
    assert isinstance(environment, Environment)
    assert len(rest) == 4
    for record in rest:
        assert isinstance(record, Measurement)
        assert (record.status, record.part) == ("skipped", "norms")
        assert record.environment == environment.id


# ---- --check ----


@NO_GPU
@pytest.mark.skipif(_host_cuda.why_not() is not None, reason=str(_host_cuda.why_not()))
def test_check_runs_all_it_can_and_names_each_fault(command: Command, tmp_path: Path) -> None:
    as_json, as_records = tmp_path / "check.json", tmp_path / "check.jsonl"
    ops = ("--op", "rms_scale", "--op", "decode_attention", "--op", "doubled")
    files = ("--json", str(as_json), "--records", str(as_records))
    status, rows, err = command("--check", *ops, "--timeout", "25", *files)
    assert status == 1
    assert "9 passed, 6 failed, 1 skipped" in err
    assert err.splitlines()[-1].startswith("python -m kernels: 6 of 16 checks failed")

    by_point = {tuple(row[:3]): row[3:] for row in rows}
    executed = {point[:2]: row[2] for point, row in by_point.items()}
    assert executed[("rms_scale", "triton")] == "interpreter"
    assert executed[("rms_scale", "cupy")] == "host"
    assert executed[("rms_scale", "torch")] == "cpu"
    attention = by_point[("decode_attention", "triton", "two-blocks")]
    assert 0 < float(attention[0]) < float(attention[1]) == 0.01
    assert attention[2:] == ["interpreter", "passed", "out", ""]

    reasons = {name: by_point[("doubled", name, "small")] for name in FAULTS}
    for name, (verdict, reason) in FAULTS.items():
        assert reasons[name][3] == verdict
        assert reason in reasons[name][5]
    assert reasons["last-column-unwritten"][0] == "inf"

    items = {(item["op"], item["implementation"]): item for item in json.loads(as_json.read_text())}
    assert len(json.loads(as_json.read_text())) == len(rows) == 16
    assert items[("doubled", "one-row-off")]["max_row_error"] == pytest.approx(0.06, rel=0.1)
    _environment, *rest = records.read([as_records])
    failed = [record for record in rest if isinstance(record, Measurement)]
    assert {(record.implementation, record.status) for record in failed} == {
        (name, "failed") for name, (verdict, _) in FAULTS.items() if verdict == "failed"
    }
    findings = {record.sentence: record for record in rest if isinstance(record, Finding)}
    assert set(findings) == {
        "rms_scale: 3 of 3 checks agree with the reference.",
        "decode_attention: 4 of 4 checks agree with the reference.",
        "doubled: 2 of 8 checks agree with the reference.",
    }


FAULTS = {
    "right": ("passed", ""),
    "no-sum": ("passed", ""),
    "one-row-off": ("failed", "y: row (1,) is off by 0.06"),
    "last-column-unwritten": ("failed", "y: NaN at (0, 7): never written"),
    "writes-its-input": ("failed", "input 'x' was written to"),
    "raises": ("failed", "RuntimeError: no tiles for 3 rows (doubled.py:"),
    "crashes": ("failed", "its process crashed with SIGSEGV"),
    "hangs": ("failed", "did not end within 25 s; see --timeout"),
    "refuses": ("skipped", "not for small cases"),
}


def test_an_interruption_keeps_what_was_checked_and_is_one_line(tmp_path: Path) -> None:
    as_json = tmp_path / "check.json"
    names = ("--op", "doubled", "--implementation", "right", "--implementation", "hangs")
    running = subprocess.Popen(
        [sys.executable, "-c", WITH_OPS, "--check", *names, "--json", str(as_json)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline().startswith("doubled\tright\tsmall\t0\t")
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the workers too
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "")
    assert err == "python -m kernels: interrupted; what was measured is kept\n"
    assert [item["implementation"] for item in json.loads(as_json.read_text())] == ["right"]


# ---- --compile ----


@pytest.mark.skipif(_cubin.why_not() is not None, reason=str(_cubin.why_not()))
def test_compile_prints_what_each_kernel_takes_and_records_it(
    command: Command, tmp_path: Path
) -> None:
    as_json, as_records = tmp_path / "compile.json", tmp_path / "compile.jsonl"
    names = ("--op", "decode_attention", "--op", "too_much", "--implementation", "cupy")
    more = ("--implementation", "launches-nothing")
    files = ("--json", str(as_json), "--records", str(as_records))
    status, rows, err = command("--compile", "90", "120", *names, *more, *files)
    assert status == 1
    assert "3 kernels built, 1 failed the gate; 2 launches, 2 distinct builds\n" in err
    assert err.splitlines()[-1].startswith("python -m kernels: 1 of 3 kernels must not be launched")
    named = [dict(zip(_commands._COMPILE, row, strict=True)) for row in rows]
    attention = [row for row in named if row["op"] == "decode_attention"]
    assert [(row["capability"], row["shared_limit_bytes"]) for row in attention] == [
        ("90", "232448"),
        ("120", "101376"),
    ]
    for row in attention:
        assert int(row["registers"]) > 0
        assert (row["case"], row["spilled_bytes"], row["failure"]) == ("gate-dim-128", "0", "")
        assert (row["shared_bytes"], row["threads"], row["blocks"]) == ("544", "128", "16")
        assert 0 < float(row["waves"]) < float(row["occupancy"]) <= 1
        assert int(row["blocks_per_sm"]) > 0
        assert row["limited_by"] in ("registers", "warps")
    # What is built for 8.0 and 12.0 has no 9.0.
    (nothing,) = (row for row in named if row["op"] == "too_much")
    known = {name: value for name, value in nothing.items() if value}
    assert known == {
        "op": "too_much",
        "implementation": "launches-nothing",
        "case": "gate-128",
        "kernel": "-",
        "capability": "120",
        "shared_limit_bytes": "101376",
        "failure": "launched no kernel",
    }
    assert [item["kernel"] for item in json.loads(as_json.read_text())] == [row[3] for row in rows]
    environment, *rest = records.read([as_records])
    assert isinstance(environment, Environment)
    assert all(isinstance(record, Compiled) for record in rest)
    assert len(rest) == len(rows)
    first = msgspec.structs.asdict(rest[0])
    assert (first["environment"], first["capability"]) == (environment.id, 90)
    assert first["registers"] == int(rows[0][5])
    assert (first["multiprocessors"], first["grid_blocks"]) == (132, 16)


# ---- --predict ----


def test_predict_prints_what_no_compiler_sees_for_each_measured_case(
    command: Command, tmp_path: Path
) -> None:
    as_json, as_records = tmp_path / "predict.json", tmp_path / "predict.jsonl"
    files = ("--json", str(as_json), "--records", str(as_records))
    names = ("--op", "decode_attention", "--implementation", "cupy", "--node-us", "1.5")
    status, rows, err = command("--predict", "H200", *names, *files)
    assert status == 0
    assert err == (
        "predicted, not measured: H200 SXM, 4.80 TB/s, 989 Tflop/s in bf16 and fp16, "
        "1.50 us a launch\n"
    )
    (row,) = (dict(zip(_predict_command._HEADER, row, strict=True)) for row in rows)
    # A block for each of 8 heads; 8,192 keys and values of 128 dims are 4 MiB and a little.
    assert (row["case"], row["launches"], row["blocks"]) == ("keys-8192", "1", "8")
    assert (row["touched"], row["moved"], row["limited_by"]) == ("4.20 MB", "4.20 MB", "nodes")
    assert row["floor"] == "875 ns"
    (one,) = json.loads(as_json.read_text())
    assert one["predicted_s"] == pytest.approx(one["roof_s"] + 1.5e-6)
    if _cubin.why_not() is None:
        assert one["grids"][0]["waves"] > 0
    environment, *rest = records.read([as_records])
    assert isinstance(environment, Environment)
    (record,) = rest
    assert isinstance(record, Measurement)
    assert (record.source, record.median_s) == ("predicted", one["predicted_s"])
    assert record.environment == environment.id


# ---- Mistakes ----


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--op", "nope"], "unknown op 'nope'; known: "),
        (["--check", "--op", "nope"], "unknown op 'nope'; known: "),
        (["--compile", "91"], "unknown capability '91'; known: 80, 89, 90, 100, 120"),
        (["--compile", "ninety"], "unknown capability 'ninety'"),
        (["--kind", "theirs"], "unknown kind 'theirs'; known: own, baseline-direct, "),
        (["--implementation", "nope"], "unknown implementation 'nope'; known: "),
        (
            ["--op", "doubled", "--implementation", "right", "--kind", "baseline-composed"],
            "nothing is of --kind baseline-composed: doubled/right is ",
        ),
        (["90"], "unexpected '90'; capabilities go with --compile"),
        (["--list", "--check"], "--list and --check exclude each other"),
        (["--list", "--long"], "--long goes with --compile"),
        (["--predict", "h300"], "unknown GPU 'h300'; known: rtx-pro-6000-server, "),
        (["--predict", "h200", "--check"], "--check and --predict exclude each other"),
        (["--predict", "h200", "90"], "unexpected '90'; capabilities go with --compile"),
        (["--node-us", "1"], "--node-us goes with --predict"),
        (["--predict", "h200", "--node-us", "0"], "--node-us 0 is no time; give microseconds"),
        (["--compile", "--tiny"], "--tiny goes with --check"),
        (["--timeout", "0"], "--timeout 0 must be above zero seconds"),
        (["--timeout", "soon"], "Invalid value for '--timeout'"),
        (["--json", "."], "--json . is a folder; name a file in it"),
        (["--records", "."], "--records . is a folder; name a file in it"),
        (["--no-such-option"], "No such option"),
        pytest.param(["--check", "--graph"], "--graph captures on a CUDA device", marks=NO_GPU),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_allowed(
    arguments: list[str], complaint: str, command: Command
) -> None:
    status, rows, err = command(*arguments)
    assert (status, rows) == (2, [])
    (line,) = err.splitlines()
    assert line.startswith("python -m kernels: ")
    assert complaint in line


def test_a_place_that_cannot_be_written_is_one_line(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for option in ("--json", "--records"):
        status, _, err = command("--op", "doubled", option, str(tmp_path / "file" / "rows"))
        assert status == 1
        (line,) = err.splitlines()
        assert "a part of this path is a file" in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device of Linux")
@pytest.mark.parametrize("option", ["--json", "--records"])
def test_a_full_place_is_named(option: str, command: Command) -> None:
    status, _, err = command("--op", "doubled", option, "/dev/full")
    assert status == 1
    (line,) = err.splitlines()
    assert "/dev/full: no space left on device" in line.lower()


def test_a_closed_stdout_keeps_no_rows_back_from_the_json_file(
    more_ops: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    more_ops(TESTS / "ops")
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as ended:
        cli.run(app, PROGRAM, ["--op", "rms_scale", "--json", str(tmp_path / "rows.json")])
    assert ended.value.code == 0
    assert json.loads((tmp_path / "rows.json").read_text())[0]["op"] == "rms_scale"


@NO_GPU
@pytest.mark.skipif(_host_cuda.why_not() is not None, reason=str(_host_cuda.why_not()))
def test_a_cache_that_cannot_be_written_ends_the_check_and_blames_no_kernel(
    more_ops: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    more_ops(TESTS / "ops")
    monkeypatch.setenv("HOST_CUDA_CACHE", f"{os.devnull}/cache")
    points = _select.checkable(Selection(ops=("rms_scale",)), tiny=True)
    (cuda,) = [point for point in points if point.implementation == "cupy"]
    with pytest.raises(Failure, match=r"cannot keep compiled kernels in .*HOST_CUDA_CACHE"):
        _execute.check_point((cuda, False))


@pytest.mark.parametrize(
    ("missing", "status", "out", "err"),
    [
        ("torch", 1, "", "python -m kernels: needs the package 'torch', which is not installed; "),
        ("triton", 0, "needs the package 'triton', which is not installed", ""),
    ],
)
def test_a_missing_package_is_a_reason_and_no_traceback(
    missing: str, status: int, out: str, err: str
) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\n{WITH_OPS}"
    done = subprocess.run(
        [sys.executable, "-c", code, "--list", "--op", "tree_attention"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == status
    assert out in done.stdout
    assert err in done.stderr
    assert "Traceback" not in done.stderr


def test_help_starts_without_torch_and_names_every_option() -> None:
    code = (
        "import sys; from kernels.__main__ import PROGRAM, app; from verifyscope import cli\n"
        "try: cli.run(app, PROGRAM, ['--help'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 False False"
    for option in ("--list", "--compile", "--check", "--predict", "--op", "--graph", "--records"):
        assert option in done.stdout


# ---- Workers ----


def spell(word: str) -> Iterator[str]:
    """Yield a word letter by letter, as a task does; stop in the middle at a "!"."""
    for letter in word:
        if letter == "!":
            time.sleep(600)
        yield letter
    yield word


def test_a_worker_that_cannot_start_is_a_lost_item() -> None:
    conditions = _workers.Conditions(processes=1, timeout_s=60, environment={})
    items: list[Any] = [1]
    with _workers.work("os:no_such_function", items, conditions=conditions) as results:
        (lost,) = results
    assert lost == _workers.Lost("its process ended with status 1")


def test_a_worker_that_never_gets_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_workers, "_START_S", 0.01)
    conditions = _workers.Conditions(processes=1, timeout_s=60, environment={})
    with _workers.work("os:getpid", [0], conditions=conditions) as results:
        (lost,) = results
    assert lost == _workers.Lost("its process was not ready within 0.01 s")


def test_what_a_task_yields_last_is_its_result_and_before_that_what_it_is_at() -> None:
    conditions = _workers.Conditions(processes=1, timeout_s=2, environment={})
    task = f"{__name__}:spell"
    with _workers.work(task, ["ab!c", "abc"], conditions=conditions) as results:
        lost, whole = results
    assert lost == _workers.Lost("did not end within 2 s; see --timeout", "b")
    assert whole == "abc"


def test_a_worker_whose_parent_was_killed_ends_in_silence(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ours, theirs = _workers._START.Pipe()
    arguments: Any = (theirs, "operator:neg", {}, list(kernels.__path__))
    worker = _workers._START.Process(target=_workers._serve, args=arguments)
    worker.start()
    theirs.close()
    ours.close()
    worker.join(120)
    assert worker.exitcode == 0
    assert capfd.readouterr().err == ""
