"""A run that was ended goes on: what is there is not measured again, and nothing is lost."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from collectives import sweep
from collectives._sweep import journal, state
from collectives._sweep.combination import Combination
from collectives._sweep.journal import Journal, Lost, Opened, StressDone
from tests.sweep_jobs import EAGER, IN_A_ROW, a_spec, a_state, probed, some_points, timed
from verifyscope import cli
from verifyscope.errors import UsageError
from verifyscope.records import Measurement, Reader

ROOT = Path(__file__).resolve().parent.parent


def test_what_is_missing_of_a_start_is_what_its_journal_does_not_hold() -> None:
    spec = a_spec(points=some_points(sizes=(1024, 1024)))
    known = a_state(spec)
    assert known.to_probe(0)
    assert known.to_time(0, 0) == ()  # what was not probed is not timed
    known.take(probed(spec))
    assert not known.to_probe(0)
    both = (EAGER, IN_A_ROW)  # gloo has no graphs
    assert [(t.point, t.timings) for t in known.to_time(0, 0)] == [(p, both) for p in spec.points]
    known.take(timed(0, (1e-6,)))
    assert [t.timings for t in known.to_time(0, 0)] == [(IN_A_ROW,), both]
    for point in (0, 1):
        for timing in both:
            known.take(timed(point, (1e-6,), timing=timing))
    assert known.to_time(0, 0) == ()
    assert len(known.to_time(0, 1)) == 2
    assert not known.complete(0)


def test_only_points_that_the_probe_found_right_are_timed() -> None:
    spec = a_spec(points=some_points(sizes=(1024, 1024)))
    known = a_state(spec)
    known.take(replace_verdict(probed(spec), 0))
    assert [task.point for task in known.to_time(0, 0)] == [spec.points[1]]
    assert [row.status for row in known.rows(0)] == ["corrupt"] * 4 + ["unsupported"] * 2


def replace_verdict(event: journal.ProbeDone, point: int) -> journal.ProbeDone:
    import msgspec

    wrong = msgspec.structs.replace(event.verdicts[point], status="corrupt", reason="wrong")
    others = (known for known in event.verdicts if known.point != point)
    return msgspec.structs.replace(event, verdicts=(wrong, *others))


def test_a_lost_combination_is_not_started_again_and_its_whole_rows_stay() -> None:
    spec = a_spec(points=some_points(sizes=(1024, 1024)))
    known = a_state(spec)
    known.take(probed(spec))
    for start in range(3):
        known.take(timed(0, (1e-6,), start=start))
    known.take(timed(1, (1e-6,)))
    known.take(
        Lost(combination=0, start=1, status="hang", reason="rank 1 is behind", wall_s=9.0, point=1)
    )
    assert known.complete(0)
    assert known.to_time(0, 2) == ()
    rows = {(row.point.in_place, row.timing): row for row in known.rows(0)}
    assert rows[False, EAGER].status == "ok"
    assert (rows[True, EAGER].status, rows[True, EAGER].reason) == ("hang", "rank 1 is behind")
    assert rows[True, EAGER].samples == (1e-6,)


def test_points_that_took_less_time_than_a_smaller_size_are_measured_again_with_it() -> None:
    spec = a_spec(points=some_points(sizes=(1024, 8192)))
    known = a_state(spec)
    known.take(probed(spec))
    for start in range(3):
        for point, seconds in enumerate([10e-6, 10e-6, 20e-6, 11e-6, 12e-6, 12e-6, 13e-6, 13e-6]):
            known.take(timed(point, (seconds,) * 3, start=start))
    again = known.to_time_again(0)
    assert [(task.point.size_bytes, task.point.in_place) for task in again] == [
        (2048, False),
        (4096, False),
    ]
    assert {task.timings for task in again} == {(EAGER,)}
    flags = {p: row.flags for p in (2, 4) if (row := known.row(0, p, EAGER))}
    assert flags == {2: (), 4: ("non-monotone",)}
    # The second look finds that the smaller size is as fast as it should be.
    known.take(timed(2, (11e-6,) * 12, start=3))
    known.take(timed(4, (12e-6,) * 3, start=3))
    assert known.to_time_again(0) == ()
    flags = {p: row.flags for p in (2, 4) if (row := known.row(0, p, EAGER))}
    assert flags == {2: ("measured-again",), 4: ("measured-again",)}


def test_the_interval_of_a_row_holds_the_median_of_every_start() -> None:
    spec = a_spec(points=some_points(sizes=(1024, 1024)))
    known = a_state(spec)
    known.take(probed(spec))
    for start, seconds in enumerate((10e-6, 30e-6, 11e-6)):
        known.take(timed(0, (seconds,) * 20, start=start))
    row = known.row(0, 0, EAGER)
    assert row is not None
    assert row.summary is not None
    assert row.medians == (10e-6, 30e-6, 11e-6)
    assert (row.summary.median, row.summary.low, row.summary.high) == (11e-6, 10e-6, 30e-6)
    assert row.summary.count == 60


def test_an_unsafe_combination_is_stressed_once_before_it_is_timed() -> None:
    unsafe = Combination(backend="nccl", algorithm="ring", protocol="ll128", verdict="unsafe")
    spec = a_spec(combinations=(unsafe,), points=some_points(sizes=(1024, 1024)))
    known = a_state(spec)
    assert not known.to_stress(0)
    known.take(probed(spec))
    assert known.to_stress(0)
    assert not known.complete(0)
    right = a_state(spec)
    right.take(probed(spec))
    right.take(StressDone(combination=0, calls=10, sizes=2, wall_s=1.0))
    assert not right.to_stress(0)
    assert right.to_time(0, 0)
    known.take(StressDone(combination=0, calls=10, sizes=2, problem="3 left other", wall_s=1.0))
    assert known.to_time(0, 0) == ()
    assert {(row.status, row.reason) for row in known.rows(0)} == {("corrupt", "3 left other")}


def test_a_journal_is_read_as_it_was_written_without_an_incomplete_last_line(
    tmp_path: Path,
) -> None:
    spec = a_spec(
        combinations=(
            Combination(backend="nccl", gpu_order=(1, 0), launch=(("graph-mixing", "0"),)),
        )
    )
    written: list[journal.Event] = [
        Opened(run="abc", spec=spec),
        probed(spec, effective={"algorithm": "ring"}, proof="line 4"),
        timed(1, (1.25e-05, 0.1 + 0.2)),
        Lost(combination=0, start=None, status="error", reason="why", wall_s=0.5),
    ]
    place = tmp_path / "r.journal"
    kept = Journal(place)
    for event in written:
        kept.append(event)
    kept.close()
    assert journal.read(place) == written
    with place.open("ab") as file:
        file.write(b'{"event":"timed","combin')
    assert journal.read(place) == written
    assert state.from_events(written).timed[0, 1, EAGER][0].seconds == (1.25e-05, 0.1 + 0.2)
    # A second sweep in the same file is another sweep.
    kept = Journal(place.with_name("two.journal"))
    for event in (*written, Opened(run="def", spec=spec)):
        kept.append(event)
    kept.close()
    assert journal.read(place.with_name("two.journal")) == [Opened(run="def", spec=spec)]


def test_what_is_no_journal_is_refused_with_a_line(tmp_path: Path) -> None:
    place = tmp_path / "r.journal"
    place.write_text('{"event":"timed"}\n{"event":"opened"}\n')
    with pytest.raises(UsageError, match=r"r.journal:1: no event of a sweep .*: begin a new run"):
        journal.read(place)
    place.write_text("")
    with pytest.raises(UsageError, match="holds no sweep"):
        journal.read(place)


def run(folder: Path, *options: str, **environment: str) -> "subprocess.Popen[str]":
    (folder / "starts").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.injected_sweep", *options],
        cwd=ROOT,
        env={**os.environ, "SWEEP_STARTS": str(folder / "starts"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows_of(folder: Path) -> dict[str, list[Measurement]]:
    """Return the rows by id: a row that was recorded twice has two."""
    found: dict[str, list[Measurement]] = {}
    for known in Reader(folder / "r.jsonl"):
        if isinstance(known, Measurement) and known.op == "all_reduce":
            found.setdefault(known.id, []).append(known)
    return found


def until(process: "subprocess.Popen[str]", start: str, number: signal.Signals) -> None:
    """Read what the sweep says until a line begins so, and send a signal then."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            process.send_signal(number)
            break
    process.communicate(timeout=60)


def test_a_sweep_that_is_killed_and_interrupted_goes_on_and_measures_nothing_twice(
    tmp_path: Path,
) -> None:
    records = tmp_path / "r.jsonl"
    graph = tmp_path / "own" / "rings.xml"
    graph.parent.mkdir()
    graph.write_text('<graphs version="1"></graphs>')
    options = ("--gpus", "2", "--backend", "injected", "--min-bytes", "1K", "--max-bytes", "1K")
    axes = ("--algos", "ring", "--protos", "ll", "--graph-file", str(graph))
    until(run(tmp_path, *options, *axes, "--records", str(records)), "# start 1", signal.SIGKILL)
    graph.unlink()  # the run has its own
    assert rows_of(tmp_path) == {}

    interrupted = run(tmp_path, "--resume", str(records))
    until(interrupted, "# start 2", signal.SIGINT)
    assert interrupted.returncode == 130
    first = {known[0].id: known[0] for known in rows_of(tmp_path).values()}
    short = [row for row in first.values() if row.median_s is not None]
    assert short
    assert all("few-starts" in row.flags for row in short)

    resumed = run(tmp_path, "--resume", str(records), "--json", str(tmp_path / "t.json"))
    out, err = resumed.communicate(timeout=120)
    assert (resumed.returncode, err) == (0, f"records: {records}\n")
    assert re.findall(r"^# (?:probe|start 1)", out, re.M) == []
    events = journal.read(tmp_path / "r.journal")
    keys = [
        (e.combination, e.start, e.point, e.launch, e.depth)
        for e in events
        if isinstance(e, journal.RowTimed)
    ]
    assert len(keys) == len(set(keys))
    latest = {known[-1].id: known[-1] for known in rows_of(tmp_path).values()}
    assert set(first) <= set(latest)
    eager = [row for row in latest.values() if row.launch == "eager"]
    assert len(eager) == 3 * 2 * 2  # combinations, points, times
    for row in eager:
        assert (row.status, "few-starts" in row.flags) == ("ok", False)
        assert int(row.method["starts"]) >= 3
    graphs = [row.effective["NCCL_GRAPH_FILE"] for row in eager if "graph=" in row.implementation]
    assert graphs == ["rings.xml"] * (2 * 4)
    assert str(graph.parent) not in (tmp_path / "r.journal").read_text()
    assert len(json.loads((tmp_path / "t.json").read_text())["combinations"]) == 3


def test_resume_takes_everything_from_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run(sweep.application, sweep.PROGRAM, ["--resume", "runs/x", "--gpus", "4"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "python -m collectives.sweep: --gpus is that of the run; leave it out beside --resume\n"
    )


def test_a_run_is_resumed_with_as_many_ranks_as_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Journal(tmp_path / "records.journal")
    kept.append(Opened(run="abc", spec=replace(a_spec(), ranks=4, local_ranks=2)))
    kept.close()
    with pytest.raises(SystemExit) as ended:
        cli.run(sweep.application, sweep.PROGRAM, ["--resume", str(tmp_path)])
    assert ended.value.code == 2
    assert "the run has 4 ranks, 2 a machine; resume it with as many" in capsys.readouterr().err
