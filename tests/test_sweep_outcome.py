"""What a sweep leaves at its end: records with stable ids, findings, a tuner's file, the totals."""

from pathlib import Path

import msgspec
import pytest

from collectives._sweep import backend
from collectives._sweep.combination import Combination
from collectives._sweep.job import Timing
from collectives._sweep.journal import Imported, ProbeDone, StartDone
from collectives._sweep.outcome import Outcome, conclude
from collectives._sweep.records import Recorder
from collectives._sweep.screen import Screen
from collectives._sweep.spec import Spec
from collectives._sweep.state import State
from collectives._sweep.table import Table
from collectives.operations.all_reduce import ALL_REDUCE
from tests.sweep_jobs import a_spec, a_state, probed, some_points, timed
from verifyscope import runs
from verifyscope.records import Finding, Measurement, Reader

RING = Combination(backend="nccl", algorithm="ring", protocol="ll")
LISTED = Combination(backend="nccl", algorithm="nvls", verdict="unsupported", reason="no switch")
SPEC = a_spec(
    backend="nccl",
    ranks=8,
    local_ranks=8,
    depth=122,
    combinations=(Combination(backend="nccl"), RING, LISTED),
    points=some_points(sizes=(8192, 65536), model="kimi-k2.5"),
)


def probe(at: int, algorithm: str, protocol: str) -> ProbeDone:
    effective = {"algorithm": algorithm, "protocol": protocol, "channels": "4"}
    known = probed(SPEC, at, library="2.29.7", effective=effective, proof="line 7")
    return msgspec.structs.replace(known, no_graph=None)


def whole(us: tuple[float, float] = (50.0, 25.0)) -> State:
    """Return a sweep in which the default takes `us[0]` a call and ring/ll `us[1]`."""
    state = a_state(SPEC)
    state.take(Imported(seconds=4.0))
    for at, taken in enumerate(us):
        state.take(probe(at, *(("ring", "simple"), ("ring", "ll"))[at]))
        for start in range(3):
            for point, known in enumerate(SPEC.points):
                for timing in SPEC.timings:
                    seconds = tuple(
                        (taken + known.size_bytes / 1e4) * 1e-6 * (1 + 0.001 * n) for n in range(9)
                    )
                    state.take(timed(point, seconds, at=at, start=start, timing=timing))
            state.take(StartDone(combination=at, start=start, join_s=2.0, wall_s=9.0))
    return state


def outcome(state: State, records: Path, spec: Spec = SPEC) -> tuple[Outcome, runs.Run]:
    run = runs.start(records, "sweep")
    known = {record.id: record for record in Reader(records) if isinstance(record, Measurement)}
    made = Outcome(
        state,
        run=run,
        screen=Screen(None, None),
        table=Table(spec, backend=backend.NCCL, collective=ALL_REDUCE),
        recorder=Recorder(
            state, backend=backend.NCCL, collective=ALL_REDUCE, environment=run.environment
        ),
        known=known,
    )
    return made, run


def finish(state: State, records: Path) -> Outcome:
    made, run = outcome(state, records)
    with run:
        made.finish(wall_s=100.0, starts_s=20.0, samples_s=60.0)
        conclude([made])
    return made


def test_a_better_combination_is_said_exported_and_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(whole(), tmp_path / "r.jsonl")
    out = capsys.readouterr().out
    assert "#   8192 to 65536 B: nccl ring/ll, " in out
    assert "export NCCL_PROTO=LL" in out
    assert "# for NCCL_TUNER_CONFIG_FILE of its example plugin: tuner.csv" in out
    (finding,) = (r for r in Reader(tmp_path / "r.jsonl") if isinstance(r, Finding))
    assert finding.name == "best-combination"
    # 122 calls of 57,344 B that take 25 us less each.
    assert finding.worth_s == pytest.approx(122 * 25e-6, rel=0.02)
    rules = (tmp_path / "tuner.csv").read_text()
    assert "\nallreduce,8192,65536,ring,ll,4,1,8,-1,-1\n" in rules


def test_every_row_has_one_record_and_a_second_end_writes_none_again(tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    finish(whole(), records)
    lines = records.read_text().splitlines()
    rows = [r for r in Reader(records) if isinstance(r, Measurement) and r.op == "all_reduce"]
    assert len(rows) == 2 * len(SPEC.points) * 4 + 1
    assert len({row.id for row in rows}) == len(rows)
    listed = [row for row in rows if row.case == "every-size"]
    assert [(row.implementation, row.status, row.reason) for row in listed] == [
        ("nccl nvls", "unsupported", "no switch")
    ]
    # Resumed with nothing to do: only the environment of that invocation, and its totals.
    finish(whole(), records)
    again = records.read_text().splitlines()[len(lines) :]
    assert all('"type":"environment"' in line for line in again)


def test_a_record_holds_what_was_asked_what_ran_and_each_start(tmp_path: Path) -> None:
    finish(whole(), tmp_path / "r.jsonl")
    rows = [r for r in Reader(tmp_path / "r.jsonl") if isinstance(r, Measurement)]
    (row,) = (
        r
        for r in rows
        if (r.implementation, r.case, r.launch, r.depth)
        == ("nccl ring/ll", "57344B-bfloat16-in-place", "graph", 122)
    )
    assert row.requested == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
    assert row.effective == {"algorithm": "ring", "protocol": "ll", "channels": "4"}
    assert (row.proof, row.ranks, row.part, row.flags) == ("line 7", 8, "all_reduce", ())
    assert (row.count, row.method["starts"], row.method["samples_per_start"]) == (27, 3, "9 9 9")
    assert row.median_s == pytest.approx(30.7344e-6 * 1.004)
    assert [row.method[f"start_{at}_median_s"] for at in range(3)] == [row.median_s] * 3
    assert row.method["spread"] == 0
    assert row.method["nccl_version"] == "2.29.7"
    assert row.method["clock"] == "CUDA events behind a spin of 1 ms"
    assert "divided by 122 calls" in str(row.method["sample"])


def test_process_start_and_the_measured_share_are_rows_of_the_host(tmp_path: Path) -> None:
    finish(whole(), tmp_path / "r.jsonl")
    hosts = {
        (r.op, r.implementation): r
        for r in Reader(tmp_path / "r.jsonl")
        if isinstance(r, Measurement) and r.part == "host"
    }
    assert hosts["process_start", "fork server"].median_s == 4.0
    joined = hosts["process_start", "nccl ring/ll"]
    assert (joined.median_s, joined.low_s, joined.high_s, joined.count) == (2.0, 0.5, 2.0, 4)
    whole_sweep = hosts["sweep", "nccl"]
    assert whole_sweep.median_s == 80.0
    assert whole_sweep.method["measured_share"] == 0.75


def test_what_was_interrupted_early_is_recorded_with_the_starts_there_are(tmp_path: Path) -> None:
    state = a_state(SPEC)
    state.take(probe(0, "ring", "ll"))
    eager = Timing(launch="eager", depth=1)
    state.take(timed(0, (5e-5, 6e-5), timing=eager))
    made = finish(state, tmp_path / "r.jsonl")
    rows = [r for r in Reader(tmp_path / "r.jsonl") if isinstance(r, Measurement) and r.launch]
    assert [(r.case, r.launch, r.status, r.flags) for r in rows] == [
        ("8192B-bfloat16-out-of-place", "eager", "ok", ("few-starts",))
    ]
    assert made.problem() is None  # Ctrl-C is no fault of a combination


def test_one_fault_is_told_whole_and_several_by_name(tmp_path: Path) -> None:
    state = a_state(SPEC)
    state.take(msgspec.structs.replace(probed(SPEC, 1, status="ignored", reason="NCCL took tree")))
    made, run = outcome(state, tmp_path / "r.jsonl")
    run.close()
    assert made.problem() == ("nccl ring/ll: ignored: NCCL took tree; what was measured is kept")
    state.take(probed(SPEC, 0, status="corrupt", reason="6 values are wrong"))
    assert made.problem() == (
        "2 of 2 combinations did not come through: nccl (corrupt), nccl ring/ll (ignored); the "
        "lines with their names say why; where values are wrong, nothing may be concluded from the "
        "others either before that is mended; what was measured is kept"
    )
