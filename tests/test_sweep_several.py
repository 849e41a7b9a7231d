"""Several collectives in one run: each swept whole, recorded, resumed, and told apart."""

import os
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest

from collectives import sweep
from collectives._sweep import journal
from ingest import nccl_records, nccl_tests
from ingest.log import numbered_lines
from verifyscope import cli
from verifyscope.records import Measurement, Reader

ROOT = Path(__file__).resolve().parent.parent
OPS = ("reduce_scatter", "all_gather", "all_to_all")
SIZES = ("--gpus", "2", "--min-bytes", "1K", "--max-bytes", "2K", "--protos", "ll")


def started(folder: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.injected_sweep", *options],
        cwd=ROOT,
        env={**os.environ, "SWEEP_FAULTS": "tree/ll=ignored"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows_of(records: Path) -> list[Measurement]:
    return [row for row in Reader(records) if isinstance(row, Measurement)]


def test_a_run_of_several_collectives_goes_on_with_those_that_are_missing(tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    options = ("--backend", "injected", *SIZES, "--op", ",".join(OPS))
    process = started(tmp_path, *options, "--algos", "ring", "--records", str(records))
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("# start 2 of 3") and any("reduce_scatter, in place" in s for s in said):
            process.send_signal(signal.SIGINT)
            break
    process.communicate()
    assert process.returncode == 130
    assert [len(events) > 3 for events in journal.sweeps(tmp_path / "r.journal")] == [True] * 2

    resumed = started(tmp_path, "--resume", str(records))
    out, err = resumed.communicate(timeout=120)
    assert (resumed.returncode, err) == (0, f"records: {records}\n")
    begun = journal.sweeps(tmp_path / "r.journal")
    opened = [events[0] for events in begun]
    assert [event.spec.op for event in opened if isinstance(event, journal.Opened)] == [*OPS]
    assert len({event.run for event in opened if isinstance(event, journal.Opened)}) == 1

    latest = {row.id: row for row in rows_of(records)}
    for op in OPS:
        rows = [row for row in latest.values() if row.op == op and row.launch == "eager"]
        directions = {False} if op == "all_to_all" else {False, True}
        assert {row.dims["in_place"] for row in rows} == directions
        assert {row.part for row in rows} == {op}
        # An all-to-all has nothing to choose: ring/ll is only listed there.
        names = {"injected"} if op == "all_to_all" else {"injected", "injected ring/ll"}
        assert {row.implementation for row in rows} == names
        assert {(row.status, row.ranks) for row in rows} == {("ok", 2)}
        assert len(rows) == 2 * len(directions) * 2 * len(names)
        starts = [row for row in latest.values() if row.op == "process_start"]
        assert {"injected"} <= {r.implementation for r in starts if r.dims["collective"] == op}
    tables = list(nccl_tests.tables(numbered_lines(BytesIO(out.encode()))))
    assert {nccl_records.collective(table) for table in tables} == {*OPS}
    assert {(row.size_bytes, row.elements) for table in tables for row in table.rows} == {
        (1024, 256),  # of each rank's part
        (2048, 512),
    }
    lines = [line for line in out.splitlines() if line.startswith("# ") and ", us a call" in line]
    assert [line.split(", us")[0] for line in lines] == [
        "# reduce_scatter, in place",
        "# all_gather, in place",
        "# all_to_all, out of place",
    ]


def test_a_problem_of_one_collective_ends_the_run_with_1_and_its_name(tmp_path: Path) -> None:
    options = ("--backend", "injected", *SIZES, "--op", "all_to_all,all_reduce")
    process = started(tmp_path, *options, "--algos", "tree", "--records", str(tmp_path / "r.jsonl"))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    last = err.splitlines()[-1]
    assert ": all_reduce: injected tree/ll: ignored: asked for tree/ll, NCCL took ring/sim" in last
    assert "all_to_all" not in last


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.run(sweep.application, sweep.PROGRAM, arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_is_no_collective_or_no_single_one_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "unknown collective 'scatter'; known: all_gather, all_reduce, all_to_all, reduce_sc" in (
        refused(capsys, "--op", "scatter")
    )
    both = ("--op", "all_gather,all_reduce", "--backend", "gloo")
    json = tmp_path / "t.json"
    assert refused(capsys, *both, "--json", str(json)).endswith("for one collective; give one --op")
    assert not json.exists()
    small = ("--backend", "gloo", "--gpus", "8", "--max-bytes", "64")
    assert "no size holds a part for each rank, 128 B for all" in (
        refused(capsys, "--op", "all_gather", *small)
    )


def test_float8_of_many_ranks_is_refused_for_sums_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    many = ("--dtype", "float8_e5m2", "--gpus", "64", "--plan")
    assert "sums of float8_e5m2 over 64 ranks cannot" in (
        refused(capsys, "--op", "reduce_scatter", *many)
    )
    with pytest.raises(SystemExit) as ended:
        cli.run(sweep.application, sweep.PROGRAM, ["--op", "all_gather,all_to_all", *many])
    assert ended.value.code == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert {row[0] for row in rows} == {"all_gather", "all_to_all"}
    assert [row[1] for row in rows if row[0] == "all_to_all"] == ["nccl"]
