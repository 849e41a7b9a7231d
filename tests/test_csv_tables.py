"""CSV of times by size that people keep themselves, and what an unknown file looks like."""

from pathlib import Path

import pytest

from ingest import csv_tables, formats
from ingest.looks import is_json, looks
from tests.test_ingest import ingest
from tests.test_shipped import read
from verifyscope.records import Finding, Measurement

TABLE = (
    "source,system,n_gpus,config,bytes,nccl_us,other_us\n"
    "page/a.md,dual socket,8,default,32768,15.6,9.2\n"
    "page/a.md,dual socket,8,default,65536,71.2,11.8\n"
    "page/a.md,dual socket,8,default,262144,40.9,\n"
    "page/b.md,dual socket,4,all-reduce,32768,12.0,unknown\n"
    "page/b.md,one,4\n"
)


def test_a_time_is_of_its_load_ranks_and_words(tmp_path: Path) -> None:
    found = read(tmp_path, TABLE.encode())
    times = [one for one in found if isinstance(one, Measurement)]
    assert [(one.implementation, one.ranks, one.dims["bytes"], one.op) for one in times] == [
        ("nccl", 8, 32768, "time"),
        ("other", 8, 32768, "time"),
        ("nccl", 8, 65536, "time"),
        ("other", 8, 65536, "time"),
        ("nccl", 8, 262144, "time"),
        ("nccl", 4, 32768, "all_reduce"),
    ]
    assert times[0].median_s == pytest.approx(15.6e-6)
    assert times[0].requested == {"system": "dual socket", "config": "default"}
    assert times[0].method["source"] == "a.md"


def test_a_larger_size_that_takes_less_time_is_named(tmp_path: Path) -> None:
    said = {one.name: one for one in read(tmp_path, TABLE.encode()) if isinstance(one, Finding)}
    assert "from 71.2 us (65536 bytes) to 40.9 us (262144 bytes)" in said["non-monotone"].sentence
    assert [one.at for one in said["non-monotone"].evidence] == [3, 4]
    assert [one.at for one in said["lines-not-read"].evidence] == [6]


@pytest.mark.parametrize(
    "header", ["cat,name,count,total_us,min_us", "bytes,count", "nccl_us,other_us"]
)
def test_a_table_without_load_or_time_is_not_read(header: str) -> None:
    assert formats.recognise(f"{header}\n1,2\n".encode()) == ()


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"cat,name,total_us\nkernel,a,1\nkernel,b,2\n", "CSV of the columns cat, name, total_us"),
        (b"a\tb\n1\t2\n", "tab-separated rows of the columns a, b"),
        (b'[{"file": "a", "facts": {}}]', "JSON with the keys file, facts"),
        (b"<!DOCTYPE html><html>", "a web page; save the log itself"),
        (b"Apache License\n", 'text that begins "Apache License"'),
        (b"\n \n", "blank"),
    ],
)
def test_an_unknown_file_is_said_to_look_like_something(head: bytes, words: str) -> None:
    assert looks(head) == words


def test_a_document_is_no_log_and_a_wrapped_line_is_one() -> None:
    assert is_json(b'{"a": "Decode batch"}\n', whole=True)
    assert is_json(b'{\n "a": 1,', whole=False)
    assert not is_json(b'{"log": "Decode batch"}\n', whole=True)
    assert not is_json(b"[2026-01-05 10:00:00 TP0] Decode batch", whole=True)


def test_files_that_nobody_knows_are_named_by_kind_and_the_formats_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / f"{name}.csv").write_text("cat,name,total_us\nkernel,x,1\n")
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "expected.json").write_text('{"file": "Decode batch"}')
    files = sorted(str(path) for path in tmp_path.iterdir())
    records = tmp_path / "run" / "records.jsonl"
    assert ingest(*files, "--records", str(records)) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[1:] == [
        "python -m ingest: no reader knows CSV of the columns cat, name, total_us: a.csv, b.csv, "
        "c.csv and 2 more",
        "python -m ingest: no reader knows JSON with the keys file: expected.json",
        "python -m ingest: what is read, with a line of each: python -m ingest --formats",
        "python -m ingest: 6 of 7 files could not be read; the others are",
    ]


def test_rows_beyond_the_most_are_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_tables, "_MOST_ROWS", 2)
    rows = "".join(f"{size},10.0\n" for size in (1024, 2048, 4096, 8192))
    found = read(tmp_path, f"bytes,nccl_us\n{rows}".encode())
    assert [one.dims["bytes"] for one in found if isinstance(one, Measurement)] == [1024, 2048]
    (said,) = [one.sentence for one in found if isinstance(one, Finding)]
    assert said == "2 lines with further rows of a table of times are left out"
