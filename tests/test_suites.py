"""`pytest suites/ --benchmark-only`: a record a point, in the order and with the samples promised.

The runs here see the op of tests/timed_ops alone: two right implementations, a wrong one, one that
raises, and one that needs a GPU, on two cases for a CPU and one that is too large.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels import all_ops
from suites import conftest
from verifyscope.records import Measurement, Reader, Value
from verifyscope.records import read as read_records

ROOT = Path(__file__).resolve().parent.parent
# The cap has passed when the least rounds are done, so there are as many as that.
ROUNDS = 12
QUICK = ("--benchmark-max-time=0.001", f"--benchmark-min-rounds={ROUNDS}")


class Ended:
    """A run of the suites that has ended: what it said, and what it left in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.status = int((folder / "status").read_text())
        said = (folder / "stdout").read_text()
        self.said, self.last_line = said + (folder / "stderr").read_text(), said.splitlines()[-1]

    def records(self) -> list[Measurement]:
        """Return the measurements in the order in which they were appended."""
        found = read_records([self.folder / "records.jsonl"])
        return [record for record in found if isinstance(record, Measurement)]

    def record(self, implementation: str, case: str, op: str = "doubling") -> Measurement:
        """Return the one record of a point."""
        (found,) = (
            record
            for record in self.records()
            if (record.op, record.implementation, record.case) == (op, implementation, case)
        )
        return found

    def samples(self) -> dict[str, tuple[float, ...]]:
        """Return the raw samples by the id of their record."""
        reader = Reader(self.folder / "samples.jsonl")
        return {line.id: line.seconds for line in reader.samples()}

    def calls(self) -> str:
        """Return the calls of `first` (A) and `second` (B) in their order."""
        return (self.folder / "calls").read_text()


RUNS = {
    "whole": (["--benchmark-only", "--benchmark-json={folder}/benchmark.json"], {}),
    # pytest-benchmark warns that it saves nothing, and here warnings are errors.
    "skipped": (["--benchmark-only", "-k", "gpu", "--benchmark-json={folder}/none.json"], {}),
    "interrupt": (
        ["--benchmark-only", "-k", "interrupted or first"],
        {"DOUBLING_INTERRUPT": "38"},
    ),
    "disabled": (["--benchmark-disable", "-k", "few"], {}),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Run all of `RUNS`."""
    folders = {name: tmp_path_factory.mktemp(name) for name in RUNS}
    asked = []
    for name, (arguments, environ) in RUNS.items():
        folder = str(folders[name])
        words = ["suites", "-p", "no:cacheprovider", *QUICK, "--records", f"{folder}/records.jsonl"]
        words += [word.format(folder=folder) for word in arguments]
        environ = environ | {"DOUBLING_LOG": f"{folder}/calls"}
        asked.append({"folder": folder, "arguments": words, "environ": environ})
    # What the tests' own pytest has set must not reach those that are tested.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TRITON_"))}
    subprocess.run(
        [sys.executable, "-m", "tests.timed_ops._runs"],
        input=json.dumps(asked),
        cwd=ROOT,
        env=clean,
        text=True,
        check=True,
    )
    return {name: Ended(folder) for name, folder in folders.items()}


@pytest.fixture
def whole(ended: dict[str, Ended]) -> Ended:
    return ended["whole"]


@pytest.fixture
def benchmarks(whole: Ended) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((whole.folder / "benchmark.json").read_text())
    return found


def test_every_point_leaves_one_record_whatever_became_of_it(whole: Ended) -> None:
    own = [record for record in whole.records() if record.op == "doubling"]
    assert {(record.implementation, record.case, record.status) for record in own} == {
        ("first", "few", "ok"),
        ("second", "few", "ok"),
        ("wrong", "few", "failed"),
        ("raising", "few", "error"),
        ("interrupted", "few", "skipped"),
        ("gpu", "few", "skipped"),
        ("first", "more", "ok"),
        ("second", "more", "ok"),
        ("wrong", "more", "failed"),
        ("raising", "more", "error"),
        ("interrupted", "more", "skipped"),
        ("gpu", "more", "skipped"),
        *(
            (name, "huge", "skipped")
            for name in ("first", "second", "wrong", "raising", "interrupted", "gpu")
        ),
    }
    assert len(own) == 18
    for record in own:
        assert (record.median_s is None) == (record.status != "ok")
        assert bool(record.reason) == (record.status != "ok")


def test_reasons_name_the_cause_and_no_folder(whole: Ended) -> None:
    assert "disagrees with the reference" in (whole.record("wrong", "few").reason or "")
    assert whole.record("raising", "few").reason == "OSError: no library in double.so"
    assert "needs a CUDA device" in (whole.record("gpu", "few").reason or "")
    assert whole.record("first", "huge").reason == "too large to be timed on a CPU; needs a GPU"


def test_the_environment_is_the_first_line_and_every_record_names_it(whole: Ended) -> None:
    first = json.loads((whole.folder / "records.jsonl").read_text().splitlines()[0])
    assert first["type"] == "environment"
    assert {record.environment for record in whole.records()} == {first["id"]}
    assert {record.command for record in whole.records()} == {first["command"]}


def test_a_record_describes_the_case_and_how_it_was_timed(whole: Ended) -> None:
    record = whole.record("second", "more")
    assert record.dims == {"rows": 2, "numbers": 16}
    assert (record.part, record.kind, record.cache, record.launch) == (
        "activation",
        "baseline-direct",
        "warm",
        "eager",
    )
    assert (record.touched_bytes, record.flops, record.count) == (128, 16, ROUNDS)
    assert record.effective == {"factor": "2"}
    assert record.method["clock"] == "perf-counter"
    assert record.method["alternated"] == "first, second, wrong, raising"
    assert (record.method["rounds"], record.method["time_cap_s"]) == (ROUNDS, 0.001)
    assert record.median_s is not None
    assert record.median_s > 2e-3  # what it sleeps


def test_implementations_take_turns_and_turn_around(whole: Ended) -> None:
    # Twelve rounds of each case, AB BA AB BA ..., after all calibration and before all checks.
    assert whole.calls().count("BABA") == whole.calls().count("ABAB") == 0
    assert re.findall(r"(?:ABBA){2,}", whole.calls()) == ["ABBA" * (ROUNDS // 2)] * 2


def test_the_first_point_of_a_case_measures_all_of_it(whole: Ended) -> None:
    order = [(record.case, record.implementation) for record in whole.records()]
    few = [name for case, name in order if case == "few" and name in ("first", "second")]
    more = [name for case, name in order if case == "more" and name in ("first", "second")]
    assert few == more == ["first", "second", "second"]  # the second's plan follows it
    assert max(at for at, (case, _) in enumerate(order) if case == "few") < min(
        at for at, (case, _) in enumerate(order) if case == "more"
    )


def test_json_and_records_hold_the_same_samples(whole: Ended, benchmarks: dict[str, Any]) -> None:
    samples = whole.samples()
    assert len(benchmarks["benchmarks"]) == 4
    for one in benchmarks["benchmarks"]:
        parameters, data = one["params"], one["stats"]["data"]
        record = whole.record(parameters["implementation"], parameters["case"])
        assert one["extra_info"]["record"] == record.id
        assert tuple(data) == samples[record.id]
        assert one["stats"]["median"] == record.median_s
        assert (one["stats"]["rounds"], one["stats"]["iterations"]) == (record.count, 1)


def test_json_speaks_in_groups_clocks_and_names(benchmarks: dict[str, Any]) -> None:
    assert {one["group"] for one in benchmarks["benchmarks"]} == {"doubling/few", "doubling/more"}
    one = benchmarks["benchmarks"][0]
    assert one["params"] == {"op": "doubling", "implementation": "first", "case": "few"}
    assert one["name"] == "test_kernel[doubling/first-few]"
    assert one["options"]["timer"] == "perf-counter"
    assert one["extra_info"]["status"] == "ok"
    assert one["extra_info"]["bytes_per_s"] > 0
    assert "plan_median_s" in benchmarks["benchmarks"][1]["extra_info"]


def test_json_does_not_name_the_host(benchmarks: dict[str, Any]) -> None:
    assert "node" not in benchmarks["machine_info"]
    assert benchmarks["machine_info"]["python_version"]


def test_the_last_line_says_where_the_records_are_and_what_to_do(whole: Ended) -> None:
    assert whole.status == 1  # a wrong kernel and one that raises
    assert whole.last_line.startswith(f"{whole.folder}/records.jsonl: ")
    assert whole.last_line.endswith(f"python -m reports.build {whole.folder}")
    assert "4 ok" in whole.last_line
    assert "2 failed" in whole.last_line


def test_when_all_are_skipped_the_run_is_fine_and_has_their_reasons(
    ended: dict[str, Ended],
) -> None:
    skipped = ended["skipped"]
    assert skipped.status == 0, skipped.said
    assert [(record.implementation, record.status) for record in skipped.records()] == [
        ("gpu", "skipped")
    ] * 3
    assert not (skipped.folder / "calls").exists()


def test_an_interrupt_ends_with_130_and_keeps_what_was_measured(ended: dict[str, Ended]) -> None:
    run = ended["interrupt"]
    assert run.status == 130, run.said
    assert "Traceback" not in run.said
    assert "interrupted; what was measured is kept" in run.said
    assert "B" not in run.calls()  # it was not selected
    kept = [record for record in run.records() if record.status == "ok"]
    # How the first case stopped (a narrow interval, or its time) is the machine's.
    assert {
        (one.implementation, one.case, one.method["stopped_by"] == "interrupted") for one in kept
    } == {
        ("first", "few", False),
        ("interrupted", "few", False),
        ("first", "more", True),
        ("interrupted", "more", True),
    }
    assert 1 <= kept[-1].method["rounds"] < ROUNDS  # type: ignore[operator]


def test_disabled_benchmarks_are_checked_once_and_leave_no_records(
    ended: dict[str, Ended],
) -> None:
    run = ended["disabled"]
    assert run.status == 1
    assert "2 failed, 2 passed, 2 skipped" in run.said
    assert run.calls() == "AB"
    assert not (run.folder / "records.jsonl").exists()
    assert run.last_line == "benchmarks are disabled: nothing was timed, no records were written"


def test_a_profile_of_played_samples_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "suites", "--benchmark-cprofile=cumtime"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "would profile the playing of samples and no kernel" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_wrong_expression_leaves_no_run(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    command = [sys.executable, "-m", "pytest", "suites"]
    command += ["--benchmark-only", "-k", "((", "--records", str(records)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 4
    assert not records.exists()
    assert str(records) not in done.stdout


def test_a_folder_for_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pytest.exit.Exception, match=r"is a folder; name a file in it") as ended:
        conftest._start(tmp_path)
    assert ended.value.returncode == 2


def test_a_place_that_cannot_be_written_ends_with_one_line() -> None:
    with pytest.raises(pytest.exit.Exception, match=r"^cannot write /proc/none: ") as ended:
        conftest._start(Path("/proc/none/records.jsonl"))
    assert ended.value.returncode == 1


def test_t_is_an_axis_with_1_always_in_it() -> None:
    for op in all_ops().values():
        by_others: dict[frozenset[tuple[str, Value]], set[Value]] = {}
        for case in op.cases:
            if case.tiny or "rows" not in case.dims or case.mode != "verify":
                continue
            others = frozenset(
                (name, value) for name, value in case.dims.items() if name not in ("rows", "tree")
            )
            by_others.setdefault(others, set()).add(case.dims["rows"])
        for others, rows in by_others.items():
            assert 1 in rows, f"{op.name}: no case of T = 1 beside T = {rows} at {sorted(others)}"


def test_the_first_case_of_each_op_comes_before_the_second_of_any() -> None:
    from suites._points import points, resolve

    cases = list(dict.fromkeys((one.op, one.case, resolve(one)[1].tiny) for one in points()))
    tiny = [is_tiny for *_, is_tiny in cases]
    assert tiny == sorted(tiny)
    rank: dict[str, int] = {}
    ranks = []
    for op, _, is_tiny in cases:
        if not is_tiny:
            rank[op] = rank.get(op, -1) + 1
            ranks.append(rank[op])
    assert ranks == sorted(ranks)
    assert len(rank) > 10
