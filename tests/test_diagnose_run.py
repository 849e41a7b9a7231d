"""A diagnosis runs: what fails, hangs, lacks or is interrupted is told, and the rest is there."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.report_sample import GPU, kernel, write
from verifyscope import _diagnosis_run, job
from verifyscope._diagnosis_steps import Folder
from verifyscope.job import Step

ROOT = Path(__file__).resolve().parent.parent
_BARE = (sys.executable, "-I", "-S", "-c")
_WRITES_A_REPORT = (
    "import pathlib, sys; at = pathlib.Path(sys.argv[1]); (at / 'report').mkdir(exist_ok=True)\n"
    "(at / 'report' / 'report.md').write_text('# A report')\n"
    "print('report.md'); print('report.html'); print('Verdict. It takes 3 ms.')\n"
    "print('Worth most: ' + 'a lever that is long, ' * 9)"
)


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_GRACE_S", 0.3)
    monkeypatch.setattr(job, "_KEEP_S", 3.0)


def step(name: str, code: str, *words: str, **fields: Any) -> Step:
    fields = {"limit_s": 20.0, "least_s": 0.1} | fields
    return Step(name=name, command=(*_BARE, code, *words), **fields)


def report(folder: Path) -> Step:
    return step("report", _WRITES_A_REPORT, str(folder), output="verdict.txt")


def run(folder: Path, *steps: Step) -> int:
    made = [*steps, report(folder)]
    return _diagnosis_run.run(made, folder=Folder(folder, "runs/x"), budget_s=60, root=ROOT)


def test_it_ends_with_the_steps_the_verdict_and_the_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, step("one", ""), step("two", "", why_not="needs a GPU")) == 0
    out, error = capsys.readouterr()
    rows = [line.split("\t") for line in out.splitlines()[:3]]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("passed", "one", ""),
        ("skipped", "two", "needs a GPU"),
        ("passed", "report", ""),
    ]
    assert "\n\nVerdict. It takes 3 ms.\n\nWorth most: a lever" in out
    assert out.endswith(
        "\n\nreport: runs/x/report/report.md, for a browser runs/x/report/report.html\n"
    )
    assert max(map(len, out.splitlines())) <= 100
    assert "0:00 [1/3] one, at most 0:20\n" in error
    assert "[2/3] two: skipped: needs a GPU\n" in error
    assert "| passed  |" in (tmp_path / "steps.md").read_text()


def test_a_step_that_fails_or_hangs_is_ended_and_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hang = "import signal, time\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)"
    keeps = "import sys, time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: sys.exit(130)\n"
    status = run(
        tmp_path,
        step("hangs", hang, limit_s=1.0, may_be_cut=True),
        step("fails", "raise SystemExit('2 of 9 rows are wrong')"),
        step("is cut", keeps, limit_s=1.0, may_be_cut=True),
        step("may not be cut", keeps, limit_s=1.0),
        step("works", ""),
    )
    assert status == 1
    out = capsys.readouterr().out
    found = {row.split("\t")[2]: row.split("\t") for row in out.splitlines()[:6]}
    assert {name: row[0] for name, row in found.items()} == {
        "hangs": "failed", "fails": "failed", "is cut": "cut", "may not be cut": "failed",
        "works": "passed", "report": "passed",
    }  # fmt: skip
    assert found["fails"][3] == "exit status 1: 2 of 9 rows are wrong"
    assert found["is cut"][3] == "time was up; what it measured is kept"
    assert "What a failed step said is in logs/ beside the records." in out


def test_what_is_cut_short_by_its_share_is_no_failure(tmp_path: Path) -> None:
    keeps = "import sys, time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: sys.exit(130)\n"
    assert run(tmp_path, step("is cut", keeps, limit_s=1.0, may_be_cut=True)) == 0


def test_what_a_signal_ends_or_is_just_done_has_kept_its_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_signal = "import signal, time\nsignal.signal(2, signal.SIG_DFL)\ntime.sleep(60)"
    done = "import sys, time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: sys.exit(0)\n"
    status = run(
        tmp_path,
        step("by a signal", by_signal, limit_s=1.0, may_be_cut=True),
        step("is done", done, limit_s=1.0, may_be_cut=True),
        step("may not be cut", by_signal, limit_s=1.0),
    )
    assert status == 1
    rows = [row.split("\t") for row in capsys.readouterr().out.splitlines()[:3]]
    assert [(row[2], row[0]) for row in rows] == [
        ("by a signal", "cut"), ("is done", "cut"), ("may not be cut", "failed"),
    ]  # fmt: skip


def test_what_a_step_leaves_of_its_share_is_for_later_ones(tmp_path: Path) -> None:
    said: list[str] = []
    job.run(
        [step("a", "", limit_s=10.0), step("b", "", limit_s=20.0, why_not="no"),
         step("c", "", limit_s=30.0), step("late", "", limit_s=0.5, least_s=7.0)],
        folder=tmp_path, budget_s=60.0, shares=True, say=said.append,
    )  # fmt: skip
    limits = [line.partition(", at most ")[2] for line in said if "at most" in line]
    assert limits[0] == "0:10"
    assert limits[1] in ("1:00", "0:59", "0:58", "0:57", "0:56", "0:55")
    assert _seconds(limits[2]) >= 50


def test_each_second_of_a_step_and_what_it_was_given_are_told(tmp_path: Path) -> None:
    said: list[str] = []
    ticks: list[str] = []
    long = step(
        "long", "import sys, time; time.sleep(2.5); print(sys.argv[1:])", more=lambda: ["a"]
    )
    job.run([long], folder=tmp_path, budget_s=60, say=said.append, tick=ticks.append)
    assert said[0] == "0:00 [1/1] long, at most 0:20, given a"
    assert ticks[0] == "long: 0:01 of 0:20"
    assert (tmp_path / "logs" / "01-long.txt").read_text() == "['a']\n"


def test_a_late_step_has_its_least_whatever_those_before_it_took(tmp_path: Path) -> None:
    said: list[str] = []
    job.run(
        [step("long", "import time; time.sleep(2)", limit_s=0.5), step("late", "", limit_s=0.5,
         least_s=7.0)], folder=tmp_path, budget_s=1.0, shares=True, say=said.append,
    )  # fmt: skip
    assert [line for line in said if "late, at most 0:07" in line]
    assert "passed" in said[-1]


def _seconds(clock: str) -> int:
    minutes, seconds = clock.split(":")
    return int(minutes) * 60 + int(seconds)


def test_a_missing_package_is_named_with_what_adds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    light = step("suites", "", packages=("no_such_package", "msgspec"))
    assert run(tmp_path, light) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "skipped suites needs no_such_package" in out
    assert (
        "Missing no_such_package: `python -m verifyscope.install here` (or `make setup-here`) adds"
        in out
    )


def test_torch_is_not_promised_by_the_command_that_adds_light_packages() -> None:
    (said,) = _diagnosis_run._next([], frozenset({"torch"}))
    assert "use the Python of the container that serves the model, or `make setup`" in said


def test_what_looks_wrong_with_the_machine_is_said_at_once_and_in_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"findings": [{"sentence": "GPU 0 is in use", "next_action": "end it"}]}
    (tmp_path / "machine.json").write_text(json.dumps(found))
    run(tmp_path, step("machine", ""), step("other", ""))
    out, error = capsys.readouterr()
    line = "Looks wrong: GPU 0 is in use; next: end it"
    assert f"\n\n{line}\n\n" in out
    assert error.count(line) == 1
    assert error.index(line) < error.index("other")


def test_without_a_report_the_records_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = step("report", "raise SystemExit('broken')")
    folder = Folder(tmp_path, "runs/x")
    assert _diagnosis_run.run([last], folder=folder, budget_s=9, root=ROOT) == 1
    assert capsys.readouterr().out.endswith("report: none, nothing was measured\n")
    folder.records.write_text("a line")
    assert _diagnosis_run.run([last], folder=folder, budget_s=9, root=ROOT) == 1
    out = capsys.readouterr().out
    assert out.endswith(
        "report: none was built; the records are kept: "
        "python -m reports.build runs/x/records.jsonl\n"
    )


def test_the_report_may_take_longer_than_the_minutes_and_no_other_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [step("one", "", limit_s=2.0, least_s=2.0), step("report", "", limit_s=3.0)]
    assert _diagnosis_run.run(steps, folder=Folder(tmp_path, "x"), budget_s=5, root=ROOT) == 0
    said = capsys.readouterr().err
    assert "[1/2] one, at most 0:02\n" in said
    assert re.search(r"\[2/2\] report, at most 1:0[1-5]\n", said)


def test_another_encoding_of_the_terminal_loses_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code = "print('59 \\u2192 123 tok/s')"
    one = Step(name="one", command=(sys.executable, "-c", code), limit_s=20, output="one.txt")
    assert run(tmp_path, one) == 0
    assert (tmp_path / "one.txt").read_text(encoding="utf-8") == "59 \u2192 123 tok/s\n"


def test_steps_share_one_setting_of_the_compiler(tmp_path: Path) -> None:
    code = "import os; print(os.environ['TRITON_DEFAULT_FP_FUSION'], os.getcwd())"
    run(tmp_path, step("a", code, output="a.txt"))
    assert (tmp_path / "a.txt").read_text() == f"1 {ROOT}\n"


_INTERRUPTED = """
import sys
from pathlib import Path
from tests import test_diagnose_run as here
from verifyscope import diagnose
import signal
signal.signal(signal.SIGTERM, diagnose._interrupt)
at = Path(sys.argv[1])
(at / "records.jsonl").write_text("a line")
sleep = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid()));" \
    "time.sleep(60)"
sys.exit(here.run(at, here.step("first", ""), here.step("long", sleep, str(at / "pid")),
                  here.step("never", "")))
"""


def _started(folder: Path) -> "tuple[subprocess.Popen[str], int]":
    """Return a diagnosis whose second step sleeps, and that step's process."""
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError):
            return process, int((folder / "pid").read_text())
        time.sleep(0.05)
    raise AssertionError("the step did not start")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_reports_what_there_is_and_ends_with_130(
    tmp_path: Path, number: signal.Signals
) -> None:
    process, _ = _started(tmp_path)
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    rows = [line.split("\t") for line in out.splitlines()[:3]]
    assert [(row[0], row[2]) for row in rows] == [
        ("passed", "first"), ("failed", "long"), ("passed", "report"),
    ]  # fmt: skip
    assert rows[1][3] == "interrupted"
    assert "Verdict. It takes 3 ms." in out
    assert "report: runs/x/report/report.md" in out
    assert "never" not in out


def test_when_it_is_killed_its_running_step_is(tmp_path: Path) -> None:
    process, pid = _started(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the step lives on")


def test_the_report_prints_its_first_words_for_a_terminal(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", [GPU, kernel("own", 1.0)])
    done = subprocess.run(
        [sys.executable, "-m", "reports.build", path, "--no-plots", "--verdict"],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    first, second, verdict, *_ = done.stdout.splitlines()
    assert (Path(first).name, Path(second).name) == ("report.md", "report.html")
    assert verdict.startswith("Verdict. ")


@pytest.mark.long
def test_on_a_cpu_it_ends_with_a_verdict_and_a_report(tmp_path: Path) -> None:
    log = tmp_path / "verify.log"
    log.write_text("Target verify: 29.47 ms/cyc (97.0%)\nTarget verify: 29.49 ms/cyc (97.0%)\n")
    run_folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "verifyscope.diagnose", "--model", "kimi-k2.5", "--tp", "8",
         "--rows", "3", "--minutes", "0.7", "--log", str(log), "--plain-ms", "12.12",
         "--gpu", "rtx-pro-6000-server", "--out", str(run_folder)],
        capture_output=True, text=True, cwd=ROOT, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\n\nVerdict. " in done.stdout
    assert done.stdout.splitlines()[-1] == (
        f"report: {run_folder}/report/report.md, for a browser {run_folder}/report/report.html"
    )
    page = (run_folder / "report" / "report.md").read_text(encoding="utf-8")
    assert "29.5 ms" in page
    assert "--observed-ms 29.48" in (run_folder / "records.jsonl").read_text(encoding="utf-8")
