"""A server without GPUs: it starts workers that log what NCCL would, and serves until it is told.

    python tests/nccl_workers.py --ranks 8 --drop 3 --empty 5 --overwrite 1=Simple --serve

`--drop`: a rank that is started without NCCL_PROTO; `--empty`: one whose whole environment was
replaced; `--overwrite`: one that sets another value itself. The lines are those of NCCL 2.29.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

READ = (
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_BUFFSIZE",
    "NCCL_PROTO",
    "NCCL_ALGO",
    "NCCL_COMM_ID",
    "NCCL_GRAPH_FILE",
)


def serve() -> int:
    """Start the workers, and serve until SIGINT or SIGTERM; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--drop", type=int, action="append", default=[])
    parser.add_argument("--empty", type=int, action="append", default=[])
    parser.add_argument("--overwrite", action="append", default=[])
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--idle", type=float, default=0.15)
    parser.add_argument("--status", type=int, default=0)
    given = parser.parse_args()
    overwrite = dict(pair.split("=") for pair in given.overwrite)
    print("serving tokens", flush=True)
    workers = []
    for rank in range(given.ranks):
        environment = dict(os.environ)
        if rank in given.drop:
            environment.pop("NCCL_PROTO", None)
        if rank in given.empty:
            environment = {"PATH": os.environ["PATH"]}
        words = [str(rank), str(given.ranks), overwrite.get(str(rank), "")]
        command = [sys.executable, "-S", "-E", __file__, "worker", *words]
        worker = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        workers.append(worker)
    for worker in workers:
        if worker.stdout is not None:
            worker.stdout.readline()  # it has logged all
    time.sleep(given.idle)
    if given.serve:
        _wait(deaf=given.deaf)
    for worker in workers:
        worker.communicate()
    return 130 if given.serve else int(given.status)


def _wait(*, deaf: bool) -> None:
    stopped: list[int] = []

    def hear(number: int, frame: object) -> None:
        print(f"got {signal.Signals(number).name}", flush=True)
        if number != signal.SIGUSR1 and not deaf:
            stopped.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, hear)
    print("ready", flush=True)
    while not stopped:
        time.sleep(0.02)
    time.sleep(0.2)  # a second signal would be heard


def work(rank: int, ranks: int, overwrite: str) -> None:
    """Write the lines of one rank, and stay until the server closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _log(rank, ranks, overwrite)
    print("logged", flush=True)
    sys.stdin.read()


def _log(rank: int, ranks: int, overwrite: str) -> None:
    if overwrite:
        os.environ["NCCL_PROTO"] = overwrite
    name = os.environ.get("NCCL_DEBUG_FILE")
    if name is None or os.environ.get("NCCL_DEBUG") != "INFO":
        return
    host = os.uname().nodename.partition(".")[0]
    path = name.replace("%h", host).replace("%p", str(os.getpid())).replace("%%", "%")
    with Path(path).open("w") as file:
        for line in lines(rank, ranks, os.environ):
            file.write(f"{host}:{os.getpid()}:{os.getpid()} [{rank}] NCCL INFO {line}\n")


def lines(rank: int, ranks: int, environment: Mapping[str, str]) -> list[str]:
    """Return what NCCL says in one rank at its start and, in rank 0, of its calls."""
    seat = f"ncclCommInitRank comm 0x5{rank}0 rank {rank} nranks {ranks} cudaDev {rank} "
    seat += f"nvmlDev {rank} busId {rank + 1}000 commId 0x9a6b"
    found = ["NCCL version 2.29.7+cuda12.9"] if rank == 0 else []
    found.append(f"{seat} - Init START")
    found.append(f"comm 0x5{rank}0 rank {rank} nRanks {ranks} nNodes 1 localRanks {ranks} ")
    found += [
        f"{name} set by environment to {environment[name]}" + "." * environment[name].isdigit()
        for name in READ
        if name in environment
    ]
    found.append(f"{seat} - Init COMPLETE")
    if rank == 0:
        protocol = environment.get("NCCL_PROTO", "LL").upper()
        found += [
            f"AllReduce: {size} Bytes -> Algo RING proto {protocol} channel{{Lo..Hi}}={{0..3}}"
            for size in (14_336, 57_344, 114_688)
        ]
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        work(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(serve())
