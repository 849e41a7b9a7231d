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

from suites import conftest
from verifyscope.records import Measurement, Reader
from verifyscope.records import read as read_records

ROOT = Path(__file__).resolve().parent.parent
# The cap has passed when the least rounds are done, so there are as many as that.
ROUNDS = 12
QUICK = ("--benchmark-max-time=0.001", f"--benchmark-min-rounds={ROUNDS}")


class Ended:
    """A run of the suites that has ended: what it said, and what it left."""

    def __init__(self, folder: Path, done: "subprocess.CompletedProcess[str]") -> None:
        self.folder, self.status, self.said = folder, done.returncode, done.stdout + done.stderr
        self.last_line = done.stdout.splitlines()[-1] if done.stdout else ""

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


def suites(folder: Path, *arguments: str, records: bool = True, **environ: str) -> Ended:
    # What the tests' own pytest has set must not reach the one that is tested.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TRITON_"))}
    command = [sys.executable, "-m", "pytest", "-p", "tests.timed_ops._plugin", "suites"]
    command += ["-p", "no:cacheprovider", *QUICK]
    command += ["--records", str(folder / "records.jsonl")] if records else []
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=clean | {"DOUBLING_LOG": str(folder / "calls")} | environ,
        capture_output=True,
        text=True,
    )
    return Ended(folder, done)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("whole")
    return suites(folder, "--benchmark-only", "--benchmark-json", str(folder / "benchmark.json"))


@pytest.fixture(scope="module")
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
    assert all("suites" in record.command for record in whole.records())


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
    assert (record.method["rounds"], record.method["time_cap_s"]) == (ROUNDS, 0.004)
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


def test_only_what_is_selected_is_measured(tmp_path: Path) -> None:
    ended = suites(tmp_path, "--benchmark-only", "-k", "second and few or gpu")
    assert ended.status == 0, ended.said
    assert "A" not in ended.calls()
    assert {(record.implementation, record.case) for record in ended.records()} == {
        ("second", "few"),
        *(("gpu", case) for case in ("few", "more", "huge")),
    }


def test_when_all_are_skipped_the_run_is_fine_and_has_their_reasons(tmp_path: Path) -> None:
    # pytest-benchmark warns that it saves nothing, and here warnings are errors.
    json_file = ("--benchmark-json", str(tmp_path / "none.json"))
    ended = suites(tmp_path, "--benchmark-only", "-k", "gpu", *json_file)
    assert ended.status == 0, ended.said
    assert {record.status for record in ended.records()} == {"skipped"}


def test_an_interrupt_ends_with_130_and_keeps_what_was_measured(tmp_path: Path) -> None:
    selected = ("-k", "interrupted or first")
    ended = suites(tmp_path, "--benchmark-only", *selected, DOUBLING_INTERRUPT="38")
    assert ended.status == 130, ended.said
    assert "Traceback" not in ended.said
    kept = [record for record in ended.records() if record.status == "ok"]
    assert {(one.implementation, one.case, one.method["stopped_by"]) for one in kept} == {
        ("first", "few", "time_cap"),
        ("interrupted", "few", "time_cap"),
        ("first", "more", "interrupted"),
        ("interrupted", "more", "interrupted"),
    }
    assert 1 <= kept[-1].method["rounds"] < ROUNDS  # type: ignore[operator]


def test_disabled_benchmarks_are_checked_once_and_leave_no_records(tmp_path: Path) -> None:
    ended = suites(tmp_path, "--benchmark-disable", "-k", "few")
    assert ended.status == 1
    assert "2 failed, 2 passed, 2 skipped" in ended.said
    assert ended.calls() == "AB"
    assert not (tmp_path / "records.jsonl").exists()
    assert ended.last_line == "benchmarks are disabled: nothing was timed, no records were written"


def test_a_folder_for_records_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    ended = suites(tmp_path, "--benchmark-only", "--records", str(tmp_path), records=False)
    assert ended.status == 2
    assert f"{tmp_path} is a folder; name a file in it" in ended.said
    assert "Traceback" not in ended.said
    assert not (tmp_path / "calls").exists()


def test_a_profile_of_played_samples_is_refused(tmp_path: Path) -> None:
    ended = suites(tmp_path, "--benchmark-only", "--benchmark-cprofile=cumtime")
    assert ended.status == 2
    assert "would profile the playing of samples and no kernel" in ended.said
    assert not (tmp_path / "records.jsonl").exists()


def test_a_place_that_cannot_be_written_ends_with_one_line() -> None:
    with pytest.raises(pytest.exit.Exception, match=r"^cannot write /proc/none: ") as ended:
        conftest._start(Path("/proc/none/records.jsonl"))
    assert ended.value.returncode == 1
