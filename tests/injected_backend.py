"""A backend for tests: gloo moves the data, and each rank logs as NCCL does and may go wrong.

It reads the settings of a combination as NCCL would, so that statuses are decided from logs. What
goes wrong is told by SWEEP_FAULTS, such as "ring/ll=hang,tree/ll=corrupt@1": a combination, a
fault, and with @ the first start in which it shows (0 is the probe).

    hang      rank 1 sleeps at 2 KiB                 ignored   the log shows another choice
    crash     rank 1 is killed there                 plugin    a plugin sets NCCL_PROTO=LL
    raise     rank 1 raises there                    refused   NCCL has no such algorithm
    corrupt   rank 1 has three wrong values there    silent    the log shows no choice
    bits      rank 1 has another last bit at 4 KiB in the integrity stress
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from collectives._sweep.backend import GLOO, Backend, Member, Prepared
from collectives._sweep.combination import Combination
from collectives._sweep.job import Job

if TYPE_CHECKING:
    import torch

FAULTS, STARTS = "SWEEP_FAULTS", "SWEEP_STARTS"
WRONG_RANK, WRONG_ELEMENTS = 1, 3
_BAD_BYTES, _UNSAFE_BYTES = 2048, 4096
_VERSION = "2.29.7+cuda12.9"


def fault_of(combination: Combination) -> tuple[str, int]:
    """Return what goes wrong with a combination, "" for nothing, and from which start on."""
    for entry in os.environ.get(FAULTS, "").split(","):
        name, _, fault = entry.partition("=")
        if name == combination.choice:
            word, _, since = fault.partition("@")
            return word, int(since or 0)
    return "", 0


def _start(job: Job, rank: int) -> int:
    """Return how often this combination was started before, from a file that tests may name."""
    folder = os.environ.get(STARTS)
    if folder is None:
        return 0
    place = Path(folder) / f"{job.combination.slug}-{rank}"
    count = len(place.read_text()) if place.exists() else 0
    with place.open("a") as file:
        file.write({"probe": "p", "time": "t", "stress": "s"}[job.purpose])
    return count


class _Log:
    """Writes what NCCL would, where it is asked to."""

    def __init__(self, rank: int) -> None:
        path = os.environ.get("NCCL_DEBUG_FILE") if os.environ.get("NCCL_DEBUG") == "INFO" else None
        self.path, self.rank = None if path is None else Path(path), rank

    def say(self, text: str, level: str = "INFO") -> None:
        """Add a line."""
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(f"secret-host:{os.getpid()}:{os.getpid()} [0] NCCL {level} {text}\n")


def _greet(log: _Log, job: Job, fault: str) -> None:
    log.say(f"NCCL version {_VERSION}")
    for name, value in os.environ.items():
        if name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG"):
            log.say(f"{name} set by environment to {value}")
    if fault == "plugin":
        log.say('NET/OFI Setting NCCL_PROTO to "LL"')
    log.say("NET/Socket : Using [0]eth0:10.20.30.40<0>")
    channels = os.environ.get("NCCL_MAX_CTAS", "2")
    log.say(
        f"{channels} coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels, "
        f"2 p2p channels per peer"
    )
    way = "SHM/direct/direct" if os.environ.get("NCCL_P2P_DISABLE") == "1" else "P2P/CUMEM"
    log.say(f"Channel 00/0 : {log.rank}[0] -> {(log.rank + 1) % job.ranks}[1] via {way}")


def _choose(log: _Log, op: str, size: int, fault: str) -> None:
    if log.rank or fault == "silent" or op == "all_to_all":
        return
    function = "".join(word.capitalize() for word in op.split("_"))
    algorithm = os.environ.get("NCCL_ALGO", "Ring").upper()
    protocol = os.environ.get("NCCL_PROTO", "LL").upper()
    if fault == "ignored":
        algorithm, protocol = "RING", "SIMPLE"
    log.say(
        f"{function}: {size} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..1}}"
    )


def _misbehave(fault: str, rank: int, log: _Log) -> None:
    if fault == "refused":
        log.say(
            "Error : no algorithm/protocol available for function AllReduce with datatype "
            "ncclBfloat16. NCCL_ALGO was set to NVLS.",
            "WARN",
        )
        raise RuntimeError("NCCL error: invalid usage, at /home/secret-user/nccl.cc 10.20.30.40:99")
    if rank != WRONG_RANK:
        return
    if fault == "hang":
        time.sleep(600)
    if fault == "crash":
        print("a word before the end", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "raise":
        raise ValueError("no such\nlink")


def prepare(member: Member) -> Prepared:
    """Return the collective of gloo, with the fault of this combination."""
    job, rank = member.job, member.rank
    word, since = fault_of(job.combination)
    fault = word if _start(job, rank) >= since else ""
    log = _Log(rank)
    _greet(log, job, fault)
    if fault == "plugin":
        ctypes.CDLL(None).setenv(b"NCCL_PROTO", b"LL", 1)

    def run(output: "torch.Tensor", source: "torch.Tensor") -> None:
        size = max(source.numel(), output.numel()) * source.element_size()
        if size == _BAD_BYTES:
            _misbehave(fault, rank, log)
        job.collective.run(output, source)
        _choose(log, job.collective.name, size, fault)
        if size == _BAD_BYTES and fault == "corrupt" and rank == WRONG_RANK:
            output[:WRONG_ELEMENTS] += 1
        if fault == "bits" and job.purpose == "stress" and rank == WRONG_RANK:
            _flip(output, size)

    return Prepared(run=run)


def _flip(output: "torch.Tensor", size: int) -> None:
    import torch

    if size == _UNSAFE_BYTES:
        output[-1:].view(torch.int16).bitwise_xor_(1)


INJECTED = Backend(
    name="injected",
    torch_name=GLOO.torch_name,
    on_device=False,
    chooses=True,
    iterations=3,
    batches=2,
    depth=4,
    prepare=prepare,
)
