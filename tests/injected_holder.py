"""`python -m tests.injected_holder FD`: a holder whose ranks go wrong as the case's seed says.

What a rank does stands in SEEDS; any other seed measures as always.
"""

import os
import time
from collections.abc import Callable
from typing import Any

from graphs._stub import holder, host_measuring
from graphs._stub.asked import Job
from graphs._stub.device_measuring import ModeBroke
from graphs._stub.messages import Broke, Built, Passed
from graphs._stub.ranks import Ranks
from verifyscope.errors import UsageError

DIES, HANGS, RAISES, REFUSES, RUNS_OUT, BREAKS = 11, 12, 13, 14, 15, 16
_measure = host_measuring.measure


def _spoiled(job: Job, ranks: Ranks, *, send: Callable[[object], None], **rest: Any) -> None:
    seed = job.case.seed
    if seed not in (DIES, HANGS, RAISES, REFUSES, RUNS_OUT, BREAKS):
        _measure(job, ranks, send=send, **rest)
        return
    send(Built(facts={"weight_sets": 3}, parts=("attention",)))
    if seed == REFUSES:
        raise UsageError("this cannot be had here; give another")
    if seed == BREAKS and "graph" not in job.without:
        raise ModeBroke(Broke(mode="graph", op="experts_down", reason="it asks the host"))
    send(Passed(mode="eager", samples=(2e-3, 2e-3, 2e-3), cache="warm", clock="perf-counter"))
    if ranks.rank < ranks.count - 1:
        rest["beat"]()
    else:
        time.sleep(0.2)  # rank 0's words are out by then
        _end(seed)
    ranks.meet()


def _end(seed: int) -> None:
    if seed == DIES:
        print("the last words of a rank", flush=True)
        os._exit(7)
    if seed == HANGS:
        time.sleep(3600)
    if seed == RAISES:
        raise ValueError("a wrong number")
    if seed == RUNS_OUT:
        raise MemoryError("cannot allocate 12 GB")


if __name__ == "__main__":
    host_measuring.measure = _spoiled
    holder.main()
    os._exit(0)
