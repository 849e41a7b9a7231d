"""`python -m collectives._host.probe_process BACKEND RANKS FOLDER FD`: a first all-reduce, checked.

torch is imported once, the ranks are forked from it, one a GPU: each is as fresh as a worker of a
server. Each sums small whole numbers at SIZES_BYTES and compares them; what NCCL says goes where
the environment sends it.
"""

import multiprocessing
import os
import sys
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

import torch
import torch.distributed as dist

from collectives._host.child import Ended, Lost, Started, WhyNot, end_with
from collectives._host.facts import Summed
from collectives._host.peer_tests import Step
from verifyscope.errors import reason_of

# Four rows of Kimi-K2.5 and a prefill: what one choice of NCCL is for, and another.
SIZES_BYTES = (57_344, 2**24)
_LONGEST_S = 86_400

_context = multiprocessing.get_context("fork")


def main() -> None:
    """Start the ranks and hand on what they say; the first that fails ends the probe."""
    backend, ranks, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    upstream = Connection(int(sys.argv[4]))
    upstream.send(Started())
    reason = why_not(backend)
    if reason is not None:
        upstream.send(WhyNot(reason))
        return
    upstream.send(Step(name=f"a first all-reduce over {ranks} GPUs"))
    pipes: dict[Connection, int] = {}
    processes: list[ForkProcess] = []
    for rank in range(ranks):
        receiver, sender = _context.Pipe(duplex=False)
        process = _context.Process(target=run_rank, args=(backend, rank, ranks, folder, sender))
        process.start()
        sender.close()
        pipes[receiver] = rank
        processes.append(process)
    end_with(upstream)
    lost = _hand_on(pipes, upstream)
    if lost is None:
        for process in processes:
            process.join()
    upstream.send(lost or Ended())


def why_not(backend: str) -> str | None:
    """Return why this torch has no such backend."""
    if backend != "nccl":
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return None if dist.is_nccl_available() else f"torch {torch.__version__} has no NCCL"


def run_rank(backend: str, rank: int, ranks: int, folder: Path, pipe: Connection) -> None:
    """Join, sum, compare, say it, leave; an error is said, too."""
    try:
        device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            backend,
            store=dist.FileStore(str(folder / "store"), ranks),  # type: ignore[attr-defined]  # not in __all__
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=_LONGEST_S),  # who watches from outside ends it first
            device_id=device if device.type == "cuda" else None,
        )
        wrong = sum(wrong_values(rank, ranks, size, device) for size in SIZES_BYTES)
        pipe.send(Summed(rank=rank, wrong=wrong))
    except BaseException as error:
        pipe.send(Lost("error", f"rank {rank}: {reason_of(error)}"))
        os._exit(1)
    dist.destroy_process_group()
    os._exit(0)


def wrong_values(rank: int, ranks: int, size_bytes: int, device: torch.device) -> int:
    """Sum over the ranks and return how many of the sums are not what they must be.

    Rank r holds (place + r) % span: whole numbers whose sums are at most 256, exact in bfloat16.
    """
    span = max(2, 256 // ranks)
    places = torch.arange(size_bytes // 2, device=device)
    held = ((places + rank) % span).to(torch.bfloat16)
    dist.all_reduce(held)
    wanted = sum(((places + other) % span).to(torch.float32) for other in range(ranks))
    return int((held.float() != wanted).sum())


def _hand_on(pipes: dict[Connection, int], upstream: Connection) -> Lost | None:
    """Hand on what ranks say until all have said it; return what became of a lost one."""
    while pipes:
        for ready in wait(list(pipes)):
            if not isinstance(ready, Connection):
                continue
            rank = pipes[ready]
            try:
                message = ready.recv()
            except (EOFError, OSError):
                return Lost("error", f"rank {rank} died")
            if isinstance(message, Lost):
                return message
            del pipes[ready]
            upstream.send(message)
    return None


if __name__ == "__main__":
    main()
