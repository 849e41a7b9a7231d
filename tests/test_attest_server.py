"""A server that is attested runs as it would alone; its signals, its end, and its secrets."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SERVER = str(Path(__file__).with_name("nccl_workers.py"))
ROOT = Path(__file__).resolve().parent.parent
NONE: Mapping[str, str] = {}
LL = {"NCCL_PROTO": "LL"}
SECRETS = {
    "HF_TOKEN": "canary-token",
    "VLLM_API_KEY": "canary-key",
    "NCCL_HOSTID": "canary-host",
    "NCCL_COMM_ID": "10.98.76.54:1234",
    "NCCL_DEBUG_FILE": "/home/canary-home/nccl.log",
}


class Attested:
    """Starts attest in a folder of its own, on the server without GPUs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = folder / "r.jsonl"

    def command(
        self, *options: str, server: tuple[str, ...] = (), before: tuple[str, ...] = ()
    ) -> list[str]:
        files = ("--records", str(self.records), "--json", str(self.folder / "a.json"))
        words = [sys.executable, "-m", "collectives.attest", *files, *options, "--", *before]
        return [*words, sys.executable, "-S", "-E", SERVER, *server]

    def environment(self, settings: Mapping[str, str] = NONE) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
        return kept | {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.folder)} | dict(settings)

    def run(
        self,
        *options: str,
        server: tuple[str, ...] = (),
        before: tuple[str, ...] = (),
        settings: Mapping[str, str] = NONE,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*options, server=server, before=before),
            env=self.environment(settings),
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
        )

    @contextlib.contextmanager
    def running(
        self, *options: str, server: tuple[str, ...] = (), settings: Mapping[str, str] = NONE
    ) -> Iterator[subprocess.Popen[str]]:
        """Run it in the background until the server says that it is ready."""
        process = subprocess.Popen(
            self.command("--seconds", "30", *options, server=("--serve", *server)),
            env=self.environment(settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if line == "ready\n":
                    break
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # so that the server ends, too
                process.wait()


@pytest.fixture
def attested(tmp_path: Path) -> Attested:
    return Attested(tmp_path)


def first(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.splitlines()[0]


def test_a_server_that_never_ends_is_stopped_and_the_worker_without_the_setting_is_named(
    attested: Attested,
) -> None:
    server = ("--ranks", "4", "--drop", "3", "--overwrite", "1=Simple", "--serve")
    done = attested.run("--seconds", "1", server=server, settings=LL | SECRETS)
    assert done.returncode == 1
    verdict, dropped, other, same = first(done).split("; ")
    assert same == "NCCL_HOSTID=<host> reached all 4 workers"
    assert verdict == "NCCL_PROTO=LL reached 2 of 4 workers"
    assert dropped.endswith(" shows Simple")
    assert other.endswith(" shows none")
    rows = [
        line.split("\t") for line in done.stdout.splitlines() if line.startswith("NCCL_PROTO\t")
    ]
    assert [row[3:] for row in rows] == [
        ["0", "LL", "environment", "reached"],
        ["1", "Simple", "the program", "other: NCCL read another value"],
        ["2", "LL", "environment", "reached"],
        ["3", "-", "-", "missing: it was started without it: a launcher dropped it"],
    ]
    assert "NCCL_DEBUG_FILE is replaced" in done.stderr
    assert "serving tokens\nready\ngot SIGINT\n" in done.stderr
    told = done.stdout + attested.records.read_text() + (attested.folder / "a.json").read_text()
    assert "canary" not in told
    assert "10.98.76" not in told
    assert not [*attested.folder.glob("nccl*")]


def test_what_readme_shows_is_what_is_printed(attested: Attested) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    part = text.partition("## Did the setting reach the workers?")[2].partition("\n## ")[0]
    shown = [line.strip() for line in part.splitlines() if line.startswith("    ")][1:]
    done = attested.run(server=("--ranks", "4", "--drop", "3"), settings=LL)
    printed = done.stdout.replace("\t", " ")

    def words(line: str) -> str:
        return re.sub(r"pid \d+", "pid N", " ".join(line.split()))

    expected = [words(line) for line in shown if line != "..." and "asked for" not in line]
    expected = [line for line in expected if not line.startswith("calls ")]
    assert len(expected) == 6
    found = [words(line) for line in printed.splitlines()]
    assert [line for line in expected if line not in found] == []


def test_a_rank_whose_environment_was_replaced_shows_by_its_absence(attested: Attested) -> None:
    done = attested.run(server=("--ranks", "3", "--empty", "1"), settings=LL)
    assert done.returncode == 1
    assert first(done) == "NCCL_PROTO=LL reached 2 of 3 workers; rank 1 wrote no log"


def test_a_setting_in_the_command_counts_as_asked_for_and_the_command_stays_out_of_the_records(
    attested: Attested,
) -> None:
    before = ("NCCL_PROTO=LL", "env", "HF_TOKEN=canary", "NCCL_ALGO=Ring")
    done = attested.run(server=("--ranks", "2"), before=before, settings={"NCCL_PROTO": "Simple"})
    assert done.returncode == 0
    assert first(done) == "NCCL_ALGO=Ring, NCCL_PROTO=LL reached all 2 workers"
    text = attested.records.read_text()
    assert "canary" not in text
    assert '-- ..."' in text


def test_a_configuration_file_is_told_from_the_environment(attested: Attested) -> None:
    conf = attested.folder / "nccl.conf"
    conf.write_text("NCCL_PROTO=Simple\n")
    # The server has no NCCL that reads the file; a worker sets what NCCL would.
    server = ("--ranks", "1", "--overwrite", "0=Simple")
    done = attested.run(server=server, settings={"NCCL_CONF_FILE": str(conf)})
    row = next(line for line in done.stdout.splitlines() if line.startswith("NCCL_PROTO\t"))
    assert row.split("\t")[1:] == [
        "-",
        row.split("\t")[2],
        "0",
        "Simple",
        "configuration file",
        "not asked for",
    ]


def test_what_nccl_does_not_name_counts_where_the_workers_were_started_with_it(
    attested: Attested,
) -> None:
    server = ("--ranks", "2", "--serve")
    done = attested.run("--until-quiet", "0.5", server=server, settings={"NCCL_CUMEM_ENABLE": "0"})
    assert done.returncode == 0
    assert first(done) == "NCCL_CUMEM_ENABLE=0 reached all 2 workers"
    assert "only the environment at their start says so" in done.stdout


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")]
)
def test_a_signal_that_ends_reaches_the_server_once_and_then_comes_the_report(
    attested: Attested, number: signal.Signals, name: str
) -> None:
    with attested.running(server=("--ranks", "2"), settings=LL) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.startswith("NCCL_PROTO=LL reached all 2 workers\n")
    assert [line for line in err.splitlines() if line.startswith("got ")] == [f"got {name}"]


def test_other_signals_are_passed_on_and_a_report_comes_while_it_runs(attested: Attested) -> None:
    with attested.running(server=("--ranks", "2"), settings=LL) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGUSR1)
        assert process.stderr.readline() == "got SIGUSR1\n"
        process.send_signal(signal.SIGQUIT)
        assert process.stderr.readline() == "NCCL_PROTO=LL reached all 2 workers\n"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert out.count("NCCL_PROTO=LL reached all 2 workers\n") == 1


def test_a_server_that_does_not_listen_is_killed_with_all_of_its_processes(
    attested: Attested,
) -> None:
    server = ("--ranks", "2", "--serve", "--deaf")
    start = time.monotonic()
    done = attested.run("--seconds", "0.7", "--grace", "0.3", server=server, settings=LL)
    assert done.returncode == 0
    assert time.monotonic() - start < 15
    mark = f"NCCL_DEBUG_FILE={attested.folder}".encode()
    left = [path for path in Path("/proc").glob("[0-9]*/environ") if mark in _bytes(path)]
    assert not left


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_server_that_fails_by_itself_gives_its_own_status(attested: Attested) -> None:
    done = attested.run(server=("--ranks", "1", "--status", "7"), settings=LL)
    assert done.returncode == 7
    assert first(done) == "NCCL_PROTO=LL reached the one worker"
    assert "the command ended by itself with status 7" in done.stderr


def test_a_command_that_dies_of_a_signal_gives_128_and_its_number(attested: Attested) -> None:
    done = subprocess.run(
        [*attested.command()[:7], "--", "sh", "-c", "kill -SEGV $$"],
        env=attested.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.returncode == 128 + signal.SIGSEGV
    assert done.stdout.startswith("no process wrote a log of NCCL")


def test_logs_that_are_kept_say_the_same_when_they_are_read_again(attested: Attested) -> None:
    kept = attested.folder / "kept"
    server = ("--ranks", "3", "--drop", "2")
    done = attested.run("--out", str(kept), server=server, settings=LL)
    assert len([*kept.iterdir()]) == 3
    again = subprocess.run(
        [*attested.command()[:7], "--expect", "NCCL_PROTO=LL", "--log", str(kept)],
        env=attested.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert again.returncode == done.returncode == 1
    assert first(again) == first(done)


def test_a_command_without_dashes_is_refused_before_it_gets_into_a_record(
    attested: Attested,
) -> None:
    words = [word for word in attested.command() if word not in ("--", "-S", "-E")]
    done = subprocess.run(
        words, env=attested.environment(), capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 2
    assert "put -- before the command" in done.stderr
    assert not attested.records.exists()
