"""`python -m tests.injected_sweep --backend injected ...`: the sweep with the backend of tests.

SWEEP_OTHERS=1 puts stand-ins for the all-reduces of others beside it.
"""

import os

from collectives import sweep
from collectives._others import entries
from collectives._sweep import backend
from tests.injected_backend import INJECTED
from verifyscope import cli

if __name__ == "__main__":
    backend.register(INJECTED)
    if os.environ.get("SWEEP_OTHERS"):
        from tests import other_libraries

        for other in other_libraries.others():
            entries.register(other)
    cli.run(sweep.application, "python -m tests.injected_sweep")
