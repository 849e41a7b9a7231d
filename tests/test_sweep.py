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

from collectives._sweep import launch
from collectives._sweep.job import Job
from collectives._sweep.launch import ForkServer, Group, Integrity, Probed, RankFailed, Result
from collectives._sweep.messages import Gpus, Progress
from ingest import nccl_records
from ingest.log import Log, numbered_lines
from tests import faulty_collectives as faulty
from tests.sweep_jobs import EAGER, IN_A_ROW, a_job
from verifyscope.records import Environment, Measurement, Reader

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with launch.fork_server() as started:
        yield started


def measured(server: ForkServer, job: Job) -> tuple[Group, list[Result]]:
    found = list(launch.results(server, job))
    (group,) = (known for known in found if isinstance(known, Group))
    return group, [known for known in found if isinstance(known, Result)]


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


def test_ranks_reduce_every_value_right(server: ForkServer) -> None:
    job = a_job(ranks=3, timings=(EAGER, IN_A_ROW))
    group, results = measured(server, job)
    assert [rank.rank for rank in group.ranks] == [0, 1, 2]
    assert len({rank.pid for rank in group.ranks}) == 3
    assert group.seconds > 0
    assert [(known.point, known.timing) for known in results] == [
        (task.point, timing) for task in job.tasks for timing in (EAGER, IN_A_ROW)
    ]
    assert [known.wrong for known in results] == [0] * 8
    assert [len(known.samples) for known in results] == [3, 2] * 4
    assert all(0 < sum(known.samples) <= known.spent_s for known in results[::2])
    assert all(gone(rank.pid) for rank in group.ranks)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_dtype_sums_exactly_beyond_one_period_of_the_data(
    server: ForkServer, dtype: str
) -> None:
    # 2 MiB are more elements than one period of the data, so that they repeat inside a buffer.
    _, results = measured(server, a_job(ranks=3, dtype=dtype, sizes=(2**21, 2**21)))
    assert [known.wrong for known in results] == [0, 0]


def test_one_wrong_rank_is_counted_value_by_value(server: ForkServer) -> None:
    job = a_job(timings=(EAGER, IN_A_ROW), collective=faulty.CORRUPT)
    _, results = measured(server, job)
    # One of warm-up and three timed; in a row one of warm-up and two timed, of four calls each.
    calls = [4, 12] * 4
    assert [known.wrong for known in results] == [faulty.WRONG_ELEMENTS * n for n in calls]


def test_an_output_that_nothing_was_written_to_is_wrong_throughout(server: ForkServer) -> None:
    job = a_job(sizes=(2048, 2048), collective=faulty.STALE)
    _, (out_of_place, in_place) = measured(server, job)
    assert out_of_place.wrong == 2 * 4 * 1024  # ranks, calls, elements
    # In place the output holds the rank's own data, right only where the other rank has a 0.
    assert (in_place.wrong or 0) > 0.95 * 2 * 4 * 1024


def test_in_place_sums_of_sums_are_not_called_right(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 32 MiB leave room for two buffers, which four calls in a row then share.
    job = a_job(sizes=(2**25, 2**25), timings=(IN_A_ROW,), iterations=1, batches=1, warmup=0)
    _, (out_of_place, in_place) = measured(server, job)
    assert (out_of_place.wrong, in_place.wrong) == (0, None)


def test_a_probe_checks_each_point_and_times_nothing(server: ForkServer) -> None:
    job = a_job(purpose="probe", collective=faulty.CORRUPT)
    found = [known for known in launch.results(server, job) if isinstance(known, Probed)]
    assert [known.point for known in found] == [task.point for task in job.tasks]
    assert [(known.launch, known.wrong) for known in found] == [
        ("eager", 2 * faulty.WRONG_ELEMENTS)
    ] * 4


def test_the_integrity_stress_finds_one_wrong_bit(server: ForkServer) -> None:
    job = a_job(purpose="stress", sizes=(64, 256), stress_calls=4)
    found = [known for known in launch.results(server, job) if isinstance(known, Integrity)]
    assert [known.size_bytes for known in found] == [8, 14, 16, 26, 32, 50, 64, 98, 128, 194, 256]
    assert {(known.calls, known.differing, known.off) for known in found} == {(4, 0, 0)}
    wrong = replace(job, collective=faulty.LAST_BIT)
    found = [known for known in launch.results(server, wrong) if isinstance(known, Integrity)]
    assert {known.differing for known in found} == {4}


def test_a_rank_that_raises_is_named_with_its_error(server: ForkServer) -> None:
    group, failed = lost(server, a_job(ranks=3, collective=faulty.RAISING))
    assert failed.kind == "error"
    assert re.fullmatch(r"rank 1 \(pid \d+\) raised ValueError: no such link", failed.reason)
    assert all(gone(rank.pid) for rank in group.ranks)


def test_a_stopped_rank_ends_the_job_within_the_time_out(server: ForkServer) -> None:
    job = a_job(ranks=3, iterations=100_000, timeout_s=3)
    stopped_s: list[float] = []

    def stop(group: Group) -> None:
        os.kill(group.ranks[2].pid, signal.SIGSTOP)
        stopped_s.append(time.monotonic())

    group, failed = lost(server, job, stop)
    assert time.monotonic() - stopped_s[0] < 3 + 5  # and what a busy machine takes to kill three
    assert failed.kind == "hang"
    assert re.match(r"rank 2 \(pid \d+\) is stopped .* for 3 s", failed.reason)
    assert all(gone(rank.pid) for rank in group.ranks)


def test_what_a_rank_has_started_ends_with_it(server: ForkServer, tmp_path: Path) -> None:
    child = tmp_path / "child"
    job = a_job(collective=faulty.parent_of(child), timeout_s=2)
    _, failed = lost(server, job)
    assert failed.kind == "hang"
    assert failed.reason == (
        "no rank is behind, all of 0 to 1 are in all_reduce call 1; no progress for 2 s (--timeout)"
    )
    pid = int(child.read_text())
    until_s = time.monotonic() + 10
    while not gone(pid) and time.monotonic() < until_s:  # init has to reap it
        time.sleep(0.05)
    assert gone(pid)


def test_a_job_after_a_lost_one_finds_a_fresh_group(server: ForkServer) -> None:
    lost(server, a_job(collective=faulty.RAISING))
    _, results = measured(server, a_job())
    assert [known.wrong for known in results] == [0] * 4


def test_a_job_after_a_killed_fork_server_finds_a_new_one(server: ForkServer) -> None:
    first = server.process.pid
    server.process.kill()
    server.process.wait()
    _, results = measured(server, a_job())
    assert server.process.pid != first
    assert [known.wrong for known in results] == [0] * 4


def test_the_fork_server_counts_gpus_without_touching_them_itself(server: ForkServer) -> None:
    found = server.count_gpus()
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
    options = ["--algos", "default", "--min-bytes", "8", "--max-bytes", "1M"]
    done = subprocess.run(
        [*command, *options, "--records", str(records)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, f"records: {records}\n")
    rows = [r for r in Reader(records) if isinstance(r, Measurement) and r.op == "all_reduce"]
    assert len(rows) == 4 * 2 * 18
    assert {row.status for row in rows} == {"ok"}
    assert {(row.launch, row.depth) for row in rows} == {
        ("eager", 1),
        ("eager", 122),
        ("graph", 1),
        ("graph", 122),
    }
    assert list(tmp_path.glob("probe/*/rank-0.nccl.log"))


def start(folder: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "collectives.sweep", "--backend", "gloo", *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_whole_sweep_is_read_back_and_recorded(tmp_path: Path) -> None:
    records, table = tmp_path / "out" / "r.jsonl", tmp_path / "out" / "t.json"
    options = ("--gpus", "4", "--model", "kimi-k2.5", "--tokens", "1,4", "--iterations", "5")
    few = ("--depth", "2", "--batches", "1", "--warmup", "1")
    process = start(tmp_path, *options, *few, "--records", str(records), "--json", str(table))
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, f"records: {records}\n")
    assert list(tmp_path.glob("verifyscope-*")) == []

    environment, *own = list(Reader(records))
    assert isinstance(environment, Environment)
    rows = [known for known in own if isinstance(known, Measurement) and known.op == "all_reduce"]
    times = {known.case: known for known in rows if (known.launch, known.depth) == ("eager", 1)}
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
    assert (known.touched_bytes, known.method["out_of_place"] if "out" in known.case else None) == (
        None,
        None,
    )
    starts = int(known.method["starts"])
    assert known.count == 5 * starts
    samples = {
        line.id: line.seconds for line in Reader(records.with_name("samples.jsonl")).samples()
    }
    ordered = sorted(samples[known.id])
    assert ordered[0] <= (known.low_s or 0) <= (known.median_s or 0) <= (known.high_s or 0)
    assert len(ordered) == known.count

    log = Log(
        file="sweep.txt", lines=numbered_lines(BytesIO(out.encode())), environment="e", command="c"
    )
    back = [read for read in nccl_records.read(log) if isinstance(read, Measurement)]
    assert [read.case for read in back] == list(times)
    for read in back:
        assert read.implementation == "gloo"
        assert read.median_s == pytest.approx(times[read.case].median_s, rel=1e-3)
    written = json.loads(table.read_text())
    four_times_or_the_reason_why_not([row for row in rows if row.case == known.case])
    start_and_share([row for row in own if isinstance(row, Measurement) and row.part == "host"])
    assert [row["size"] for row in written["results"]] == [14336, 57344]
    assert written["results"][1]["in_place"]["time"] == pytest.approx((known.median_s or 0) * 1e6)


def four_times_or_the_reason_why_not(rows: list[Measurement]) -> None:
    assert [(row.launch, row.depth, row.status, row.reason) for row in rows] == [
        ("eager", 1, "ok", None),
        ("eager", 2, "ok", None),
        ("graph", 1, "unsupported", "gloo has no CUDA graph"),
        ("graph", 2, "unsupported", "gloo has no CUDA graph"),
    ]


def start_and_share(rows: list[Measurement]) -> None:
    assert [(row.op, row.case) for row in rows] == [
        ("process_start", "imports"),
        ("process_start", "process-start"),
        ("sweep", "measuring"),
    ]
    assert rows[1].count in (4, 5)  # the probe, three starts, and one for what looked odd
    whole = rows[2].method
    rest_s = float(whole["wall_s"]) - float(whole["process_start_s"])
    assert 0 < float(whole["samples_s"]) <= rest_s


@pytest.mark.parametrize("way", ["killed", "interrupted"])
def test_what_was_measured_before_the_end_is_kept(tmp_path: Path, way: str) -> None:
    records = tmp_path / "r.jsonl"
    options = ("--ranks", "3", "--min-bytes", "8K", "--max-bytes", "16K", "--iterations", "400")
    process = start(tmp_path, *options, "--records", str(records), "--timeout", "30")
    stuck = threading.Timer(120, process.kill)
    stuck.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("# start 1 of 3"):
            break
    ranks = ranks_of(process.pid)
    if way == "killed":
        os.kill(max(ranks), signal.SIGKILL)
    else:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    stuck.cancel()
    rows = [r for r in Reader(records) if isinstance(r, Measurement) and r.op == "all_reduce"]
    eager = [row for row in rows if (row.launch, row.depth) == ("eager", 1)]
    assert [row.case for row in eager] == [
        "8192B-bfloat16-out-of-place",
        "8192B-bfloat16-in-place",
        "16384B-bfloat16-out-of-place",
        "16384B-bfloat16-in-place",
    ]
    assert all(gone(pid) for pid in ranks)
    assert list(tmp_path.glob("verifyscope-*")) == []
    assert "Traceback" not in err
    if way == "interrupted":
        assert process.returncode == 130
        assert {row.status for row in eager} == {"ok"}
        assert all("few-starts" in row.flags for row in eager)
        return
    assert process.returncode == 1
    assert {row.status for row in eager} == {"error"}
    (reason,) = {row.reason for row in eager}
    assert re.fullmatch(
        r"rank \d \(pid \d+\) was ended by SIGKILL; at \d+B-\S+ in start 2 of 3", reason or ""
    )
    assert f"gloo: error: {reason}" in out
    assert f"gloo: error: {reason}; what was measured is kept" in err


def ranks_of(sweep: int) -> list[int]:
    """Return the ranks that are there once the next start has begun: children of the server."""
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        (server,) = children(sweep)
        if len(found := children(server)) == 3:
            return found
        time.sleep(0.02)
    pytest.fail("no ranks were started")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
