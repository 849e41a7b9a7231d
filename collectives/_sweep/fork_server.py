"""`python -m collectives._sweep.fork_server FD`: torch is imported once, ranks are forked from it.

It touches neither CUDA nor NCCL, so each rank is as fresh as a new process, and a job starts in
milliseconds where importing torch takes seconds a rank. A `Supervisor` watches the ranks of each
job. When the sweep that started it goes away, the ranks and it end.
"""

import gc
import multiprocessing
import os
import shutil
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed  # so that no rank has to import it

from collectives._sweep.messages import CountGpus, Gpus, Ready, Stop
from collectives._sweep.supervisor import Supervisor
from verifyscope.child import ending
from verifyscope.rank_processes import end

_COUNTING_S = 60.0

_context = multiprocessing.get_context("fork")


def main() -> None:
    """Answer what the sweep asks, until it goes away."""
    upstream = Connection(int(sys.argv[1]))
    gc.freeze()  # what is imported never becomes garbage: a rank need not look through it
    try:
        upstream.send(Ready())
        while True:
            request = upstream.recv()
            if isinstance(request, CountGpus):
                upstream.send(_count_gpus())
            elif not isinstance(request, Stop):  # one that came after its job was over
                job, folder = request
                try:
                    Supervisor(job, Path(folder), upstream, context=_context).run()
                finally:  # the sweep does this too, unless it was killed
                    shutil.rmtree(folder, ignore_errors=True)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _count_gpus() -> Gpus:
    """Ask torch in a process of its own: counting may touch CUDA."""
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_send_gpus, args=(sender,))
    process.start()
    sender.close()
    try:
        found = receiver.recv() if receiver.poll(_COUNTING_S) else Gpus(0, "the driver hangs")
    except EOFError:
        process.join()
        found = Gpus(0, f"counting them {ending(process.exitcode)}")
    end([process])
    return found if isinstance(found, Gpus) else Gpus(0)


def _send_gpus(sender: Connection) -> None:
    if torch.version.cuda is None:
        sender.send(Gpus(0, f"torch {torch.__version__} is built without CUDA"))
    elif not torch.distributed.is_nccl_available():
        sender.send(Gpus(0, f"torch {torch.__version__} is built without NCCL"))
    else:
        sender.send(Gpus(torch.cuda.device_count()))


if __name__ == "__main__":
    main()
    os._exit(0)  # taking torch down in order takes seconds, and nothing here needs it
