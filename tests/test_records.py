"""What is written can be read, and what cannot be read says where and why."""

import gzip
import json
import math
import os
from pathlib import Path

import msgspec
import pytest

from verifyscope import records
from verifyscope.errors import UsageError
from verifyscope.records import (
    SCHEMA,
    Compiled,
    Environment,
    Evidence,
    Finding,
    GpuState,
    Measurement,
    Origin,
    Reader,
    Record,
    Samples,
    encoded,
    read,
    samples,
)

ENVIRONMENT = Environment(
    id="e1",
    created="2026-08-01T10:00:00+00:00",
    command="python -m ingest log.txt",
    system="Linux 6.8",
    processor="x86_64",
    cores=16,
    python="3.12.4",
    gpus=(GpuState(index=0, name="NVIDIA RTX PRO 6000", capability="12.0", power_limit_w=600.0),),
    versions={"torch": "2.13.0"},
)


def measurement(**changes: object) -> Measurement:
    base = Measurement(
        id="m1",
        source="measured",
        part="attention",
        op="tree_attention",
        implementation="triton",
        case="rows4",
        status="ok",
        median_s=23.4e-6,
        low_s=23.1e-6,
        high_s=23.9e-6,
        dims={"rows": 4, "tree": "chain", "scale": 0.5, "causal": True},
        flags=("throttled",),
        environment="e1",
        command="pytest suites/",
        origin=Origin(file="log.txt", line=7),
    )
    return msgspec.structs.replace(base, **changes)


EVERY_KIND: list[Record] = [
    ENVIRONMENT,
    measurement(),
    measurement(id="m2", status="skipped", reason="needs a GPU", median_s=None),
    Compiled(
        op="tree_attention",
        implementation="triton",
        kernel="_attend",
        case="tiny",
        capability=120,
        registers=128,
        spilled_bytes=0,
        shared_bytes=65_536,
        shared_limit_bytes=101_376,
        declared=("tensor_core",),
        found=("tensor_core", "wide_load"),
        failure=None,
        environment="e1",
        command="python -m kernels --compile 120",
        commit=None,
    ),
    Finding(
        name="slow_all_reduce",
        sentence="An all-reduce takes 2.1 times its best.",
        evidence=(Evidence(file="log.txt", at=7, value="86.1 us"),),
        worth_s=5.3e-3,
        confidence="likely",
    ),
]


def write(path: Path, lines: list[Record], tail: bytes = b"") -> Path:
    path.write_bytes(b"".join(encoded(line) for line in lines) + tail)
    return path


def test_every_kind_of_line_reads_back_as_it_was(tmp_path: Path) -> None:
    warnings: list[str] = []
    path = write(tmp_path / "records.jsonl", EVERY_KIND)
    assert list(read([path], warnings)) == EVERY_KIND
    assert warnings == []


def test_a_line_says_its_type_and_schema_and_leaves_out_what_is_absent() -> None:
    line = json.loads(encoded(measurement()))
    assert line["type"] == "measurement"
    assert line["schema"] == SCHEMA
    assert "p99_s" not in line
    assert "ranks" not in line


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"median_s": None}, "ok needs median_s"),
        ({"status": "void", "reason": "above the ceiling"}, "void may carry no time"),
        ({"status": "skipped", "median_s": None}, "skipped needs a reason"),
        ({"part": "atention"}, "unknown part 'atention'"),
    ],
)
def test_a_measurement_is_a_time_or_a_reason(changes: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        measurement(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"median_s": math.nan},
        {"median_s": -1e-6},
        {"dims": {"rows": math.inf}},
        {"conditions": {"temperature_c": math.nan}},
    ],
)
def test_what_could_not_be_read_back_is_never_written(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="could not be read back"):
        encoded(measurement(**changes))


def test_a_truncated_last_line_is_read_past_with_a_warning(tmp_path: Path) -> None:
    half = encoded(measurement(id="m3"))[:-40]
    path = write(tmp_path / "records.jsonl", EVERY_KIND, half)
    warnings: list[str] = []
    assert list(read([path], warnings)) == EVERY_KIND
    assert warnings == [
        f"{path}:6: the last line is incomplete (a run was ended); all before it is read"
    ]


def test_a_last_line_without_its_newline_is_a_record(tmp_path: Path) -> None:
    path = write(tmp_path / "records.jsonl", [ENVIRONMENT], encoded(measurement()).rstrip())
    assert list(read([path])) == [ENVIRONMENT, measurement()]


NEWER = encoded(measurement()).replace(b'"schema":1', b'"schema":2')


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"not json\n", ":2: not a record"),
        (encoded(measurement())[:-40] + b"\n", ":2: not a record"),
        (b'{"type":"measurement","schema":1}\n', ":2: not a record"),
        (b"\x89PNG\x00\xff\n", ":2: not a record"),
        (b"[" * 100_000 + b"\n", ":2: not a record"),
        (NEWER, ":2: record schema 2, this version has 1; use the verifyscope that wrote it"),
        (b'{"type":"dream","schema":9,"x":1}\n', ":2: record schema 9, this version has 1"),
        (b'{"type":"finding","schema":1,"name":1,"sentence":""}', ":2: not a record"),
        (b"half a sentence", ":2: not a record"),
    ],
)
def test_a_corrupt_line_names_file_and_line(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(
        encoded(ENVIRONMENT) + line + (encoded(measurement()) if line[-1:] == b"\n" else b"")
    )
    with pytest.raises(UsageError) as error:
        list(read([path]))
    assert str(error.value).startswith(f"{path}{said}")
    assert "\n" not in str(error.value)


INGEST = "a log, trace or table becomes records by: python -m ingest FILE --records OUT.jsonl"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"0: 7:7 [0] NCCL INFO AllReduce\n", f"; {INGEST}"),
        (b"\x00\x01", f"; {INGEST}"),
        (gzip.compress(encoded(ENVIRONMENT)), ": it is compressed; unpack it with gunzip"),
        (encoded(ENVIRONMENT).decode().encode("utf-16"), ": it is UTF-16; save it as UTF-8"),
    ],
)
def test_a_file_of_something_else_says_what_to_do(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(data)
    with pytest.raises(UsageError) as error:
        list(read([path]))
    assert str(error.value) == f"{path}:1: not a record{said}"


def test_a_mark_before_the_first_line_is_read_past(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + encoded(ENVIRONMENT) + encoded(measurement()))
    assert list(read([path])) == [ENVIRONMENT, measurement()]


def test_a_pipe_without_a_writer_is_empty_and_one_with_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "records.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="holds no records"):
        list(read([pipe]))
    into = os.open(pipe, os.O_RDWR)
    reader = iter(Reader(pipe))
    os.write(into, encoded(ENVIRONMENT))
    assert next(reader) == ENVIRONMENT
    os.close(into)
    assert list(reader) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"median_s": 1e300}, "Expected `float` <= 100000000000.0 - at `$.median_s`"),
        ({"low_s": 2e-5, "high_s": 1e-5}, "low_s is above high_s"),
    ],
)
def test_a_time_that_can_be_none_is_not_written(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=r"could not be read back|is above") as error:
        encoded(measurement(**changes))
    assert said in str(error.value)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.jsonl"
    with path.open("wb") as file:
        file.truncate(2**34)  # sparse: 16 GiB of zeros and no newline
    with pytest.raises(UsageError, match=r":1: a line of over 16 MiB; this is no records file"):
        list(read([path]))


def test_a_path_without_records_says_what_to_give(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    raw = tmp_path / "raw" / "samples.jsonl"
    raw.parent.mkdir()
    raw.write_bytes(encoded(Samples(id="m1", seconds=(1e-6,))))
    for path, said in [
        (tmp_path / "no.jsonl", "does not exist"),
        (empty, "holds no records"),
        (raw, "holds no records"),
        (raw.parent, "holds no *.jsonl"),
    ]:
        with pytest.raises(UsageError) as error:
            list(read([path]))
        assert str(error.value) == (f"{path} {said}; give a records file or the folder of a run")


def test_a_folder_of_runs_names_one_of_them(tmp_path: Path) -> None:
    run = tmp_path / "2026-08-01-100000-replay"
    run.mkdir()
    write(run / "records.jsonl", EVERY_KIND)
    with pytest.raises(UsageError, match=rf"give the folders in it, such as {run}"):
        list(read([tmp_path]))


def test_a_folder_gives_every_file_of_lines_but_the_samples(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [ENVIRONMENT])
    write(tmp_path / "b.jsonl", [measurement()])
    (tmp_path / "samples.jsonl").write_bytes(b"never read\n")
    (tmp_path / "notes.txt").write_bytes(b"never read\n")
    assert list(read([tmp_path])) == [ENVIRONMENT, measurement()]
    assert list(read([tmp_path / "b.jsonl", tmp_path])) == [measurement(), ENVIRONMENT]


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", EVERY_KIND)
    assert list(read([path, tmp_path, path])) == EVERY_KIND


def test_samples_are_found_beside_the_records_by_id(tmp_path: Path) -> None:
    path = write(tmp_path / "records.jsonl", EVERY_KIND)
    kept = [Samples(id=f"m{number}", seconds=(number * 1e-6, 2e-6)) for number in range(4)]
    (tmp_path / "samples.jsonl").write_bytes(b"".join(map(encoded, kept)) + b'{"type":"sam')
    warnings: list[str] = []
    assert samples([path, tmp_path], {"m1", "m9"}, warnings=warnings) == {"m1": (1e-6, 2e-6)}
    assert warnings == [
        f"{tmp_path / 'samples.jsonl'}:5: the last line is incomplete (a run was ended); "
        "all before it is read"
    ]
    assert [line.id for line in Reader(tmp_path / "samples.jsonl").samples()] == [
        "m0",
        "m1",
        "m2",
        "m3",
    ]
    assert samples([path], set()) == {}


def test_records_of_a_run_without_samples_have_none(tmp_path: Path) -> None:
    assert samples([write(tmp_path / "records.jsonl", EVERY_KIND)], {"m1"}) == {}


def test_ids_differ() -> None:
    assert len({records.new_id() for _ in range(1000)}) == 1000
