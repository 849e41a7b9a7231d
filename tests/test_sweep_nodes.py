"""Several machines: two torchrun agents on this one, and what torchrun's variables mean."""

import contextlib
import multiprocessing
import multiprocessing.connection as transport
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from collectives import sweep
from collectives._sweep import nodes, supervisor, worker
from collectives._sweep.job import Job
from collectives._sweep.launch import stop
from collectives._sweep.messages import Failed, Finished, Gpus, Over, Progress, Stop
from collectives._sweep.nodes import Launched, Machines
from tests.sweep_jobs import a_job
from verifyscope import cli
from verifyscope.errors import UsageError
from verifyscope.records import Measurement, Reader

ROOT = Path(__file__).resolve().parent.parent
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "first",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_ranks_are_placed_as_torchrun_says() -> None:
    place = nodes.launched(TORCHRUN)
    assert place == Launched(
        rank=5,
        ranks=8,
        local_rank=1,
        local_ranks=4,
        host="first",
        port=29500,
        agent_has_store=True,
        try_name="0",
    )
    assert (place.node, place.nodes, place.leads) == (1, 2, False)
    assert nodes.launched({"RANK": "0", "WORLD_SIZE": "8"}) is None
    with pytest.raises(UsageError, match="RANK='x' is no number; start with torchrun"):
        nodes.launched(TORCHRUN | {"RANK": "x"})
    with pytest.raises(UsageError, match="8 ranks are no multiple of the 3 of this machine"):
        nodes.launched(TORCHRUN | {"LOCAL_WORLD_SIZE": "3"})


def test_all_processes_but_the_first_of_a_machine_leave_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        cli.run(sweep.application, sweep.PROGRAM, [])
    assert (ended.value.code, capsys.readouterr().out) == (0, "")


def test_other_ranks_than_torchruns_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        cli.run(sweep.application, sweep.PROGRAM, ["--backend", "gloo", "--gpus", "4", "--plan"])
    assert ended.value.code == 2
    assert "--gpus 4, but torchrun started 8 ranks; leave --gpus out" in capsys.readouterr().err


PLACE = Launched(
    rank=0,
    ranks=4,
    local_rank=0,
    local_ranks=2,
    host="127.0.0.1",
    port=1,
    agent_has_store=True,
    try_name="0",
)


@pytest.fixture
def machines() -> tuple[Machines, list[Connection]]:
    pairs = [socket.socketpair() for _ in range(2)]
    ours = [Connection(pair[0].detach()) for pair in pairs]
    return Machines(PLACE, ours), [Connection(pair[1].detach()) for pair in pairs]


def test_each_machine_gets_its_part_of_a_job_and_all_meet_at_one_place(
    machines: tuple[Machines, list[Connection]],
) -> None:
    team, others = machines
    for other in others:
        other.send(Progress(7))
        other.send(Finished())
    assert list(team.run(a_job(ranks=4))) == [Progress(7), Finished()]
    parts = [other.recv() for other in others]
    assert [(part.first_rank, part.local_ranks, part.ranks) for part in parts] == [
        (0, 2, 4),
        (2, 2, 4),
    ]
    assert {part.meeting.name for part in parts} == {"verifyscope-0-1"}


def test_a_machine_that_gave_up_waiting_is_named_and_not_who_then_lost_it(
    machines: tuple[Machines, list[Connection]],
) -> None:
    team, (one, two) = machines
    one.send(Failed(kind="hang", reason="rank 0 is behind", blame=2))

    def answer() -> None:
        assert isinstance(two.recv(), Job)
        assert isinstance(two.recv(), Stop)
        two.send(Failed(kind="error", reason="rank 2 raised ConnectionError", blame=3))

    answering = threading.Thread(target=answer)
    answering.start()
    *_, last = team.run(a_job(ranks=4))
    answering.join()
    assert isinstance(last, Failed)
    assert last.reason == "rank 0 is behind"


def test_progress_is_that_of_the_slowest_machine(
    machines: tuple[Machines, list[Connection]],
) -> None:
    team, (one, two) = machines
    for connection, calls in ((one, 3), (two, 1)):
        connection.send(Progress(calls))
        connection.send(Finished())
    assert list(team.run(a_job(ranks=4))) == [Progress(1), Finished()]


def test_who_was_lost_first_is_named_and_the_other_machine_is_stopped(
    machines: tuple[Machines, list[Connection]],
) -> None:
    team, (one, two) = machines
    one.send(Failed(kind="error", reason="rank 0 raised ConnectionError", blame=3))
    two.send(Failed(kind="error", reason="rank 2 was ended by SIGKILL", blame=4))
    *_, last = team.run(a_job(ranks=4))
    assert isinstance(last, Failed)
    assert last.reason == "rank 2 was ended by SIGKILL"
    for connection in (one, two):
        connection.recv()  # its part of the job
    assert isinstance(two.recv(), Stop)


def test_a_machine_that_is_gone_ends_the_job(machines: tuple[Machines, list[Connection]]) -> None:
    team, (one, two) = machines
    one.send(Failed(kind="error", reason="ended because ranks of another machine are lost"))
    two.close()
    *_, last = team.run(a_job(ranks=4))
    assert isinstance(last, Failed)
    assert last.reason == "machine 1 is gone"


def test_the_fewest_gpus_count_and_all_end_with_one_status(
    machines: tuple[Machines, list[Connection]],
) -> None:
    team, (one, two) = machines
    one.send(Gpus(8))
    two.send(Gpus(4, "four are hidden"))
    assert team.count_gpus() == Gpus(4, "four are hidden")
    stop(team.connections[0])  # to a job that is over: nobody minds
    team.over(1)
    for connection in (one, two):
        while not isinstance(said := connection.recv(), Over):
            pass
        assert said == Over(1)


def test_a_machine_that_is_gone_has_no_gpu(machines: tuple[Machines, list[Connection]]) -> None:
    team, (one, two) = machines
    one.send(Gpus(8))
    two.close()
    assert team.count_gpus() == Gpus(0, "machine 1 is gone")


def test_a_stranger_at_the_door_is_let_go_and_a_machine_is_greeted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "_GREETING_S", 1)
    silent, arrived = socket.socketpair()
    with silent:
        assert nodes._greeted(arrived, "secret") is None  # after a second of silence
        assert silent.recv(4096).startswith(b"\0\0\0")
        assert silent.recv(1) == b""
    other, arrived = socket.socketpair()
    wrong = threading.Thread(target=_comes, args=(other, "guessed"))
    wrong.start()
    assert nodes._greeted(arrived, "secret") is None
    wrong.join()
    machine, arrived = socket.socketpair()
    right = threading.Thread(target=_comes, args=(machine, "secret"))
    right.start()
    greeted = nodes._greeted(arrived, "secret")
    right.join()
    assert greeted is not None
    assert greeted[0] == 3
    greeted[1].close()


def _comes(opened: socket.socket, secret: str) -> None:
    connection = Connection(opened.detach())
    with contextlib.suppress(AuthenticationError, EOFError, OSError):
        transport.answer_challenge(connection, secret.encode())
        transport.deliver_challenge(connection, secret.encode())
        connection.send(3)
    connection.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def agents(folder: Path, *options: str, faults: str) -> "list[subprocess.Popen[str]]":
    """Start two torchrun agents with a rank each, as two machines have them."""
    port = str(free_port())
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "SWEEP_FAULTS": faults,
        "SWEEP_STARTS": str(folder),
    }
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
                *("--node-rank", str(node), "--nproc-per-node", "1"),
                *("--master-addr", "127.0.0.1", "--master-port", port),
                *("-m", "tests.injected_sweep", "--backend", "injected", *options),
                *("--records", str(folder / f"{node}" / "r.jsonl")),
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]


def test_a_rank_lost_here_is_named_though_another_machine_asked_first_to_stop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("fork")
    here, upstream = context.Pipe()
    monkeypatch.setattr(worker, "main", lambda *given, **more: os.kill(os.getpid(), signal.SIGKILL))
    supervised = supervisor.Supervisor(a_job(ranks=2), tmp_path, upstream, context=context)
    hear = supervised.ranks.hear

    def hear_late(timeout_s: float, take: Callable[[object], None]) -> bool:
        while len(supervised.ranks.ended()) < 2:
            time.sleep(0.01)
        return hear(timeout_s, take)

    monkeypatch.setattr(supervised.ranks, "hear", hear_late)
    here.send(Stop())
    supervised.run()
    said = []
    while here.poll():
        said.append(here.recv())
    last = said[-1]
    assert isinstance(last, Failed)
    assert re.fullmatch(
        r"rank 0 \(pid \d+\) was ended by SIGKILL, rank 1 \(pid \d+\) was ended by SIGKILL",
        last.reason,
    )
    assert last.blame == 4


def test_two_torchrun_agents_make_one_sweep_that_rank_0_writes(tmp_path: Path) -> None:
    options = ("--algos", "ring,tree", "--protos", "ll", "--min-bytes", "1K", "--max-bytes", "2K")
    # Rank 1, which goes wrong, is on the other machine.
    faults = "ring/ll=hang@1,tree/ll=crash@1"
    both = agents(tmp_path, *options, "--timeout", "10", faults=faults)
    said = [process.communicate(timeout=180) for process in both]
    assert [process.returncode for process in both] == [1, 1]  # as the statuses below ask for
    out, err = said[0]
    assert said[1][0] == ""
    assert "2 of 3 combinations did not come through: injected ring/ll (hang)" in err
    assert re.search(r"#  Rank  1 Group  0 Pid +\d+ on +node1 device  0", out)
    assert not (tmp_path / "1").exists()
    rows = [
        row
        for row in Reader(tmp_path / "0" / "r.jsonl")
        if isinstance(row, Measurement) and row.op == "all_reduce" and row.launch == "eager"
    ]
    assert {row.dims["nodes"] for row in rows} == {2}
    found = {row.implementation: (row.status, row.reason or "") for row in rows}
    assert found["injected"] == ("ok", "")
    assert found["injected ring/ll"][0] == "hang"
    assert re.match(
        r"no rank is behind, all of \d to \d are in all_reduce", found["injected ring/ll"][1]
    )
    assert found["injected tree/ll"][0] == "error"
    assert re.match(r"rank 1 \(pid \d+\) was ended by SIGKILL; at ", found["injected tree/ll"][1])
    logs = sorted(path.name for path in (tmp_path / "0" / "probe" / "injected").iterdir())
    assert logs == ["rank-0.nccl.log", "rank-1.nccl.log"]
