"""A run keeps what it has measured, whatever happens to it, and harms no other file."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from verifyscope import runs
from verifyscope.errors import Failure, UsageError
from verifyscope.records import (
    SAMPLES_FILE,
    Environment,
    Finding,
    Measurement,
    encoded,
    read,
    samples,
)
from verifyscope.runs import Appender


def finding(name: str) -> Finding:
    return Finding(name=name, sentence=f"This is {name}.")


def names(path: Path) -> list[str]:
    return [record.name for record in read([path]) if isinstance(record, Finding)]


def test_a_killed_run_loses_at_most_the_record_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    program = """
import itertools, sys
from pathlib import Path
from verifyscope.records import Finding
from verifyscope.runs import Appender
appender = Appender(Path(sys.argv[1]))
for number in itertools.count():
    appender.append(Finding(name=str(number), sentence="x" * 5000))
    print(number, flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    process.wait(60)
    process.stdout.close()
    appended = len([line for line in said if line.endswith("\n")])
    assert appended >= 200
    assert names(path)[:appended] == [str(number) for number in range(appended)]
    assert len(names(path)) <= appended + 1


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_an_incomplete_last_line_is_cut_off_when_a_run_goes_on(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(encoded(finding("one")) + encoded(finding("lost"))[:-cut])
    appender = Appender(path)
    appender.append(finding("two"))
    appender.close()
    assert names(path) == (["one", "lost", "two"] if cut == 1 else ["one", "two"])
    assert path.read_bytes().endswith(b"\n")


def test_a_first_line_that_was_cut_short_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"ty')
    Appender(path).close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "content",
    [b"# my notes", b"# my notes\n", b"\x89PNG\r\n\x00", b'{"traceEvents": []}\n', b"[1, 2]"],
)
def test_a_foreign_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="notes is no records file; name another one"):
        Appender(path)
    assert path.read_bytes() == content


def test_a_file_of_another_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    newer = encoded(finding("one")).replace(b'"schema":1', b'"schema":2')
    path.write_bytes(newer)
    with pytest.raises(UsageError, match="record schema 2, this version has 1"):
        Appender(path)
    assert path.read_bytes() == newer


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device of Linux")
def test_a_full_disk_is_a_failure_that_names_the_file() -> None:
    appender = Appender(Path("/dev/full"))
    with pytest.raises(Failure) as error:
        appender.append(finding("one"))
    appender.close()
    assert str(error.value) == (
        "cannot write /dev/full: No space left on device; what it holds already is kept"
    )


def writing(count: int | None) -> Callable[[int, bytes], int]:
    """Return an `os.write` that takes `count` bytes, or none and fails, as a full disk does."""
    write = os.write

    def limited(file: int, data: bytes) -> int:
        if count is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:count])

    return limited


@pytest.mark.parametrize("count", [None, 0, 1, 20])
def test_what_a_full_disk_took_of_a_record_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int | None
) -> None:
    path = tmp_path / "records.jsonl"
    appender = Appender(path)
    appender.append(finding("one"))
    monkeypatch.setattr(os, "write", writing(count))
    with pytest.raises(Failure, match="what it holds already is kept"):
        appender.append(finding("two"))
    monkeypatch.undo()
    assert path.read_bytes() == encoded(finding("one"))
    appender.append(finding("three"))
    appender.close()
    assert names(path) == ["one", "three"]


def test_several_processes_may_add_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    program = """
import sys
from pathlib import Path
from verifyscope.records import Finding
from verifyscope.runs import Appender
for number in range(100):
    appender = Appender(Path(sys.argv[1]))
    appender.append(Finding(name=f"{sys.argv[2]}{number}", sentence="x" * 9000))
    appender.close()
"""
    started = [subprocess.Popen([sys.executable, "-c", program, path, who]) for who in "abc"]
    assert [process.wait(120) for process in started] == [0, 0, 0]
    assert sorted(names(path)) == sorted(f"{who}{number}" for who in "abc" for number in range(100))


def test_a_run_in_a_named_file_starts_with_its_environment(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "one.jsonl"
    with runs.start(path, "sweep") as run:
        run.append(finding("one"))
    with runs.start(path, "sweep") as run:
        run.append(finding("two"))
    found = list(read([path]))
    assert [type(record) for record in found] == [Environment, Finding, Environment, Finding]
    assert found[0] == run.environment


def test_a_run_without_a_file_gets_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = []
    for _ in range(3):
        with runs.start(None, "sweep") as run:
            folders.append(run.path.parent)
        copy = json.loads((folders[-1] / "environment.json").read_text())
        assert copy["id"] == run.environment.id
        assert list(read([folders[-1]])) == [run.environment]
    assert len(set(folders)) == 3
    assert all(folder.parent == Path("runs") and "-sweep" in folder.name for folder in folders)


def test_raw_samples_lie_beside_the_records(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    with runs.start(path, "sweep") as run:
        measured = Measurement(
            source="measured",
            part="copy",
            op="copy",
            implementation="torch",
            case="1M",
            status="ok",
            median_s=2e-6,
            environment=run.environment.id,
            command="x",
        )
        run.append(measured, samples=(1e-6, 2e-6, 3e-6))
        run.append(finding("no samples"), samples=(1.0,))
    assert samples([path], {measured.id}) == {measured.id: (1e-6, 2e-6, 3e-6)}
    assert (tmp_path / SAMPLES_FILE).read_bytes().count(b"\n") == 1


@pytest.mark.parametrize("name", ["", SAMPLES_FILE])
def test_records_must_be_a_file_of_their_own(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--records "):
        runs.start(tmp_path / name, "sweep")
    assert list(tmp_path.iterdir()) == []
