"""No file makes the readers of traces fail, hang, or give a wrong number without a warning."""

import json
import sqlite3
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest import kineto, nsys, opening, timeline, trace_events, trace_faults, trace_findings
from ingest.facts import Facts
from ingest.log import Log
from ingest.opening import Unpacked, Unreadable
from ingest.trace_facts import records
from tests import trace_files
from tests.trace_files import LAYER, Kineto, log_of, packed
from verifyscope.records import Measurement, encoded

FEW = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def made() -> Kineto:
    one = Kineto(header={"deviceProperties": [{"id": 0, "name": "NVIDIA B200"}]})
    one.annotation("ProfilerStep#1", 0, 5000)
    end = one.eager(LAYER * 4, 0, dur=10, every=30)
    one.graph(LAYER * 4, end + 10, dur=10)
    return one


WHOLE = made().bytes()
BUSY_S = 48 * 10e-6
DAMAGE = st.sampled_from(
    [
        b"NaN",
        b"1e400",
        b"-1",
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"\\",
        b"\xff\xfe",
        b"\0",
        b",",
        b"[" * 3000,
        b'{"a":' * 3000,
        b"9" * 400,
        b'"ts": 1e300',
        b"]}",
        b"null",
        b'"traceEvents": [',
    ]
)


def busy_and_faults(data: bytes) -> tuple[float | None, set[str]]:
    """Read a file; return its busy time and the names of what was found wrong with it."""
    try:
        traces, faults = kineto.traces(log_of(data))
    except Unreadable as error:
        return None, {"unreadable", *(["long"] if "\n" in str(error) else [])}
    busy = None
    facts: list[Facts] = []
    for one in records(traces, faults, log_of(data)):
        if isinstance(one, Facts):
            facts.append(one)
        else:
            encoded(one)
        if isinstance(one, Measurement) and one.op == "trace":
            said = one.dims.get("busy_s")
            busy = float(said) if said is not None else None
    found = {one.name for one in trace_faults.conclusions(faults, traces)}
    for conclusion in trace_findings.conclusions(facts):
        encoded(conclusion.finding(environment="e", command="c"))
        found.add(conclusion.name)
    return busy, found


def test_the_file_that_is_damaged_here_is_read_whole() -> None:
    busy, found = busy_and_faults(WHOLE)
    assert busy == pytest.approx(BUSY_S)
    assert found == {"trace-breakdown", "launch-bound"} | (found & {"graph-off"})


@FEW
@given(st.integers(0, len(WHOLE) - 1), st.sampled_from([128, 1000, 2**20]))
def test_a_cut_file_says_so(keep: int, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_events, "CHUNK_BYTES", chunk)
        busy, found = busy_and_faults(WHOLE[:keep])
    assert busy is None or busy <= BUSY_S * 1.0001
    assert found & {"file-cut", "unreadable", "header-not-read"}


@FEW
@given(st.integers(0, len(WHOLE) - 1), DAMAGE, st.integers(0, 40))
def test_damage_anywhere_is_survived(at: int, damage: bytes, gone: int) -> None:
    _, found = busy_and_faults(WHOLE[:at] + damage + WHOLE[at + gone :])
    assert "long" not in found


@FEW
@given(st.integers(0, 48), st.sampled_from(["{", '"name": "a', "]", '"dur": NaN', "\ufffd"]))
def test_a_damaged_event_is_missed_and_told(number: int, damage: str) -> None:
    events = [json.dumps(event) for event in made().events]
    at = 2 * number % (len(events) - 1) + 1
    events[at] = events[at][:30] + damage + events[at][30:]
    data = f'{{"traceEvents": [{", ".join(events)}]}}'.encode()
    busy, found = busy_and_faults(data)
    told = found & {"events-not-read", "file-cut", "header-not-read", "unreadable"}
    assert told or busy == pytest.approx(BUSY_S, rel=1e-6)


@FEW
@given(st.permutations(range(len(made().events))))
def test_any_order_gives_the_same_busy_time(order: list[int]) -> None:
    one = made()
    one.events = [one.events[at] for at in order]
    busy, found = busy_and_faults(one.bytes())
    assert busy == pytest.approx(BUSY_S)
    assert not found & {"events-not-read", "duplicate-events", "overlap-in-stream"}


@FEW
@given(st.lists(st.integers(0, len(made().events) - 1), max_size=30))
def test_events_that_stand_there_twice_change_nothing(again: list[int]) -> None:
    one = made()
    one.events += [one.events[at] for at in again]
    busy, _ = busy_and_faults(one.bytes())
    assert busy == pytest.approx(BUSY_S)


@FEW
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "cat": st.sampled_from(["kernel", "gpu_memcpy", "cuda_runtime", "user_annotation"]),
                "name": st.sampled_from(["gemm", "cudaGraphLaunch", "ProfilerStep#1", "a" * 9000]),
                "ts": st.floats() | st.integers() | st.text(max_size=3),
                "dur": st.floats() | st.integers(-5, 10**18) | st.none(),
                "tid": st.integers() | st.text(max_size=3),
                "args": st.none()
                | st.lists(st.integers(), max_size=2)
                | st.dictionaries(
                    st.sampled_from(["stream", "device", "correlation", "bytes"]),
                    st.integers() | st.floats() | st.text(max_size=3),
                ),
            },
        ),
        max_size=30,
    )
)
def test_any_events_are_survived(events: list[dict[str, object]]) -> None:
    busy, _ = busy_and_faults(json.dumps({"traceEvents": events}).encode())
    assert busy is None or 0 <= busy < float("inf")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1", "utf-32"])
def test_other_encodings_are_read_or_refused(encoding: str) -> None:
    busy, found = busy_and_faults(WHOLE.decode().encode(encoding))
    assert found == {"unreadable"} if encoding in ("utf-16", "utf-32") else busy is not None


def test_kernels_thirty_years_and_more_apart_are_told_of() -> None:
    one = Kineto()
    one.gpu("gemm", 0, 0, stream=0, correlation=0)
    one.gpu("gemm", 2**53 - 1, 0, stream=0, correlation=1)
    found, faults = kineto.traces(log_of(one.bytes()))
    for record in records(found, faults, log_of(one.bytes())):
        if isinstance(record, Measurement):
            assert encoded(record)


def test_a_bomb_is_refused_before_it_fills_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "UNPACKED_FREELY", 2**20)
    bomb = packed(b'{"traceEvents": [' + b'{"a": 1},' * 2**19)
    with pytest.raises(Unreadable, match="unpacks to over 400 times its size"):
        kineto.traces(
            Log(
                file="t",
                lines=iter(()),
                environment="e",
                command="c",
                stream=Unpacked(BytesIO(bomb), "t"),  # type: ignore[arg-type]
            )
        )


@pytest.mark.parametrize("filler", [b"}]", b'},{"a":', b"},{", b"{", b'{"a":{},', b'"},{"'])
def test_much_of_what_looks_like_a_boundary_takes_no_time_to_speak_of(filler: bytes) -> None:
    busy_and_faults(WHOLE[:-2] + b", {" + filler * 40_000)


@FEW
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 3)), max_size=25))
def test_busy_time_is_what_counting_each_microsecond_gives(
    events: list[tuple[int, int, int]],
) -> None:
    one = Kineto()
    covered: set[int] = set()
    for number, (start, length, stream) in enumerate(events):
        one.gpu("gemm", start, length, stream=stream, correlation=number)
        covered |= set(range(start, start + length))
    (trace,), _ = kineto.traces(log_of(one.bytes()))
    assert timeline.union_s(trace.gpu) == pytest.approx(len(covered) * 1e-6)
    times = np.arange(0, 90, dtype=float)
    told = timeline.busy_before_s(trace.gpu, (times - events[0][0]) * 1e-6 if events else times)
    counted = [sum(at < time for at in covered) * 1e-6 for time in times]
    assert told == pytest.approx(counted)


@FEW
@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 255)), max_size=20))
def test_a_damaged_database_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("nsys")
    whole = trace_files.nsys(
        folder / "a.sqlite",
        kernels=200,
        CUPTI_ACTIVITY_KIND_RUNTIME=[(n * 1000, n * 1000 + 10, n, 3) for n in range(50)],
    )
    data = bytearray(whole.read_bytes())
    for at, value in changes:
        data[at % len(data)] = value
    damaged = folder / "b.sqlite"
    damaged.write_bytes(data)
    try:
        traces, faults = nsys.traces(log_with_path(damaged))
    except Unreadable:
        return
    for one in records(traces, faults, log_with_path(damaged)):
        if not isinstance(one, Facts):
            encoded(one)


@FEW
@given(
    st.lists(
        st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3), min_size=6, max_size=6
    )
)
def test_any_values_in_a_database_are_survived(
    tmp_path_factory: pytest.TempPathFactory, row: list[int | str | None]
) -> None:
    path = trace_files.nsys(tmp_path_factory.mktemp("nsys") / "a.sqlite", kernels=5)
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?)", row)
    database.close()
    traces, faults = nsys.traces(log_with_path(path))
    told = list(records(traces, faults, log_with_path(path)))
    assert faults.untimed or any(isinstance(one, Measurement) for one in told)


def log_with_path(path: Path) -> Log:
    return Log(file="a", lines=iter(()), environment="e", command="c", path=path)
