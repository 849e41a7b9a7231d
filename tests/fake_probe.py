"""Stands for the ranks of a first all-reduce: `python -m tests.fake_probe MODE FOLDER FD`.

Each writes what NCCL would into a log of its own, where NCCL_DEBUG_FILE says.
"""

import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from collectives._host.child import Ended, Lost, Started, WhyNot, end_with
from collectives._host.facts import Summed
from collectives._host.peer_tests import Step

LINES = (
    "NCCL version 2.29.7+cuda12.9",
    "NCCL_PROTO set by environment to LL",
    "NCCL_ALGO set by environment to Ring",
    "comm 0x{rank}a rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId 1 commId 0x9 - "
    "Init START",
    "Pattern 4, crossNic 0, nChannels 1, bw 0.100000/0.100000, type SYS/PIX, sameChannels 1",
    "Channel 00 : {rank}[{rank}] -> {other}[{other}] via SHM/direct/direct",
)


def main(mode: str, upstream: Connection) -> None:
    """Do as `mode` says, with NCCL's log on as the probe asks for it."""
    end_with(upstream)
    upstream.send(Started())
    if mode == "why not":
        upstream.send(WhyNot("torch 9.9 has no NCCL"))
        return
    assert os.environ["NCCL_DEBUG"] == "INFO"
    assert "GRAPH" in os.environ["NCCL_DEBUG_SUBSYS"].split(",")
    upstream.send(Step(name="a first all-reduce over 2 GPUs"))
    for rank in (0, 1):
        file = os.environ["NCCL_DEBUG_FILE"].replace("%h", "secrethost").replace("%p", f"{rank}7")
        lines = (line.format(rank=rank, other=1 - rank) for line in LINES)
        Path(file).write_text(
            "".join(f"secrethost:{rank}7:{rank}8 [{rank}] NCCL INFO {line}\n" for line in lines)
        )
        upstream.send(Summed(rank=rank, wrong=5 if mode == "wrong" else 0))
    if mode == "hangs":
        time.sleep(600)
    upstream.send(Lost("error", "rank 1 died") if mode == "dies" else Ended())


if __name__ == "__main__":
    main(sys.argv[1], Connection(int(sys.argv[3])))
