"""`python -m collectives._host.peer_process FD`: what `peer_tests` tries, in a process of its own.

A write that never ends, or a driver that takes the process with it, ends this process alone.
"""

import sys
from multiprocessing.connection import Connection

from collectives._host.child import Ended, Lost, Started, WhyNot, end_with
from collectives._host.peer_tests import Gpus, run
from verifyscope.errors import reason_of


def main() -> None:
    """Load torch, try all of it, and say it upstream."""
    upstream = Connection(int(sys.argv[1]))
    import torch

    from collectives._host.torch_gpus import TorchGpus
    from verifyscope import nvml

    end_with(upstream)
    upstream.send(Started())
    if torch.version.cuda is None:
        upstream.send(WhyNot(f"torch {torch.__version__} is built without CUDA"))
        return
    if not torch.cuda.is_available():
        upstream.send(WhyNot("torch finds no GPU that it can use"))
        return
    with nvml.session() as driver:
        speak(upstream, TorchGpus(torch.cuda, driver))


def speak(upstream: Connection, gpus: Gpus) -> None:
    """Run the tests on `gpus`; the last thing that is said is that they ended, or why not."""
    try:
        run(gpus, upstream.send)
    except Exception as error:  # whatever the driver throws is a result of the step
        upstream.send(Lost("error", reason_of(error)))
        return
    upstream.send(Ended())


if __name__ == "__main__":
    main()
