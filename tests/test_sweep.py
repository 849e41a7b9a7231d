"""Real ranks over gloo: what they measure is right, and none is left when one goes wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pynvml
import pytest

from collectives._sweep import launch, outcome, plan
from collectives._sweep.launch import ForkServer, Group, RankFailed, Result
from collectives._sweep.messages import Gpus, Progress
from collectives._sweep.plan import Job
from collectives._sweep.screen import Screen
from collectives.all_reduce import ALL_REDUCE
from ingest import nccl_records
from ingest.log import Log, numbered_lines
from tests import faulty_collectives as faulty
from verifyscope import runs
from verifyscope.records import Environment, Measurement, Reader

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with launch.fork_server() as started:
        yield started


def a_job(*, ranks: int = 2, dtype: str = "bfloat16", sizes: tuple[int, int] = (1024, 2048)) -> Job:
    points = plan.points(
        backend="gloo",
        dtype=dtype,
        model=None,
        tokens=None,
        min_bytes=sizes[0],
        max_bytes=sizes[1],
    )
    return Job(
        collective=ALL_REDUCE,
        backend="gloo",
        ranks=ranks,
        dtype=dtype,
        points=points,
        iterations=3,
        warmup=1,
        timeout_s=60,
    )


def measured(server: ForkServer, job: Job) -> tuple[Group, list[Result]]:
    messages = [m for m in launch.results(server, job) if not isinstance(m, Progress)]
    group, *results = messages
    assert isinstance(group, Group)
    return group, [known for known in results if isinstance(known, Result)]


def lost(
    server: ForkServer, job: Job, after_a_call: Callable[[Group], None] = lambda group: None
) -> tuple[Group, RankFailed]:
    group = None
    try:
        for message in launch.results(server, job):
            if isinstance(message, Group):
                group = message
            elif group is not None and isinstance(message, Progress) and message.calls:
                after_a_call(group)
    except RankFailed as failed:
        assert group is not None
        return group, failed
    pytest.fail("no rank was lost")


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_eight_ranks_reduce_every_value_right(server: ForkServer) -> None:
    job = a_job(ranks=8)
    group, results = measured(server, job)
    assert [rank.rank for rank in group.ranks] == list(range(8))
    assert len({rank.pid for rank in group.ranks}) == 8
    assert [known.point for known in results] == list(job.points)
    assert [known.wrong for known in results] == [0] * 4
    assert all(len(known.samples) == 3 and min(known.samples) > 0 for known in results)
    assert all(gone(rank.pid) for rank in group.ranks)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_dtype_sums_exactly_beyond_one_period_of_the_data(
    server: ForkServer, dtype: str
) -> None:
    # 2 MiB are more elements than one period of the data, so that they repeat inside a buffer.
    _, results = measured(server, a_job(ranks=3, dtype=dtype, sizes=(2**21, 2**21)))
    assert [known.wrong for known in results] == [0, 0]


def test_one_wrong_rank_is_counted_value_by_value(server: ForkServer) -> None:
    _, results = measured(server, replace(a_job(), collective=faulty.CORRUPT))
    calls = 4  # one of warm-up, three timed
    assert [known.wrong for known in results] == [faulty.WRONG_ELEMENTS * calls] * 4


def test_an_output_that_nothing_was_written_to_is_wrong_throughout(server: ForkServer) -> None:
    job = replace(a_job(sizes=(2048, 2048)), collective=faulty.STALE)
    _, (out_of_place, in_place) = measured(server, job)
    assert out_of_place.wrong == 2 * 4 * 1024  # ranks, calls, elements
    # In place the output holds the rank's own data, right only where the other rank has a 0.
    assert in_place.wrong > 0.95 * out_of_place.wrong


def test_wrong_values_withhold_the_time_everywhere(
    server: ForkServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = replace(a_job(sizes=(1024, 1024)), collective=faulty.CORRUPT)
    with runs.start(tmp_path / "r.jsonl", "sweep") as run:
        found = outcome.Outcome(job, run, Screen(None, None))
        for message in launch.results(server, job):
            found.take(message)
        found.end(None)
    assert found.problem is not None
    assert "values are wrong at 1024B-bfloat16-out-of-place, 1024B-bfloat16-in-place" in (
        found.problem
    )
    records = [known for known in Reader(run.path) if isinstance(known, Measurement)]
    assert [(known.status, known.median_s) for known in records] == [("corrupt", None)] * 2
    assert records[0].reason == "12 of 4096 values are wrong; the time is withheld"
    assert not (tmp_path / "samples.jsonl").exists()
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if not line.startswith("#")).split()
    assert row[5:] == ["N/A", "N/A", "N/A", "12", "N/A", "N/A", "N/A", "12"]
    assert "# Out of bounds values : 24 FAILED" in printed
    assert json.loads(found.json())["results"][0]["in_place"]["time"] is None


def test_a_rank_that_raises_is_named_with_its_error(server: ForkServer) -> None:
    group, failed = lost(server, replace(a_job(ranks=3), collective=faulty.RAISING))
    assert failed.kind == "error"
    assert re.fullmatch(r"rank 1 \(pid \d+\) raised ValueError: no such link", failed.reason)
    assert all(gone(rank.pid) for rank in group.ranks)


def test_a_stopped_rank_ends_the_job_within_the_time_out(server: ForkServer) -> None:
    job = replace(a_job(ranks=3), iterations=100_000, timeout_s=3)
    stopped_s: list[float] = []

    def stop(group: Group) -> None:
        os.kill(group.ranks[2].pid, signal.SIGSTOP)
        stopped_s.append(time.monotonic())

    group, failed = lost(server, job, stop)
    assert time.monotonic() - stopped_s[0] < 3 + 5  # and what a busy machine takes to kill three
    assert failed.kind == "hang"
    assert re.match(r"rank 2 \(pid \d+\) is stopped .* for 3 s", failed.reason)
    assert all(gone(rank.pid) for rank in group.ranks)


def test_a_rank_that_sleeps_is_a_hang_too(server: ForkServer) -> None:
    job = replace(a_job(), collective=faulty.SLEEPING, timeout_s=2)
    _, failed = lost(server, job)
    assert failed.kind == "hang"
    assert failed.reason == (
        "no rank is behind, all of 0 to 1 are in all_reduce call 1; no progress for 2 s (--timeout)"
    )


def test_a_job_after_a_lost_one_finds_a_fresh_group(server: ForkServer) -> None:
    lost(server, replace(a_job(), collective=faulty.RAISING))
    _, results = measured(server, a_job())
    assert [known.wrong for known in results] == [0] * 4


def test_the_fork_server_counts_gpus_without_touching_them_itself(server: ForkServer) -> None:
    found = launch.count_gpus(server)
    assert isinstance(found, Gpus)
    assert found.count > 0 or found.reason is None or "built without" in found.reason


# The command, in its own process.


def gpus() -> int:
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0


@pytest.mark.gpu
@pytest.mark.skipif(not gpus(), reason="no NVIDIA GPU")
def test_nccl_reduces_every_value_right_over_all_gpus(tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    command = [sys.executable, "-m", "collectives.sweep", "--gpus", str(gpus())]
    options = ["--min-bytes", "8", "--max-bytes", "1M", "--records", str(records)]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, f"records: {records}\n")
    known = [record for record in Reader(records) if isinstance(record, Measurement)]
    assert len(known) == 2 * 18
    assert {record.status for record in known} == {"ok"}
    assert {record.launch for record in known} == {"eager"}


def start(folder: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "collectives.sweep", "--backend", "gloo", *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until_first_row(process: "subprocess.Popen[str]") -> tuple[list[str], dict[int, int]]:
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if not line.startswith("#"):
            break
    found = re.findall(r"Rank +(\d+) .* Pid +(\d+) on +node ", "".join(lines))
    return lines, {int(rank): int(pid) for rank, pid in found}


def test_a_whole_sweep_is_read_back_and_recorded(tmp_path: Path) -> None:
    records, table = tmp_path / "out" / "r.jsonl", tmp_path / "out" / "t.json"
    options = ("--gpus", "4", "--model", "kimi-k2.5", "--tokens", "1,4", "--iterations", "5")
    process = start(tmp_path, *options, "--records", str(records), "--json", str(table))
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, f"records: {records}\n")
    assert list(tmp_path.glob("verifyscope-*")) == []

    environment, *own = list(Reader(records))
    assert isinstance(environment, Environment)
    times = {known.case: known for known in own if isinstance(known, Measurement)}
    assert list(times) == [
        "14336B-bfloat16-out-of-place",
        "14336B-bfloat16-in-place",
        "57344B-bfloat16-out-of-place",
        "57344B-bfloat16-in-place",
    ]
    known = times["57344B-bfloat16-in-place"]
    assert known.dims == {
        "bytes": 57344,
        "elements": 28672,
        "dtype": "bfloat16",
        "in_place": True,
        "redop": "sum",
        "tokens": 4,
        "model": "kimi-k2.5",
    }
    assert (known.part, known.implementation, known.ranks) == ("all_reduce", "gloo", 4)
    assert known.environment == environment.id
    assert (known.count, known.touched_bytes) == (5, None)
    samples = {
        line.id: line.seconds for line in Reader(records.with_name("samples.jsonl")).samples()
    }
    assert sorted(samples[known.id])[2] == known.median_s

    log = Log(
        file="sweep.txt",
        lines=numbered_lines(BytesIO(out.encode())),
        environment="e",
        command="c",
    )
    back = [read for read in nccl_records.read(log) if isinstance(read, Measurement)]
    assert [read.case for read in back] == list(times)
    for read in back:
        assert read.implementation == "gloo"
        assert read.median_s == pytest.approx(times[read.case].median_s, rel=1e-3)
    written = json.loads(table.read_text())
    assert [row["size"] for row in written["results"]] == [14336, 57344]
    assert written["results"][1]["in_place"]["time"] == pytest.approx((known.median_s or 0) * 1e6)


@pytest.mark.parametrize("way", ["killed", "interrupted"])
def test_what_was_measured_before_the_end_is_kept(tmp_path: Path, way: str) -> None:
    records = tmp_path / "r.jsonl"
    options = ("--ranks", "3", "--max-bytes", "64K", "--iterations", "20")
    process = start(tmp_path, *options, "--records", str(records), "--timeout", "30")
    stuck = threading.Timer(120, process.kill)
    stuck.start()
    lines, pids = read_until_first_row(process)
    assert lines[-1].split()[0] == "8192"
    if way == "killed":
        os.kill(pids[2], signal.SIGKILL)
    else:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    stuck.cancel()
    known = [record for record in Reader(records) if isinstance(record, Measurement)]
    assert [record.case for record in known[:2]] == [
        "8192B-bfloat16-out-of-place",
        "8192B-bfloat16-in-place",
    ]
    assert {record.status for record in known[:-1]} == {"ok"}
    assert all(gone(pid) for pid in pids.values())
    assert list(tmp_path.glob("verifyscope-*")) == []
    assert "Traceback" not in err
    if way == "interrupted":
        assert process.returncode == 130
        return
    assert process.returncode == 1
    assert known[-1].status == "error"
    reason = f"rank 2 (pid {pids[2]}) was ended by SIGKILL"
    assert known[-1].reason == reason
    assert f"# Test failure: {reason}; at {known[-1].case}" in out
    assert f"{reason}; at {known[-1].case}; {len(known) - 1} of 8 points were measured" in err
