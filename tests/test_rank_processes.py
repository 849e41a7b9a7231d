"""Children that speak over a connection, and ranks that are forked: heard, blamed, ended."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from verifyscope.child import Child, Lost, ending, variables
from verifyscope.rank_processes import RankProcesses, log_of, variables_of_ranks

ROOT = Path(__file__).resolve().parent.parent
_SPEAKS = """
import sys, time
from multiprocessing.connection import Connection
upstream = Connection(int(sys.argv[1]))
upstream.send(sys.argv[2:])
what = upstream.recv()
if what == "die":
    sys.exit(7)
time.sleep(3600)
"""


@pytest.fixture
def child() -> Iterator[Child]:
    command = [sys.executable, "-c", _SPEAKS]
    started = Child(command, variables=variables(), who="a child", more=["a", "b"])
    yield started
    started.end()


def test_a_process_ends_with_a_status_or_by_a_signal_also_one_without_a_name() -> None:
    assert ending(7) == "ended with status 7"
    assert ending(-9) == "was ended by SIGKILL"
    assert ending(-40) == "was ended by signal 40"


def test_a_child_gets_its_words_behind_the_descriptor_and_answers(child: Child) -> None:
    assert child.receive(60.0) == ["a", "b"]


def test_a_child_that_dies_is_named_with_its_status(child: Child) -> None:
    child.receive(60.0)
    child.send("die")
    with pytest.raises(Lost, match=rf"a child \(pid {child.process.pid}\) ended with status 7"):
        child.receive(60.0)
    child.send("nobody is there")
    assert child.is_gone


def test_a_lock_that_an_interrupt_left_locked_keeps_no_child(child: Child) -> None:
    child.receive(60.0)
    assert child.process._waitpid_lock.acquire(False)  # type: ignore[attr-defined]
    assert not child.is_gone
    child.end()
    assert child.process.returncode == -signal.SIGKILL
    assert child.is_gone


def test_a_silent_child_is_killed_for_what_it_says_later_is_of_another_question(
    child: Child,
) -> None:
    child.receive(60.0)
    child.send("sleep")
    with pytest.raises(Lost, match=r"a child \(pid \d+\) says nothing for 0\.2 s") as lost:
        child.receive(0.2)
    assert lost.value.kind == "hang"
    assert child.process.returncode == -signal.SIGKILL


def test_who_else_is_listened_to_is_told_from_the_child(child: Child) -> None:
    ours, theirs = multiprocessing.Pipe()
    theirs.send("stop")
    assert child.receive(60.0, also=[ours]) is ours
    assert child.receive(60.0) == ["a", "b"]


def test_ranks_have_one_thread_each_and_one_machine_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = variables_of_ranks(several=True)
    assert found == {"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "1"}
    assert variables(found)["OMP_NUM_THREADS"] == "3"
    assert variables()["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


def _ranks(folder: Path, count: int) -> tuple[RankProcesses, Connection]:
    theirs, ours = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    return RankProcesses(range(count), folder=folder, upstream=ours, context=context), theirs


def test_ranks_are_heard_and_counted_and_end_in_one_group_with_what_they_started(
    tmp_path: Path,
) -> None:
    ranks, _theirs = _ranks(tmp_path, 2)

    def work(pipe: Connection) -> None:
        helper = subprocess.Popen(["sleep", "3600"])
        ranks.counters[0] = 5
        pipe.send(helper.pid)
        time.sleep(3600)

    said: list[object] = []
    try:
        for rank in ranks.ranks:
            ranks.start(rank, work)
        while len(said) < 2:
            assert ranks.hear(60.0, said.append)
        assert ranks.counters[0] == 5
        assert {os.getpgid(int(str(pid))) for pid in said} == {ranks.group}
    finally:
        ranks.end()
    assert ranks.ended() == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert all(_is_gone(int(str(pid))) for pid in said)


def test_a_stopped_rank_is_named(tmp_path: Path) -> None:
    ranks, _theirs = _ranks(tmp_path, 2)
    try:
        for rank in ranks.ranks:
            ranks.start(rank, lambda pipe: time.sleep(3600))
        pid = int(ranks.name(1).partition("pid ")[2].rstrip(")"))
        os.kill(pid, signal.SIGSTOP)
        until_s = time.monotonic() + 30
        while not ranks.stopped() and time.monotonic() < until_s:
            time.sleep(0.01)
        assert ranks.stopped() == [1]
    finally:
        ranks.end()


def test_the_last_words_of_a_rank_are_fit_for_a_record(tmp_path: Path) -> None:
    ranks, _theirs = _ranks(tmp_path, 1)
    log_of(tmp_path, 0).write_text("first\n\ncannot open /data/alice/secret.bin at 10.1.2.3\n")
    assert ranks.said(0, lines=1) == ("cannot open secret.bin at <address>",)
    assert ranks.said(0, lines=2)[0] == "first"
    log_of(tmp_path, 0).unlink()
    assert ranks.said(0, lines=1) == ()


_FORKS = """
import multiprocessing, sys, time
from multiprocessing.connection import Connection
from pathlib import Path
from verifyscope.rank_processes import RankProcesses
_theirs, ours = multiprocessing.Pipe()
context = multiprocessing.get_context("fork")
ranks = RankProcesses(range(1), folder=Path("."), upstream=ours, context=context)
ranks.start(0, lambda pipe: (pipe.send("up"), time.sleep(3600)))
ranks.hear(60.0, lambda message: print(ranks.group, flush=True))
time.sleep(3600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_rank_is_killed_when_the_process_that_forked_it_is() -> None:
    command = [sys.executable, "-c", _FORKS]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as forks:
        assert forks.stdout is not None
        rank = int(forks.stdout.readline())
        assert not _is_gone(rank, within_s=0.0)
        forks.kill()
        assert _is_gone(rank)


def _is_gone(pid: int, *, within_s: float = 30.0) -> bool:
    until_s = time.monotonic() + within_s
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # nobody waits for it here
            return True
        if time.monotonic() >= until_s:
            return False
        time.sleep(0.01)
