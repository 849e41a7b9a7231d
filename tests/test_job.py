"""The runner of steps: each failure is contained and named, and the time is shared as declared."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from verifyscope import job
from verifyscope.job import Outcome, Step

_BARE = (sys.executable, "-I", "-S")  # starts in a blink, also on a busy machine


def _step(name: str, code: str, **fields: Any) -> Step:
    fields = {"limit_s": 30.0, "least_s": 0.01} | fields
    return Step(name=name, command=(*_BARE, "-c", code), **fields)


def _run(steps: Sequence[Step], folder: Path, **fields: Any) -> dict[str, Outcome]:
    outcomes = job.run(steps, folder=folder, **({"budget_s": 60.0} | fields))
    assert [outcome.name for outcome in outcomes] == [step.name for step in steps]
    return {outcome.name: outcome for outcome in outcomes}


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_GRACE_S", 0.3)


def test_every_kind_of_end_is_named_and_none_hides_the_next(tmp_path: Path) -> None:
    hang = "import signal, time\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)"
    found = _run(
        [
            _step("passes", "print('fine')"),
            _step("fails", "import sys; print('2 of 9 rows are wrong'); sys.exit(1)"),
            _step("crashes", "import os; os.kill(os.getpid(), 11)"),
            _step("raises", "raise ValueError('the reason')"),
            _step("hangs", hang, limit_s=0.5),
            _step("is too long", "import time; time.sleep(60)", limit_s=0.5),
            Step(name="is no program", command=("/absent/program",), limit_s=5),
            _step("lacks a package", "", packages=("torch", "cupy")),
            _step("lacks a program", "", programs=("ncu",)),
            _step("is refused", "import sys; sys.exit('Error: ERR_NVGPUCTRPERM here')",
                  skip_words=("ERR_NVGPUCTRPERM",)),
            _step("has nothing to do", "import sys; sys.exit(5)", skip_statuses={5: "no test"}),
            _step("passes at the end", "print('fine')"),
        ],
        tmp_path,
        missing=frozenset({"cupy", "ncu"}),
    )  # fmt: skip
    assert {name: (o.result, o.reason) for name, o in found.items()} == {
        "passes": ("passed", ""),
        "fails": ("failed", "exit status 1: 2 of 9 rows are wrong"),
        "crashes": ("failed", "ended by SIGSEGV"),
        "raises": ("failed", "exit status 1: ValueError: the reason"),
        "hangs": ("failed", "ended after 0.5 s, its limit"),
        "is too long": ("failed", "ended after 0.5 s, its limit"),
        "is no program": ("failed", "/absent/program: No such file or directory"),
        "lacks a package": ("skipped", "needs cupy"),
        "lacks a program": ("skipped", "needs ncu"),
        "is refused": ("skipped", "Error: ERR_NVGPUCTRPERM here"),
        "has nothing to do": ("skipped", "no test"),
        "passes at the end": ("passed", ""),
    }
    assert found["hangs"].seconds < 10
    assert (tmp_path / "logs" / "01-passes.txt").read_text() == "fine\n"


def test_a_step_that_is_ended_may_keep_what_it_has(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    code = (
        "import time, pathlib\n"
        "try: time.sleep(60)\n"
        f"except KeyboardInterrupt: pathlib.Path({str(kept)!r}).write_text('kept')"
    )
    found = _run([_step("long", code, limit_s=1.5)], tmp_path)
    assert found["long"].result == "failed"
    assert kept.read_text() == "kept"


def test_children_of_a_step_end_with_it_even_in_sessions_of_their_own(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    child = "import time, signal; signal.signal(2, signal.SIG_IGN); time.sleep(60)"
    code = (
        "import subprocess, sys, pathlib, time\n"
        "same = subprocess.Popen([sys.executable, '-I', '-S', '-c', sys.argv[1]])\n"
        "own = subprocess.Popen([sys.executable, '-I', '-S', '-c', sys.argv[1]],\n"
        "                       start_new_session=True)\n"
        "pathlib.Path(sys.argv[2]).write_text(f'{same.pid} {own.pid}')\n"
        "time.sleep(float(sys.argv[3]))"
    )
    for sleeps, limit in (("60", 2.0), ("0", 30.0)):
        pids.unlink(missing_ok=True)
        command = (*_BARE, "-c", code, child, str(pids), sleeps)
        _run([Step(name="family", command=command, limit_s=limit, least_s=0.01)], tmp_path)
        for pid in map(int, pids.read_text().split()):
            assert _gone(pid), f"{pid} lives after a step that slept {sleeps} s"


def _gone(pid: int) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_the_budget_is_shared_and_time_is_kept_for_later_steps(tmp_path: Path) -> None:
    sleep = "import time; time.sleep(60)"
    found = _run(
        [
            _step("greedy", sleep, limit_s=60),
            _step("next", "print('fine')", least_s=2.0),
            _step("never", "print('fine')", least_s=1000.0),
        ],
        tmp_path,
        budget_s=1005.0,
    )
    assert found["greedy"].result == "failed"
    assert "no time left for more" in found["greedy"].reason
    assert found["next"].result == "passed"
    assert found["never"].result == "skipped"
    assert found["never"].reason == "no time left"


def test_data_on_stdout_goes_to_its_own_file_and_is_read_for_the_reason(tmp_path: Path) -> None:
    code = "import sys; print('row'); print('talk', file=sys.stderr); sys.exit(3)"
    found = _run([_step("table", code, output="table.txt")], tmp_path)
    assert (tmp_path / "table.txt").read_text() == "row\n"
    assert (tmp_path / "logs" / "01-table.txt").read_text() == "talk\n"
    assert found["table"].reason == "exit status 3: row"


def test_outcomes_are_told_one_by_one_and_after_an_interruption(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def after(outcomes: Sequence[Outcome]) -> None:
        seen.append([f"{o.name} {o.result}" for o in outcomes])
        if len(outcomes) == 1 and outcomes[0].result == "passed":
            signal.setitimer(signal.ITIMER_REAL, 0.5)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            _run(
                [_step("first", ""), _step("second", "import time; time.sleep(60)")],
                tmp_path,
                after=after,
            )
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert seen == [["first passed"], ["first passed", "second failed"]]


def test_the_table_is_markdown_and_keeps_its_columns() -> None:
    text = job.table(
        [
            Outcome(name="a", result="passed", seconds=1.25),
            Outcome(name="b", result="failed", seconds=61, reason="one | two"),
            Outcome(name="c", result="skipped", reason="needs ncu"),
        ]
    )
    lines = text.splitlines()
    assert lines[0].split() == ["|", "step", "|", "result", "|", "seconds", "|", "reason", "|"]
    assert {line.count("|") for line in lines} == {5}
    assert len({len(line) for line in lines}) == 1
    assert "| 61.0 | one / two" in " ".join(lines[3].split())


def test_a_lock_that_an_interrupt_left_locked_stops_no_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Locked(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            assert self._waitpid_lock.acquire(False)  # type: ignore[attr-defined]

    monkeypatch.setattr(job.subprocess, "Popen", Locked)  # type: ignore[attr-defined]
    hang = "import signal, time\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)"
    found = _run(
        [_step("hangs", hang, limit_s=0.5), _step("fails", "raise SystemExit(3)")], tmp_path
    )
    assert found["hangs"].reason == "ended after 0.5 s, its limit"
    assert found["fails"].reason == "exit status 3:".rstrip(":")


def test_the_runner_leaves_no_mark_in_this_process() -> None:
    assert job._MARK not in os.environ
